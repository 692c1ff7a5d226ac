"""Running of functions in daemon threads.

A run that reaches its time limit does not wait for such a thread, and neither does a program that ends.

This module imports nothing from llm_sandbox_nb, so that every other module can import it.
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

    With `asyncio.to_thread`, the program could not end before the function has returned.
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
        except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
            # A future refuses StopIteration. SystemExit would end the event loop, and CancelledError would cancel the
            # caller.
            usual = isinstance(error, Exception) and not isinstance(error, StopIteration)
            report(done.set_exception, error if usual else RuntimeError(repr(error)))
        else:
            report(done.set_result, result)

    threading.Thread(target=work, name=name, daemon=True).start()
    return await done
