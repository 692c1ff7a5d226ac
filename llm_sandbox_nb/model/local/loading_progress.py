"""Progress of fetching and loading a model. Cells and commands choose the place of the output."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import TextIO

Show = Callable[[str], None]
"""Function called from any thread with a line that replaces the previous line."""

shown_by: ContextVar[Show | None] = ContextVar("shown_by", default=None)
"""Function that shows progress lines in this context. If this is None, lines go to stderr."""
_SECONDS_BETWEEN_LINES = 10.0
"""Minimum time between two lines about the same work, in an output that cannot replace lines."""


class LineWriter:
    """Writer of progress lines to a stream. In a terminal, a line replaces the previous line.

    Any other stream gets at most one line in `_SECONDS_BETWEEN_LINES` about the same work.
    """

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._width = 0
        self._due, self._subject = 0.0, ""

    def __call__(self, line: str) -> None:
        """Show a line. An empty line removes the previous line."""
        if self._out.isatty():
            self._out.write(f"\r{line.ljust(self._width)}" if line else f"\r{' ' * self._width}\r")
            self._width = len(line)
        elif line:
            subject, _, _ = line.partition(":")
            if subject == self._subject and time.monotonic() < self._due:
                return
            self._subject, self._due = subject, time.monotonic() + _SECONDS_BETWEEN_LINES
            self._out.write(f"{line}\n")
        self._out.flush()


_to_stderr: dict[int, LineWriter] = {}


def show(line: str) -> None:
    """Show a line about the current work, such as `Fetching qwen: 20 %`. An empty line removes the previous line."""
    if (chosen := shown_by.get()) is not None:
        chosen(line)
        return
    stream = sys.stderr
    if (writer := _to_stderr.get(id(stream))) is None:
        writer = _to_stderr[id(stream)] = LineWriter(stream)
    writer(line)


class Share:
    """Progress of a task as a percentage, which is shown after each change."""

    def __init__(self, what: str, whole: int) -> None:
        self._what, self._whole = what, whole
        self._shown = -1

    def reached(self, done: int) -> None:
        """Show the percentage for `done` units of the whole, if the percentage has changed."""
        percent = min(100, done * 100 // self._whole) if self._whole else 0
        if percent != self._shown:
            self._shown = percent
            show(f"{self._what}: {percent} %")
