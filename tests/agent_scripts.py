"""Scripts for tests of the loop, and a record of what the loop did with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.runs.solve import solve
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.journal import read_journal
from llm_sandbox_nb.trajectory.trajectory import Trajectory

SUBMIT: dict[str, Any] = {"calls": [{"tool": "submit"}]}


def bash(command: str, **arguments: Any) -> dict[str, Any]:
    """A call of `execute_bash`."""
    return {"tool": "execute_bash", "arguments": {"command": command, **arguments}}


def edit(command: str, path: str, **arguments: Any) -> dict[str, Any]:
    return {"tool": "str_replace_editor", "arguments": {"command": command, "path": path, **arguments}}


def raw(tool: str, arguments: str) -> dict[str, Any]:
    """A call whose arguments are this text, JSON or not."""
    return {"tool": tool, "raw_arguments": arguments}


def turn(*calls: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"calls": list(calls), **more}


def script_text(*turns: dict[str, Any], **more: Any) -> str:
    return yaml.safe_dump({"turns": list(turns), **more}, allow_unicode=True)


def script(folder: Path, *turns: dict[str, Any], **more: Any) -> str:
    path = folder / "script.yaml"
    path.write_text(script_text(*turns, **more), "utf-8")
    return f"scripted/{path}"


async def solved(folder: Path, *turns: dict[str, Any], **options: Any) -> Run:
    """Play the turns in a process sandbox; the run is written below `folder`."""
    options = {"isolation": "process", "output_dir": folder / "runs"} | options
    run = await solve(options.pop("task", "A task."), model=script(folder, *turns), **options)
    check_record(run)
    return run


def check_record(run: Run) -> None:
    """What holds for every record: loaded as live, one result for each call, a valid history."""
    loaded = Trajectory(read_journal(run.folder))
    assert loaded.events == run.trajectory.events
    assert loaded.steps == run.trajectory.steps
    assert loaded.events[0].kind == "run.started"
    assert loaded.events[-1].kind == "run.finished"
    said = [event for event in loaded.events if not isinstance(event, ev.Facts)]
    assert [event.parent for event in said] == [None, *(event.id for event in said[:-1])]
    assert {event.step for event in loaded.events if isinstance(event, ev.StepFacts)} == {
        step.number for step in loaded.steps
    }
    check_messages(list(loaded.messages()))
    written = json.loads((run.folder / "trajectory.json").read_text("utf-8"))
    assert written["problem_statement"] == run.task


def check_messages(messages: list[dict[str, Any]]) -> None:
    """Every call has exactly one result, before anything else is said, in order."""
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            assert waiting
            assert message["tool_call_id"] == waiting.pop(0)
            continue
        assert not waiting, f"no result for {waiting}"
        waiting = [call["id"] for call in message.get("tool_calls", ())]
        for call in message.get("tool_calls", ()):
            assert isinstance(json.loads(call["function"]["arguments"]), dict)
    assert not waiting


def results(run: Run) -> list[ev.CallFinished]:
    return [call.result for step in run.steps for call in step.calls if call.result]


def outputs(run: Run) -> list[str]:
    return [result.observation for result in results(run)]
