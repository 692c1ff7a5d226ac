"""Errors of a run: it cannot start, it cannot be controlled, it failed."""

from __future__ import annotations

import traceback
from typing import Any

from llm_sandbox_nb.one_sentence import OneSentence
from llm_sandbox_nb.trajectory.events import StopReason


class InputError(OneSentence, ValueError):
    """The run cannot start: an empty task, a missing file, an invalid prompt configuration.

    Nothing was started or written. The message is one sentence that says what to do.
    """


class ControlError(OneSentence, RuntimeError):
    """There is nothing to control, or the decision is invalid. The message is one sentence."""


class StopRun(Exception):  # noqa: N818 - it is not an error
    """The run is over. `error` is one sentence when the reason is a failure."""

    def __init__(self, reason: StopReason, error: str | None = None) -> None:
        super().__init__(reason)
        self.reason: StopReason = reason
        self.error = error


class RunError(OneSentence, Exception):
    """The model, the sandbox or this program failed. `run` is the `Run` with everything recorded so far."""

    def __init__(self, message: str, run: Any) -> None:
        super().__init__(message)
        self.run = run
        """The `Run`, with everything that was recorded until then."""

    def _render_traceback_(self) -> list[str]:
        """The sentence; below what a function of the user's, or a bug, has raised."""
        cause = self.__cause__
        own = cause is None or isinstance(cause, OneSentence)
        return [*([] if own else traceback.format_exception(cause)), *super()._render_traceback_()]
