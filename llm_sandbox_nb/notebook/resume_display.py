"""Shows a run that is resumed: a card in the cell that resumes it, or in the place of the run's newest card."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from llm_sandbox_nb.card.card import Card
from llm_sandbox_nb.notebook.display import Listener, LiveDisplay, Output, RunFollower, UpdatedOutput
from llm_sandbox_nb.notebook.event_loop import BackgroundLoop, BackgroundTask
from llm_sandbox_nb.notebook.page_cell import page_cell
from llm_sandbox_nb.notebook.sandboxes import NotebookSandboxes
from llm_sandbox_nb.notebook.settings import SandboxSettings
from llm_sandbox_nb.notebook.solve_card import note_shown
from llm_sandbox_nb.notebook.watchers import Watchers

if TYPE_CHECKING:
    from llm_sandbox_nb.runs.run import Run

Resume = Callable[[list[Listener]], Coroutine[Any, Any, "Run"]]


class CellResumeDisplay:
    """Called by `Run.resume` in a notebook: waits for the end and keeps a card up to date meanwhile."""

    def __init__(
        self,
        background: BackgroundLoop,
        sandboxes: NotebookSandboxes,
        settings: SandboxSettings,
        shell: Any,
        newest: Output | None = None,
    ) -> None:
        """`newest` has the run's newest card of this kernel."""
        self._newest = newest
        self._background = background
        self._sandboxes = sandboxes
        self._settings = settings
        self._shell = shell

    def __call__(self, run: Run, resume: Resume) -> Run:
        """Resume `run` and wait for its end. Raises what `resume` raises, and KeyboardInterrupt."""
        return self._show(run, resume, None)

    def in_place(self, run: Run, resume: Resume) -> Run:
        """The same in the place of the newest card, in whatever cell that is."""
        return self._show(run, resume, self._newest)

    def _show(self, run: Run, resume: Resume, output: Output | None) -> Run:
        card = Card(self._settings.caps(), run.folder)
        for event in run.trajectory.events:
            card.add(event)
        watching = Watchers(None, page_cell(self._shell))
        place = output if isinstance(output, UpdatedOutput) else None
        display = LiveDisplay(
            card, self._shell, self._settings.update_interval, watching.run_id, output=place
        )
        self._newest = display.output
        follower = RunFollower(card, display, watching.paused)
        resuming = self._resume(run, resume, follower.listen, watching)
        note_shown(run, self._shell)
        return follower.follow(BackgroundTask(self._background, resuming))

    async def _resume(self, run: Run, resume: Resume, listener: Listener, watching: Watchers) -> Run:
        watching.publisher = await self._sandboxes.publisher()
        watching.start(run)
        try:
            return await resume([listener, watching.listen])
        finally:
            await watching.finish()
