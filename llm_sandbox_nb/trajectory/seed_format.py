"""The `trajectory.json` of the LLM-in-Sandbox paper's own package: written beside every journal, and read.

One record is one call, as there; a reply with several calls gives several, the later ones without thought.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.trajectory import Call, Step, Trajectory

FILE_NAME = "trajectory.json"


def to_seed(trajectory: Trajectory) -> dict[str, Any]:
    """The trajectory as the paper's package has it."""
    records = [record for step in trajectory.steps if step.replied for record in _records(step)]
    for number, record in enumerate(records, 1):
        record["metadata"]["step"] = number
    return {
        "problem_statement": trajectory.start.task if trajectory.start else "",
        "steps": records,
        "metadata": {"total_steps": len(records)},
    }


def dump_seed(trajectory: Trajectory) -> str:
    """The text of `trajectory.json`."""
    return json.dumps(to_seed(trajectory), indent=2, ensure_ascii=False)


def write_seed(trajectory: Trajectory, folder: Path) -> Path:
    """Write `trajectory.json` into `folder`; a reader never sees half of it."""
    path = folder / FILE_NAME
    partial = path.with_suffix(".partial")
    partial.write_text(dump_seed(trajectory), "utf-8", newline="\n")
    return partial.replace(path)


def _records(step: Step) -> Iterator[dict[str, Any]]:
    calls: list[Call | None] = [*step.calls] or [None]
    for number, call in enumerate(calls):
        yield {
            "thought": step.thought if number == 0 else "",
            "reasoning_content": step.reasoning if number == 0 else "",
            "action": {
                "function": call.tool if call else "",
                "parameters": (call.arguments or {}) if call else {},
            },
            "observation": call.output if call else step.nudge,
            "metadata": {"step": 0, "exec_time": step.model_time if number == 0 else 0.0},
        }


def read_seed(path: Path) -> Trajectory:
    """A trajectory from a `trajectory.json`, the paper's or ours. What that form lacks stays empty.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not a trajectory.
    """
    try:
        return from_seed(json.loads(path.read_text("utf-8")), path.stem)
    except ValueError as error:
        raise ValueError(f"{path} is not a trajectory in the paper's form ({error}).") from error


def from_seed(content: Any, name: str) -> Trajectory:
    """A trajectory from what JSON gave; `name` becomes the run's id. Raises ValueError when it is none."""
    try:
        return Trajectory(_events(content, name))
    except KeyError as error:
        raise ValueError(f"it has no {error.args[0]}") from error
    except (TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"its parts are of other kinds: {error}") from error


def _events(content: dict[str, Any], name: str) -> Iterator[ev.Event]:
    yield ev.RunStarted(run_id=name, task=content["problem_statement"], model="")
    yield ev.MessageAdded(message={"role": "user", "content": content["problem_statement"]})
    steps = content["steps"]
    for number, record in enumerate(steps, 1):
        yield from _step_events(number, record)
    submitted = bool(steps) and steps[-1]["action"].get("function") in ("submit", "finish")
    if submitted:
        yield ev.RunFinished(stop_reason="submitted", steps=len(steps))


def _step_events(number: int, record: dict[str, Any]) -> Iterator[ev.Event]:
    tool = record["action"].get("function") or ""
    arguments = record["action"].get("parameters") or {}
    raw, call_id = json.dumps(arguments, ensure_ascii=False), f"call_{number}"
    function = {"name": tool, "arguments": raw}
    calls = [{"id": call_id, "type": "function", "function": function}] if tool else []
    message = {"role": "assistant", "content": record["thought"]} | ({"tool_calls": calls} if calls else {})
    yield ev.ModelReplied(
        step=number,
        message=message,
        reasoning=record.get("reasoning_content") or None,
        model_time=float(record.get("metadata", {}).get("exec_time") or 0.0),
    )
    if not tool:
        yield ev.MessageAdded(message={"role": "user", "content": record["observation"]})
        return
    yield ev.CallProposed(step=number, call_id=call_id, tool=tool, raw_arguments=raw, arguments=arguments)
    yield ev.CallStarted(step=number, call_id=call_id, tool=tool, arguments=arguments)
    yield ev.CallFinished(step=number, call_id=call_id, observation=record["observation"])
