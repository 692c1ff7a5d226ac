"""Executes decisions: the one place where what a person decided becomes a call of a run or of its control."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, Protocol

from llm_sandbox_nb.agent.control.run_control import RunControl
from llm_sandbox_nb.trajectory import decisions as dc


class DecidableRun(Protocol):
    """A run as decisions need it."""

    @property
    def control(self) -> RunControl:
        """The controls of the run."""
        ...

    def rewind(self, step: int, what: Any = "both", *, others: bool = False) -> Awaitable[Any]:
        """Go back to the end of a step."""
        ...

    def undo(self, *, others: bool = False) -> Awaitable[Any]:
        """Undo the newest rewind."""
        ...

    def fork(self, step: int) -> Awaitable[Any]:
        """Make a second run."""
        ...


async def execute_decision(run: DecidableRun, decision: dc.RunDecision, *, source: str) -> None:
    """Execute a decision in the run's event loop; returns when the run has accepted and recorded it.

    Raises:
        ControlError, InputError, SandboxError, OSError: it is not possible now; nothing was decided.
    """
    match decision:
        case dc.RewindDecision():
            await run.rewind(decision.step, decision.what, others=decision.others)
        case dc.UndoDecision():
            await run.undo(others=decision.others)
        case dc.ForkDecision():
            await run.fork(decision.step)
        case dc.ChangeDecision():  # may import the library of a provider, which takes seconds
            await asyncio.to_thread(decide, run.control, decision, source=source)
        case _:
            decide(run.control, decision, source=source)
    await asyncio.sleep(0)


def decide(control: RunControl, decision: dc.ControlDecision, *, source: str) -> None:
    """Execute a decision that takes effect at once. Callable from any thread.

    Raises:
        ControlError: it is not possible now; nothing was decided.
    """
    match decision:
        case dc.PauseDecision():
            control.pause(source=source)
        case dc.ResumeDecision():
            control.resume(call_id=decision.call_id, source=source)
        case dc.StepDecision():
            control.step(call_id=decision.call_id, source=source)
        case dc.SayDecision():
            control.say(decision.text, source=source)
        case dc.StopDecision():
            control.stop(source=source)
        case dc.EditDecision():
            control.edit_call(
                decision.arguments,
                decision.changes or {},
                tool=decision.tool,
                call_id=decision.call_id,
                source=source,
            )
        case dc.SkipDecision():
            control.skip(decision.text, call_id=decision.call_id, source=source)
        case dc.ObserveDecision():
            control.observe(decision.text, call_id=decision.call_id, source=source)
        case dc.ChangeDecision():
            control.change(**decision.model_dump(exclude={"action"}), source=source)
