"""Errors of a run: it cannot start, it cannot be controlled, it failed."""

from __future__ import annotations

from typing import Any

from llm_sandbox_nb.trajectory.events import StopReason


class InputError(ValueError):
    """The run cannot start: an empty task, a missing file, an invalid prompt configuration.

    Nothing was started or written. The message is one sentence that says what to do.
    """


class ControlError(RuntimeError):
    """There is nothing to control, or the decision is invalid. The message is one sentence."""


class StopRun(Exception):  # noqa: N818 - it is not an error
    """The run is over. `error` is one sentence when the reason is a failure."""

    def __init__(self, reason: StopReason, error: str | None = None) -> None:
        super().__init__(reason)
        self.reason: StopReason = reason
        self.error = error


class RunError(Exception):
    """The model, the sandbox or this program failed. `run` is the `Run` with everything recorded so far."""

    def __init__(self, message: str, run: Any) -> None:
        super().__init__(message)
        self.run = run
        """The `Run`, with everything that was recorded until then."""
