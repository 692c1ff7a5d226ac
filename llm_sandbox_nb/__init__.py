"""Give a language model a computer, inside a notebook.

The public names are loaded on first use, so that `import llm_sandbox_nb` stays light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llm_sandbox_nb.agent.control import RunControl as RunControl
    from llm_sandbox_nb.agent.limits import RunLimits as RunLimits
    from llm_sandbox_nb.agent.model import ModelSettings as ModelSettings
    from llm_sandbox_nb.agent.run import Run as Run
    from llm_sandbox_nb.agent.solve import solve as solve
    from llm_sandbox_nb.notebook.export import export_html as export_html
    from llm_sandbox_nb.sandbox.opening import open_sandbox as open_sandbox

__version__ = "0.1.0"
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
    "ModelSettings": "llm_sandbox_nb.agent.model",
    "Run": "llm_sandbox_nb.agent.run",
    "RunControl": "llm_sandbox_nb.agent.control",
    "RunLimits": "llm_sandbox_nb.agent.limits",
    "export_html": "llm_sandbox_nb.notebook.export",
    "open_sandbox": "llm_sandbox_nb.sandbox.opening",
    "solve": "llm_sandbox_nb.agent.solve",
}


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load_ipython_extension(ipython: Any) -> None:
    """Register the `%%sandbox` and `%sandbox` magics; called by `%load_ext llm_sandbox_nb`."""
    from llm_sandbox_nb.notebook.magics import SandboxMagics

    ipython.register_magics(SandboxMagics)


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    from llm_sandbox_nb.server.app import SandboxApp

    return [{"module": "llm_sandbox_nb.server.app", "app": SandboxApp}]
