"""Says how far the fetching and the loading of a model are. A cell and a command choose where that is shown."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import TextIO

Show = Callable[[str], None]
"""Called with a line that takes the place of the one before; from any thread."""

shown_by: ContextVar[Show | None] = ContextVar("shown_by", default=None)
"""Where lines go in this context; None: to stderr."""
_PAUSE = 10.0
"""Seconds between two lines where none can take the place of the other."""


class LineWriter:
    """Writes to a stream: in a terminal each line takes the place of the one before, elsewhere it writes few."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._width = 0
        self._due, self._subject = 0.0, ""

    def __call__(self, line: str) -> None:
        """Show a line; an empty one ends them."""
        if self._out.isatty():
            self._out.write(f"\r{line.ljust(self._width)}" if line else f"\r{' ' * self._width}\r")
            self._width = len(line)
        elif line:
            subject, _, _ = line.partition(":")
            if subject == self._subject and time.monotonic() < self._due:
                return
            self._subject, self._due = subject, time.monotonic() + _PAUSE
            self._out.write(f"{line}\n")
        self._out.flush()


_to_stderr: dict[int, LineWriter] = {}


def show(line: str) -> None:
    """Show what is done now, such as `Fetching qwen: 20 %`; an empty line when it is done."""
    if (chosen := shown_by.get()) is not None:
        chosen(line)
        return
    stream = sys.stderr
    if (writer := _to_stderr.get(id(stream))) is None:
        writer = _to_stderr[id(stream)] = LineWriter(stream)
    writer(line)


class Share:
    """Shows the share of a work that is done, whenever its percentage has changed."""

    def __init__(self, what: str, whole: int) -> None:
        self._what, self._whole = what, whole
        self._shown = -1

    def reached(self, done: int) -> None:
        """So much of the whole is done."""
        percent = min(100, done * 100 // self._whole) if self._whole else 0
        if percent != self._shown:
            self._shown = percent
            show(f"{self._what}: {percent} %")
