"""Preparation of the next sandbox while the notebook is idle.

A person who loads the extension wants to run tasks, so the first preparation follows the cell that loads it.
Preparation waits until no cell has run for a second, so that *Run all* is not slowed. A plain script or an IPython
terminal prepares nothing, because its next command usually follows at once, or never.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

from llm_sandbox_nb.errors import LLMSandboxError
from llm_sandbox_nb.notebook.event_loop import BackgroundLoop
from llm_sandbox_nb.notebook.sandboxes import NotebookSandboxes
from llm_sandbox_nb.notebook.settings import SandboxSettings

IDLE_SECONDS = 1.0
"""Seconds without a running cell after which sandboxes are prepared; *Run all* leaves much less between cells."""

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class IdlePreparation:
    """Preparation of sandboxes that starts when a kernel is idle. `watch` follows the cells of the kernel."""

    background: BackgroundLoop
    sandboxes: NotebookSandboxes
    settings: SandboxSettings
    _timer: asyncio.TimerHandle | None = None
    _task: asyncio.Task[None] | None = None

    def watch(self, events: Any) -> None:
        events.register("pre_run_cell", self._cell_begins)
        events.register("post_run_cell", self._cell_ended)

    def unwatch(self, events: Any) -> None:
        for name, function in (("pre_run_cell", self._cell_begins), ("post_run_cell", self._cell_ended)):
            if function in events.callbacks[name]:
                events.unregister(name, function)

    def _cell_begins(self, *_: object) -> None:
        if self.background.started:
            self.background.loop.call_soon_threadsafe(self._stop_timer)

    def _cell_ended(self, *_: object) -> None:
        if self.settings.prepared_sandboxes or self.background.started:
            self.background.loop.call_soon_threadsafe(self._start_timer)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start_timer(self) -> None:
        self._stop_timer()
        self._timer = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._begin)

    def _begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._prepare())

    async def _prepare(self) -> None:
        from llm_sandbox_nb.notebook.cell_task import (
            sandbox_options,
        )  # imported late, so that the extension loads fast

        settings = self.settings
        try:
            await self.sandboxes.prepare(
                sandbox_options(settings), settings.prepared_sandboxes, settings.prepared_time
            )
        except (LLMSandboxError, OSError, ValueError) as error:
            # A cell that needs a sandbox reports the same problem.
            logger.debug("No sandbox is prepared: %s", error)
