"""Texts of a run and of its replay: what differs in each run is not compared, and hostile text takes no time."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from llm_sandbox_nb.runs.replay import report
from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.journal import Journal


def run_of(folder: Path, observation: str, stdout: str = "", *, truncated: bool = False) -> Run:
    """A run without isolation whose only call has this result."""
    call = {"id": "c", "type": "function", "function": {"name": "execute_bash", "arguments": "{}"}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    journal = Journal(folder)
    output = journal.store_text(stdout)
    for event in (
        ev.RunStarted(run_id=folder.name, task="t", model="m"),
        ev.SandboxReady(sandbox_id="s", protection={"isolation": "process"}, start_time=0.0),
        ev.ModelReplied(step=1, message=message),
        ev.CallProposed(step=1, call_id="c", tool="execute_bash", raw_arguments="{}", arguments={}),
        ev.CallFinished(step=1, call_id="c", observation=observation, stdout=output, truncated=truncated),
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


SHOWN = "begin [all is in /tmp/llm-sandbox/{}.stdout] end"


@pytest.mark.parametrize(("hidden", "ignore", "first"), [
    ("pid 1", "x", ""), ("pid 2", "x", "pid 2"), ("pid 2", r"pid \d", ""), ("pid 1\nmore", "x", "more"),
])  # fmt: skip
def test_the_part_of_an_output_that_the_model_was_not_shown_is_compared_too(
    hidden: str, ignore: str, first: str, tmp_path: Path
) -> None:
    many = "line\n" * 20_000
    recorded = run_of(tmp_path / "a", SHOWN.format("1a"), f"{many}pid 1\n{many}")
    now = run_of(tmp_path / "b", SHOWN.format("2b"), f"{many}{hidden}\n{many}")
    compared = report(recorded, now, [re.compile(ignore)], ())
    assert [one.now for one in compared.differences] == ([first] if first else [])
    assert (compared.first is None) == (not first)


def test_a_replay_says_which_output_is_compared_only_in_part(tmp_path: Path) -> None:
    shown = SHOWN.format("1a")
    runs = [run_of(tmp_path / name, shown, "all that was recorded", truncated=True) for name in "ab"]
    compared = report(*runs, [], ())
    assert compared.ok
    assert "In step 1, only the recorded part of the output is compared." in str(compared)


@pytest.mark.parametrize("without", ["journal", "output"])
def test_an_output_that_the_record_does_not_have_is_not_compared(without: str, tmp_path: Path) -> None:
    """A record in another format has only what the model was shown."""
    runs = [run_of(tmp_path / name, SHOWN.format("1a"), f"{name} " * 50_000) for name in "ab"]
    if without == "journal":
        runs[0] = Run(runs[0].folder, runs[0].trajectory, has_journal=False)
    else:
        (output,) = [
            path for path in runs[0].folder.rglob("*") if path.is_file() and path.stat().st_size > 90_000
        ]
        output.unlink()
    compared = report(*runs, [], ())
    assert compared.ok
    assert "In step 1, only the recorded part of the output is compared." in str(compared)
