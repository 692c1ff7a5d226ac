"""Give a language model a computer, inside a notebook.

The public names are loaded on first use, so that `import llm_sandbox_nb` stays light.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from llm_sandbox_nb.version import __version__

if TYPE_CHECKING:
    from llm_sandbox_nb.agent.control.run_control import RunControl as RunControl
    from llm_sandbox_nb.agent.limits import RunLimits as RunLimits
    from llm_sandbox_nb.card.export import export_html as export_html
    from llm_sandbox_nb.model.contract import ModelSettings as ModelSettings
    from llm_sandbox_nb.runs.run import Run as Run
    from llm_sandbox_nb.runs.solve import solve as solve
    from llm_sandbox_nb.sandbox.open import open_sandbox as open_sandbox


__all__ = [
    "ModelSettings",
    "Run",
    "RunControl",
    "RunLimits",
    "__version__",
    "export_html",
    "open_sandbox",
    "solve",
]

_PUBLIC = {
    "ModelSettings": "llm_sandbox_nb.model.contract",
    "Run": "llm_sandbox_nb.runs.run",
    "RunControl": "llm_sandbox_nb.agent.control.run_control",
    "RunLimits": "llm_sandbox_nb.agent.limits",
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
    """Let `await solve(...)` show its card in the cell. Outside a kernel nothing is imported."""
    if "ipykernel.kernelapp" in sys.modules:
        cards = import_module("llm_sandbox_nb.runs.solve").LiveCards
        cards.make = staticmethod(import_module("llm_sandbox_nb.notebook.solve_card").open_card)


def load_ipython_extension(ipython: Any) -> None:
    """Register the `%%sandbox` and `%sandbox` magics; called by `%load_ext llm_sandbox_nb`.

    Loading again changes nothing: the notebook's sandbox, its runs and the values of `%config` stay.
    """
    from llm_sandbox_nb.notebook.magics import SandboxMagics

    known = ipython.magics_manager.registry.get(SandboxMagics.__name__)
    ipython.register_magics(known if isinstance(known, SandboxMagics) else SandboxMagics)


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    from llm_sandbox_nb.server.app import SandboxApp

    return [{"module": "llm_sandbox_nb.server.app", "app": SandboxApp}]
