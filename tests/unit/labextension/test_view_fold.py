"""The view's fold in TypeScript makes of any stream of events what Python's makes of it."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from card_runs import run_events, start_event
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_labextension import node

from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.trajectory import Call, Step, Trajectory

STEPS = st.integers(1, 4)
CALLS = st.sampled_from(["a", "b", "__proto__"])
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
LONG = st.integers(1, 3).map(lambda count: "0123456789abcdef" * (count * 1700))
PATHS = st.sampled_from(["x.txt", "ü/y.png", "constructor"])
CONTENT = st.one_of(TEXT, st.none(), st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": TEXT})))
MESSAGE = st.fixed_dictionaries({"role": st.just("user"), "content": CONTENT})
USAGE = st.builds(
    ev.Usage,
    prompt_tokens=st.integers(0, 9),
    cached_tokens=st.integers(0, 9),
    cost=st.sampled_from([None, 0.0, 0.25, 2.0]),
)

WHAT = st.sampled_from(["both", "files", "conversation"])

EVENTS: st.SearchStrategy[ev.Event] = st.one_of(
    st.builds(start_event, TEXT),
    st.builds(ev.SandboxReady, sandbox_id=TEXT, protection=st.just({}), start_time=st.just(0.1)),
    st.builds(ev.MessageAdded, message=MESSAGE),
    st.builds(ev.ModelRequested, step=STEPS),
    st.builds(ev.ModelDelta, step=STEPS, text=TEXT, reasoning=TEXT),
    st.builds(ev.ModelFailed, step=STEPS, attempt=st.just(1), error=TEXT, message=TEXT),
    st.builds(
        ev.ModelReplied, step=STEPS, message=MESSAGE, reasoning=st.none() | TEXT, usage=st.none() | USAGE,
        finish_reason=st.none() | TEXT, model_time=st.sampled_from([0.0, 1.5]),
    ),
    st.builds(
        ev.CallProposed, step=STEPS, call_id=CALLS, tool=TEXT, raw_arguments=TEXT,
        arguments=st.none() | st.dictionaries(TEXT, TEXT, max_size=2),
    ),
    st.builds(ev.CallStarted, step=STEPS, call_id=CALLS, tool=TEXT, arguments=st.dictionaries(TEXT, TEXT, max_size=2)),
    st.builds(ev.CallOutput, call_id=CALLS, stream=st.just("stdout"), text=TEXT | LONG),
    st.builds(ev.CallFinished, step=STEPS, call_id=CALLS, observation=TEXT),
    st.builds(ev.ArtifactSaved, step=st.none() | STEPS, path=PATHS, mime=TEXT, size=st.just(1), sha256=TEXT),
    st.builds(ev.ArtifactSkipped, reason=TEXT),
    st.builds(ev.ArtifactRemoved, path=PATHS),
    st.builds(ev.ConnectionMade, step=st.none() | STEPS, line=TEXT),
    st.builds(ev.Noted, text=TEXT),
    st.builds(ev.Controlled, action=st.sampled_from(["pause", "paused", "resume", "say", "stop"])),
    st.builds(
        ev.CallHeld, step=STEPS, call_id=CALLS, at=st.sampled_from(["call", "observation"]), reason=st.just("step")
    ),
    st.builds(
        ev.CallDecided, step=STEPS, call_id=CALLS, action=st.sampled_from(["run", "edit", "skip", "observe"]),
        observation=st.none() | TEXT,
    ),
    st.builds(ev.SettingsChanged, model=st.none() | TEXT),
    st.builds(ev.Checkpointed, step=st.none() | STEPS, checkpoint=TEXT),
    st.builds(ev.Forked, run_id=TEXT, folder=TEXT, step=STEPS),
    st.builds(ev.Continued),
    st.builds(ev.RewindStarted, to=st.just("?"), step=STEPS, safety=st.none() | TEXT),
    st.builds(ev.Rewound, to=st.just("?"), step=STEPS, what=WHAT, target=st.none() | TEXT, safety=st.none() | TEXT),
    st.builds(ev.RunFinished, stop_reason=st.just("submitted"), usage=USAGE),
    st.builds(ev.UnknownEvent, kind=st.just("later.kind")),
)  # fmt: skip


def proposed_first(events: list[ev.Event]) -> list[ev.Event]:
    """Without the events of calls that nobody proposed: a journal has none."""
    known: set[str] = set()
    kept = []
    for event in events:
        if isinstance(event, ev.CallProposed):
            known.add(event.call_id)
        if getattr(event, "call_id", None) in known or not hasattr(event, "call_id"):
            kept.append(event)
    return kept


@st.composite
def a_tree(draw: st.DrawFn) -> list[ev.Event]:
    """A stream in which rewinds lead to earlier events (or nowhere) and some events say what they follow."""
    events = proposed_first(draw(st.lists(EVENTS, max_size=40)))
    written = [event for event in events if event.kind not in ev.TRANSIENT]
    for place, event in enumerate(written):
        earlier = [one.id for one in written[:place]]
        if isinstance(event, ev.RewindStarted | ev.Rewound) and earlier:
            event.to = draw(st.sampled_from([*earlier, "nowhere"]))
        if earlier and draw(st.integers(0, 5)) == 0:
            event.parent = draw(st.sampled_from([*earlier, "nowhere"]))
    return events


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
