"""Rewinds that break off half-way, runs that never had their sandbox, and others at work in the same one."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from agent_scripts import SUBMIT, bash, check_messages, script, turn
from support import eventually
from talking_model import TalkingModel
from time_travel import awaited, begun, same_as_loaded, talked

from llm_sandbox_nb.agent.errors import ControlError, InputError, RunError
from llm_sandbox_nb.agent.session import Session
from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.runs.solve import solve
from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.sandbox.errors import SandboxError
from llm_sandbox_nb.sandbox.open import open_sandbox
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.trajectory import Trajectory


async def under_way(
    box: Sandbox, folder: Path, step: int, model: TalkingModel | None = None
) -> tuple[Run, asyncio.Task[Run]]:
    run, work = await begun(box, folder, model=model or TalkingModel(50, delay=0.1))
    await eventually(lambda: len(run.steps) > step)
    return run, work


async def lines(box: Sandbox) -> list[str]:
    return (await box.read_file("log.txt")).decode().splitlines()


def up_to(number: int) -> list[str]:
    return [f"turn {one}" for one in range(1, number + 1)]


def breaks(box: Sandbox, how: Callable[[], Awaitable[None]]) -> None:
    """The next restore puts the files back and then does not come to its end."""
    restore = box.restore

    async def half(checkpoint: str) -> Any:
        box.restore = restore  # type: ignore[method-assign]
        await restore(checkpoint)
        await how()
        raise SandboxError("The restore broke off.")

    box.restore = half  # type: ignore[method-assign]


async def nothing() -> None:
    """Break off at once."""


@awaited
async def test_a_rewind_that_failed_has_not_happened(box: Sandbox, tmp_path: Path) -> None:
    """Of a run that stands still: its files are put back before it goes on."""
    run = await talked(box, tmp_path, 3)
    breaks(box, nothing)
    with pytest.raises(SandboxError, match="broke off"):
        await run.rewind(1)
    assert await lines(box) == up_to(1)
    await run.resume("Go on.", model=TalkingModel(5))
    assert await lines(box) == up_to(5)[:3] + up_to(6)[4:5]
    check_messages(run.messages)
    same_as_loaded(run)


async def lines_of_what_was_executed(box: Sandbox, run: Run) -> None:
    """A call that the rewind interrupted may have written its line, or not."""
    calls = [call for step in run.steps for call in step.calls if call.started and call.tool != "submit"]
    whole = sum(call.result is not None and call.result.exit_code == 0 for call in calls)
    found = await lines(box)
    assert found == up_to(len(found))
    assert 3 <= whole <= len(found) <= len(calls)


@awaited
async def test_a_rewind_under_way_that_failed_has_not_happened(box: Sandbox, tmp_path: Path) -> None:
    run, work = await under_way(box, tmp_path, 3)
    breaks(box, nothing)
    with pytest.raises(SandboxError, match="broke off"):
        await run.rewind(1)
    await eventually(lambda: run.control.paused)
    await eventually(lambda: all(call.result or not call.started for call in run.steps[-1].calls))
    await lines_of_what_was_executed(box, run)
    run.stop()
    await work
    same_as_loaded(run)


@awaited
async def test_an_interrupt_in_a_rewind_ends_the_run_and_answers_who_asked(
    box: Sandbox, tmp_path: Path
) -> None:
    run, work = await under_way(box, tmp_path, 3)
    midway = asyncio.Event()

    async def wait() -> None:
        midway.set()
        await asyncio.Event().wait()

    breaks(box, wait)
    asked = asyncio.create_task(_rewound(run))
    await midway.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    with pytest.raises(ControlError, match="interrupted"):
        await asked
    assert run.stop_reason == "interrupted"
    assert run.context.session is None
    await run.resume(model=TalkingModel(2))  # its next reply submits
    await lines_of_what_was_executed(box, run)
    await run.rewind(1)
    assert await lines(box) == up_to(1)
    same_as_loaded(run)


async def _rewound(run: Run, **options: Any) -> object:
    return await run.rewind(1, **options)


@awaited
async def test_a_stop_in_a_rewind_ends_the_run(box: Sandbox, tmp_path: Path) -> None:
    run, work = await under_way(box, tmp_path, 3)
    restore = box.restore

    async def slow(checkpoint: str) -> Any:
        done = await restore(checkpoint)
        run.stop()
        await box.read_file("log.txt")  # meanwhile the stop has its effects
        return done

    box.restore = slow  # type: ignore[method-assign]
    await run.rewind(1)
    await work
    assert run.stop_reason == "interrupted"
    assert [step.number for step in run.steps] == [1]
    assert await lines(box) == up_to(1)
    same_as_loaded(run)


@awaited
async def test_a_sandbox_in_which_another_run_is_at_work_is_left_alone(box: Sandbox, tmp_path: Path) -> None:
    first = await talked(box, tmp_path, 3)
    second, work = await under_way(box, tmp_path, 2)
    for refused in (lambda: first.preview(2), lambda: first.rewind(2), lambda: first.resume("More.")):
        with pytest.raises(InputError, match="Another run uses this sandbox"):
            await refused()  # type: ignore[misc]
    with pytest.raises(RunError, match="Another run uses this sandbox"):
        await talked(box, tmp_path, 1)
    other = await first.fork(2)
    assert other.context.box
    assert other.context.box is not box
    assert await lines(other.context.box) == up_to(2)
    await other.close()
    went = await first.rewind(2, what="conversation")
    assert (went.step, len(first.steps)) == (2, 2)
    await eventually(lambda: len(second.steps) >= 6)
    second.stop()
    await work
    assert not second.trajectory.notes
    await second.rewind(5)
    same_as_loaded(second)


@awaited
async def test_a_sandbox_is_free_after_its_run_was_interrupted_twice(box: Sandbox, tmp_path: Path) -> None:
    first, work = await under_way(box, tmp_path, 2)
    session = first.context.session
    assert isinstance(session, Session)
    assert session.collector
    closing = asyncio.Event()

    async def slow() -> None:
        closing.set()
        await asyncio.Event().wait()

    session.collector.abandon = slow  # type: ignore[method-assign]
    work.cancel()
    await closing.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    second = await talked(box, tmp_path, 1)
    assert second.stop_reason == "submitted"
    await first.rewind(1, others=True)
    assert await lines(box) == up_to(1)


@awaited
async def test_no_run_begins_in_a_sandbox_that_is_being_taken_back(box: Sandbox, tmp_path: Path) -> None:
    first = await talked(box, tmp_path, 3)
    midway, on = asyncio.Event(), asyncio.Event()
    restore = box.restore

    async def slow(checkpoint: str) -> Any:
        midway.set()
        await on.wait()
        return await restore(checkpoint)

    box.restore = slow  # type: ignore[method-assign]
    going = asyncio.create_task(_rewound(first))
    await midway.wait()
    with pytest.raises(RunError, match="Another run uses this sandbox"):
        await talked(box, tmp_path, 1)
    on.set()
    await going
    assert await lines(box) == up_to(1)
    assert (await talked(box, tmp_path, 1)).stop_reason == "submitted"


@awaited
async def test_a_rewind_that_cannot_be_taken_back_leaves_files_of_no_step(
    box: Sandbox, tmp_path: Path
) -> None:
    """Its restore and the one that puts things right fail: the run ends, and `resume` restores."""
    run, work = await under_way(box, tmp_path, 3)
    restore = box.restore

    async def fails(checkpoint: str) -> Any:
        await restore(first)
        raise SandboxError("The disk is full.")

    first = run.trajectory.checkpoints[1].checkpoint
    box.restore = fails  # type: ignore[method-assign]
    with pytest.raises(SandboxError, match="disk is full"):
        await run.rewind(1)
    with pytest.raises(RunError, match="disk is full"):
        await work
    assert any("rewind was interrupted" in reason for reason in run.trajectory.skipped)
    box.restore = restore  # type: ignore[method-assign]
    await run.resume(model=TalkingModel(2))  # its next reply submits
    await lines_of_what_was_executed(box, run)
    same_as_loaded(run)


@awaited
async def test_a_run_whose_sandbox_died_before_it_was_used_goes_on(box: Sandbox, tmp_path: Path) -> None:
    """The dead one holds the history no more."""
    parent = await talked(box, tmp_path / "parent", 2)
    given = await open_sandbox("process")
    changes = given.changes

    async def dies(*args: Any) -> Any:
        os.kill(int(given.executor["pid"]), signal.SIGKILL)  # type: ignore[attr-defined]
        await eventually(lambda: getattr(given, "lost", None) is not None)
        return await changes(*args)

    given.changes = dies  # type: ignore[method-assign]
    with pytest.raises(RunError) as caught:
        await talked(given, tmp_path, 3, files_of=(parent, 2))
    run = caught.value.run
    looks = script(tmp_path, SUBMIT, turn(bash("cat log.txt")), SUBMIT)  # the first reply was the dead one's
    await run.resume(model=looks, isolation="process")
    assert run.stop_reason == "submitted"
    assert any("turn 1\nturn 2" in call.output for step in run.steps for call in step.calls)
    assert not [note for note in run.trajectory.notes if "not kept" in note]
    await given.close()


@pytest.mark.parametrize("named", ["bubblewrap", "process"])
@awaited
async def test_a_run_whose_sandbox_never_came_up_begins_with_its_inputs(tmp_path: Path, named: str) -> None:
    """With `process` not even the task was said: where the sandbox works is in it."""

    async def no_engine() -> Sandbox:
        raise SandboxError("The engine is down.")

    turns = [turn(bash("cat input/data.csv")), SUBMIT]
    with pytest.raises(RunError, match="engine is down") as caught:
        await solve(
            "Read the data.",
            model=script(tmp_path, *turns),
            sandbox=no_engine(),
            isolation=named,
            inputs={"data.csv": b"1,2\n"},
            output_dir=tmp_path,
        )
    run = caught.value.run
    with pytest.raises(InputError, match="start the task again"):
        await Run.load(run.folder).resume(sandbox=None)
    async with open_sandbox(named) as box:
        await run.resume(sandbox=box)
        assert run.stop_reason == "submitted"
        assert any("1,2" in call.output for step in run.steps for call in step.calls)
        assert any("Read the data." in str(message["content"]) for message in run.messages)
        check_messages(run.messages)
        same_as_loaded(run)


@awaited
async def test_a_file_of_holes_takes_no_room_when_a_run_goes_back(box: Sandbox, tmp_path: Path) -> None:
    """What the sandbox claims to be large is not made large here."""
    turns = [
        turn(bash("echo small > output/x; echo small > output/y")),
        turn(bash("truncate -s 600M output/x; truncate -s 60M output/y; echo end >> output/y")),
        turn(bash("echo small > output/x; echo small > output/y")),
        SUBMIT,
    ]
    run = await talked(box, tmp_path, 0, model=script(tmp_path, *turns))
    went = await run.rewind(2)
    assert any("x stays as it is now" in problem for problem in went.problems)
    assert run.files["x"].read_bytes() == b"small\n"
    held = run.files["y"].path.stat()
    assert held.st_size == 60 * 1024**2 + len("end\n")
    assert held.st_blocks * 512 < 1024**2


@awaited
async def test_a_model_that_was_changed_to_stays(box: Sandbox, tmp_path: Path) -> None:
    class Named(TalkingModel):
        def __init__(self, name: str, turns: int) -> None:
            super().__init__(turns, command=f"echo {name} {{number}} >> log.txt")
            self.name = name

    second = Named("b", 9)

    def listen(event: ev.Event) -> None:
        if isinstance(event, ev.CallFinished) and event.step == 1:
            started[0].change(model=second)

    started: list[Run] = []
    how = {"on_run": started.append, "listeners": [listen], "limits": {"steps": 3}}
    run = await talked(box, tmp_path, 0, model=Named("a", 9), **how)
    await run.resume(limits={"steps": 5})
    assert await lines(box) == ["a 1", "b 2", "b 3", "b 4", "b 5"]
    other = await run.fork(4)
    await other.resume(limits={"steps": 6})
    assert other.context.box
    assert await lines(other.context.box) == ["a 1", "b 2", "b 3", "b 4", "b 5", "b 6"]
    await other.close()
    await run.resume(model=Named("a", 9), limits={"steps": 6})
    changed = [one.model for one in run.trajectory.changed if one.model]
    assert changed == ["b", "a"]
    await run.resume(model=Named("c", 9), limits={"steps": 7})
    await run.rewind(4)  # there it was b, which can be made from no name
    await run.resume("Go on.", limits={"steps": 6})
    assert (await lines(box))[-1] == "b 6"


@awaited
async def test_what_is_said_before_open_calls_are_carried_out_is_read(box: Sandbox, tmp_path: Path) -> None:
    run = await talked(box, tmp_path, 3)
    await run.rewind(2, before="call")
    await run.resume("Please use the CSV file.", model=TalkingModel(3))
    said = [message for message in run.messages if message["content"] == "Please use the CSV file."]
    assert [message["role"] for message in said] == ["user"]
    check_messages(run.messages)


@awaited
async def test_a_run_goes_on_after_a_sandbox_of_its_callers_died(box: Sandbox, tmp_path: Path) -> None:
    run = await talked(box, tmp_path, 3)
    os.kill(int(box.executor["pid"]), signal.SIGKILL)  # type: ignore[attr-defined]
    await eventually(lambda: getattr(box, "lost", None) is not None)
    kept: list[list[str]] = []

    def listen(event: ev.Event) -> None:
        if isinstance(event, ev.CallFinished):
            kept.append([event.observation])

    turns = [turn(bash("cat log.txt")), SUBMIT]
    await run.resume("Go on.", model=script(tmp_path, *[SUBMIT] * 4, *turns), listeners=[listen])
    assert run.stop_reason == "submitted"
    assert "turn 1\nturn 2\nturn 3" in kept[0][0]
    same_as_loaded(run)


@awaited
async def test_what_is_still_being_taken_belongs_to_the_branch_that_is_left(
    box: Sandbox, tmp_path: Path
) -> None:
    download, taking, may_take = box.download, asyncio.Event(), asyncio.Event()

    async def slow(source: str, *args: Any, **more: Any) -> Any:
        if source.endswith("2.txt"):
            taking.set()
            await may_take.wait()
        return await download(source, *args, **more)

    box.download = slow  # type: ignore[method-assign]
    model = TalkingModel(3, delay=0.1, command="echo {number} > output/{number}.txt")
    run, work = await under_way(box, tmp_path, 0, model)
    await taking.wait()
    going = asyncio.ensure_future(_rewound(run, what="conversation"))
    await box.read_file("output/1.txt")  # meanwhile the rewind waits for what is being taken, or does not
    may_take.set()
    await going
    saved = lambda: [one.path for one in run.trajectory.events if isinstance(one, ev.ArtifactSaved)]  # noqa: E731
    await eventually(lambda: "2.txt" in saved())
    assert [step.number for step in run.steps] == [1]
    assert "2.txt" not in run.trajectory.artifacts
    run.resume()
    await work
    assert [step.number for step in run.steps] == [1, 2, 3, 4]
    assert sorted(run.files) == ["1.txt", "2.txt", "3.txt"]
    same_as_loaded(run)


def test_a_file_of_a_step_that_a_branch_does_not_have_makes_no_step() -> None:
    trajectory = Trajectory()
    trajectory.add(ev.RunStarted(run_id="r", task="t", model="m", scripted=True, settings={}, versions={}))
    trajectory.add(ev.ArtifactSaved(step=5, path="x", mime="text/plain", size=1, sha256="0" * 64))
    assert trajectory.steps == []
    assert "x" in trajectory.artifacts
