"""Errors of the magics. A notebook shows the message without a traceback. nbclient and papermill end with the error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from llm_sandbox_nb.errors import LLMSandboxError

E = TypeVar("E", bound=BaseException)


def in_one_sentence(error: E, message: str | None = None) -> E:
    """Make IPython show the error's class name and `message` instead of a traceback, and return `error`.

    If `message` is None, IPython shows the error's own message.
    """
    said = message if message is not None else str(error)
    line = f"{type(error).__name__}: {said}" if said else type(error).__name__
    error._render_traceback_ = lambda: [line]  # type: ignore[attr-defined]
    return error


class SandboxMagicError(LLMSandboxError):
    """Base of the errors of magics."""


class SandboxUsageError(SandboxMagicError):
    """Raised if an option, a subcommand or the task is wrong; nothing was started."""


class SandboxInputError(SandboxMagicError):
    """Raised if an input, or a name in the task, does not exist; nothing was started."""


class SandboxLimitError(SandboxMagicError):
    """Raised if a run reached a limit before the model submitted, or the model's calls kept failing."""


class SandboxNoAnswerError(SandboxMagicError):
    """Raised if a run ended without an answer: the model wrote nothing, or refused."""


class SandboxCheckError(SandboxMagicError):
    """Raised if the check of a run's result failed, or could not run."""


class SandboxBenchmarkError(SandboxMagicError):
    """Raised if a benchmark cannot continue, or every item failed. Results so far are on disk."""


class SandboxTrainingError(SandboxMagicError):
    """Raised if a training or an evaluation ended with an error. Everything recorded so far is on disk."""


@contextmanager
def plain_errors() -> Iterator[None]:
    """Hide the traceback of interrupts and of this package's errors.

    Other exceptions are bugs, so their traceback is shown.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        if not hasattr(error, "_render_traceback_"):
            in_one_sentence(error, "The cell was interrupted; everything done until then is above.")
        raise
    except Exception as error:
        if type(error).__module__.partition(".")[0] == "llm_sandbox_nb":
            in_one_sentence(error)
        raise
