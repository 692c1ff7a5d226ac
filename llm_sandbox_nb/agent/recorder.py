"""The record of a run in the making: each event to the journal, into the trajectory, and to who listens."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.journal import Journal
from llm_sandbox_nb.trajectory.trajectory import Trajectory

Listener = Callable[[ev.Event], None]
"""Called in the loop's thread with each event, also transient ones, after it was recorded; must not block."""

logger = logging.getLogger(__name__)
_STORED_AT_ONCE = 256 * 1024


class Recorder:
    """Writes one run into `folder`."""

    def __init__(
        self, folder: Path, listeners: Iterable[Listener] = (), trajectory: Trajectory | None = None
    ) -> None:
        """`trajectory` is what the journal in `folder` holds already.

        Raises:
            JournalError: somebody else writes this journal.
        """
        self.folder = folder
        self.journal = Journal(folder)
        self.trajectory = trajectory or Trajectory()
        self._listeners = list(listeners)

    def emit(self, event: ev.Event) -> None:
        """Record an event, then tell the listeners.

        Raises:
            OSError: the journal cannot be written (disk full).
        """
        if event.kind not in ev.TRANSIENT:
            event.parent = event.parent or self.trajectory.head
            self.journal.append(event)
        self.trajectory.add(event)
        for listener in tuple(self._listeners):
            self._tell(listener, event)

    async def store(self, data: bytes) -> ev.Text:
        """Output as it is kept in an event: itself, or a blob when it is long or not text."""
        if len(data) <= _STORED_AT_ONCE:
            return self.journal.store_bytes(data)
        return await asyncio.to_thread(self.journal.store_bytes, data)

    def close(self) -> None:
        """Nothing more comes."""
        self.journal.close()

    def _tell(self, listener: Listener, event: ev.Event) -> None:
        try:
            listener(event)
        except Exception:
            # A view that breaks must not end the run it shows; it gets nothing more.
            logger.exception("a listener failed at %s and is told nothing more", event.kind)
            self._listeners.remove(listener)
