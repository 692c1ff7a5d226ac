"""The kernel's background event loop. It has its own thread, so that a magic that waits can be interrupted."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")

CLEAN_UP_SECONDS = 15.0
"""Maximum seconds for the clean-up of a cancelled task."""


class BackgroundLoop:
    """An asyncio loop that starts at first use and lasts as long as the kernel."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def run(self, coroutine: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run `coroutine` and wait for it; cancel it on an interrupt or after `timeout` seconds.

        Raises:
            KeyboardInterrupt, TimeoutError: after an interrupt or `timeout` seconds. The error is raised when the
                cancelled coroutine has cleaned up, but after `CLEAN_UP_SECONDS` at the latest.
        """
        job = BackgroundTask(self, coroutine)
        try:
            if job.wait(timeout):
                return job.result()
            raise TimeoutError
        except (KeyboardInterrupt, TimeoutError):
            job.cancel()
            job.wait(CLEAN_UP_SECONDS)
            raise

    def stop(self) -> None:
        """End the loop and the thread; a later use starts a new loop."""
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(CLEAN_UP_SECONDS)

    @property
    def started(self) -> bool:
        """True if the loop has been used."""
        return self._loop is not None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The running loop, which is started at first use."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                run = self._loop.run_forever
                self._thread = threading.Thread(target=run, name="llm-sandbox-nb", daemon=True)
                self._thread.start()
            return self._loop


class BackgroundTask(Generic[T]):
    """A coroutine that runs in the background loop; the task ends only after the coroutine has cleaned up."""

    def __init__(self, background: BackgroundLoop, coroutine: Coroutine[Any, Any, T]) -> None:
        self._background = background
        self._ended = threading.Event()
        self._task: asyncio.Task[T] | None = None
        background.loop.call_soon_threadsafe(self._start, coroutine)

    def _start(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._task = asyncio.get_running_loop().create_task(coroutine)
        self._task.add_done_callback(lambda _: self._ended.set())

    def wait(self, seconds: float | None) -> bool:
        """Wait at most `seconds`, and return True if the task has ended. None means no limit."""
        return self._ended.wait(seconds)

    def cancel(self) -> None:
        """Cancel the task, which ends once the coroutine has cleaned up."""
        self._background.loop.call_soon_threadsafe(lambda: self._task.cancel() if self._task else None)

    def result(self) -> T:
        """Return the result of the ended coroutine, or raise its exception."""
        assert self._task is not None
        return self._task.result()
