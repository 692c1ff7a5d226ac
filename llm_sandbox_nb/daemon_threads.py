"""Functions in daemon threads. Neither a run at its time limit nor the end of the program waits for them.

This module imports nothing of the package, so that every package can use it.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


async def in_daemon_thread(function: Callable[..., T], *arguments: Any, name: str = "in-thread") -> T:
    """Run `function(*arguments)` in a daemon thread, and return the result.

    Unlike with `asyncio.to_thread`, an abandoned function does not keep the event loop or the program alive.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def report(set_it: Callable[[Any], None], value: Any) -> None:
        def late() -> None:
            if not done.done():
                set_it(value)

        try:
            loop.call_soon_threadsafe(late)
        except RuntimeError:
            return  # the loop has ended meanwhile

    def work() -> None:
        try:
            result = context.run(function, *arguments)
        except Exception as error:  # noqa: BLE001 - raised where the result is awaited
            report(done.set_exception, error)
        else:
            report(done.set_result, result)

    threading.Thread(target=work, name=name, daemon=True).start()
    return await done
