"""Errors of a run: cannot start, cannot be controlled, failed."""

from __future__ import annotations

import traceback
from typing import Any

from llm_sandbox_nb.one_sentence import OneSentence
from llm_sandbox_nb.trajectory.events import StopReason


class InputError(OneSentence, ValueError):
    """Error for a run that cannot start: an empty task, a missing file, an invalid prompt configuration.

    Nothing was started or written. The message is one sentence with advice.
    """


class ControlError(OneSentence, RuntimeError):
    """Error for an invalid decision, or a run that cannot be controlled any more. The message is one sentence."""


class StopRun(Exception):  # noqa: N818 - not an error
    """Signal that the run is over. `error` is one sentence if the reason is a failure."""

    def __init__(self, reason: StopReason, error: str | None = None) -> None:
        super().__init__(reason)
        self.reason: StopReason = reason
        self.error = error


class RunError(OneSentence, Exception):
    """Error for a failure of the model, the sandbox or this program during a run."""

    def __init__(self, message: str, run: Any) -> None:
        super().__init__(message)
        self.run = run
        """The `Run`, with everything that was recorded until then."""

    def _render_traceback_(self) -> list[str]:
        """Return the sentence, after the traceback of an exception from a user's function or from a bug."""
        cause = self.__cause__
        expected = cause is None or isinstance(cause, OneSentence)
        return [*([] if expected else traceback.format_exception(cause)), *super()._render_traceback_()]
