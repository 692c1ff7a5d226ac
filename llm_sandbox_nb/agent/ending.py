"""How a run ended: from whatever stopped the loop to what is recorded and what the caller gets."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from llm_sandbox_nb.agent.loop import Loop
from llm_sandbox_nb.agent.requests import StopRun
from llm_sandbox_nb.sandbox.errors import SandboxError, SandboxLostError
from llm_sandbox_nb.trajectory.events import StopReason

_FAILURES = frozenset({"model_error", "sandbox_lost", "error"})


@dataclass(frozen=True)
class Ending:
    """Why a run ended. `error` is one sentence when something failed."""

    reason: StopReason
    error: str | None = None

    @property
    def failed(self) -> bool:
        """Whether the caller gets an exception."""
        return self.reason in _FAILURES


def ending_of(cause: BaseException) -> Ending:
    """What `cause` means for the run."""
    match cause:
        case StopRun():
            return Ending(cause.reason, cause.error)
        case SandboxLostError():
            return Ending("sandbox_lost", str(cause))
        case SandboxError():
            return Ending("error", str(cause))
        case asyncio.CancelledError() | KeyboardInterrupt() | SystemExit():
            return Ending("interrupted")
    return Ending("error", f"The run broke off with {type(cause).__name__}: {cause}")


def spoken_answer(ending: Ending, loop: Loop) -> str | None:
    """What the model said last, when that is meant as its answer: it was done, or it only talked."""
    meant = ending.reason in ("submitted", "answered") or loop.only_talked
    return (loop.last_text or None) if meant else None
