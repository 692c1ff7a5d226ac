"""Pauses of a run on the command line: a person at the terminal decides."""

from __future__ import annotations

import asyncio
import os
import select
import sys
from typing import TYPE_CHECKING, Any, TextIO

from llm_sandbox_nb.cli.own_functions import check_function_name
from llm_sandbox_nb.cli.printer import harmless
from llm_sandbox_nb.options.table import UsageError

if TYPE_CHECKING:
    from llm_sandbox_nb.runs.run import Run

_POLL = 0.05
"""Seconds between two looks at what was typed, so that an interrupt takes effect at once."""
_LONGEST_LINE = 1_000_000
_SHOWN = 20_000
"""Characters of a call or an observation that are printed."""


def check_stops(values: dict[str, Any]) -> None:
    """Check the options of this group before anything heavy is imported.

    Raises:
        UsageError: the run is sure to pause and nobody can answer, or a function's name is invalid.
    """
    option = "--step" if values["step"] else f"--approve {values['approve']}"
    sure = values["step"] or values["approve"] != "auto"
    if sure and values["on_pause"] == "ask" and not _can_answer(sys.stdin):
        raise UsageError(
            f"{option} needs a person at the terminal, and there is no input here: leave it out, or "
            "say what to do instead: --on_pause stop, --on_pause continue, or --break EXPR --on_pause stop."
        )
    for name in values["break_when"]:
        check_function_name("break_when", name)


def _can_answer(stdin: TextIO | None) -> bool:
    from llm_sandbox_nb.agent.control.debug_commands import can_answer

    return can_answer(stdin)


class TerminalPrompt:
    """Asks at each pause, line by line. Without an answer it ends the run."""

    def __init__(self, source: TextIO | None, out: TextIO) -> None:
        self._source = source
        self._out = out
        self._read = b""
        self._ended = source is None

    async def ask(self, run: Run) -> None:
        """Let a person decide what the run does next; see `debug_commands` for what they can write."""
        from llm_sandbox_nb.agent.control.debug_commands import Prompt

        prompt = Prompt(run.control, source="terminal")
        if prompt.open and prompt.text:
            self._say(prompt.text[:_SHOWN] + "\n")
        while prompt.open:
            self._say(prompt.hint)
            line = await self._line()
            if line is None:
                self._say("\nNobody answers: the run is ended.\n")
                run.control.stop(source="terminal")
                return
            if shown := prompt.answer(line):
                self._say(shown + "\n")

    def _say(self, text: str) -> None:
        self._out.write(harmless(text))
        self._out.flush()

    async def _line(self) -> str | None:
        """The next line; None when no more come. Waits without a thread, which could not be ended."""
        while b"\n" not in self._read and not self._ended:
            assert self._source is not None
            number = self._source.fileno()
            if not select.select([number], [], [], 0)[0]:
                await asyncio.sleep(_POLL)
                continue
            data = os.read(number, 65536)
            self._read += data
            self._ended = not data or len(self._read) > _LONGEST_LINE
        if not self._read:
            return None
        line, _, self._read = self._read.partition(b"\n")
        return line.decode("utf-8", "replace")
