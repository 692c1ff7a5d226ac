"""When the run of a cell halts by itself: its options, checked."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from llm_sandbox_nb.agent.halting import halting
from llm_sandbox_nb.notebook.errors import SandboxUsageError


@dataclass(frozen=True)
class Halts:
    """As `solve` takes them."""

    step: bool = False
    breakpoints: tuple[str, ...] = ()
    break_when: tuple[Callable[[Any], Any], ...] = ()
    approve: str = "auto"

    @property
    def sure(self) -> str | None:
        """The option because of which the run halts for sure; None without one."""
        if self.step:
            return "--step"
        return None if self.approve == "auto" else f"--approve {self.approve}"


def halts_of(options: argparse.Namespace, namespace: Mapping[str, Any]) -> Halts:
    """What a cell's options say of it.

    Raises:
        SandboxUsageError: an expression is no breakpoint, or there is no such function.
    """
    functions = tuple(_function(name, namespace) for name in options.break_when)
    found = Halts(options.step, tuple(options.breakpoints), functions, options.approve)
    try:
        halting(found.step, found.breakpoints, found.break_when, found.approve)
    except ValueError as error:
        raise SandboxUsageError(f"--break: {error}") from error
    return found


def _function(name: str, namespace: Mapping[str, Any]) -> Callable[[Any], Any]:
    function = namespace.get(name)
    if not callable(function):
        what = "is not a function" if name in namespace else "is not defined"
        raise SandboxUsageError(f"--break-when takes the name of a function of yours, and {name!r} {what}.")
    return function  # type: ignore[no-any-return]
