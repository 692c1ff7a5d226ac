"""When a run halts by itself: at every place, at breakpoints, at calls that a person has to approve."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from llm_sandbox_nb.agent.breakpoints import Breakpoint, Moment
from llm_sandbox_nb.agent.schemas import STR_REPLACE_EDITOR, SUBMIT

Approve = Literal["ask", "edits", "auto"]
"""`ask`: every call halts. `edits`: calls of the editor and of submit go through, every command halts. `auto`: none."""
Reason = Literal["step", "breakpoint", "approval", "pause"]
Predicate = Callable[[Moment], Any]
"""Whether to halt. May be a coroutine function; a plain one is called in a thread of its own."""

_GO_THROUGH = (STR_REPLACE_EDITOR, SUBMIT)


class HaltingError(ValueError):
    """The rules of halting make no sense. The message is one sentence."""


@dataclass
class Halting:
    """The rules of one run. They can be changed while it goes on."""

    step: bool = False
    """Whether the run begins in steps."""
    breakpoints: tuple[Breakpoint, ...] = ()
    predicates: tuple[Predicate, ...] = ()
    approve: Approve = "auto"

    @property
    def needs_person(self) -> bool:
        """Whether the run is sure to halt."""
        return self.step or self.approve != "auto"

    @property
    def any(self) -> bool:
        """Whether the run may halt."""
        return self.needs_person or bool(self.breakpoints or self.predicates)

    def as_json(self) -> dict[str, Any]:
        """For the record of the run; nothing when it never halts by itself."""
        names = [getattr(one, "__name__", repr(one)) for one in self.predicates]
        rules = {
            "step": self.step,
            "breakpoints": [one.text for one in self.breakpoints],
            "break_when": names,
            "approve": self.approve,
        }
        return rules if self.any else {}

    async def why(self, moment: Moment, readable: bool = True) -> tuple[Reason, str] | None:
        """Why the run halts at this moment, if it does. `readable`: its arguments are in order."""
        for one in self.breakpoints:
            if one.met(moment):
                return "breakpoint", one.text
        for predicate in self.predicates:
            if text := await _asked(predicate, moment):
                return "breakpoint", text
        if moment.at == "call" and readable and self._asks(moment.tool):
            return "approval", f"approve={self.approve}"
        return None

    def _asks(self, tool: str) -> bool:
        return self.approve == "ask" or (self.approve == "edits" and tool not in _GO_THROUGH)


async def _asked(predicate: Predicate, moment: Moment) -> str:
    """Why to halt, in words; nothing when the function says no. One that fails halts, so that nothing slips by."""
    name = getattr(predicate, "__name__", "the function")
    try:
        if inspect.iscoroutinefunction(predicate):
            answer = await predicate(moment)
        else:
            answer = await asyncio.to_thread(predicate, moment)
            if inspect.isawaitable(answer):
                answer = await answer
        return name if answer else ""
    except Exception as error:  # noqa: BLE001 - the user's own code
        return f"{name} failed: {type(error).__name__}: {error}"[:500]


def approval(value: object) -> Approve:
    """Raises HaltingError when it is not a way to approve."""
    for known in get_args(Approve):
        if value == known:
            word: Approve = known
            return word
    raise HaltingError(f"approve is {', '.join(get_args(Approve))}, not {value!r:.80}.")


def halting(
    step: bool = False,
    breakpoints: str | Iterable[str] = (),
    break_when: Predicate | Iterable[Predicate] = (),
    approve: str = "auto",
) -> Halting:
    """The rules as a caller names them.

    Raises:
        BreakpointError, HaltingError: one of them makes no sense.
    """
    texts = [breakpoints] if isinstance(breakpoints, str) else list(breakpoints)
    functions = (break_when,) if callable(break_when) else tuple(break_when)
    for one in functions:
        if not callable(one):
            raise HaltingError(f"break_when takes functions, not {one!r:.80}.")
    return Halting(bool(step), tuple(map(Breakpoint, texts)), functions, approval(approve))
