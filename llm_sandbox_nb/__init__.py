"""Give a language model a computer, inside a notebook.

Each public name is imported when it is first used, so that `import llm_sandbox_nb` is fast.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from llm_sandbox_nb.version import __version__

if TYPE_CHECKING:
    from llm_sandbox_nb.agent.control.run_control import RunControl as RunControl
    from llm_sandbox_nb.agent.errors import ControlError as ControlError
    from llm_sandbox_nb.agent.errors import InputError as InputError
    from llm_sandbox_nb.agent.errors import RunError as RunError
    from llm_sandbox_nb.agent.run_limits import RunLimits as RunLimits
    from llm_sandbox_nb.card.export import ExportError as ExportError
    from llm_sandbox_nb.card.export import export_html as export_html
    from llm_sandbox_nb.errors import LLMSandboxError as LLMSandboxError
    from llm_sandbox_nb.model.contract import ModelError as ModelError
    from llm_sandbox_nb.model.contract import ModelSettings as ModelSettings
    from llm_sandbox_nb.runs.run import Run as Run
    from llm_sandbox_nb.runs.solve import solve as solve
    from llm_sandbox_nb.sandbox.errors import HistoryError as HistoryError
    from llm_sandbox_nb.sandbox.errors import ImageError as ImageError
    from llm_sandbox_nb.sandbox.errors import IsolationUnavailableError as IsolationUnavailableError
    from llm_sandbox_nb.sandbox.errors import SandboxError as SandboxError
    from llm_sandbox_nb.sandbox.errors import SandboxLostError as SandboxLostError
    from llm_sandbox_nb.sandbox.errors import TransferError as TransferError
    from llm_sandbox_nb.sandbox.open import open_sandbox as open_sandbox
    from llm_sandbox_nb.trajectory.journal import JournalError as JournalError
    from llm_sandbox_nb.trajectory.run_folder import RunNotFoundError as RunNotFoundError


__all__ = [
    "ControlError",
    "ExportError",
    "HistoryError",
    "ImageError",
    "InputError",
    "IsolationUnavailableError",
    "JournalError",
    "LLMSandboxError",
    "ModelError",
    "ModelSettings",
    "Run",
    "RunControl",
    "RunError",
    "RunLimits",
    "RunNotFoundError",
    "SandboxError",
    "SandboxLostError",
    "TransferError",
    "__version__",
    "export_html",
    "open_sandbox",
    "solve",
]

_PUBLIC = {
    "ControlError": "llm_sandbox_nb.agent.errors",
    "ExportError": "llm_sandbox_nb.card.export",
    "HistoryError": "llm_sandbox_nb.sandbox.errors",
    "ImageError": "llm_sandbox_nb.sandbox.errors",
    "InputError": "llm_sandbox_nb.agent.errors",
    "IsolationUnavailableError": "llm_sandbox_nb.sandbox.errors",
    "JournalError": "llm_sandbox_nb.trajectory.journal",
    "LLMSandboxError": "llm_sandbox_nb.errors",
    "ModelError": "llm_sandbox_nb.model.contract",
    "ModelSettings": "llm_sandbox_nb.model.contract",
    "Run": "llm_sandbox_nb.runs.run",
    "RunControl": "llm_sandbox_nb.agent.control.run_control",
    "RunError": "llm_sandbox_nb.agent.errors",
    "RunLimits": "llm_sandbox_nb.agent.run_limits",
    "RunNotFoundError": "llm_sandbox_nb.trajectory.run_folder",
    "SandboxError": "llm_sandbox_nb.sandbox.errors",
    "SandboxLostError": "llm_sandbox_nb.sandbox.errors",
    "TransferError": "llm_sandbox_nb.sandbox.errors",
    "export_html": "llm_sandbox_nb.card.export",
    "open_sandbox": "llm_sandbox_nb.sandbox.open",
    "solve": "llm_sandbox_nb.runs.solve",
}


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        found = getattr(import_module(_PUBLIC[name]), name)
        if name == "solve":
            _show_in_notebooks()
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _show_in_notebooks() -> None:
    """Make `await solve(...)` show its run as a card below the cell. Outside a notebook kernel, do nothing."""
    if "ipykernel.kernelapp" in sys.modules:
        cards = import_module("llm_sandbox_nb.runs.solve").LiveCards
        cards.make = staticmethod(import_module("llm_sandbox_nb.notebook.solve_card").open_card)


def load_ipython_extension(ipython: Any) -> None:
    """Register the `%%sandbox` and `%sandbox` magics. `%load_ext llm_sandbox_nb` calls this function.

    Loading the extension again changes nothing: the sandbox, the runs and the `%config` values are kept.
    """
    from llm_sandbox_nb.notebook.magics import SandboxMagics

    known = ipython.magics_manager.registry.get(SandboxMagics.__name__)
    ipython.register_magics(known if isinstance(known, SandboxMagics) else SandboxMagics)


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    from llm_sandbox_nb.server.app import SandboxApp

    return [{"module": "llm_sandbox_nb.server.app", "app": SandboxApp}]
