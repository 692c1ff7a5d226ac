"""What a run does at a pause: it calls the caller's function, or follows a fixed answer."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from llm_sandbox_nb.agent.control.debug_commands import execute_debug_command
from llm_sandbox_nb.agent.control.run_control import RunControl
from llm_sandbox_nb.agent.errors import ControlError, InputError
from llm_sandbox_nb.daemon_threads import in_daemon_thread

OnPause = str | Callable[[Any], Any]
"""`"stop"`, `"continue"`, or a function that gets the `Run` and decides, or returns a command: see `debug_commands`.

It is called at each pause. A coroutine function is awaited. Any other function is called in its own thread, so that
it may wait for a person. When it decides nothing, the run waits for a decision through its control.
"""
_FIXED = ("stop", "continue")


class ControlledRun(Protocol):
    """A run that `on_pause` decides about."""

    @property
    def control(self) -> RunControl:
        """The controls of the run."""
        ...


def checked_on_pause(on_pause: OnPause | None) -> OnPause | None:
    """Raises InputError when it is invalid."""
    if on_pause is None or callable(on_pause) or on_pause in _FIXED:
        return on_pause
    raise InputError(f"on_pause is a function, 'stop' or 'continue', not {on_pause!r:.80}.")


def pause_handler(run: ControlledRun, on_pause: OnPause) -> Callable[[], Awaitable[None]]:
    """The function that a run awaits at a pause."""

    async def ask() -> None:
        answer = on_pause if isinstance(on_pause, str) else await _answer(on_pause, run)
        if isinstance(answer, str):
            problem = execute_debug_command(run.control, answer, source="on_pause")
            if problem:
                raise ControlError(f"on_pause returned {answer[:80]!r}: {problem}")
        elif answer is not None and run.control.held:
            raise ControlError(
                f"on_pause returned {answer!r:.80}: let it return a command such as 'step', or nothing after it has "
                "decided, as in run.resume()."
            )

    return ask


async def _answer(function: Callable[[Any], Any], run: ControlledRun) -> Any:
    if inspect.iscoroutinefunction(function):
        return await function(run)
    answer = await in_daemon_thread(function, run, name="on-pause")
    return await answer if inspect.isawaitable(answer) else answer
