"""Texts of a run and of its replay: what differs in each run is not compared, and hostile text takes no time."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_sandbox_nb.runs.replay import report
from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.journal import Journal


def run_of(folder: Path, observation: str) -> Run:
    """A run without isolation whose only call has this result."""
    call = {"id": "c", "type": "function", "function": {"name": "execute_bash", "arguments": "{}"}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    journal = Journal(folder)
    for event in (
        ev.RunStarted(run_id=folder.name, task="t", model="m"),
        ev.SandboxReady(sandbox_id="s", protection={"isolation": "process"}, start_time=0.0),
        ev.ModelReplied(step=1, message=message),
        ev.CallProposed(step=1, call_id="c", tool="execute_bash", raw_arguments="{}", arguments={}),
        ev.CallFinished(step=1, call_id="c", observation=observation),
    ):
        journal.append(event)
    journal.close()
    return Run.load(folder)


@pytest.mark.parametrize(
    ("recorded", "now", "same"),
    [
        ("in /tmp/llm-sandbox-a1/testbed/x", "in /tmp/llm-sandbox-b2/testbed/x", True),
        ("in /tmp/llm-sandbox-a1/testbed/x", "in /tmp/llm-sandbox-b2/testbed/y", False),
        ("'/x/llm-sandbox-a1/tmp/llm-sandbox/12ab.stdout'", "'/x/llm-sandbox-b2/tmp/llm-sandbox/34cd.stdout'", True),
        ("all is in /tmp/llm-sandbox/12ab.stderr", "all is in /var/spill/34cd.stderr", True),
        ("all is in /tmp/llm-sandbox/12ab.stderr a/b", "all is in /tmp/llm-sandbox/34cd.stderr a/b", True),
        ("all is in /tmp/llm-sandbox/7-18ab.out", "all is in /tmp/llm-sandbox/9-18cd.out", True),
        ("a/b", "a/c", False),
        ("/" * 1_000_000, "/llm-sandbox-" * 100_000, False),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_what_differs_in_each_run_is_not_compared(
    tmp_path: Path, recorded: str, now: str, same: bool
) -> None:
    compared = report(run_of(tmp_path / "a", recorded), run_of(tmp_path / "b", now), [], ())
    assert compared.ok == same
