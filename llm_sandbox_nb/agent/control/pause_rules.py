"""When a run pauses automatically: at every call, at breakpoints, at calls that a person must approve."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from llm_sandbox_nb.agent.control.breakpoints import Breakpoint, Moment
from llm_sandbox_nb.agent.tools.toolbox import only_edits
from llm_sandbox_nb.daemon_threads import in_daemon_thread
from llm_sandbox_nb.errors import LLMSandboxError

Approve = Literal["ask", "edits", "auto"]
"""`ask`: every call waits for approval. `edits`: only commands do, not the editor and submit. `auto`: none does."""
Reason = Literal["step", "breakpoint", "approval", "pause"]
Predicate = Callable[[Moment], Any]
"""Whether to pause. May be a coroutine function; any other function is called in its own thread."""


class PauseRulesError(LLMSandboxError, ValueError):
    """The pause rules are invalid. The message is one sentence."""


@dataclass
class PauseRules:
    """The pause rules of one run. They can change during the run."""

    step: bool = False
    """Whether the run begins step by step."""
    breakpoints: tuple[Breakpoint, ...] = ()
    predicates: tuple[Predicate, ...] = ()
    approve: Approve = "auto"

    @property
    def needs_person(self) -> bool:
        """Whether the run is sure to pause."""
        return self.step or self.approve != "auto"

    @property
    def any(self) -> bool:
        """Whether the run may pause."""
        return self.needs_person or bool(self.breakpoints or self.predicates)

    def as_json(self) -> dict[str, Any]:
        """The rules as the record of the run has them; empty when it never pauses automatically."""
        names = [getattr(one, "__name__", repr(one)) for one in self.predicates]
        rules = {
            "step": self.step,
            "breakpoints": [one.text for one in self.breakpoints],
            "break_when": names,
            "approve": self.approve,
        }
        return rules if self.any else {}

    async def why(self, moment: Moment, readable: bool = True) -> tuple[Reason, str] | None:
        """Why the run pauses at this moment, if it does. `readable`: its arguments are valid."""
        for one in self.breakpoints:
            if one.met(moment):
                return "breakpoint", one.text
        for predicate in self.predicates:
            if text := await _call_predicate(predicate, moment):
                return "breakpoint", text
        asks = self.approve == "ask" or (self.approve == "edits" and not only_edits(moment.tool))
        if moment.at == "call" and readable and asks:
            return "approval", f"You approve every {'call' if self.approve == 'ask' else 'command'}."
        return None


async def _call_predicate(predicate: Predicate, moment: Moment) -> str:
    """Why to pause; "" when the function says no. A function that fails pauses too: no call slips through."""
    name = getattr(predicate, "__name__", "the function")
    try:
        if inspect.iscoroutinefunction(predicate):
            answer = await predicate(moment)
        else:
            answer = await in_daemon_thread(predicate, moment)
            if inspect.isawaitable(answer):
                answer = await answer
        return name if answer else ""
    except Exception as error:  # noqa: BLE001 - the user's own code
        return f"{name} failed: {type(error).__name__}: {error}"[:500]


def approval(value: object) -> Approve:
    """Raises PauseRulesError when it is not a way to approve."""
    for known in get_args(Approve):
        if value == known:
            word: Approve = known
            return word
    raise PauseRulesError(f"approve is {', '.join(get_args(Approve))}, not {value!r:.80}.")


def pause_rules(
    step: bool = False,
    breakpoints: str | Iterable[str] = (),
    break_when: Predicate | Iterable[Predicate] = (),
    approve: str = "auto",
) -> PauseRules:
    """The rules from a caller's arguments.

    Raises:
        BreakpointError, PauseRulesError: one of them is invalid.
    """
    texts = [breakpoints] if isinstance(breakpoints, str) else list(breakpoints)
    functions = (break_when,) if callable(break_when) else tuple(break_when)
    for one in functions:
        if not callable(one):
            raise PauseRulesError(f"break_when takes functions, not {one!r:.80}.")
    return PauseRules(bool(step), tuple(map(Breakpoint, texts)), functions, approval(approve))
