"""Decisions during a run: recorded, carried out at the right place, never lost, never in the wrong place."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import NoReturn, get_args

import pytest
from agent_scripts import SUBMIT, bash, check_messages, results, solved, turn
from decided_runs import bash as call
from decided_runs import play
from memory_sandbox import MemorySandbox
from support import own_mark, run

from llm_sandbox_nb.agent.control.pause_rules import PauseRules
from llm_sandbox_nb.agent.control.run_control import EFFECTS, PausePoints, RunControl
from llm_sandbox_nb.agent.errors import ControlError, InputError, StopRun
from llm_sandbox_nb.agent.recorder import Recorder
from llm_sandbox_nb.agent.run_limits import Meter, RunLimits
from llm_sandbox_nb.agent.tools.tool import Approval
from llm_sandbox_nb.agent.tools.toolbox import Submit, Toolbox
from llm_sandbox_nb.model.contract import ToolCall
from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.runs.solve import solve
from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.trajectory import decisions as dc
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.journal import JournalNotWrittenError

CONTROL_DECISIONS = get_args(dc.ControlDecision)
When = Callable[[ev.Event], bool]


def kind(name: str, count: int = 1) -> When:
    """Whether an event is the `count`-th of a kind."""
    seen: list[str] = []

    def check(event: ev.Event) -> bool:
        seen.extend([event.kind] if event.kind == name else [])
        return event.kind == name and len(seen) == count

    return check


def at(when: When, act: Callable[[], object]) -> Callable[[ev.Event], None]:
    return lambda event: (when(event) and act()) and None


def actions(done: Run) -> list[str]:
    return [event.action for event in done.trajectory.controls]


def test_every_decision_has_a_row_in_the_table_of_effects() -> None:
    assert set(EFFECTS) == {decision.model_fields["action"].default for decision in CONTROL_DECISIONS}


@pytest.mark.parametrize(
    "decision", [kind for kind in CONTROL_DECISIONS if kind not in (dc.EditDecision, dc.SkipDecision)]
)
def test_fields_of_a_decision_are_arguments_of_its_method(decision: type[dc.ControlDecision]) -> None:
    """`frontends.decide` calls the method of `RunControl` with the name of the action."""
    action = decision.model_fields["action"].default
    arguments = set(signature(getattr(RunControl, action)).parameters)
    assert arguments == {*decision.model_fields, "source", "self"} - {"action"}


def test_what_is_said_comes_after_the_results_of_a_step(tmp_path: Path) -> None:
    control = RunControl()
    listener = at(kind("call.started"), lambda: control.say("Use {braces} too.", source="test"))
    done = run(
        solved(
            tmp_path,
            turn(bash("true"), bash("echo second")),
            SUBMIT,
            control=control,
            listeners=[listener],
        )
    )
    check_messages(done.messages)
    roles = [message["role"] for message in done.messages]
    assert roles == ["system", "user", "assistant", "tool", "tool", "user", "assistant", "tool"]
    assert done.messages[5]["content"] == "Use {braces} too."
    [said] = done.trajectory.controls
    assert (said.action, said.text, said.source) == ("say", "Use {braces} too.", "test")


def test_what_is_said_joins_the_answer_to_a_reply_without_a_call(tmp_path: Path) -> None:
    """Two user messages in a row are refused by some servers."""
    control = RunControl()
    listener = at(kind("model.replied"), lambda: control.say("Go on."))
    done = run(solved(tmp_path, {"text": "Hm."}, SUBMIT, control=control, listeners=[listener]))
    [_, _, _, answer, *_] = done.messages
    assert answer["role"] == "user"
    assert answer["content"].startswith("Go on.\n\nThere was no tool call")


def test_what_is_said_before_the_run_joins_the_task(tmp_path: Path) -> None:
    control = RunControl()
    control.say("In Latin.")
    done = run(solved(tmp_path, SUBMIT, task="Write.", control=control))
    assert "Write." in done.messages[1]["content"]
    assert "In Latin." in done.messages[1]["content"]
    assert [message["role"] for message in done.messages].count("user") == 1


def test_what_is_said_too_late_is_noted(tmp_path: Path) -> None:
    control = RunControl()
    listener = at(kind("call.started", 1), lambda: control.say("Wait!"))
    done = run(
        solved(tmp_path, turn(bash("true"), SUBMIT["calls"][0]), control=control, listeners=[listener])
    )
    assert done.stop_reason == "submitted"
    assert any("before the model read" in note for note in done.trajectory.notes)


@pytest.mark.parametrize("where", ["command", "model", "pause", "start"])
def test_stop_ends_the_run_as_interrupted(where: str, tmp_path: Path) -> None:
    """At once: each of the four would take an hour."""
    control = RunControl()

    def stop() -> None:
        control.stop(source="test")

    slow = {"text": "I think.", "delay": 3600, "calls": []}
    if where == "pause":
        control.pause()
    if where == "start":
        stop()
    when = {
        "command": kind("call.output"),
        "model": kind("model.requested", 2),
        "pause": lambda event: isinstance(event, ev.Controlled) and event.action == "paused",
        "start": lambda event: False,
    }[where]
    first = turn(bash("true" if where == "model" else f"echo begun; sleep {own_mark()}"))
    done = run(solved(tmp_path, first, slow, control=control, listeners=[at(when, stop)]))
    assert done.stop_reason == "interrupted"
    assert actions(done)[-1] == "stop"
    if where == "command":
        [result] = results(done)
        assert (result.error, result.stdout) == ("interrupted", "begun\n")


def test_decisions_come_from_the_run_and_from_other_threads(tmp_path: Path) -> None:
    runs: list[Run] = []

    def output(event: ev.Event) -> None:
        if event.kind == "call.output":
            threading.Thread(target=runs[0].stop).start()

    done = run(
        solved(tmp_path, turn(bash(f"echo x; sleep {own_mark()}")), on_run=runs.append, listeners=[output])
    )
    assert done is runs[0]
    assert done.stop_reason == "interrupted"
    for refused in (done.pause, done.step, done.stop, lambda: done.say("x")):
        with pytest.raises(ControlError, match=r"^The run is over"):
            refused()
    loaded = Run.load(done.folder)
    assert actions(loaded) == ["stop"]
    with pytest.raises(ControlError, match="loaded from its record"):
        loaded.pause()


def test_nothing_cannot_be_said_and_a_control_has_one_run(tmp_path: Path) -> None:
    control = RunControl()
    with pytest.raises(ControlError, match="message is empty"):
        control.say(" \n")
    run(solved(tmp_path, SUBMIT, control=control))
    with pytest.raises(InputError, match="another run"):
        run(
            solve("x", model="scripted/strawberry", control=control, isolation="process", output_dir=tmp_path)
        )


def test_the_command_timeout_in_force_is_told_and_used(tmp_path: Path) -> None:
    done = run(solved(tmp_path, SUBMIT, command_timeout=90.5))
    assert done.trajectory.start
    [told] = [
        tool["function"]["parameters"]["properties"]["timeout"]["description"]
        for tool in done.trajectory.start.tools
        if tool["function"]["name"] == "execute_bash"
    ]
    assert told == "Seconds after which it is ended. Default 90.5."
    played = play(tmp_path, [[call("a")]], lambda control, held: None, command_timeout=90.5)
    assert played.box.timeouts == [90.5]


class Interrupted:
    """A control with work that only an interruption ends."""

    def __init__(self, folder: Path) -> None:
        self.control = RunControl()
        self.recorder = Recorder(folder)
        self.control.begin(self.recorder.emit)
        self.box = MemorySandbox()
        self.cancelled = 0

    async def work(self) -> NoReturn:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        raise AssertionError("it was not interrupted")


def test_a_rewind_interrupts_is_executed_and_leaves_the_run_alive(tmp_path: Path) -> None:
    async def move(recorder: Recorder, box: Sandbox) -> str:
        return f"moved {recorder.folder.name}"

    async def fail(recorder: Recorder, box: Sandbox) -> str:
        raise OSError("disk full")

    async def body() -> None:
        it = Interrupted(tmp_path)
        asked = [asyncio.ensure_future(it.control.rewind(one)) for one in (move, fail)]
        await it.control.interruptible(it.work())
        await it.control.execute_rewinds(it.recorder, it.box)
        assert await asked[0] == f"moved {tmp_path.name}"
        with pytest.raises(OSError, match="disk full"):
            await asked[1]
        working = asyncio.ensure_future(it.control.interruptible(it.work()))
        for _ in range(100):
            await it.control.settled()
        assert not working.done()
        late = asyncio.ensure_future(it.control.rewind(move))
        await working
        assert it.cancelled == 2
        it.control.close()
        with pytest.raises(ControlError, match="ended meanwhile"):
            await late
        with pytest.raises(ControlError, match="ended meanwhile"):
            await it.control.rewind(move)

    run(body())


def test_a_stop_wins_over_a_rewind_and_an_interrupt_from_outside_over_both(tmp_path: Path) -> None:
    async def move(recorder: Recorder, box: Sandbox) -> str:
        raise AssertionError("the run was stopped")

    async def body() -> None:
        it = Interrupted(tmp_path)
        asked = asyncio.ensure_future(it.control.rewind(move))
        working = asyncio.ensure_future(it.control.interruptible(it.work()))
        await asyncio.sleep(0)
        it.control.stop()
        with pytest.raises(asyncio.CancelledError):
            await working
        it.control.close()
        with pytest.raises(ControlError, match="ended meanwhile"):
            await asked

        other = Interrupted(tmp_path / "other")
        asked = asyncio.ensure_future(other.control.rewind(move))
        working = asyncio.ensure_future(other.control.interruptible(other.work()))
        await asyncio.sleep(0)
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        other.control.close()
        with pytest.raises(ControlError, match="ended meanwhile"):
            await asked

    (tmp_path / "other").mkdir()
    run(body())


def test_work_that_was_stopped_before_it_began_does_not_begin(tmp_path: Path) -> None:
    async def body() -> None:
        control = RunControl()
        control.stop()
        it = Interrupted(tmp_path)
        control.begin(it.recorder.emit)
        with pytest.raises(asyncio.CancelledError):
            await control.interruptible(it.work())
        assert it.cancelled == 0

    run(body())


def test_a_decision_that_cannot_be_recorded_ends_the_run(tmp_path: Path) -> None:
    async def body() -> None:
        for decide in (RunControl.pause, RunControl.resume, RunControl.stop):
            it = Interrupted(tmp_path)
            working = asyncio.ensure_future(it.control.interruptible(it.work()))
            it.recorder.close()  # an event cannot be written any more
            decide(it.control)
            with pytest.raises(JournalNotWrittenError):
                await working
            it.control.close()

    run(body())


def test_the_time_limit_ends_the_wait_for_the_reason_of_an_approval(tmp_path: Path) -> None:
    class Silent(Submit):
        async def approval(self) -> Approval | None:
            await asyncio.Event().wait()
            return None

    async def body() -> None:
        recorder, meter = Recorder(tmp_path), Meter(RunLimits(time=0.1))  # a time-out is what is tested
        pauses = PausePoints(RunControl(), PauseRules(), Toolbox([Silent()]), recorder, meter)
        with pytest.raises(StopRun) as ended:
            await pauses.before_call(ToolCall("1", "submit", "{}"))
        assert ended.value.reason == "time"

    run(body())
