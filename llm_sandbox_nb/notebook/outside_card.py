"""The card of a run that an outside agent drives or starts, in the cell of `%sandbox mcp`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from llm_sandbox_nb.card.card import Card
from llm_sandbox_nb.notebook.display import LiveDisplay, Output, page_cell
from llm_sandbox_nb.notebook.settings import SandboxSettings
from llm_sandbox_nb.notebook.watchers import Watchers
from llm_sandbox_nb.trajectory.events import Event

if TYPE_CHECKING:
    from llm_sandbox_nb.notebook.server_client.publisher import RunPublisher
    from llm_sandbox_nb.runs.run import Run

_LAST_UPDATE_SECONDS = 1.0
"""Seconds after an update until one more update shows the newest events."""


class OutsideCard:
    """Live card of a run. Create it in the thread or context of the cell, and use it in the loop of the run."""

    def __init__(self, shell: Any, settings: SandboxSettings, publisher: RunPublisher) -> None:
        self._card = Card(settings.caps())
        self._watchers = Watchers("wait", page_cell(shell))
        self._watchers.publisher = self.publisher = publisher
        self._display = LiveDisplay(self._card, shell, settings.update_interval, self._watchers)
        self._news = asyncio.Event()
        self._updating: asyncio.Task[None] | None = None

    @property
    def output(self) -> Output:
        return self._display.output

    def start(self, run: Run) -> None:
        """Follow the run, whose folder exists now."""
        self._card.folder = run.folder
        self._watchers.start(run)
        self._updating = asyncio.ensure_future(self._update())

    def listen(self, event: Event) -> None:
        self._watchers.listen(event)
        self._card.add(event)
        self._display.add(event)
        self._news.set()

    async def finish(self) -> None:
        """Show the final card at the end of the run."""
        if self._updating is not None:
            self._updating.cancel()
        await self._watchers.finish()
        if self._card.trajectory.start:
            self._display.finish()

    async def _update(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            self._display.update_if_due()
            await asyncio.sleep(_LAST_UPDATE_SECONDS)
            self._display.update_if_due()
