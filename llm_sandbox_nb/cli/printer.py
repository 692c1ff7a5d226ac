"""A run as plain text on a terminal, event by event: the same for one under way and one that is loaded."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.journal import load_text
from llm_sandbox_nb.trajectory.trajectory import message_text

LIVE_LINES = 20
"""Lines shown of one thought or one output while a run is under way."""
_LINE_LENGTH = 400
_ENDINGS = {
    "submitted": "Submitted",
    "answered": "Answered without submitting",
    "steps": "Stopped: the limit of steps was reached",
    "tokens": "Stopped: the limit of tokens was reached",
    "cost": "Stopped: the budget was spent",
    "time": "Stopped: the time was over",
    "interrupted": "Interrupted",
    "model_error": "Stopped: the model failed",
    "sandbox_lost": "Stopped: the sandbox was lost",
    "error": "Stopped by an error",
}


_DECIDED = {
    "edit": "a person changed the call",
    "skip": "a person skipped the call and showed the model",
    "observe": "a person had the model shown instead",
}


def harmless(text: str) -> str:
    """`text` with everything that could command a terminal or reorder its line made visible."""
    return "".join(_visible(character) for character in text)


def _visible(character: str) -> str:
    if character in "\n\t" or character.isprintable():
        return character
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    if unicodedata.category(character) == "Zs":
        return character
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def size_in_words(size: int) -> str:
    """A number of bytes as people read it."""
    value = float(size)
    for unit in ("B", "KB", "MB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GB"


class Printer:
    """Prints events as they come. `lines` bounds one block of text, None shows all.

    `folder` is the run's, needed only to show large outputs of a loaded run whole.
    """

    def __init__(self, out: TextIO, *, lines: int | None = LIVE_LINES, folder: Path | None = None) -> None:
        self._out = out
        self._lines = lines
        self._folder = folder
        self._step = 0
        self._live: _Block | None = None

    def __call__(self, event: ev.Event) -> None:
        """Show one event. When nobody reads any more (`| head`), the run goes on unseen."""
        try:
            self._show(event)
            self._out.flush()
        except BrokenPipeError:
            self._out = Path(os.devnull).open("w")  # noqa: SIM115 (for the rest of the process)

    def _show(self, event: ev.Event) -> None:
        match event:
            case ev.RunStarted():
                self._say(f"Task       {_first_line(event.task)}")
                scripted = " (scripted: plays a file, asks no model)" if event.scripted else ""
                self._say(f"Model      {event.model}{scripted}")
            case ev.SandboxReady():
                for line in protection_lines(event.protection):
                    self._say(line)
            case ev.ModelRequested() | ev.ModelFailed() | ev.ModelReplied():
                self._model(event)
            case ev.CallStarted() | ev.CallOutput() | ev.CallFinished():
                self._call(event)
            case ev.CallDecided() if event.action != "run":
                self._say(f"  {_DECIDED[event.action]} ({event.source})")
                self._block(event.observation or "", "  | ")
            case ev.ArtifactSaved():
                self._say(f"  saved {event.path} ({event.mime}, {size_in_words(event.size)})")
            case ev.ArtifactSkipped():
                self._say(f"  left out: {event.reason}")
            case ev.Noted():
                self._say(f"  note: {event.text}")
            case ev.ArtifactRemoved():
                self._say(f"  removed {event.path}")
            case ev.RunFinished():
                self._finish(event)

    def _model(self, event: ev.ModelRequested | ev.ModelFailed | ev.ModelReplied) -> None:
        match event:
            case ev.ModelRequested() if event.step != self._step:
                self._step = event.step
                self._say(f"\nStep {event.step}")
            case ev.ModelFailed():
                again = "" if event.retry_in is None else f"; trying again in {event.retry_in:.0f} s"
                self._say(f"  the model failed: {event.message}{again}")
            case ev.ModelReplied():
                self._block(event.reasoning or "", "  . ")
                self._block(message_text(event.message), "  ")

    def _call(self, event: ev.CallStarted | ev.CallOutput | ev.CallFinished) -> None:
        match event:
            case ev.CallStarted():
                self._live = _Block(self._say, "  | ", self._lines)
                self._block(_call_in_words(event), "  > ")
            case ev.CallOutput():
                if self._live:
                    self._live.add(event.text)
            case ev.CallFinished():
                self._result(event)

    def _result(self, event: ev.CallFinished) -> None:
        live, self._live = self._live, None
        if live and live.used:
            live.end()
        else:
            self._block(self._output(event), "  | ")
        self._say(f"  {_outcome(event)}")
        for change in event.changes:
            self._say(f"  {change.kind} {change.path} ({size_in_words(change.size)})")
        if event.notice:
            self._say(f"  note: {event.notice}")

    def _output(self, event: ev.CallFinished) -> str:
        streams = [self._text(event.stdout), self._text(event.stderr)]
        return "\n".join(filter(None, streams)) or (event.observation if event.exit_code is None else "")

    def _text(self, text: ev.Text) -> str:
        if isinstance(text, str):
            return text
        if self._lines is None and self._folder:
            return load_text(self._folder, text)
        return text.preview

    def _finish(self, event: ev.RunFinished) -> None:
        usage = event.usage
        cost = "cost unknown" if usage.cost is None else f"${usage.cost:.4f}"
        ending = _ENDINGS.get(event.stop_reason, event.stop_reason)
        steps = f"{event.steps} step{'s' if event.steps != 1 else ''}"
        self._say(f"\n{ending} after {steps}, {usage.total_tokens:,} tokens, {cost}, {event.wall_time:.1f} s")

    def _block(self, text: str, indent: str) -> None:
        block = _Block(self._say, indent, self._lines)
        block.add(text)
        block.end()

    def _say(self, text: str) -> None:
        self._out.write(harmless(text) + "\n")


class _Block:
    """Text that arrives in pieces, printed by whole lines, only so many of them."""

    def __init__(self, say: Callable[[str], None], indent: str, lines: int | None) -> None:
        self._say = say
        self._indent = indent
        self._lines = lines
        self._count = 0
        self._rest = ""
        self.used = False

    def add(self, text: str) -> None:
        self.used = self.used or bool(text)
        *whole, self._rest = (self._rest + text).split("\n")
        for line in whole:
            self._line(line)
        if self._lines is not None:
            self._rest = self._rest[: _LINE_LENGTH + 1]

    def end(self) -> None:
        if self._rest:
            self._line(self._rest)
        if self._lines is not None and self._count > self._lines:
            self._say(f"{self._indent}... {self._count - self._lines} more lines")

    def _line(self, line: str) -> None:
        self._count += 1
        line = line.rstrip("\r")
        if self._lines is None:
            self._say(self._indent + line)
        elif self._count <= self._lines:
            self._say(self._indent + (line if len(line) <= _LINE_LENGTH else line[:_LINE_LENGTH] + " ..."))


def protection_lines(protection: dict[str, object]) -> Iterator[str]:
    """The isolation in force, what it protects from, and what it does not."""
    limits = [
        f"network {protection.get('network')}",
        f"user {protection.get('user')}",
        f"{protection['pids']} processes" if protection.get("pids") else "",
        f"{size_in_words(memory)} memory"
        if isinstance(memory := protection.get("memory_bytes"), int)
        else "",
    ]
    name = f"{protection.get('isolation')}, {protection.get('profile')}"
    yield f"Isolation  {name}: {', '.join(filter(None, limits))}"
    for key in ("protects", "does_not_protect"):
        if protection.get(key):
            yield f"           {protection[key]}"


def _call_in_words(event: ev.CallStarted) -> str:
    if event.tool == "execute_bash":
        return str(event.arguments.get("command", ""))
    shown = {name: value for name, value in event.arguments.items() if value is not None}
    return " ".join([event.tool, *(f"{name}={value}" for name, value in shown.items())])


def _outcome(event: ev.CallFinished) -> str:
    if event.timed_out:
        how = "timed out"
    elif event.error:
        how = f"refused: {event.error}"
    elif event.exit_code is None:
        how = "done"
    else:
        how = f"exit {event.exit_code}"
    return f"{how}, {event.duration:.2f} s"


def _first_line(text: str) -> str:
    first, _, rest = text.strip().partition("\n")
    return first + (" ..." if rest else "")
