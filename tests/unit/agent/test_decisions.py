"""Decisions at halts: whatever is decided, in whatever order, the history is valid and the record tells it."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from decided_runs import STEP, SUBMIT, Player, Turn, bash, one_by_one, play, resume, step
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import examples
from virtual_time import Clock

from llm_sandbox_nb.agent.control.decisions import DENIED, Held
from llm_sandbox_nb.agent.control.pause_rules import PauseRules, pause_rules
from llm_sandbox_nb.agent.control.run_control import RunControl
from llm_sandbox_nb.agent.errors import ControlError
from llm_sandbox_nb.agent.run_limits import RunLimits
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.trajectory import Trajectory

TEXTS = st.text(st.characters(exclude_categories=[]), max_size=12)
CALLS = st.one_of(
    TEXTS.map(bash),
    st.just(SUBMIT),
    st.just(("execute_bash", "{not json")),
    st.just(("execute_bash", '{"command": 7}')),
    st.just(("no_such_tool", "{}")),
    st.just(("str_replace_editor", '{"command": "create", "path": "/testbed/a", "file_text": "1"}')),
)
TURNS = st.lists(st.lists(CALLS, max_size=3), max_size=4)
ACTIONS = st.sampled_from(
    ["resume", "step", "edit", "skip", "observe", "say", "pause", "change", "stop", "thread"]
)
RULES = st.builds(
    lambda step, text, approve: pause_rules(step, text, (), approve),
    st.booleans(),
    st.sampled_from([(), "exit_code == 1", "step > 1", "tool != 'submit'"]),
    st.sampled_from(["ask", "edits", "auto"]),
)


def act(control: RunControl, held: Held, action: str, text: str) -> None:
    """Decide; what is not possible at this halt says so and changes nothing, so something else is decided."""
    say = {"source": "test"}
    try:
        match action:
            case "edit":
                control.edit({"command": text}, tool="execute_bash", **say)
            case "skip":
                control.deny(text, **say)
            case "observe":
                control.observe(text, **say)
            case "say":
                control.say(text, **say)
                control.step(**say)
            case "pause":
                control.pause(**say)
                control.edit({}, tool="submit", call_id=held.call_id, **say)
            case "change":
                control.change(limits={"steps": 5}, settings={"temperature": 0.5}, approve="auto", **say)
                control.resume(**say)
            case "stop":
                control.stop(**say)
            case "step":
                control.step(call_id=held.call_id, **say)
            case _:
                control.resume(**say)
    except ControlError:
        control.resume(**say)


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.too_slow])
@given(TURNS, RULES, st.lists(st.tuples(ACTIONS, TEXTS), max_size=20))
def test_any_decisions_leave_a_valid_history_and_the_record_of_what_was_seen(
    turns: list[Turn], rules: PauseRules, decisions: list[tuple[str, str]]
) -> None:
    left = list(decisions)

    def decide(control: RunControl, held: Held) -> None:
        action, text = left.pop(0) if left else ("resume", "")
        if action != "thread":
            act(control, held, action, text)
            return
        loop = asyncio.get_running_loop()
        loop.run_in_executor(None, act, control, held, "resume", text)

    with tempfile.TemporaryDirectory() as folder:
        reason = play(Path(folder), turns, decide, rules).reason
    assert reason in ("submitted", "interrupted", "steps", "answered")


def test_steps_halt_before_a_call_and_before_its_observation_is_seen(tmp_path: Path) -> None:
    played = play(tmp_path, [[bash("a"), bash("b")]], one_by_one(*[step] * 5), STEP)
    places = [(held.step, held.at, held.arguments.get("command")) for held in played.held]
    assert places == [
        (1, "call", "a"), (1, "observation", "a"), (1, "call", "b"), (1, "observation", "b"), (2, "call", None),
    ]  # fmt: skip
    assert played.box.ran == ["a", "b"]
    assert "ran a" in (played.held[1].observation or "")
    assert "Steps remaining" not in (played.held[3].observation or "")


def test_time_at_halts_and_in_pauses_is_not_counted_and_nothing_happens_meanwhile(tmp_path: Path) -> None:
    clock = Clock()

    def after_a_while(act: Callable[..., None]) -> None:
        def later() -> None:
            clock.now += 1000
            act(source="test")

        asyncio.get_running_loop().call_soon(later)

    def decide(control: RunControl, held: Held) -> None:
        after_a_while(control.resume)

    def pausing(control: RunControl, event: ev.Event) -> None:
        if isinstance(event, ev.ModelReplied) and event.step == 2:
            control.pause(source="test")
        if isinstance(event, ev.Controlled) and event.action == "paused" and control.held is None:
            after_a_while(control.resume)

    played = play(tmp_path, [[bash("a")], [bash("b")]], decide, pause_rules(breakpoints="command == 'a'"),
             limits=RunLimits(time=500), on_event=pausing, clock=clock)  # fmt: skip
    assert played.reason == "submitted"
    assert (clock.now, played.loop.meter.elapsed) == (2100, 0)
    told = [
        e.action if isinstance(e, ev.Controlled) else e.kind for e in played.events if e.kind != "message"
    ]
    second = told.index("model.replied", told.index("model.replied") + 1)
    assert [word for word in told[second:] if word in ("pause", "paused", "resume", "call.started")][:4] == [
        "pause", "paused", "resume", "call.started",
    ]  # fmt: skip


def test_going_on_leaves_the_steps(tmp_path: Path) -> None:
    played = play(tmp_path, [[bash("a"), bash("b")]], one_by_one(resume), STEP)
    assert len(played.held) == 1


def test_the_edited_call_is_the_one_that_is_executed(tmp_path: Path) -> None:
    """Another call runs; the reply stays as the model wrote it, and the model is told what was run."""
    played = play(tmp_path, [[bash("rm -rf /")]], one_by_one(lambda c: c.edit(command="ls", source="test")),
                      pause_rules(breakpoints="'rm ' in command"))  # fmt: skip
    assert played.box.ran == ["ls"]
    [held] = played.held
    assert (held.reason, held.text) == ("breakpoint", "'rm ' in command")
    [decided] = [event for event in played.events if isinstance(event, ev.CallDecided)]
    assert (decided.action, decided.tool, decided.arguments) == ("edit", "execute_bash", {"command": "ls"})
    [proposed] = [e for e in played.events if isinstance(e, ev.CallProposed) and e.tool == "execute_bash"]
    assert proposed.arguments == {"command": "rm -rf /"}
    assert played.observations[0].startswith("[A person changed this call before it was executed.")
    assert '{"command": "ls"}' in played.observations[0]
    assert "ran ls" in played.observations[0]
    reply = json.loads(played.player.requests[1])[2]
    assert reply["tool_calls"][0]["function"]["arguments"] == '{"command": "rm -rf /"}'
    [call] = Trajectory(played.events).steps[0].calls
    assert call.arguments == {"command": "ls"}


def test_a_call_can_become_one_of_another_tool_and_a_broken_one_can_be_mended(tmp_path: Path) -> None:
    played = play(tmp_path, [[bash("a")], [("execute_bash", "{oops")]], one_by_one(
        lambda c: c.edit({"command": "view", "path": "/testbed"}, tool="str_replace_editor", source="test"),
        resume_steps := step, lambda c: c.edit(command="mended", source="test"), resume_steps), STEP)  # fmt: skip
    assert played.box.ran == ["mended"]
    assert played.held[2].raw_arguments == "{oops"


def test_a_skipped_call_is_not_executed_and_shows_what_was_given(tmp_path: Path) -> None:
    decide = one_by_one(
        lambda c: c.deny("There is nothing to see.", source="test"), lambda c: c.deny(source="test")
    )
    played = play(tmp_path, [[bash("a"), bash("b")]], decide, STEP)
    assert played.box.ran == []
    assert played.observations[0] == "There is nothing to see."
    assert played.observations[1] == f"{DENIED}\n\n[Steps remaining: 19]"
    assert [held.at for held in played.held] == ["call", "call", "call"], (
        "an observation of one's own needs no halt"
    )


def test_a_skipped_submit_does_not_end_the_run(tmp_path: Path) -> None:
    played = play(
        tmp_path,
        [[SUBMIT], [bash("more")]],
        one_by_one(lambda c: c.deny("Not yet.", source="test")),
        STEP,
    )
    assert played.reason == "submitted"
    assert len(played.player.requests) == 3


def test_the_model_sees_the_observation_that_a_person_wrote(tmp_path: Path) -> None:
    decide = one_by_one(lambda c: c.observe("All is well.", source="test"))
    played = play(tmp_path, [[bash("a")]], decide, pause_rules(breakpoints="exit_code == 1"))
    assert played.observations[0] == "All is well.\n\n[Steps remaining: 19]"
    assert json.loads(played.player.requests[1])[3]["content"] == played.observations[0]
    [decided] = [event for event in played.events if isinstance(event, ev.CallDecided)]
    assert decided.action == "observe"
    assert isinstance(decided.original, str)
    assert "ran a" in decided.original


def test_an_observation_that_kept_its_last_line_does_not_get_it_twice(tmp_path: Path) -> None:
    decide = one_by_one(lambda c: c.observe("x\n\n[Steps remaining: 19]", source="test"))
    played = play(tmp_path, [[bash("a")]], decide, pause_rules(breakpoints="exit_code == 1"))
    assert played.observations[0] == "x\n\n[Steps remaining: 19]"


def test_decisions_that_make_no_sense_say_so_and_leave_the_halt(tmp_path: Path) -> None:
    told: list[str] = []

    def decide(control: RunControl, held: Held) -> None:
        attempts: list[Callable[[], None]] = [
            lambda: control.edit({"comand": "ls"}),
            lambda: control.edit({"command": "ls", "why": "x"}),
            lambda: control.edit({"command": 7}),
            lambda: control.edit({}, tool="rm"),
            lambda: control.edit({"command": object()}),
            lambda: control.observe("early"),
            lambda: control.deny("x", call_id="another"),
            lambda: control.change(),
            lambda: control.change(settings={"heat": 1}),
            lambda: control.change(settings={"temperature": "hot"}),
            lambda: control.change(settings={"timeout": None}),
            lambda: control.change(limits={"steps": 0}),
            lambda: control.change(limits={"steps": None}),
            lambda: control.change(limits={"cost": float("nan")}),
            lambda: control.change(breakpoints=["comand"]),
            lambda: control.change(approve="yes"),
            lambda: control.change(model="nobody"),
        ]
        for attempt in attempts if not told else []:
            with pytest.raises(ControlError) as caught:
                attempt()
            told.append(str(caught.value))
            assert control.held is held
        control.resume(source="test")

    played = play(tmp_path, [[bash("a")]], decide, STEP)
    assert played.box.ran == ["a"]
    assert len(told) == 17
    assert all("\n" not in text and text.endswith(".") for text in told), told
    assert not [event for event in played.events if isinstance(event, ev.SettingsChanged)]


def test_a_second_decision_on_the_same_call_comes_too_late(tmp_path: Path) -> None:
    def decide(control: RunControl, held: Held) -> None:
        control.deny("once", call_id=held.call_id, source="test")
        with pytest.raises(ControlError, match="does not wait"):
            control.resume(call_id=held.call_id, source="test")
        with pytest.raises(ControlError, match="No call waits"):
            control.edit(command="twice", source="test")

    played = play(tmp_path, [[bash("a")]], decide, pause_rules(approve="edits"))
    assert played.observations[0].startswith("once")


def test_going_on_does_not_approve_a_call_that_came_after_it_was_decided(tmp_path: Path) -> None:
    """`edit` and `resume` at once: the next call has to be approved all the same."""

    def decide(control: RunControl, held: Held) -> None:
        if held.arguments == {"command": "a"}:
            control.edit(command="changed", source="test")
            control.resume(source="test")
        else:
            control.deny("no", source="test")

    played = play(tmp_path, [[bash("a"), bash("b")]], decide, pause_rules(approve="edits"))
    assert played.box.ran == ["changed"]


def test_approval_asks_again_for_each_call_until_it_is_changed(tmp_path: Path) -> None:
    def decide(control: RunControl, held: Held) -> None:
        if held.arguments == {"command": "b"}:
            control.change(approve="auto", source="test")
        control.resume(source="test")

    played = play(tmp_path, [[bash("a")], [bash("b")], [bash("c")]], decide, pause_rules(approve="ask"))
    assert [held.reason for held in played.held] == ["approval", "approval"]
    assert played.box.ran == ["a", "b", "c"]
    [changed] = [event for event in played.events if isinstance(event, ev.SettingsChanged)]
    assert (changed.halts, changed.source) == ({"approve": "auto"}, "test")


@pytest.mark.parametrize("breakpoints", [["command == 'c'"], "command == 'c'"])
def test_model_settings_limits_and_breakpoints_change_for_what_follows(
    tmp_path: Path, breakpoints: str | list[str]
) -> None:
    other = Player([[bash("c")]], name="other")

    def decide(control: RunControl, held: Held) -> None:
        if held.arguments == {"command": "a"}:
            control.change(model="other", settings={"temperature": 0.1}, limits={"steps": 3},
                           breakpoints=breakpoints, source="test")  # fmt: skip
        control.resume(source="test")

    played = play(tmp_path, [[bash("a")], [bash("b")]], decide, STEP, others={"other": other})
    assert len(played.player.requests) == 1
    assert played.box.ran == ["a", "c"]
    assert other.asked[0].temperature == 0.1
    assert [held.arguments.get("command") for held in played.held] == ["a", "c"]
    assert "[Steps remaining: 2]" in played.observations[0]
    [changed] = [event for event in played.events if isinstance(event, ev.SettingsChanged)]
    assert changed.model == "other"
    assert changed.settings == {"temperature": 0.1}
    assert changed.limits == {"steps": 3}
    assert changed.halts == {"breakpoints": ["command == 'c'"]}


def test_a_last_step_is_not_the_last_when_more_are_allowed(tmp_path: Path) -> None:
    def decide(control: RunControl, held: Held) -> None:
        if held.at == "observation":
            control.change(limits={"steps": 9}, source="test")
        control.step(source="test")

    played = play(tmp_path, [[bash("a")], [bash("b")], [bash("c")]], decide, STEP, limits=RunLimits(steps=1))
    assert played.reason == "submitted"
    assert played.box.ran == ["a", "b", "c"]
    told = json.loads(played.player.requests[1])[-1]
    assert told == {"role": "user", "content": "[Steps remaining: 8]"}


def test_a_pause_before_a_call_can_be_edited_too(tmp_path: Path) -> None:
    """smolagents 1640: the parameters of any call, before it runs."""

    def decide(control: RunControl, held: Held) -> None:
        if held.arguments == {"command": "first"}:
            control.pause(source="test")
            control.edit(command="changed", source="test")
            return
        control.resume(source="test")

    played = play(tmp_path, [[bash("first")]], decide, pause_rules(approve="edits"))
    assert played.box.ran == ["changed"]
    assert [(held.at, held.reason) for held in played.held][:2] == [
        ("call", "approval"),
        ("observation", "pause"),
    ]


@pytest.mark.parametrize("at", ["call", "observation"])
def test_a_run_that_is_stopped_at_a_halt_has_all_its_results(at: str, tmp_path: Path) -> None:
    def decide(control: RunControl, held: Held) -> None:
        control.stop(source="test") if held.at == at else control.step(source="test")

    played = play(tmp_path, [[bash("a"), bash("b")]], decide, STEP)
    assert played.reason == "interrupted"
    assert played.box.ran == ([] if at == "call" else ["a"])
    assert "Not executed" in played.observations[-1]


def test_nothing_waits_when_nothing_is_held() -> None:
    control = RunControl()
    for decide in (
        lambda: control.edit(command="x"),
        lambda: control.deny("x"),
        lambda: control.observe("x"),
    ):
        with pytest.raises(ControlError, match="No call waits"):
            decide()
    with pytest.raises(ControlError, match="has not begun"):
        control.change(approve="auto")
    control.close()
    with pytest.raises(ControlError, match="is over"):
        control.step()
