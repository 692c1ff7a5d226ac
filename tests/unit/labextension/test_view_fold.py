"""The view's fold in TypeScript makes of any stream of events what Python's makes of it."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any, get_args

from card_runs import run_events
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_runs import a_tree
from test_labextension import node

from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.trajectory import Call, Step, Trajectory


def folded(events: list[ev.Event]) -> dict[str, Any]:
    """What Python makes of a stream, as tests/folded.mjs of labextension/ tells it."""
    run = Trajectory(events)
    return {
        **state_of(run), "forks": [event.id for event in run.forks], "rewinds": [event.id for event in run.rewinds],
        "events": [event.id for event in run.events], "head": run.head,
        "branches": [dataclasses.asdict(branch) for branch in run.branches],
        "others": [state_of(run.at(branch.tip)) for branch in run.branches],
    }  # fmt: skip


def state_of(run: Trajectory) -> dict[str, Any]:
    found = (run.start, run.sandbox, run.finish, run.held)
    start, sandbox, finish, held = (event and event.id for event in found)
    return {
        "start": start, "sandbox": sandbox, "finish": finish, "held": held, "notes": run.notes,
        "skipped": run.skipped, "paused": run.paused, "files": run.files,
        "usage": run.usage.model_dump(), "spent": run.total_usage.model_dump(),
        "artifacts": [[path, event.id] for path, event in run.artifacts.items()],
        "checkpoints": [[step, event.id] for step, event in run.checkpoints.items()],
        "changed": [event.id for event in run.changed],
        "controls": [event.id for event in run.controls], "steps": [step_of(step) for step in run.steps],
    }  # fmt: skip


def step_of(step: Step) -> dict[str, Any]:
    plain = {
        name: getattr(step, name)
        for name in ("number", "thought", "reasoning", "model_time", "finish_reason")
    }
    return {
        **plain, "nudge": step.nudge, "replied": step.replied,
        "usage": step.usage.model_dump() if step.usage else None,
        "failures": [event.id for event in step.failures], "artifacts": [event.id for event in step.artifacts],
        "reduced": step.reduced and step.reduced.id,
        "calls": [call_of(call) for call in step.calls], "checkpoint": step.checkpoint and step.checkpoint.id,
    }  # fmt: skip


def call_of(call: Call) -> dict[str, Any]:
    names = ("id", "tool", "raw_arguments", "arguments", "started", "live_output")
    plain = {name: getattr(call, name) for name in names}
    result = {
        "result": call.result and call.result.id,
        "observation": call.result and call.result.observation,
    }
    return {**plain, **result, "decisions": [event.id for event in call.decisions]}


def in_typescript(streams: list[list[ev.Event]]) -> list[dict[str, Any]]:
    given_streams = [[json.loads(ev.dump_event(event)) for event in stream] for stream in streams]
    answers: list[dict[str, Any]] = json.loads(node("tests/folded.mjs", given=json.dumps(given_streams)))
    return answers


STREAMS = st.lists(a_tree(), min_size=30, max_size=40)


def test_random_runs_have_every_kind_of_event() -> None:
    source = (Path(__file__).parents[2] / "random_runs.py").read_text("utf-8")
    made = {"RunStarted", *re.findall(r"\bev\.([A-Z]\w+)", source)}  # `start_event` makes the start
    facts = {"StepFacts", "DoubtsFound"}  # `facts.py` derives them, and TypeScript only reads them
    assert {kind.__name__ for kind in get_args(ev.KnownEvent)} - facts <= made


@settings(
    max_examples=4,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
@given(STREAMS)
def test_any_stream_gives_the_same_in_both(streams: list[list[ev.Event]]) -> None:
    for ours, theirs in zip(map(folded, streams), in_typescript(streams), strict=True):
        assert ours == theirs


def test_a_run_gives_the_same_in_both_at_every_event() -> None:
    events = run_events(3, output="ünï\n")
    streams = [events[:count] for count in range(len(events) + 1)]
    assert in_typescript(streams) == [folded(stream) for stream in streams]


def test_a_difference_would_be_seen() -> None:
    events = run_events(1)
    assert in_typescript([events[:-2]]) != [folded(events)]
