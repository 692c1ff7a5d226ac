"""Handling of a pause: a call of the caller's function, or a fixed answer."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from llm_sandbox_nb.agent.control.debug_commands import execute_debug_command
from llm_sandbox_nb.agent.control.run_control import RunControl
from llm_sandbox_nb.agent.errors import ControlError, InputError
from llm_sandbox_nb.daemon_threads import in_daemon_thread

OnPause = str | Callable[[Any], Any]
"""`"stop"`, `"continue"`, or a function of the `Run` that decides, or returns a command: see `debug_commands`.

The function is called at each pause. A coroutine function is awaited. Any other function is called in its own thread,
so that the function may wait for a person. Without a decision, the run waits for a decision through its control.
"""
_FIXED = ("stop", "continue")


class ControlledRun(Protocol):
    """Run for which `on_pause` decides."""

    @property
    def control(self) -> RunControl:
        """Controls of the run."""
        ...


def checked_on_pause(on_pause: OnPause | None) -> OnPause | None:
    """Return a valid `on_pause`; raise InputError for any other value."""
    if on_pause is None or callable(on_pause) or on_pause in _FIXED:
        return on_pause
    raise InputError(f"on_pause is a function, 'stop' or 'continue', not {on_pause!r:.80}.")


def refusing_handler(run: ControlledRun) -> Callable[[], Awaitable[None]]:
    """Return the function that a run awaits at a pause if nobody watches it: calls that need approval are refused."""

    async def refuse() -> None:
        run.control.refuse()

    return refuse


def pause_handler(run: ControlledRun, on_pause: OnPause) -> Callable[[], Awaitable[None]]:
    """Return the function that a run awaits at a pause."""

    async def ask() -> None:
        answer: Any = on_pause
        if inspect.iscoroutinefunction(on_pause):
            answer = await on_pause(run)
        elif callable(on_pause):
            answer = await in_daemon_thread(on_pause, run, name="on-pause")
            if inspect.isawaitable(answer):
                answer = await answer
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
