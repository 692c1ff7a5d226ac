"""IPython in the process of the tests, with the magics loaded."""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from llm_sandbox_nb import load_ipython_extension
from llm_sandbox_nb.notebook.magics import SandboxMagics


@contextmanager
def plain_shell() -> Iterator[Any]:
    """A shell without a history, of which nothing is left afterwards."""
    InteractiveShell.clear_instance()
    shell: Any = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
    load_ipython_extension(shell)
    try:
        yield shell
    finally:
        magics_of(shell)._close()
        atexit.unregister(shell.atexit_operations)
        InteractiveShell.clear_instance()


def magics_of(shell: Any) -> SandboxMagics:
    magics: SandboxMagics = shell.magics_manager.registry["SandboxMagics"]
    return magics
