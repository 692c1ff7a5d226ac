"""An event loop with virtual time: when nothing else is ready, its clock jumps to the next timer.

    loop.run_until_complete(asyncio.sleep(600))  # returns at once; loop.time() is 600 s later

For code that waits only by timers of the loop. A thread or a process that works meanwhile gets no time to do so.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _JumpingSelector(selectors.DefaultSelector):
    """Select without waiting; what would have been waited for is added to `now`."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            return super().select(None)  # no timer: only another thread can wake this loop
        if not ready and timeout > 0:
            self.now += timeout
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """A loop whose `time()` is virtual seconds since its start."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def run_in_virtual_time(coroutine: Coroutine[Any, Any, T]) -> tuple[T, float]:
    """Run a coroutine in a loop with virtual time; return its result and the virtual seconds that it took."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        result = runner.run(coroutine)
        return result, runner.get_loop().time()


class Clock:
    """A clock that the test moves: `clock.now += 100`."""

    now = 100.0

    def __call__(self) -> float:
        return self.now
