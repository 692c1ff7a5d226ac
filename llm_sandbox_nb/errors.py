"""Base class of the exceptions in this package.

The classes below can be imported from `llm_sandbox_nb`. Each class is defined in the subpackage that raises it::

    LLMSandboxError
    ├── InputError (ValueError)
    ├── ControlError (RuntimeError)
    ├── RunError
    ├── ModelError
    ├── RunNotFoundError (FileNotFoundError)
    ├── JournalError
    ├── ExportError
    └── SandboxError
        ├── IsolationUnavailableError
        ├── ImageError
        ├── SandboxLostError
        ├── TransferError
        └── HistoryError

All other exceptions of the package derive from these classes too, except those of `sandbox/executor`. Such an exception
is raised by a single command only, or is caught inside the package. The exceptions of `sandbox/executor` derive from
Python's built-in exceptions, because that code runs inside the sandbox, where only the standard library is available.

This module imports nothing from llm_sandbox_nb, so that every other module can import it.
"""

from __future__ import annotations


class LLMSandboxError(Exception):
    """Base of the exceptions that this package raises.

    The message is one sentence, which names the problem and says what to do. A notebook shows the sentence in place of
    a traceback.

    For example, catch everything that can go wrong in a run::

        try:
            result = await solve("How many r's are in strawberry?", model="scripted/strawberry")
        except LLMSandboxError as error:
            print(error)
    """

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows in place of a traceback."""
        message = str(self)
        return [f"{type(self).__name__}: {message}" if message else type(self).__name__]
