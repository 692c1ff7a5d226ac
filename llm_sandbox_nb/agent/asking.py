"""Asking somebody what to do when a run has come to a halt: a function of the caller's, or a fixed answer."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from llm_sandbox_nb.agent.failures import ControlError, InputError
from llm_sandbox_nb.agent.words import carry_out

if TYPE_CHECKING:
    from llm_sandbox_nb.agent.run import Run

OnPause = str | Callable[["Run"], Any]
"""`"stop"`, `"continue"`, or a function that gets the run and decides, or returns a word: see `words`.

It is called at each halt. A coroutine function is awaited, any other is called in a thread of its own, so that it
may wait for a person. When it decides nothing, the run waits for whoever has its control.
"""
_FIXED = ("stop", "continue")


def checked_on_pause(on_pause: OnPause | None) -> OnPause | None:
    """Raises InputError when it is no answer."""
    if on_pause is None or callable(on_pause) or on_pause in _FIXED:
        return on_pause
    raise InputError(f"on_pause is a function, 'stop' or 'continue', not {on_pause!r:.80}.")


def asker(run: Run, on_pause: OnPause) -> Callable[[], Awaitable[None]]:
    """What a run awaits when it has come to a halt."""

    async def ask() -> None:
        answer = on_pause if isinstance(on_pause, str) else await _answer(on_pause, run)
        if isinstance(answer, str):
            problem = carry_out(run.control, answer, source="on_pause")
            if problem:
                raise ControlError(f"on_pause returned {answer[:80]!r}: {problem}")

    return ask


async def _answer(function: Callable[[Run], Any], run: Run) -> Any:
    if inspect.iscoroutinefunction(function):
        return await function(run)
    answer = await _in_thread(lambda: function(run))
    return await answer if inspect.isawaitable(answer) else answer


async def _in_thread(function: Callable[[], Any]) -> Any:
    """What `function` returns. Its thread does not keep the program from ending, whatever it waits for."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()

    def tell(set_it: Callable[[Any], None], value: Any) -> None:
        def late() -> None:
            if not done.done():
                set_it(value)

        try:
            loop.call_soon_threadsafe(late)
        except RuntimeError:
            return  # the loop has ended meanwhile

    def work() -> None:
        try:
            result = function()
        except Exception as error:  # noqa: BLE001 - the caller's own function
            tell(done.set_exception, error)
        else:
            tell(done.set_result, result)

    threading.Thread(target=work, name="on-pause", daemon=True).start()
    return await done
