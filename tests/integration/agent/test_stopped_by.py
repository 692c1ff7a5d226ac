"""*Stopped by you* stands only where a person stopped the run; whatever else ends it is named."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from agent_scripts import SUBMIT, bash, script, turn
from support import eventually

from llm_sandbox_nb.agent.errors import RunError
from llm_sandbox_nb.agent.recorder import Recorder
from llm_sandbox_nb.card.card import Card
from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.runs.solve import solve
from llm_sandbox_nb.sandbox.errors import SandboxError, SandboxLostError
from llm_sandbox_nb.trajectory import events as ev

LONG = turn(bash("echo begun; sleep infinity"))
Ending = Callable[[Path, pytest.MonkeyPatch], Awaitable[Run]]


async def ended(folder: Path, *turns: dict[str, Any], **options: Any) -> Run:
    options = {
        "isolation": "process",
        "output_dir": folder / "runs",
        "model": script(folder, *turns),
    } | options
    try:
        return await solve("A task.", **options)
    except RunError as error:
        return error.run


def opening(error: Exception) -> Awaitable[Any]:
    async def fail() -> None:
        await asyncio.sleep(0.05)  # on purpose: the model's first reply comes before
        raise error

    return fail()


async def no_image(folder: Path, _: pytest.MonkeyPatch) -> Run:
    missing = SandboxError("The image does not exist: build it.")
    return await ended(folder, LONG, sandbox=opening(missing))


async def lost_while_it_opens(folder: Path, _: pytest.MonkeyPatch) -> Run:
    return await ended(folder, LONG, sandbox=opening(SandboxLostError("The sandbox has ended.")))


async def a_bug(folder: Path, _: pytest.MonkeyPatch) -> Run:
    return await ended(folder, LONG, sandbox=opening(ZeroDivisionError("a bug")))


async def refused_input(folder: Path, _: pytest.MonkeyPatch) -> Run:
    data = folder / "data.csv"
    data.write_text("1")

    def remove(event: ev.Event) -> None:
        if isinstance(event, ev.RunStarted):
            data.unlink()

    return await ended(folder, LONG, inputs=[data], listeners=[remove])


async def a_full_disk(folder: Path, patch: pytest.MonkeyPatch) -> Run:
    emit, kept = Recorder.emit, []

    def full(self: Recorder, event: ev.Event) -> None:
        if isinstance(event, ev.CallStarted) and not kept:
            kept.append(event)
            raise OSError(28, "No space left on device")
        emit(self, event)

    patch.setattr(Recorder, "emit", full)
    return await ended(folder, LONG)


async def a_lost_sandbox(folder: Path, _: pytest.MonkeyPatch) -> Run:
    return await ended(folder, turn(bash("kill -9 $PPID; sleep infinity"), bash("ls")))


async def an_interrupt_after_the_sandbox_was_lost(folder: Path, _: pytest.MonkeyPatch) -> Run:
    """As a Jupyter server does that stops: it ends the sandbox, and then interrupts the cell."""
    runs: list[Run] = []
    turns = (turn(bash("(sleep 0.2; kill -9 $PPID) > /dev/null 2>&1 &")), {**SUBMIT, "delay": 600})
    work = asyncio.ensure_future(ended(folder, *turns, on_run=runs.append))
    await eventually(lambda: runs and getattr(runs[0].context.box, "lost", None))
    runs[0].control.stop(source="cell")
    return await work


async def the_time(folder: Path, _: pytest.MonkeyPatch) -> Run:
    return await ended(folder, LONG, limits={"time": 1})


async def the_steps(folder: Path, _: pytest.MonkeyPatch) -> Run:
    return await ended(folder, turn(bash("ls")), SUBMIT, limits={"steps": 1})


async def a_model_that_ends(folder: Path, _: pytest.MonkeyPatch) -> Run:
    return await ended(folder, turn(bash("ls")))


async def a_repeated_call(folder: Path, _: pytest.MonkeyPatch) -> Run:
    return await ended(folder, *[turn(bash("false"), bash("ls"))] * 3, same_failures=2)


async def a_cancelled_program(folder: Path, _: pytest.MonkeyPatch) -> Run:
    runs: list[Run] = []
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3):
            await ended(folder, LONG, on_run=runs.append)
    return runs[0]


async def a_rule_for_pauses(folder: Path, _: pytest.MonkeyPatch) -> Run:
    return await ended(folder, turn(bash("ls")), approve="ask", on_pause="stop")


CAUSES: dict[str, Ending] = {
    one.__name__: one
    for one in (
        no_image, lost_while_it_opens, a_bug, refused_input, a_full_disk, a_lost_sandbox,
        an_interrupt_after_the_sandbox_was_lost, the_time, the_steps, a_model_that_ends, a_repeated_call,
        a_cancelled_program, a_rule_for_pauses,
    )
}  # fmt: skip


def told(run: Run) -> str:
    """All that is said of a run where a person reads it: card, steps, and what the model was told."""
    card = Card(folder=run.folder)
    for event in run.trajectory.events:
        card.add(event)
    bundle = card.final()
    return f"{bundle['text/plain']}\n{bundle['text/html']}\n{run.trajectory.state(live=False).words}"


@pytest.mark.parametrize("cause", CAUSES)
def test_nobody_stopped_it(cause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = asyncio.run(CAUSES[cause](tmp_path, monkeypatch))
    assert run.trajectory.finish is not None
    said = told(run)
    assert "by you" not in said
    assert "Denied" not in said
    if cause != "a_cancelled_program":
        assert "nterrupted" not in said


def test_a_person_stopped_it(tmp_path: Path) -> None:
    def stop(event: ev.Event) -> None:
        if isinstance(event, ev.CallStarted):
            runs[0].control.stop()

    runs: list[Run] = []
    run = asyncio.run(ended(tmp_path, LONG, listeners=[stop], on_run=runs.append))
    assert run.trajectory.state(live=False).words == "Stopped by you"
    assert "Stopped by you" in told(run)
