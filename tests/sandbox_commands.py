"""Commands that a test starts in a sandbox and ends in the midst of what they do, however busy the machine is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from support import PATIENCE, eventually, processes_with

from llm_sandbox_nb.sandbox.contract import CommandResult

Command = str | Sequence[str]
"""A command for the shell, or a program beside it."""


def start(box: Any, command: Command, **options: Any) -> asyncio.Task[CommandResult]:
    call = box.run if isinstance(command, str) else box.exec
    return asyncio.ensure_future(call(command, **options))


async def begun(
    box: Any, command: Command, word: bytes = b"begun", **options: Any
) -> asyncio.Task[CommandResult]:
    seen, there = bytearray(), asyncio.Event()

    def look(_: str, data: bytes) -> None:
        seen.extend(data)
        if word in seen:
            there.set()

    task = start(box, command, on_output=look, **options)
    waiting = asyncio.ensure_future(there.wait())
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if not there.is_set():
        raise AssertionError(f"it ended before it printed {word!r}: {await task}")
    return task


async def timed_out(
    box: Any, command: Command, word: bytes = b"begun", *, mark: str = "", least: int = 1, **options: Any
) -> CommandResult:
    """Run a command until its time is out. It has begun by then, so the time is longer where the machine is busy.

    Args:
        word: the command prints it when it has begun.
        mark: `least` processes with this mark ran before the time was out.
    """
    for seconds in (0.5, 2, 8, 32, 128):
        task = start(box, command, timeout=seconds, **options)
        most = 0
        while (
            mark and most < least and not task.done()
        ):  # a look at all processes costs as much as the command
            most = max(most, living(mark))
            await asyncio.sleep(0.05)
        result = await task
        assert result.timed_out, result
        if word in result.stdout + result.stderr and (most >= least or not mark):
            return result
    raise AssertionError(f"it has not begun: {result}")


def living(mark: str) -> int:
    """How many processes of this machine, those in sandboxes too, have this word, a `support.own_mark()`."""
    return len(processes_with(mark))


async def until_living(mark: str, count: int) -> None:
    await eventually(lambda: living(mark) == count, f"not {count} processes with {mark}")


async def until(
    condition: Callable[[], Awaitable[object]], what: str = "it did not become so in time"
) -> None:
    deadline = time.monotonic() + PATIENCE
    while not await condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.02)
