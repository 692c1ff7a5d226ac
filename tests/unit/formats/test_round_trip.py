"""A run that is written in another format and read again is the run that it was, as far as the table says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import format_table
import pytest
from hypothesis import HealthCheck, given, settings
from random_runs import a_tree
from support import size

from llm_sandbox_nb.formats import inspect_log
from llm_sandbox_nb.formats.entries import Message, ModelReply, entries_of, events_of
from llm_sandbox_nb.formats.records import FORMATS, READ, branches_of, document, read_bytes, write_record
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.trajectory import Trajectory

LOSSLESS = ["atif", "mini-swe-agent"]
"""Formats with room for all of a branch."""


def lines(events: list[ev.Event], run: Trajectory | None = None) -> list[dict[str, Any]]:
    """The events as the journal has them, without the facts that are computed; with `run`, each has its parent."""
    found = []
    for event in events:
        if not isinstance(event, ev.StepFacts):
            parent = None
            if run is not None and not isinstance(event, ev.Facts):
                parent = run.parent(event.id)
            found.append({**json.loads(ev.dump_event(event)), "parent": parent})
    return found


@pytest.mark.parametrize("form", LOSSLESS)
def test_each_branch_of_the_runs_survives_a_round_trip(form: str) -> None:
    assert len(format_table.runs()) >= 50
    for run in format_table.runs()[:: size(3, 1)]:
        for branch, data in zip(branches_of(run), write_record(run, form), strict=True):
            (read,) = read_bytes(data, "run")
            assert read.form == form
            assert lines(read.trajectory.events) == lines(branch.path)


def test_all_branches_come_back_from_a_log_of_inspect_in_their_order() -> None:
    for run in format_table.runs()[:: size(3, 1)]:
        (log, read, _) = next(format_table.copies(run, "inspect"))
        assert lines(read.events, read) == lines(log.events, log)
        assert read.head == log.head


@pytest.mark.parametrize("form", [*LOSSLESS, "inspect"])
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(events=a_tree())
def test_any_stream_of_events_survives_a_round_trip(form: str, events: list[ev.Event]) -> None:
    run = Trajectory([ev.RunStarted(run_id="r", task="t", model="m"), *events])
    if form == "inspect":
        content = json.loads(json.dumps(ev.clean_text(inspect_log.log_content(branches_of(run)))))
        read = inspect_log.sample_events(content["samples"][0], content["eval"]["model"], "r")
        assert lines(read) == lines(run.events)
        return
    its = FORMATS[form]
    assert its.read is not None
    for branch in branches_of(run):
        entries = entries_of(branch)
        if any(isinstance(entry, Message | ModelReply) for entry in entries):
            content = json.loads(json.dumps(ev.clean_text(document(its, entries))))
            assert lines(list(events_of(its.read(content), "r"))) == lines(branch.path)


def test_the_table_on_the_page_matches_the_runs() -> None:
    page = format_table.PAGE.read_text("utf-8")
    assert format_table.filled(page) == page, "run tests/format_table.py"
    for name, fact in format_table.FACTS.items():
        empty = fact(Trajectory())
        assert any(fact(run) not in (empty, None, "", []) for run in format_table.runs()), (
            f"no run has {name}"
        )


def test_a_format_that_forgets_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The canary of the table: a writer that drops the exit codes changes it."""
    kept = format_table.measured.__wrapped__("mini-swe-agent")
    monkeypatch.setattr("llm_sandbox_nb.formats.records.add_rest", lambda *_: None)
    forgets = format_table.measured.__wrapped__("mini-swe-agent")
    assert kept["checkpoints"] == "extra"
    assert forgets["checkpoints"] == "no"
    assert forgets["replies"] == "yes"


def test_a_record_that_was_read_is_written_the_same_again() -> None:
    """Another project's record gets nothing that it had not."""
    data = Path(__file__).parents[2] / "data" / "records"
    for path in sorted(data.glob("*/*.traj*")):
        (read,) = read_bytes(path.read_bytes(), path.stem)
        (atif,) = write_record(read.trajectory, "atif")
        (again,) = read_bytes(atif, path.stem)
        assert lines(again.trajectory.events) == lines(read.trajectory.events)
        assert write_record(again.trajectory, "atif") == [atif]


@pytest.mark.parametrize("form", LOSSLESS)
@pytest.mark.parametrize(
    "content",
    [
        {"trajectory": [{"action": "ls", "observation": "3"}], "history": [{"role": "exit", "content": "?"}]},
        {
            "problem_statement": "?",
            "steps": [{"thought": "", "action": {}, "observation": "", "metadata": {"exec_time": "NaN"}}],
        },
    ],
    ids=["role", "time"],
)
def test_an_odd_record_survives_a_round_trip(content: Any, form: str) -> None:
    (odd,) = read_bytes(json.dumps(content).encode(), "x")
    (again,) = read_bytes(write_record(odd.trajectory, form)[0], "x")
    assert lines(again.trajectory.events) == lines(odd.trajectory.events)
    assert write_record(odd.trajectory, "opentelemetry")


def test_a_shared_step_is_marked_in_the_second_file_only() -> None:
    run = next(run for run in format_table.runs() if len(run.branches) > 1 and len(run.steps) > 1)
    first, second = (json.loads(data)["steps"] for data in write_record(run, "atif")[:2])
    assert not any("is_copied_context" in step for step in first)
    marked = [step.get("is_copied_context", False) for step in second]
    assert marked == sorted(marked, reverse=True)
    assert True in marked
    assert False in marked


def test_every_format_is_in_the_table() -> None:
    assert {*format_table.COLUMNS, "swe-agent"} == set(READ)
