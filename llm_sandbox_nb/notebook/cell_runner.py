"""Runs the loop for a cell: the loop on the background thread, the card and the interrupt on the main one."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from llm_sandbox_nb.notebook.background import CLEAN_UP, BackgroundLoop, Job
from llm_sandbox_nb.notebook.card import Card
from llm_sandbox_nb.notebook.live_display import LiveDisplay
from llm_sandbox_nb.trajectory.events import Controlled, Event

T = TypeVar("T")
Listener = Callable[[Event], None]

_TICK = 0.05
_CLOCK = 1.0
"""Seconds after which the card is updated although nothing happened, so that its clock goes on."""


class CellRunner:
    """Waits for one run and keeps its card up to date."""

    def __init__(
        self,
        background: BackgroundLoop,
        card: Card,
        display: LiveDisplay,
        on_pause: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_pause` is called in the main thread when the run has come to a halt."""
        self._on_pause = on_pause
        self._background = background
        self._card = card
        self._display = display
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._halted = False
        """Whether the run has halted since somebody was asked last."""

    def run(self, work: Callable[[Listener], Coroutine[Any, Any, T]]) -> T:
        """Run `work(listener)` to its end, showing the events it tells the listener.

        An interrupt cancels the work, waits until it has put itself away, shows that on the card, and is
        raised again; a second interrupt, or `CLEAN_UP` seconds, end the waiting. The card is whole whatever
        happens; there is none when the work failed before it began a run.
        """
        job = Job(self._background, work(self._events.put))
        try:
            self._wait(job)
        finally:
            self._drain()
            if self._card.trajectory.start:
                self._display.finish()
        return job.result()

    def _wait(self, job: Job[Any]) -> None:
        try:
            self._follow(job, None)
        except KeyboardInterrupt:
            job.cancel()
            self._follow(job, time.monotonic() + CLEAN_UP)
            raise

    def _follow(self, job: Job[Any], deadline: float | None) -> None:
        shown = time.monotonic()
        while not job.wait(_TICK) and (deadline is None or time.monotonic() < deadline):
            if self._drain() or time.monotonic() - shown > _CLOCK:
                self._display.update_if_due()
                shown = time.monotonic()
            if deadline is None and self._card.trajectory.paused and self._halted:
                self._halted = False
                self._display.show_now()
                self._on_pause()

    def _drain(self) -> bool:
        count = 0
        while True:
            try:
                event = self._events.get_nowait()
            except queue.Empty:
                return count > 0
            self._card.add(event)
            self._halted = self._halted or (isinstance(event, Controlled) and event.action == "paused")
            self._display.add(event)
            count += 1
