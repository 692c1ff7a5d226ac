"""Functions of the user's that options name as `FILE.py:NAME`."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llm_sandbox_nb.options.table import UsageError


def check_function_name(option: str, name: str) -> None:
    """Raises UsageError when `name` is not FILE.py:NAME of an existing file; the file is not run."""
    file, _, function = name.rpartition(":")
    if not file or not function.isidentifier() or not Path(file).expanduser().is_file():
        raise UsageError(f"--{option} takes FILE.py:NAME of an existing Python file, not {name!r}.")


def function_of(option: str, name: str) -> Callable[..., Any]:
    """The function that `FILE.py:NAME` names; the file is run for it.

    Raises:
        UsageError: the file fails, or has no such function.
    """
    file, _, function = name.rpartition(":")
    try:
        found = runpy.run_path(str(Path(file).expanduser())).get(function)
    except Exception as error:
        raise UsageError(f"--{option}: {file} cannot be run: {type(error).__name__}: {error}.") from error
    if not callable(found):
        raise UsageError(f"--{option}: {file} has no function {function}.")
    return found  # type: ignore[no-any-return]
