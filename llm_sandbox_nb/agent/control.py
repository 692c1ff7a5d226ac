"""What a person decides while a run goes on: pause, go on, say something, stop.

A decision may come from any thread. It takes effect in the run's own loop, where it is recorded as an event
before anything else. A command or a reply that is under way is not paused; the run halts where it next would
ask the model or carry out a call. The time limit does not count the time that a run has halted.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from llm_sandbox_nb.trajectory import events as ev

Emit = Callable[[ev.Event], None]


class ControlError(RuntimeError):
    """There is nothing to control, or nothing was said. The message is one sentence."""


@dataclass(frozen=True)
class _Decision:
    action: ev.ControlAction
    text: str | None
    source: str


class RunControl:
    """The controls of one run. Give it to `solve(control=...)`, or take them from the `Run`.

    What is decided before the run begins takes effect at its first step.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._early: list[_Decision] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._emit: Emit = _nowhere
        self._end: Callable[[], object] = _nothing
        self._go_on = asyncio.Event()
        self._go_on.set()
        self._said: list[str] = []
        self._over = False
        self.stopped = False
        """Whether a person has stopped the run."""

    def pause(self, *, source: str = "python") -> None:
        """Halt before the next request or call. Raises ControlError when the run is over."""
        self._decide(_Decision("pause", None, source))

    def resume(self, *, source: str = "python") -> None:
        """Go on after a pause. Raises ControlError when the run is over."""
        self._decide(_Decision("resume", None, source))

    def say(self, text: str, *, source: str = "python") -> None:
        """Tell the model something; it reads it with the results of its newest calls.

        Raises:
            ControlError: there is no text, or the run is over.
        """
        text = str(ev.clean_text(text)).strip()
        if not text:
            raise ControlError("There is nothing to say: give some text.")
        self._decide(_Decision("say", text, source))

    def stop(self, *, source: str = "python") -> None:
        """End the run as `interrupted`; a command under way is killed. Raises ControlError when it is over."""
        self._decide(_Decision("stop", None, source))

    @property
    def paused(self) -> bool:
        """Whether the run halts or is about to."""
        return not self._go_on.is_set()

    @property
    def used(self) -> bool:
        """Whether it has a run already."""
        return self._over or self._loop is not None

    def _decide(self, decision: _Decision) -> None:
        with self._lock:
            if self._over:
                raise ControlError("The run is over, so there is nothing to control any more.")
            if self._loop is None:
                self._early.append(decision)
                return
            try:
                self._loop.call_soon_threadsafe(self._apply, decision)
            except RuntimeError as error:
                raise ControlError("The run's event loop has ended, and the run with it.") from error

    # --- for the run, in its loop ---

    def begin(self, emit: Emit, end: Callable[[], object]) -> None:
        """The run begins: `emit` records an event, `end` cancels the work."""
        with self._lock:
            self._loop, self._emit, self._end = asyncio.get_running_loop(), emit, end
            early, self._early = self._early, []
        for decision in early:
            self._apply(decision)

    def close(self) -> list[str]:
        """The run has ended; what was said and never read."""
        with self._lock:
            self._over = True
        self._emit, self._end = _nowhere, _nothing
        return self.take_said()

    async def stand_by(self) -> float:
        """Wait as long as the run is paused; the seconds that took."""
        await asyncio.sleep(0)  # what was decided during the last event takes effect here
        if self._go_on.is_set():
            return 0.0
        self._record("paused", None, "run")
        started = time.monotonic()
        while not self._go_on.is_set():
            await self._go_on.wait()
        return time.monotonic() - started

    def take_said(self) -> list[str]:
        """What was said since this was last asked."""
        said, self._said = self._said, []
        return said

    def _apply(self, decision: _Decision) -> None:
        if self._over or self.stopped:
            return
        self._record(decision.action, decision.text, decision.source)
        match decision.action:
            case "pause":
                self._go_on.clear()
            case "resume":
                self._go_on.set()
            case "say":
                self._said.append(decision.text or "")
            case "stop":
                self.stopped = True
                self._end()

    def _record(self, action: ev.ControlAction, text: str | None, source: str) -> None:
        self._emit(ev.Controlled(action=action, text=text, source=source))


def _nowhere(event: ev.Event) -> None:
    """Record nothing: the run does not go on."""


def _nothing() -> None:
    """There is nothing to cancel."""
