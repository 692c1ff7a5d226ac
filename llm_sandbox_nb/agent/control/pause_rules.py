"""Rules for automatic pauses: breakpoints, functions that request a pause, and calls that a person must approve.

Breakpoints look like Python, but Python does not execute them. An expression is parsed once, checked against a short
list of allowed parts, and evaluated by this module. So a model's text can only make an expression true or false.

    tool == 'execute_bash' and 'rm ' in command      pauses before such a call
    exit_code != 0 and step > 3                      pauses after such a call, before the model reads the result
"""

from __future__ import annotations

import ast
import difflib
import inspect
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from llm_sandbox_nb.agent.errors import InputError
from llm_sandbox_nb.agent.tools.toolbox import ARGUMENTS, only_edits
from llm_sandbox_nb.daemon_threads import in_daemon_thread
from llm_sandbox_nb.formatting import shorten

Place = Literal["call", "observation"]
Approve = Literal["ask", "edits", "auto"]
"""Calls that wait for approval. `ask`: every call. `edits`: every call except those of editor and submit. `auto`: no
call."""
Reason = Literal["step", "breakpoint", "approval", "pause"]

AFTER = ("exit_code", "observation", "changed", "error", "timed_out", "duration")
"""Names that have a value only after the call. An expression with such a name is evaluated after the call."""
NAMES = ("tool", "step", "cost", "tokens", *ARGUMENTS, *AFTER)
_MAX_LENGTH = 2_000
_MAX_PARTS = 200


@dataclass(frozen=True)
class Moment:
    """Description of a call for breakpoints and for `break_when` functions.

    If `at` is `call`, the call is proposed. If `at` is `observation`, the call was executed and has its result.
    """

    at: Place
    step: int
    tool: str
    call_id: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """The arguments of the call. Empty if the model's text cannot be parsed."""
    cost: float | None = None
    """Cost so far in US dollars. None if the price is not known."""
    tokens: int = 0
    """Prompt and completion tokens so far, as billed."""
    observation: str | None = None
    exit_code: int | None = None
    error: str | None = None
    timed_out: bool = False
    duration: float = 0.0
    """Duration of the call in seconds."""
    changed: tuple[str, ...] = ()
    """Paths of the files that the call changed."""

    def __getattr__(self, name: str) -> Any:
        """Return an argument of the call by its name, such as `command`. None if the call lacks this argument."""
        if name in ARGUMENTS:
            return self.arguments.get(name)
        raise AttributeError(
            f"A moment has no {name!r}: it has {', '.join(NAMES)}, at, arguments and call_id."
        )


Predicate = Callable[[Moment], Any]
"""Function that returns a true value if the run should pause. It is awaited, or called in a separate thread."""
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.In: lambda left, right: left in right, ast.NotIn: lambda left, right: left not in right,
    ast.Is: lambda left, right: left is right, ast.IsNot: lambda left, right: left is not right,
}  # fmt: skip
_METHODS: dict[str, int] = {"startswith": 1, "endswith": 1, "lower": 0, "strip": 0}
"""Allowed methods of texts, with the number of their arguments."""


class Breakpoint:
    """Expression such as `tool == 'execute_bash' and 'rm ' in command`."""

    def __init__(self, text: str) -> None:
        """Parse an expression. Raise InputError if the expression is invalid."""
        self.text = text.strip()
        self._tree = _parsed(self.text)
        names = {node.id for node in ast.walk(self._tree) if isinstance(node, ast.Name)} - {"len"}
        self.at: Place = "observation" if names & set(AFTER) else "call"
        """Time of the evaluation: `call` is before the call, `observation` is after the call."""

    def met(self, moment: Moment) -> bool:
        """Return True if the expression is true now. A comparison that Python refuses, such as `None > 0`, is false."""
        return moment.at == self.at and bool(_value(self._tree, moment))


def _parsed(text: str) -> ast.expr:
    if not text:
        raise InputError("The breakpoint is empty: write an expression such as \"tool == 'submit'\".")
    if len(text) > _MAX_LENGTH:
        raise InputError(f"The breakpoint is too long: it may have at most {_MAX_LENGTH} characters.")
    try:
        tree = ast.parse(text, mode="eval").body
        parts = list(ast.walk(tree))
    except SyntaxError as error:
        raise InputError(f"The breakpoint {shorten(text, 120)!r} cannot be read: {error.msg}.") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise InputError(f"The breakpoint {shorten(text, 120)!r} cannot be read.") from error
    if len(parts) > _MAX_PARTS:
        raise InputError(f"The breakpoint {shorten(text, 120)!r} has too many parts.")
    _check(tree)
    return tree


def _check(node: ast.expr) -> None:
    """Raise InputError if a part of the expression is not allowed."""
    match node:
        case ast.BoolOp(values=values):
            parts = values
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            parts = [operand]
        case ast.Compare(left=left, comparators=comparators):
            parts = [left, *comparators]
        case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
            pass
        case ast.Constant(value=str() | int() | float() | bool() | None):
            parts = []
        case ast.Name(id=name):
            if name not in NAMES:
                near = difflib.get_close_matches(name, NAMES, 1)
                hint = f"did you mean {near[0]}? " if near else ""
                raise InputError(
                    f"A breakpoint has no name {name[:80]!r}: {hint}It has {', '.join(NAMES)}; put texts in quotes."
                )
            parts = []
        case ast.Call(func=ast.Name(id="len"), args=[argument], keywords=[]):
            parts = [argument]
        case ast.Call(func=ast.Attribute(value=owner, attr=method), args=args, keywords=[]) if _METHODS.get(
            method
        ) == len(args):
            parts = [owner, *args]
        case _:
            raise InputError(
                f"{shorten(ast.unparse(node), 120)!r} is not allowed in a breakpoint: use names, texts, numbers, "
                "comparisons, in, and, or, not, len() and .startswith(), .endswith(), .lower(), .strip()."
            )
    for part in parts:
        _check(part)


def _value(node: ast.expr, moment: Moment) -> Any:
    match node:
        case ast.BoolOp(op=ast.And(), values=values):
            return all(_value(operand, moment) for operand in values)
        case ast.BoolOp(values=values):
            return any(_value(operand, moment) for operand in values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _value(operand, moment)
        case ast.UnaryOp(operand=operand):
            value = _value(operand, moment)
            return -value if isinstance(value, int | float) else None
        case ast.Compare():
            return _compared(node, moment)
        case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
            return [_value(part, moment) for part in parts]
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return getattr(moment, name)
        case ast.Call(func=ast.Name(), args=[argument]):
            value = _value(argument, moment)
            return len(value) if isinstance(value, str | list | tuple) else None
        case ast.Call(func=ast.Attribute(value=owner, attr=method), args=args):
            return _method(_value(owner, moment), method, [_value(argument, moment) for argument in args])
    raise AssertionError(ast.dump(node))


def _compared(node: ast.Compare, moment: Moment) -> bool:
    left = _value(node.left, moment)
    for operation, right_node in zip(node.ops, node.comparators, strict=True):
        right = _value(right_node, moment)
        try:
            if not _COMPARE[type(operation)](left, right):
                return False
        except TypeError:
            return False
        left = right
    return True


def _method(owner: Any, method: str, arguments: list[Any]) -> Any:
    """Call a method of a text. For several texts, return True if the result is true for at least one."""
    if isinstance(owner, list | tuple):
        return any(_method(item, method, arguments) for item in owner)
    if not isinstance(owner, str) or not all(isinstance(argument, str) for argument in arguments):
        return None
    return getattr(owner, method)(*arguments)


# --- rules ---


@dataclass
class PauseRules:
    """Pause rules of a run. They can change during the run."""

    step: bool = False
    """True if the run begins in the mode `stepping`, in which it pauses at each call and observation."""
    breakpoints: tuple[Breakpoint, ...] = ()
    predicates: tuple[Predicate, ...] = ()
    approve: Approve = "auto"
    approved_all: bool = False
    """True if a person has approved all later calls, including calls outside the sandbox."""

    @property
    def needs_person(self) -> bool:
        """True if the run will certainly pause, so that a person must decide."""
        return self.step or self.approve != "auto"

    @property
    def any(self) -> bool:
        """True if the run may pause automatically."""
        return self.needs_person or bool(self.breakpoints or self.predicates)

    def as_json(self) -> dict[str, Any]:
        """Return the rules for the record of the run, by the names of the options."""
        return {
            "step": self.step,
            "breakpoints": [breakpoint.text for breakpoint in self.breakpoints],
            "break_when": [getattr(function, "__name__", repr(function)) for function in self.predicates],
            "approve": self.approve,
        }

    async def why(self, moment: Moment, readable: bool = True) -> tuple[Reason, str] | None:
        """Return the reason for a pause at this moment. None if there is no reason.

        `readable` is True if the arguments of the call are valid. Otherwise, the call does not wait for an approval.
        """
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
    """Return the reason for a pause, or an empty text. If the function fails, its failure is a reason for a pause."""
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
    """Return a valid value of `approve`. Raise InputError for any other value."""
    for known in get_args(Approve):
        if value == known:
            word: Approve = known
            return word
    raise InputError(f"approve is {', '.join(get_args(Approve))}, not {value!r:.80}.")


def pause_rules(
    step: bool = False,
    breakpoints: str | Iterable[str] = (),
    break_when: Predicate | Iterable[Predicate] = (),
    approve: str = "auto",
) -> PauseRules:
    """Make the rules from a caller's arguments.

    Raises:
        InputError: if an argument is invalid.
    """
    texts = [breakpoints] if isinstance(breakpoints, str) else list(breakpoints)
    functions = (break_when,) if callable(break_when) else tuple(break_when)
    for function in functions:
        if not callable(function):
            raise InputError(f"break_when is a function or several functions, not {function!r:.80}.")
    return PauseRules(bool(step), tuple(map(Breakpoint, texts)), functions, approval(approve))
