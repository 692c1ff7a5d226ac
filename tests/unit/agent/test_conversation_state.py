"""Where a recorded conversation stands: the step to go on from, and the calls that still need a result."""

from __future__ import annotations

import pytest
from card_runs import run_events, step_events

from llm_sandbox_nb.agent.conversation_state import conversation_state, seconds_so_far
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.trajectory import Trajectory

BEGUN = run_events(0)[:-1]


@pytest.mark.parametrize(
    ("events", "step", "open_calls", "fresh"),
    [
        ([], 0, [], True),
        ([ev.ModelRequested(step=1)], 0, [], True),
        ([ev.ModelRequested(step=1), ev.ModelFailed(step=1, attempt=1, error="x", message="x")], 0, [], True),
        (step_events(1)[:2], 1, [], True),
        (step_events(1)[:3], 1, ["call_1"], True),
        (step_events(1), 1, [], False),
        ([*step_events(1), ev.ModelRequested(step=2)], 1, [], False),
        ([*step_events(1), *step_events(2)[:5]], 2, ["call_2"], False),
    ],
    ids=["nothing", "asked", "failed", "replied", "proposed", "finished", "asked again", "in a call"],
)
def test_a_run_goes_on_from_its_newest_reply(
    events: list[ev.Event], step: int, open_calls: list[str], fresh: bool
) -> None:
    state = conversation_state(Trajectory([*BEGUN, *events]), ("later",))
    assert (state.step, [call.id for call in state.open], state.fresh) == (step, open_calls, fresh)
    assert state.said == ("later",)


ENDED = ev.RunFinished(stop_reason="steps", wall_time=7)
PASSED = ev.Checked(number=1, what="true", verdict=ev.Verdict(outcome="passed", summary="passed"))


@pytest.mark.parametrize(
    ("events", "seconds"),
    [
        ([], 5),
        ([(9, ENDED)], 7),
        ([(9, ENDED), (1000, ev.Rewarded(training_step=1, group="g"))], 7),
        ([(9, ENDED), (1000, ev.Continued()), (1002, ev.ModelRequested(step=2))], 9),
        ([(1000, ev.SettingsChanged()), (1000, ev.Continued()), (1002, ev.ModelRequested(step=2))], 7),
        ([(6, ev.Controlled(action="paused")), (1000, ev.Controlled(action="resume"))], 6),
        ([(6, ev.CheckStarted(number=1, what="true")), (1000, PASSED)], 6),
        ([(6, ev.RunFinished(stop_reason="steps", wall_time=float("inf")))], 0),
    ],
    ids=["running", "ended", "rewarded", "resumed", "killed and resumed", "paused", "checked", "damaged"],
)
def test_the_seconds_of_a_run_are_those_in_which_it_worked(
    events: list[tuple[float, ev.Event]], seconds: float
) -> None:
    step = (1, ev.ModelRequested(step=1)), (5, ev.ModelReplied(step=1, message={}))
    timed: list[tuple[float, ev.Event]] = [(0, BEGUN[0]), *step, *events]
    trajectory = Trajectory(event.model_copy(update={"time": 1e9 + time}) for time, event in timed)
    assert seconds_so_far(trajectory) == seconds


def test_a_run_continues_after_a_rewind_to_its_submission() -> None:
    """`Continued` says that a person wants the run to continue, also if the process is killed right after it."""
    of_call = ev.CallProposed | ev.CallStarted
    submitted = [
        event.model_copy(update={"tool": "submit"}) if isinstance(event, of_call) else event
        for event in step_events(1)
    ]
    events = [*BEGUN, *submitted]
    assert conversation_state(Trajectory(events)).submitted
    place = events[-1].id
    rewound = ev.Rewound(to=place, step=1)
    continued = ev.Continued(parent=place)
    assert not conversation_state(Trajectory([*events, rewound])).submitted
    assert not conversation_state(Trajectory([*events, rewound, continued])).submitted
