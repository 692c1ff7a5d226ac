"""The turns labelled by hand, as trajectories."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.trajectory import Trajectory

FILE = Path(__file__).with_name("data") / "labelled_turns.yaml"
_NAMES = {"e": "external", "f": "files", "c": "computation"}


@dataclass(frozen=True)
class Labelled:
    """One turn: its call, and what a person says that it uses."""

    tool: str
    arguments: dict[str, Any]
    uses: frozenset[str]
    exit: int

    @property
    def shown(self) -> str:
        return f"{self.tool} {json.dumps(self.arguments)[:200]}"


def _turn(entry: dict[str, Any]) -> Labelled:
    uses = frozenset(_NAMES[letter] for letter in str(entry.get("is", "")).split())
    arguments: dict[str, Any] = {}
    if "bash" in entry:
        tool, arguments = "execute_bash", {"command": entry["bash"]}
    elif "view" in entry:
        tool, arguments = "str_replace_editor", {"command": "view", "path": entry["view"]}
    elif "create" in entry:
        arguments = {"command": "create", "path": entry["create"], "file_text": entry["text"]}
        tool = "str_replace_editor"
    elif "edit" in entry:
        arguments = {"command": "str_replace", "path": entry["edit"]}
        tool, arguments = "str_replace_editor", arguments | {"old_str": entry["old"], "new_str": entry["new"]}
    else:
        tool, arguments = ("submit", {}) if "submit" in entry else ("", {"said": entry["say"]})
    return Labelled(tool, arguments, uses, entry.get("exit", 0))


@functools.cache
def load() -> dict[str, list[Labelled]]:
    """All turns: those of each example by `domain`, `traps`, and `held_out`."""
    content = yaml.load(FILE.read_text("utf-8"), Loader=yaml.CSafeLoader)
    found = {one["domain"]: [_turn(turn) for turn in one["turns"]] for one in content["trajectories"]}
    return found | {name: [_turn(turn) for turn in content[name]] for name in ("traps", "held_out")}


EXAMPLES = tuple(name for name in load() if name not in ("traps", "held_out"))


def trajectory(turns: list[Labelled], task: str = "A task.") -> Trajectory:
    return Trajectory(_events(turns, task))


def _events(turns: list[Labelled], task: str) -> Iterator[ev.Event]:
    yield ev.RunStarted(run_id="example", task=task, model="scripted/example")
    yield ev.MessageAdded(message={"role": "user", "content": task})
    for number, turn in enumerate(turns, 1):
        text = turn.arguments.get("said", "")
        yield ev.ModelReplied(step=number, message={"role": "assistant", "content": text}, model_time=1.0)
        if not turn.tool:
            yield ev.MessageAdded(message={"role": "user", "content": "Call a tool."})
            continue
        call = f"call_{number}"
        raw = json.dumps(turn.arguments)
        named = {"step": number, "call_id": call, "tool": turn.tool, "arguments": turn.arguments}
        yield ev.CallProposed(**named, raw_arguments=raw)
        yield ev.CallStarted(**named)
        bash = turn.tool == "execute_bash"
        yield ev.CallFinished(
            step=number,
            call_id=call,
            observation=f"output {number}",
            exit_code=turn.exit if bash else None,
            error="editor" if turn.exit and not bash else None,
        )
    yield ev.RunFinished(stop_reason="submitted", steps=len(turns))
