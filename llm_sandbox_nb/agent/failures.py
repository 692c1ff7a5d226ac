"""How a run that cannot begin, and one that went wrong, are told to the caller."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llm_sandbox_nb.agent.run import Run


class InputError(ValueError):
    """What was asked for cannot be started: an empty task, a missing file, a bad prompt configuration.

    Nothing was started or written. The message is one sentence that says what to do.
    """


class ControlError(RuntimeError):
    """There is nothing to control, or what was decided makes no sense. The message is one sentence."""


class RunError(Exception):
    """A run ended because the model, the sandbox or this program failed. What there is of it is in `run`."""

    def __init__(self, message: str, run: Run) -> None:
        super().__init__(message)
        self.run = run
