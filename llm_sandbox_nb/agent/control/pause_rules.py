"""Rules for automatic pauses of a run: at every call, at breakpoints, at calls that a person must approve."""

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
"""`ask`: every call waits for approval. `edits`: only commands wait, not editor and submit. `auto`: no call waits."""
Reason = Literal["step", "breakpoint", "approval", "pause"]
Predicate = Callable[[Moment], Any]
"""Function that returns a true value for a pause. Functions that are not coroutines are called in their own thread."""


class PauseRulesError(LLMSandboxError, ValueError):
    """Error for invalid pause rules. The message is one sentence."""


@dataclass
class PauseRules:
    """Pause rules of a run, which can change during the run."""

    step: bool = False
    """True for a run that begins step by step."""
    breakpoints: tuple[Breakpoint, ...] = ()
    predicates: tuple[Predicate, ...] = ()
    approve: Approve = "auto"
    approved_all: bool = False
    """True once a person has approved all later calls, including those outside the sandbox."""

    @property
    def needs_person(self) -> bool:
        """True if the run will certainly pause."""
        return self.step or self.approve != "auto"

    @property
    def any(self) -> bool:
        """True if the run may pause automatically."""
        return self.needs_person or bool(self.breakpoints or self.predicates)

    def as_json(self) -> dict[str, Any]:
        """Return the rules for the record of the run; empty if the run never pauses automatically."""
        rules = {
            "step": self.step,
            "breakpoints": [breakpoint.text for breakpoint in self.breakpoints],
            "break_when": [getattr(function, "__name__", repr(function)) for function in self.predicates],
            "approve": self.approve,
        }
        return rules if self.any else {}

    async def why(self, moment: Moment, readable: bool = True) -> tuple[Reason, str] | None:
        """Return the reason for a pause at this moment, or None. `readable` is True if the arguments are valid."""
        for breakpoint in self.breakpoints:
            if breakpoint.met(moment):
                return "breakpoint", breakpoint.text
        for predicate in self.predicates:
            if text := await _call_predicate(predicate, moment):
                return "breakpoint", text
        asks = self.approve == "ask" or (self.approve == "edits" and not only_edits(moment.tool))
        if moment.at == "call" and readable and asks:
            return "approval", f"You approve every {'call' if self.approve == 'ask' else 'command'}."
        return None


async def _call_predicate(predicate: Predicate, moment: Moment) -> str:
    """Return the reason for a pause, or an empty text. A failing function causes a pause: no call may be missed."""
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
    """Return a valid value of `approve`; raise PauseRulesError for any other value."""
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
    """Make the rules from a caller's arguments.

    Raises:
        BreakpointError, PauseRulesError: if an argument is invalid.
    """
    texts = [breakpoints] if isinstance(breakpoints, str) else list(breakpoints)
    functions = (break_when,) if callable(break_when) else tuple(break_when)
    for function in functions:
        if not callable(function):
            raise PauseRulesError(f"break_when is a function or several functions, not {function!r:.80}.")
    return PauseRules(bool(step), tuple(map(Breakpoint, texts)), functions, approval(approve))
