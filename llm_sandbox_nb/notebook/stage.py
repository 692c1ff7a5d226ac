"""Shows what a run does when it goes on: a card of its own in the cell that asked for it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from llm_sandbox_nb.notebook.background import BackgroundLoop
from llm_sandbox_nb.notebook.card import Card
from llm_sandbox_nb.notebook.cell_runner import CellRunner, Listener
from llm_sandbox_nb.notebook.live_display import LiveDisplay
from llm_sandbox_nb.notebook.sandboxes import NotebookSandboxes
from llm_sandbox_nb.notebook.settings import SandboxSettings
from llm_sandbox_nb.notebook.watching import Watching

if TYPE_CHECKING:
    from llm_sandbox_nb.agent.run import Run

GoOn = Callable[[list[Listener]], Coroutine[Any, Any, "Run"]]


class CellStage:
    """Called by `Run.resume` in a notebook: waits for the end and keeps a card up to date meanwhile."""

    def __init__(
        self, background: BackgroundLoop, sandboxes: NotebookSandboxes, settings: SandboxSettings, shell: Any
    ) -> None:
        self._background = background
        self._sandboxes = sandboxes
        self._settings = settings
        self._shell = shell

    def __call__(self, run: Run, go_on: GoOn) -> Run:
        """Go on with `run` to its end. Raises what going on raises, and KeyboardInterrupt."""
        card = Card(self._settings.caps(), run.folder)
        for event in run.trajectory.events:
            card.add(event)
        watching = Watching(None)
        display = LiveDisplay(card, self._shell, self._settings.update_interval, watching.run_id)
        runner = CellRunner(self._background, card, display, watching.paused)
        return runner.run(lambda listener: self._go_on(run, go_on, listener, watching))

    async def _go_on(self, run: Run, go_on: GoOn, listener: Listener, watching: Watching) -> Run:
        watching.publisher = await self._sandboxes.publisher()
        watching.start(run)
        try:
            return await go_on([listener, watching.listen])
        finally:
            await watching.finish()
