"""The runs that an outside agent starts in the notebook's sandbox: executed and shown like those of a cell."""

from __future__ import annotations

import asyncio
import contextvars
from argparse import Namespace
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from llm_sandbox_nb.notebook.cell_options import cell_task
from llm_sandbox_nb.notebook.display import Output
from llm_sandbox_nb.notebook.errors import SandboxUsageError
from llm_sandbox_nb.notebook.outside_card import OutsideCard
from llm_sandbox_nb.notebook.saved_runs import notebook_name
from llm_sandbox_nb.notebook.settings import SandboxSettings
from llm_sandbox_nb.sandbox.leftover_folders import TemporaryFolder

if TYPE_CHECKING:
    from llm_sandbox_nb.agent.recorder import Listener
    from llm_sandbox_nb.notebook.server_client.keeper import ServerKeeper
    from llm_sandbox_nb.runs.run import Run
    from llm_sandbox_nb.runs.started_runs import RunRequest
    from llm_sandbox_nb.sandbox.contract import Sandbox

NO_MODEL = "The notebook has no model: ask the person to execute %sandbox model NAME in it."


class OutsideRuns:
    """Executor of the runs that outside agents start. Create it in the thread of the cell that shows the cards."""

    def __init__(
        self,
        keeper: ServerKeeper,
        sandbox: Sandbox,
        settings: SandboxSettings,
        shell: Any,
        cell_options: Callable[[], Namespace],
        approve: str,
        on_run: Callable[[Run, Output], None],
    ) -> None:
        """Create the executor.

        Args:
            cell_options: returns the default options of a `%%sandbox` cell.
            approve: the value of `%sandbox mcp --approve`.
            on_run: called with each run and the output that shows it.
        """
        self._keeper = keeper
        self._sandbox = sandbox
        self._settings = settings
        self._shell = shell
        self._cell_options = cell_options
        self._approve = approve
        self._on_run = on_run
        self._context = contextvars.copy_context()
        """Context of the cell, so that its output shows the cards."""

    async def execute(self, request: RunRequest, listener: Listener, begun: Callable[[Run], None]) -> object:
        """Execute a run to its end with the settings of the notebook; see `Starter`.

        Raises:
            SandboxUsageError, SandboxInputError, InputError, ModelError: if the run cannot start.
            RunError: if the run failed; its card shows the failure.
        """
        running = self._execute(request, listener, begun)
        return await asyncio.create_task(running, context=self._context.copy())

    async def _execute(self, request: RunRequest, listener: Listener, begun: Callable[[Run], None]) -> Run:
        from llm_sandbox_nb.runs.solve import solve

        if not (request.model or self._settings.model):
            raise SandboxUsageError(NO_MODEL)
        options, allowed = self._cell_options(), self._settings.steps or request.max_steps
        options.model, options.steps = request.model, str(min(request.max_steps, allowed))
        options.approve = self._approve
        with TemporaryFolder() as staging:
            task = cell_task(options, request.task, self._settings, self._shell.user_ns, staging)
            card = OutsideCard(self._shell, self._settings, self._keeper.publisher())

            def on_run(run: Run) -> None:
                self._on_run(run, card.output)
                card.start(run)
                begun(run)

            try:
                return await solve(
                    task.task,
                    isolation=self._sandbox.protection.isolation,
                    sandbox=self._sandbox,
                    name=notebook_name(self._shell.user_ns),
                    listeners=[card.listen, listener],
                    on_run=on_run,
                    show=False,
                    **task.arguments,
                )
            finally:
                await card.finish()
