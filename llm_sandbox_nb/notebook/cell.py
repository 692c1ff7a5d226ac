"""The execution of a `%%sandbox` cell, from its options and text to the end of the run."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llm_sandbox_nb.card.card import Card
from llm_sandbox_nb.notebook.cell_task import CellTask, cell_task
from llm_sandbox_nb.notebook.display import LiveDisplay, Output, RunFollower, page_cell
from llm_sandbox_nb.notebook.errors import (
    SandboxCheckError,
    SandboxLimitError,
    SandboxNoAnswerError,
    in_one_sentence,
)
from llm_sandbox_nb.notebook.event_loop import BackgroundLoop, BackgroundTask
from llm_sandbox_nb.notebook.sandboxes import NotebookSandboxes
from llm_sandbox_nb.notebook.saved_runs import first_run_of, notebook_name, runs_folder
from llm_sandbox_nb.notebook.settings import SandboxSettings
from llm_sandbox_nb.notebook.watchers import Watchers

if TYPE_CHECKING:
    from llm_sandbox_nb.runs.run import Run
    from llm_sandbox_nb.sandbox.contract import Sandbox

OFFER = (
    "This task ran before in this sandbox, whose files may have changed since. To begin with the files of that time, "
    "add: --from-files-of {run}"
)
_LIMIT_SENTENCES = {
    "steps": "The run used up its steps before the model submitted: allow more with --steps.",
    "tokens": "The conversation reached its limit of tokens before the model submitted: allow more with --tokens.",
    "total_tokens": "The run used up its tokens before the model submitted: allow more with --total-tokens.",
    "cost": "The run used up its budget before the model submitted: allow more with --budget.",
    "time": "The run used up its time before the model submitted: allow more with --time.",
    "repeated": "The same call failed too often in a row: see what it needs, or allow more with --same-failures.",
}
_WITHOUT_ANSWER = ("no_answer", "refused")


@dataclass(eq=False)
class CellRun:
    """Runner of `%%sandbox` cells. Each run has a live card."""

    background: BackgroundLoop
    sandboxes: NotebookSandboxes
    settings: SandboxSettings
    shell: Any

    def run(self, options: argparse.Namespace, text: str, keep: Callable[[Run, Output], None]) -> None:
        """Run the task to the end. Once the run exists, call `keep` with the run and its card's output.

        Raises:
            SandboxUsageError, SandboxInputError, InputError, ModelError: if the run cannot start.
            RunError: if the run failed.
            SandboxLimitError: if the run reached a limit before the model submitted.
            SandboxNoAnswerError: if the model gave no answer, or refused.
            SandboxCheckError: if the check of the result failed.
            KeyboardInterrupt: if the run was interrupted.
        """
        task = cell_task(options, text, self.settings, self.shell.user_ns)
        card = Card(self.settings.caps())
        watchers = Watchers(task.on_pause, page_cell(self.shell))
        display = LiveDisplay(
            card,
            self.shell,
            self.settings.update_interval,
            watchers,
            lambda: watchers.make_panel(card, self.shell, self.settings.live_panel),
        )
        follower = RunFollower(card, display, watchers.paused, watchers.stop)

        def on_run(run: Run) -> None:
            card.folder = run.folder
            watchers.start(run)
            keep(run, display.output)

        self._offer_original_files(task)
        try:
            solving = self._solve(task, follower, on_run, watchers)
            finished = follower.follow(BackgroundTask(self.background, solving))
        finally:
            if notice := self.sandboxes.take_notice():
                print(notice)
        if finished.stop_reason == "interrupted":
            raise in_one_sentence(
                KeyboardInterrupt("The run was stopped; everything done until then is above.")
            )
        if finished.stop_reason in _WITHOUT_ANSWER:
            raise SandboxNoAnswerError(finished.error or "The model gave no answer.")
        if finished.stop_reason in _LIMIT_SENTENCES:
            # `error` has a message only if the model's context was full; then no limit of the run was reached.
            raise SandboxLimitError(finished.error or _LIMIT_SENTENCES[finished.stop_reason])
        state = finished.trajectory.state(live=False)
        if state.check in ("failed", "error"):
            raise SandboxCheckError(f"{state.words.rstrip('.')}.")

    def _offer_original_files(self, task: CellTask) -> None:
        """Print the option that restores the files from before the task's first run in this sandbox.

        Print nothing if the task never ran in this sandbox.
        """
        if task.fresh or task.files_of is not None:
            return
        running = self.background.run(self.sandboxes.current())
        if running is None:
            return
        before = first_run_of(task.task, running.id, runs_folder(self.settings, self.shell.user_ns))
        if before is not None:
            print(OFFER.format(run=before.name))

    async def _solve(
        self, task: CellTask, follower: RunFollower, on_run: Callable[[Run], None], watchers: Watchers
    ) -> Run:
        from llm_sandbox_nb.model.local.loading_progress import shown_by
        from llm_sandbox_nb.runs.solve import solve

        shown_by.set(follower.show_loading)
        watchers.publisher = await self.sandboxes.publisher()
        watchers.check(self.shell, task.sure_to_pause)
        try:
            running = None if task.fresh else await self.sandboxes.current()
            wanted = task.sandbox.isolation or "auto"
            return await solve(
                task.task,
                isolation=running.protection.isolation if running else wanted,
                sandbox=_Later(lambda: self.sandboxes.acquire(task.sandbox, fresh=task.fresh)),
                files_of=task.files_of,
                name=notebook_name(self.shell.user_ns),
                listeners=[follower.listen, watchers.listen],
                on_run=on_run,
                show=False,
                **task.arguments,
            )
        finally:
            await watchers.finish()


class _Later:
    """An awaitable that starts its coroutine only when awaited."""

    def __init__(self, start: Callable[[], Any]) -> None:
        self._start = start

    def __await__(self) -> Generator[Any, None, Sandbox]:
        sandbox: Sandbox = yield from self._start().__await__()
        return sandbox
