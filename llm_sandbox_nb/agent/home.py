"""Where the work of a run is done: in the event loop that its sandbox belongs to, whoever asks for it.

One call serves a script, a notebook cell and a coroutine. In a script, and in a cell, it returns when the work is
done. In a coroutine it returns something to await. What the work returns can be awaited as well, so that `await` is
right everywhere.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Self, TypeVar, cast

T = TypeVar("T")


class Awaitable:
    """A result that may be awaited although it is there already."""

    def __await__(self) -> Generator[Any, None, Self]:
        """Itself, at once."""
        yield from ()
        return self


class Home:
    """The event loops of this process that runs live in."""

    cells_wait = False
    """Whether a call from a thread whose event loop is running waits all the same, as in a notebook's cell."""
    _lock = threading.Lock()
    _own: asyncio.AbstractEventLoop | None = None

    @classmethod
    def own(cls) -> asyncio.AbstractEventLoop:
        """The loop of runs that began in none, on a thread of its own."""
        with cls._lock:
            if cls._own is None or cls._own.is_closed():
                loop = cls._own = asyncio.new_event_loop()
                threading.Thread(target=loop.run_forever, name="llm-sandbox-runs", daemon=True).start()
            return cls._own


def do(loop: asyncio.AbstractEventLoop | None, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Do `work` in `loop` (None: any loop), and return what it returns, or, in a coroutine, something to await."""
    try:
        here: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
    except RuntimeError:
        here = None
    usable = loop if loop is not None and loop.is_running() else None
    if here is not None and (usable is here or not Home.cells_wait):
        if usable in (None, here):
            return cast(T, here.create_task(work()))
        return cast(T, asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(), usable)))
    future = asyncio.run_coroutine_threadsafe(work(), usable or Home.own())
    try:
        return future.result()
    except KeyboardInterrupt:
        future.cancel()
        raise
