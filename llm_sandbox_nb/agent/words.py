"""Decisions as a person writes them at a prompt: one line, one decision."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any, TextIO

from llm_sandbox_nb.agent.control import RunControl
from llm_sandbox_nb.agent.decision import Held
from llm_sandbox_nb.agent.failures import ControlError

HELP = """continue            go on to the next breakpoint or call to approve (c)
step                go on to the next call or observation (s)
edit NAME=VALUE...  change these arguments and carry the call out; or edit {"all": "arguments"} (e)
skip [TEXT]         carry nothing out; the model reads TEXT as the result
observe TEXT        the model reads TEXT in place of the result
say TEXT            tell the model something; the run stays halted
change NAME=VALUE   model, approve, steps, tokens, cost, time, temperature, ...
stop                end the run"""
_SHORT = {
    "c": "continue",
    "s": "step",
    "e": "edit",
    "resume": "continue",
    "go": "continue",
    "?": "help",
    "h": "help",
}
WORDS = ("continue", "step", "edit", "skip", "observe", "say", "change", "stop", "help")
_LIMITS = ("steps", "tokens", "cost", "time")


def carry_out(control: RunControl, line: str, *, source: str) -> str:
    """Decide what a line says. What to show the person: why it was not possible, or help; nothing when it was done."""
    word, _, rest = line.strip().partition(" ")
    word, rest = _SHORT.get(word.lower(), word.lower()), rest.strip()
    if word == "help":
        return HELP
    try:
        if word not in WORDS:
            raise ControlError(f"There is no word {word[:40]!r}: write one of {', '.join(WORDS)}.")
        if rest and word in ("continue", "step", "stop"):
            raise ControlError(
                f"{word} takes nothing more; to tell the model something, write say TEXT first."
            )
        _decide(control, word, rest, source)
    except ControlError as error:
        return str(error)
    return ""


def _decide(control: RunControl, word: str, rest: str, source: str) -> None:
    match word:
        case "continue":
            control.resume(source=source)
        case "step":
            control.step(source=source)
        case "stop":
            control.stop(source=source)
        case "say":
            control.say(rest, source=source)
        case "skip":
            control.skip(rest or None, source=source)
        case "observe":
            control.observe(rest, source=source)
        case "edit":
            _edit(control, rest, source)
        case _:
            control.change(**_change(rest), source=source)


def _edit(control: RunControl, rest: str, source: str) -> None:
    if rest.startswith("{"):
        try:
            control.edit(json.loads(rest), source=source)
        except ValueError as error:
            raise ControlError(f"These arguments are not JSON ({error}): nothing was changed.") from error
        return
    values = _pairs(rest, "edit command='ls -l'")
    tool = values.pop("tool", None)
    typed: dict[str, Any] = {
        name: value if name in _TEXTS else _number_or_text(value) for name, value in values.items()
    }
    control.edit(None, tool=tool, source=source, **typed)


_TEXTS = ("command", "path", "file_text", "old_str", "new_str")


def _change(rest: str) -> dict[str, Any]:
    wanted: dict[str, Any] = {}
    for name, text in _pairs(rest, "change temperature=0.2").items():
        if name in ("model", "approve"):
            wanted[name] = text
        elif name == "breakpoints":
            wanted[name] = [text] if text else []
        else:
            group = "limits" if name in _LIMITS else "settings"
            wanted.setdefault(group, {})[name] = _number_or_text(text)
    return wanted


def _pairs(rest: str, example: str) -> dict[str, str]:
    try:
        words = shlex.split(rest)
    except ValueError as error:
        raise ControlError(f"This cannot be read ({error}): check its quotes.") from error
    pairs = [word.partition("=") for word in words]
    if not pairs or not all(name.isidentifier() and equals for name, equals, _ in pairs):
        raise ControlError(f"Write it as NAME=VALUE with quotes around blanks, such as: {example}")
    return {name: value for name, _, value in pairs}


def _number_or_text(text: str) -> Any:
    """A number, null, true, false or a list as JSON has it; else the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def answers(stdin: TextIO | None) -> bool:
    """Whether somebody may answer there: it is open, and not the empty device that batch jobs get."""
    if stdin is None or stdin.closed:
        return False
    try:
        return os.fstat(stdin.fileno()).st_rdev != Path(os.devnull).stat().st_rdev
    except (OSError, ValueError):
        return False


def question(held: Held | None) -> str:
    """Where the run has halted, in a few lines."""
    if held is None:
        return ""
    why = {"step": "", "pause": " (paused)"}.get(held.reason, f" ({held.reason}: {held.text})")
    if held.at == "observation":
        return (
            f"Step {held.step}: {held.tool} has come back{why}. The model would be shown:\n{held.observation}"
        )
    shown = (
        json.dumps(dict(held.arguments), ensure_ascii=False, indent=1)
        if held.arguments
        else held.raw_arguments
    )
    if list(held.arguments) == ["command"]:
        shown = str(held.arguments["command"])
    return f"Step {held.step}: {held.tool} is to be carried out{why}:\n{shown}"


class Prompt:
    """One halt, and the lines that a person writes until it is over.

    >>> while prompt.open:
    ...     print(prompt.answer(input(prompt.text)))
    """

    def __init__(self, control: RunControl, *, source: str) -> None:
        self._control = control
        self._source = source
        self._held = control.held
        self._paused = self._held is None or self._held.reason == "pause"
        self._decided = False

    @property
    def open(self) -> bool:
        """Whether the run still waits at this halt."""
        if self._decided or self._control.stopped:
            return False
        return self._control.held is self._held if self._held else self._control.pausing

    @property
    def text(self) -> str:
        """What a person reads first: where the run has halted."""
        return question(self._held)

    @property
    def hint(self) -> str:
        """What can be written."""
        of_call = "" if self._held is None else "skip, edit, " if self._held.at == "call" else "observe, "
        if self._paused:
            return (
                "The run is paused. Press Enter to go on, write `stop` to end it, or write what to tell the model "
                f"({of_call}step, change, help work too): "
            )
        enter = "Enter or step" if self._control.stepping else "step"
        return f"({enter}, continue, {of_call}say, change, stop, help): "

    def answer(self, line: str) -> str:
        """Decide what the line says; what to show then."""
        line = line.strip()
        if not line:
            line = self._on_enter()
        word = line.partition(" ")[0].lower()
        word = _SHORT.get(word, word)
        if self._paused and word not in WORDS:
            line, word = f"say {line}", "say, and go on"
        shown = carry_out(self._control, line, source=self._source)
        if not shown and word == "say, and go on":
            self._control.resume(source=self._source)
        self._decided = not shown and word not in ("say", "change", "help")
        return shown

    def _on_enter(self) -> str:
        if self._paused:
            return "continue"
        return "step" if self._control.stepping else "help"
