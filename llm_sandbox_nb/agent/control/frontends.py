"""Frontends of `RunControl`: decisions as JSON, debug commands that a person types, and a program's `on_pause`.

All frontends call methods of `RunControl`. REST, the panel and the magics send an object of `trajectory.decisions`.
A prompt and `%sandbox` accept debug commands, and `on_pause` can return one. `HELP` lists these commands.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import shlex
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol, TextIO

from pydantic import ValidationError

from llm_sandbox_nb.agent.control.question import question
from llm_sandbox_nb.agent.control.run_control import RunControl
from llm_sandbox_nb.agent.errors import ControlError, InputError
from llm_sandbox_nb.agent.run_options import DEFAULT_OPTIONS
from llm_sandbox_nb.agent.tools.toolbox import TOOLS, Toolbox
from llm_sandbox_nb.daemon_threads import in_daemon_thread
from llm_sandbox_nb.trajectory import decisions as dc
from llm_sandbox_nb.trajectory.decisions import decision_problem
from llm_sandbox_nb.trajectory.trajectory import Trajectory

HELP = """continue            execute the call, and continue to the next breakpoint or call to approve (c, y)
all                 approve this call and all that follow
step                continue to the next call or observation (s)
edit NAME=VALUE...  change these arguments and execute the call; or edit {"all": "arguments"} (e)
deny [REASON]       do not execute the call; the model reads REASON in place of a result (n)
observe TEXT        the model reads TEXT instead of the result
say TEXT            tell the model something; the run stays paused
change NAME=VALUE   model, approve, allow, allow_once, steps, tokens, total_tokens, cost, time, temperature, ...
stop                end the run"""
_SHORT = {
    "c": "continue",
    "s": "step",
    "e": "edit",
    "resume": "continue",
    "go": "continue",
    "?": "help",
    "h": "help",
    "approve": "continue",
    "skip": "deny",
}
_ANSWERS = {"y": "continue", "yes": "continue", "n": "deny", "no": "deny"}
"""Answers that are commands only while a call waits. At other times, such an answer may be a message to the model."""
COMMANDS = ("continue", "step", "edit", "deny", "all", "observe", "say", "change", "stop", "help")
_LIMITS = ("steps", "tokens", "total_tokens", "cost", "time")
OnPause = str | Callable[[Any], Any]
"""Reaction to a pause: `"stop"`, `"continue"`, or a function.

The function is called with the `Run` at each pause. It decides with a method of the `Run`, or returns a debug command.
A coroutine function is awaited. Any other function is called in a separate thread, so that it can wait for a person. If
the function makes no decision, the run waits for a decision through `Run.control`.
"""


# --- decisions as JSON ---


class ControlledRun(Protocol):
    """Run that has controls."""

    @property
    def control(self) -> RunControl: ...


class DecidableRun(ControlledRun, Protocol):
    """Run that can also be rewound and forked."""

    def rewind(self, step: int, what: Any = "both", *, others: bool = False) -> Awaitable[Any]: ...

    def undo(self, *, others: bool = False) -> Awaitable[Any]: ...

    def fork(self, step: int) -> Awaitable[Any]: ...


async def execute_decision(run: DecidableRun, decision: dc.RunDecision, *, source: str) -> None:
    """Execute a decision in the run's event loop. Return when the run has accepted and recorded the decision.

    Raises:
        ControlError, InputError, SandboxError, OSError: if the decision is not possible now. The run is unchanged.
    """
    match decision:
        case dc.RewindDecision():
            await run.rewind(decision.step, decision.what, others=decision.others)
        case dc.UndoDecision():
            await run.undo(others=decision.others)
        case dc.ForkDecision():
            await run.fork(decision.step)
        case dc.ChangeDecision():  # in a thread, because the import of a provider's library may take seconds
            await asyncio.to_thread(decide, run.control, decision, source=source)
        case _:
            decide(run.control, decision, source=source)
    await asyncio.sleep(0)


def decide(control: RunControl, decision: dc.ControlDecision, *, source: str) -> None:
    """Execute a decision that takes effect at once. This function can be called in any thread.

    Raises:
        ControlError: if the decision is not possible now. The run is unchanged.
    """
    fields = decision.model_dump(exclude={"action"})
    match decision:
        case dc.EditDecision():
            control.edit_call(fields.pop("arguments"), fields.pop("changes") or {}, **fields, source=source)
        case dc.SkipDecision():
            control.deny(decision.text, call_id=decision.call_id, source=source)
        case _:
            # Every other action is the name of a method. The fields of the decision are the method's arguments.
            getattr(control, decision.action)(**fields, source=source)


# --- debug commands ---


def execute_debug_command(control: RunControl, line: str, *, source: str) -> str:
    """Execute the decision in a line. Return the help or an error message. Return an empty text after success."""
    command, rest = _split(line)
    if command == "help":
        return HELP
    try:
        decide(control, _parse(command, rest, control.held.toolbox if control.held else TOOLS), source=source)
        if command == "all":
            control.resume(source=source)
    except ValidationError as error:
        return decision_problem(error, command)
    except ControlError as error:
        return str(error)
    return ""


def _split(line: str) -> tuple[str, str]:
    command, _, rest = line.strip().partition(" ")
    return _SHORT.get(command.lower(), command.lower()), rest.strip()


def _parse(command: str, rest: str, toolbox: Toolbox) -> dc.ControlDecision:
    if rest and command in ("continue", "step", "stop", "all"):
        raise ControlError(
            f"{command} has no arguments; to send a message to the model, write say TEXT first."
        )
    match command:
        case "continue":
            return dc.ResumeDecision()
        case "step":
            return dc.StepDecision()
        case "stop":
            return dc.StopDecision()
        case "say":
            return dc.SayDecision(text=rest)
        case "deny":
            return dc.SkipDecision(text=rest)
        case "observe":
            return dc.ObserveDecision(text=rest)
        case "edit":
            return _parse_edit(rest, toolbox)
        case "change":
            return dc.ChangeDecision(**_parse_change(rest))
        case "all":
            return dc.ChangeDecision(approve="auto")
    raise ControlError(f"There is no command {command[:40]!r}: write one of {', '.join(COMMANDS)}.")


def _parse_edit(rest: str, toolbox: Toolbox) -> dc.EditDecision:
    if rest.startswith("{"):
        try:
            return dc.EditDecision(arguments=json.loads(rest))
        except (json.JSONDecodeError, RecursionError) as error:
            raise ControlError(f"These arguments are not JSON ({error}): nothing was changed.") from error
    values = _pairs(rest, "edit command='ls -l'")
    tool = values.pop("tool", None)
    texts = {
        name
        for known_tool in toolbox.values()
        for name, schema in known_tool.properties(DEFAULT_OPTIONS).items()
        if schema.get("type") == "string"
    }
    changes = {name: value if name in texts else _number_or_text(value) for name, value in values.items()}
    return dc.EditDecision(changes=changes, tool=tool)


def _parse_change(rest: str) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    for name, text in _pairs(rest, "change temperature=0.2").items():
        if name in ("model", "approve"):
            changes[name] = text
        elif name in ("allow", "allow_once"):
            changes[name] = [text]
        elif name == "breakpoints":
            changes[name] = [text] if text else []
        else:
            group = "limits" if name in _LIMITS else "settings"
            changes.setdefault(group, {})[name] = _number_or_text(text)
    return changes


def _pairs(rest: str, example: str) -> dict[str, str]:
    try:
        pairs = [word.partition("=") for word in shlex.split(rest)]
    except ValueError as error:
        raise ControlError(f"This command cannot be read ({error}): check its quotes.") from error
    if not pairs or not all(name.isidentifier() and equals for name, equals, _ in pairs):
        raise ControlError(f"Write arguments as NAME=VALUE with quotes around blanks, such as: {example}")
    return {name: value for name, _, value in pairs}


def _number_or_text(text: str) -> Any:
    """Parse a text as JSON. Return a text that is not JSON unchanged."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def can_answer(stdin: TextIO | None) -> bool:
    """Return True if a person may be able to answer: the stream is open and not the null device of a batch job."""
    if stdin is None or stdin.closed:
        return False
    try:
        return os.fstat(stdin.fileno()).st_rdev != Path(os.devnull).stat().st_rdev
    except (OSError, ValueError):
        return False


class Prompt:
    """Prompt for one pause. The prompt is open until the person has decided.

    >>> while prompt.open:
    ...     print(prompt.answer(input(prompt.text)))
    """

    def __init__(self, control: RunControl, *, source: str, trajectory: Trajectory | None = None) -> None:
        """Create the prompt. If `trajectory` is given, the question names the place where the call would run."""
        self._control = control
        self._trajectory = trajectory
        self._source = source
        self._held = control.held
        self._paused = self._held is None or self._held.reason == "pause"
        self._decided = False

    @property
    def open(self) -> bool:
        """True while the run waits for a decision at this pause."""
        if self._decided or self._control.stopped:
            return False
        return self._control.held is self._held if self._held else self._control.pausing

    @property
    def text(self) -> str:
        """Text above the input line, with the held call and the reason of the pause."""
        return question(self._held, self._trajectory)

    @property
    def hint(self) -> str:
        """Input prompt with the possible commands."""
        of_call = "" if self._held is None else "deny, edit, " if self._held.at == "call" else "observe, "
        if self._paused:
            return (
                "The run is paused. Press Enter to continue, write `stop` to end it, or write what to tell the model "
                f"({of_call}step, change, help work too): "
            )
        if self._held is not None and self._held.reason == "approval":
            all_of_them = "all: approve all commands of this run"
            return f"Approve? (y, n, n REASON, {all_of_them}, edit, step, say, change, stop, help): "
        enter = "Enter or step" if self._control.stepping else "step"
        return f"({enter}, continue, {of_call}say, change, stop, help): "

    def answer(self, line: str) -> str:
        """Execute the decision in a line. Return the text to show to the person afterwards."""
        enter = "continue" if self._paused else "step" if self._control.stepping else "help"
        line = line.strip() or enter
        if self._held is not None and self._held.at == "call" and not self._paused:
            word, blank, rest = line.partition(" ")
            line = f"{_ANSWERS.get(word.lower(), word)}{blank}{rest}"
        command, _ = _split(line)
        if self._paused and command not in COMMANDS:
            if not (shown := execute_debug_command(self._control, f"say {line}", source=self._source)):
                self._control.resume(source=self._source)
                self._decided = True
            return shown
        shown = execute_debug_command(self._control, line, source=self._source)
        self._decided = not shown and command not in ("say", "change", "help")
        return shown


# --- on_pause ---


def checked_on_pause(on_pause: OnPause | None) -> OnPause | None:
    """Return a valid `on_pause`. Raise InputError for any other value."""
    if on_pause is None or callable(on_pause) or on_pause in ("stop", "continue"):
        return on_pause
    raise InputError(f"on_pause is a function, 'stop' or 'continue', not {on_pause!r:.80}.")


def refusing_handler(run: ControlledRun) -> Callable[[], Awaitable[None]]:
    """Return the function that a run without a person awaits at each pause. It refuses calls that need an approval."""

    async def refuse() -> None:
        run.control.refuse()

    return refuse


def pause_handler(run: ControlledRun, on_pause: OnPause) -> Callable[[], Awaitable[None]]:
    """Return the function that a run with this `on_pause` awaits at each pause."""

    async def ask() -> None:
        answer: Any = on_pause
        if inspect.iscoroutinefunction(on_pause):
            answer = await on_pause(run)
        elif callable(on_pause):
            answer = await in_daemon_thread(on_pause, run, name="on-pause")
            if inspect.isawaitable(answer):
                answer = await answer
        if isinstance(answer, str):
            problem = execute_debug_command(run.control, answer, source="on_pause")
            if problem:
                raise ControlError(f"on_pause returned {answer[:80]!r}: {problem}")
        elif answer is not None and run.control.held:
            raise ControlError(
                f"on_pause returned {answer!r:.80}: let it return a command such as 'step', or let it decide, as in "
                "run.resume(), and return None."
            )

    return ask
