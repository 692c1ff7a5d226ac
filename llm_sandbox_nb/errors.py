"""Base class of the exceptions in this package.

The classes below can be imported from `llm_sandbox_nb`. Each is defined in the package that raises it::

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

The package's other exceptions derive from these classes too. They belong to one command or stay inside the package.
The exceptions of `sandbox/executor` derive from Python's own, because that code runs inside the sandbox, with the
standard library only.

This module imports nothing from the package, so that every module can import it.
"""

from __future__ import annotations


class LLMSandboxError(Exception):
    """Base of the exceptions that this package raises.

    The message is one sentence that says what to do. A notebook shows the sentence in place of a traceback.

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
