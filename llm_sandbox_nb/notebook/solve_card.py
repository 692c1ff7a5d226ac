"""The live card of `await solve(...)` in a notebook: updated in the event loop of the cell that awaits it."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

from llm_sandbox_nb.card.card import Card
from llm_sandbox_nb.notebook.display import LiveDisplay, has_front_end
from llm_sandbox_nb.notebook.page_cell import page_cell
from llm_sandbox_nb.notebook.settings import SandboxSettings
from llm_sandbox_nb.notebook.watchers import Watchers
from llm_sandbox_nb.trajectory.events import Event

if TYPE_CHECKING:
    from llm_sandbox_nb.runs.run import Run

_CLOCK = 1.0
"""Seconds after which the card is updated although nothing happened, so that its clock advances."""


class SolveCard:
    """Shows one run from its first event to its last."""

    def __init__(self, shell: Any, settings: SandboxSettings) -> None:
        self._shell = shell
        self._card = Card(settings.caps())
        self._watchers = Watchers(None, page_cell(shell))
        self._display = LiveDisplay(
            self._card,
            shell,
            settings.update_interval,
            self._watchers.run_id,
            lambda: self._watchers.make_panel(self._card, shell, settings.live_panel),
        )
        self._clock: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        """Let people watch and control the run at the Jupyter server, where there is one with the extension."""
        from llm_sandbox_nb.notebook.server_client.keeper import connect_server

        keeper = await connect_server()
        self._watchers.publisher = keeper.publisher() if keeper else None

    @property
    def can_decide(self) -> bool:
        """Whether a person can decide on a pause of the run at the server."""
        return self._watchers.publisher is not None

    def start(self, run: Run) -> None:
        """The run has its folder."""
        self._card.folder = run.folder
        self._watchers.start(run)
        self._clock = asyncio.ensure_future(self._advance())

    def listen(self, event: Event) -> None:
        """An event of the run."""
        self._watchers.listen(event)
        self._card.add(event)
        self._display.add(event)
        self._display.update_if_due()

    async def finish(self, run: Run) -> None:
        """The run is over: show the whole card, which stays."""
        if self._clock is not None:
            self._clock.cancel()
        await self._watchers.finish()
        if self._card.trajectory.start:
            self._display.finish()
            note_shown(run, self._shell)

    async def _advance(self) -> None:
        while True:
            await asyncio.sleep(_CLOCK)
            self._display.update_if_due()


async def open_card(show: bool | None) -> SolveCard | None:
    """The card of a run that begins now; None outside of a notebook's cell, or when the settings say so.

    `show` is what the call says; None leaves it to the settings.
    """
    from IPython.core.getipython import get_ipython

    shell: Any = get_ipython()
    in_cell = threading.current_thread() is threading.main_thread()
    if shell is None or not has_front_end(shell) or not in_cell:
        return None
    settings = shell.magics_manager.registry.get("SandboxMagics") or SandboxSettings(config=shell.config)
    settings.read_files()
    if not (settings.show if show is None else show):
        return None
    card = SolveCard(shell, settings)
    if settings.use_server:
        await card.connect()
    return card


def note_shown(run: Run, shell: Any) -> None:
    """The card of `run` is in this cell: when the run is the cell's last value too, do not show it twice."""

    def forget(*_: Any) -> None:
        run.context.shown = False
        shell.events.unregister("post_run_cell", forget)

    if not run.context.shown:
        run.context.shown = True
        shell.events.register("post_run_cell", forget)
