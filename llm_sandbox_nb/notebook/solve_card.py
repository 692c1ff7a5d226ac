"""The live cards of `await solve(...)` and `Run.resume`, in the calling cell or in place of the run's newest card."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llm_sandbox_nb.card.card import Card
from llm_sandbox_nb.notebook.display import (
    CLOCK_SECONDS,
    Listener,
    LiveDisplay,
    Output,
    RunFollower,
    UpdatedOutput,
    has_front_end,
    page_cell,
)
from llm_sandbox_nb.notebook.event_loop import BackgroundLoop, BackgroundTask
from llm_sandbox_nb.notebook.sandboxes import NotebookSandboxes
from llm_sandbox_nb.notebook.settings import SandboxSettings
from llm_sandbox_nb.notebook.watchers import Watchers
from llm_sandbox_nb.trajectory.events import Event

if TYPE_CHECKING:
    from llm_sandbox_nb.runs.run import Run

Resume = Callable[[list[Listener]], Coroutine[Any, Any, "Run"]]


class SolveCard:
    """Live card of a run from the first event to the last."""

    def __init__(self, shell: Any, settings: SandboxSettings) -> None:
        self._shell = shell
        self._card = Card(settings.caps())
        self._watchers = Watchers(None, page_cell(shell))
        self._display = LiveDisplay(
            self._card,
            shell,
            settings.update_interval,
            self._watchers,
            lambda: self._watchers.make_panel(self._card, shell, settings.live_panel),
        )
        self._clock: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        """Let people watch and control the run at the Jupyter server, if the server has the extension."""
        from llm_sandbox_nb.notebook.server_client.keeper import connect_server

        keeper = await connect_server()
        self._watchers.publisher = keeper.publisher() if keeper else None

    @property
    def can_decide(self) -> bool:
        """True if a person can decide at the server how the run resumes when it pauses."""
        return self._watchers.publisher is not None

    def start(self, run: Run) -> None:
        """Follow the run. Call this as soon as the run's folder exists."""
        self._card.folder = run.folder
        self._watchers.start(run)
        self._clock = asyncio.ensure_future(self._advance())

    def listen(self, event: Event) -> None:
        self._watchers.listen(event)
        self._card.add(event)
        self._display.add(event)
        self._display.update_if_due()

    async def finish(self, run: Run) -> None:
        """Show the final card at the end of the run."""
        if self._clock is not None:
            self._clock.cancel()
        await self._watchers.finish()
        if self._card.trajectory.start:
            self._display.finish()
            note_shown(run, self._shell)

    async def _advance(self) -> None:
        while True:
            await asyncio.sleep(CLOCK_SECONDS)
            self._display.update_if_due()


async def open_card(show: bool | None) -> SolveCard | None:
    """Return the card of a new run; None outside a notebook's cell, or if cards are switched off.

    `show` is the argument of `solve`; None leaves the choice to the settings.
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


@dataclass(eq=False)
class CellResumeDisplay:
    """Callable that `Run.resume` uses in a notebook. It shows a live card and waits for the end of the run."""

    background: BackgroundLoop
    sandboxes: NotebookSandboxes
    settings: SandboxSettings
    shell: Any
    newest: Output | None = None
    """Output with the run's newest card in this kernel."""

    def __call__(self, run: Run, resume: Resume) -> Run:
        """Resume `run` and wait for its end. Raises the errors of `resume`, and KeyboardInterrupt."""
        return self._show(run, resume, None)

    def in_place(self, run: Run, resume: Resume) -> Run:
        """Resume `run`, and show the card in place of the run's newest card, which may be in another cell."""
        return self._show(run, resume, self.newest)

    def _show(self, run: Run, resume: Resume, output: Output | None) -> Run:
        card = Card(self.settings.caps(), run.folder)
        for event in run.trajectory.events:
            card.add(event)
        watching = Watchers(None, page_cell(self.shell))
        place = output if isinstance(output, UpdatedOutput) else None
        display = LiveDisplay(card, self.shell, self.settings.update_interval, watching, output=place)
        self.newest = display.output
        follower = RunFollower(card, display, watching.paused, watching.stop)
        resuming = self._resume(run, resume, follower.listen, watching)
        note_shown(run, self.shell)
        return follower.follow(BackgroundTask(self.background, resuming))

    async def _resume(self, run: Run, resume: Resume, listener: Listener, watching: Watchers) -> Run:
        watching.publisher = await self.sandboxes.publisher()
        watching.start(run)
        try:
            return await resume([listener, watching.listen])
        finally:
            await watching.finish()


def note_shown(run: Run, shell: Any) -> None:
    """Note that this cell shows `run`, so that IPython does not show the run again as the cell's last value."""

    def forget(*_: Any) -> None:
        run.context.shown = False
        shell.events.unregister("post_run_cell", forget)

    if not run.context.shown:
        run.context.shown = True
        shell.events.register("post_run_cell", forget)
