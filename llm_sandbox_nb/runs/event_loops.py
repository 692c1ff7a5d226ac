"""Execution of a run's coroutines in the event loop of the run's sandbox, from any thread.

Scripts, notebook cells and coroutines call the same methods of a run. In a script or a cell, a method returns the
result. In a coroutine, a method returns an awaitable. Results can be awaited too, so `await` works everywhere.
"""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, Self, TypeVar, cast

T = TypeVar("T")


class AwaitableResult:
    """Base class of results that can also be awaited."""

    def __await__(self) -> Generator[Any, None, Self]:
        yield from ()
        return self


class EventLoops:
    """The event loops of this process that execute runs."""

    cells_wait = False
    """True if a call waits for its result even in a thread with a running event loop, as in a notebook's cell."""
    _lock = threading.Lock()
    _own: asyncio.AbstractEventLoop | None = None

    @classmethod
    def own(cls) -> asyncio.AbstractEventLoop:
        """Return the loop for runs that do not belong to another loop. The loop runs in a separate thread."""
        with cls._lock:
            if cls._own is None or cls._own.is_closed():
                loop = cls._own = asyncio.new_event_loop()
                threading.Thread(target=loop.run_forever, name="llm-sandbox-runs", daemon=True).start()
            return cls._own


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread. None if no event loop runs."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class PendingCall(Generic[T]):
    """A call that begins when it is awaited. Any use of the result before then reports the missing `await`."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop | None, work: Callable[[], Coroutine[Any, Any, T]], call: str
    ) -> None:
        self._loop, self._work, self._call = loop, work, call
        self._future: asyncio.Future[T] | None = None

    def __await__(self) -> Generator[Any, None, T]:
        if self._future is None:
            here = asyncio.get_running_loop()
            if self._loop in (None, here):
                self._future = here.create_task(self._work())
            else:
                assert self._loop is not None
                started = asyncio.run_coroutine_threadsafe(self._work(), self._loop)
                self._future = asyncio.wrap_future(started)
        return self._future.__await__()

    def __repr__(self) -> str:
        if self._future is not None:
            return repr(self._future)
        return f"Nothing has happened yet: the sandbox is in the event loop of this cell. Write `await {self._call}`."

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"The call is not awaited. Write `(await {self._call}).{name}`.")

    def __del__(self) -> None:
        if self.__dict__.get("_future", self) is None:
            text = f"A call was never awaited, so nothing happened: write `await {self._call}`."
            warnings.warn(text, RuntimeWarning, stacklevel=2, source=self)


def run_in_loop(
    loop: asyncio.AbstractEventLoop | None, work: Callable[[], Coroutine[Any, Any, T]], call: str
) -> T:
    """Execute `work` in `loop`, or in another loop if `loop` is None or does not run.

    Return the result of `work`. If the caller is a coroutine, return an awaitable for the result.

    Args:
        call: the expression to await, which the error about a missing `await` names.
    """
    here = running_loop()
    usable = loop if loop is not None and loop.is_running() else None
    if here is not None and (usable is here or not EventLoops.cells_wait):
        return cast(T, PendingCall(usable, work, call))
    future = asyncio.run_coroutine_threadsafe(work(), usable or EventLoops.own())
    try:
        return future.result()
    except KeyboardInterrupt:
        future.cancel()
        raise
