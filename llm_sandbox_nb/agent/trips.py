"""Taking a run back while it goes on: what is under way is interrupted first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from llm_sandbox_nb.agent.control import ControlError
from llm_sandbox_nb.agent.recorder import Recorder
from llm_sandbox_nb.sandbox.contract import Sandbox

T = TypeVar("T")
Trip = Callable[[Recorder, Sandbox], Awaitable[Any]]


class Trips:
    """What a run under way is asked to do between two talks. Used in the run's event loop."""

    def __init__(self) -> None:
        self.interrupt: Callable[[], object] = lambda: None
        """Ends the talk that is under way."""
        self._asked: list[tuple[Trip, asyncio.Future[Any]]] = []
        self._over = False

    @property
    def wanted(self) -> bool:
        """Whether something is asked for."""
        return bool(self._asked)

    async def ask(self, trip: Callable[[Recorder, Sandbox], Awaitable[T]]) -> T:
        """Interrupt the run, have `trip` done, and let the run halt where that has led.

        Raises:
            ControlError: the run has ended meanwhile.
            Exception: what `trip` raises.
        """
        if self._over:
            raise ControlError("The run has ended meanwhile: ask again.")
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._asked.append((trip, done))
        self.interrupt()
        return await done

    async def do(self, recorder: Recorder, box: Sandbox) -> None:
        """Do all that is asked for."""
        while self._asked:
            trip, done = self._asked.pop(0)
            try:
                result = await trip(recorder, box)
            except Exception as error:  # noqa: BLE001 - told to who asked
                _tell(done, error)
            except BaseException:
                _tell(done, ControlError("The run was interrupted meanwhile."))
                raise
            else:
                if not done.done():
                    done.set_result(result)

    def close(self) -> None:
        """The run has ended."""
        self._over = True
        for _, done in self._asked:
            _tell(done, ControlError("The run has ended meanwhile: ask again."))
        self._asked.clear()


def _tell(done: asyncio.Future[Any], error: Exception) -> None:
    if not done.done():
        done.set_exception(error)
