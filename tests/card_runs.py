"""Runs made of events, for tests that need one to show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llm_sandbox_nb.card.bundle import Caps
from llm_sandbox_nb.card.card import Card
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.journal import Journal

PROTECTION: dict[str, Any] = {
    "isolation": "docker", "profile": "standard", "user": "root", "capabilities": ["chown"],
    "no_new_privileges": True, "seccomp": "default", "network": "open", "read_only_system": False,
    "memory_bytes": 2 * 1024**3, "pids": 512, "cpus": 2.0, "details": {}, "protects": "Your files.",
    "does_not_protect": "The network.",
}  # fmt: skip


def step_events(number: int, text: str = "I look.", output: str = "out\n", **result: Any) -> list[ev.Event]:
    call = f"call_{number}"
    arguments = {"command": f"echo {number}"}
    return [
        ev.ModelRequested(step=number),
        ev.ModelReplied(
            step=number,
            message={"role": "assistant", "content": text},
            reasoning=text,
            usage=ev.Usage(prompt_tokens=10, completion_tokens=5),
            model_time=0.5,
        ),
        ev.CallProposed(
            step=number, call_id=call, tool="execute_bash", raw_arguments="{}", arguments=arguments
        ),
        ev.CallStarted(step=number, call_id=call, tool="execute_bash", arguments=arguments),
        ev.CallOutput(call_id=call, stream="stdout", text=output),
        ev.CallFinished(
            step=number, call_id=call, observation=output, stdout=output, **{"exit_code": 0, **result}
        ),
    ]


def start_event(task: str = "Count the letters.", **more: Any) -> ev.RunStarted:
    return ev.RunStarted(run_id="r1", task=task, model="scripted/x", scripted=True, **more)


def run_events(steps: int, answer: str = "3", **more: Any) -> list[ev.Event]:
    events: list[ev.Event] = [start_event()]
    events.append(ev.SandboxReady(sandbox_id="s", protection=PROTECTION, start_time=0.2))
    for number in range(1, steps + 1):
        events += step_events(number, **more)
    events.append(ev.RunFinished(stop_reason="submitted", answer=answer, steps=steps, wall_time=3.0))
    return events


def card_of(events: list[ev.Event], caps: Caps | None = None, folder: Path | None = None) -> Card:
    card = Card(caps, folder)
    for event in events:
        card.add(event)
    return card


def written(folder: Path, events: list[ev.Event]) -> Path:
    journal = Journal(folder)
    for event in events:
        if event.kind not in ev.TRANSIENT:
            journal.append(event)
    journal.close()
    return folder


def saved_file(folder: Path, name: str, data: bytes, mime: str = "", step: int = 1) -> ev.ArtifactSaved:
    path = folder / "files" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return ev.ArtifactSaved(step=step, path=name, mime=mime, size=len(data), sha256="0" * 64)
