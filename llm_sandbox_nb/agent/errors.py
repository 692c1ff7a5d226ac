"""Errors for a run that cannot start, that cannot be controlled, or that has failed."""

from __future__ import annotations

import traceback
from typing import Any

from llm_sandbox_nb.errors import LLMSandboxError
from llm_sandbox_nb.trajectory.events import StopReason


class InputError(LLMSandboxError, ValueError):
    """Error for an invalid argument of a run, or a missing file. Nothing was started or written.

    For example, `solve("", model="scripted/strawberry")`: the task is empty.
    """


class ControlError(LLMSandboxError, RuntimeError):
    """Error for a decision that is not possible in the present state of a run. Nothing changed.

    For example, `result.edit(command="ls")` when no call waits for a decision.
    """


class StopRun(LLMSandboxError):  # noqa: N818 - it is not an error
    """Exception that ends the loop of a run. `error` is a message if the reason is a failure. Otherwise, it is None."""

    def __init__(self, reason: StopReason, error: str | None = None) -> None:
        super().__init__(reason)
        self.reason: StopReason = reason
        self.error = error


class RunError(LLMSandboxError):
    """Error for a failure of the model, the sandbox or this program during a run. The record up to the failure is kept.

    For example, continue a run after its sandbox was lost::

        try:
            result = await solve(task, model=model)
        except RunError as error:
            result = await error.run.resume()
    """

    def __init__(self, message: str, run: Any) -> None:
        super().__init__(message)
        self.run = run
        """The `Run` with everything that was recorded before the failure."""

    def _render_traceback_(self) -> list[str]:
        """Return the message, after the traceback of the cause if the cause is not an error of this package."""
        cause = self.__cause__
        own = cause is None or isinstance(cause, LLMSandboxError)
        return [*([] if own else traceback.format_exception(cause)), *super()._render_traceback_()]
