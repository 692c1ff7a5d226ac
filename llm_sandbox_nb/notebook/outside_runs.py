"""The runs that an outside agent starts in the notebook's sandbox: executed and shown like the runs of a cell."""

from __future__ import annotations

import asyncio
import contextvars
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from llm_sandbox_nb.notebook.cell_task import cell_task
from llm_sandbox_nb.notebook.display import Output
from llm_sandbox_nb.notebook.errors import SandboxUsageError
from llm_sandbox_nb.notebook.outside_card import OutsideCard
from llm_sandbox_nb.notebook.saved_runs import notebook_name
from llm_sandbox_nb.notebook.settings import SandboxSettings

if TYPE_CHECKING:
    from llm_sandbox_nb.agent.recorder import Listener
    from llm_sandbox_nb.notebook.server_client.keeper import ServerKeeper
    from llm_sandbox_nb.runs.run import Run
    from llm_sandbox_nb.runs.started_runs import RunRequest
    from llm_sandbox_nb.sandbox.contract import Sandbox

NO_MODEL = "The notebook has no model: ask the person to execute %sandbox model NAME in it."


@dataclass(eq=False)
class OutsideRuns:
    """Executor of the runs that outside agents start. Create it in the thread of the cell that shows the cards."""

    keeper: ServerKeeper
    sandbox: Sandbox
    settings: SandboxSettings
    shell: Any
    cell_task: Callable[[], Namespace]
    """Function that returns the default options of a `%%sandbox` cell."""
    approve: str
    """Value of `%sandbox mcp --approve`."""
    on_run: Callable[[Run, Output], None]
    """Function that is called with each run and the output that shows the run."""
    _context: contextvars.Context = field(default_factory=contextvars.copy_context)
    """Context of the cell. Cards that are shown in this context appear in the output of the cell."""

    async def execute(self, request: RunRequest, listener: Listener, begun: Callable[[Run], None]) -> object:
        """Execute a run to its end with the settings of the notebook; see `Starter` in `runs/started_runs.py`.

        Raises:
            SandboxUsageError, SandboxInputError, InputError, ModelError: if the run cannot start.
            RunError: if the run failed; its card shows the failure.
        """
        running = self._execute(request, listener, begun)
        return await asyncio.create_task(running, context=self._context.copy())

    async def _execute(self, request: RunRequest, listener: Listener, begun: Callable[[Run], None]) -> Run:
        from llm_sandbox_nb.runs.solve import solve

        if not (request.model or self.settings.model):
            raise SandboxUsageError(NO_MODEL)
        options, allowed = self.cell_task(), self.settings.steps or request.max_steps
        options.model, options.steps = request.model, str(min(request.max_steps, allowed))
        options.approve = self.approve
        task = cell_task(options, request.task, self.settings, self.shell.user_ns)
        card = OutsideCard(self.shell, self.settings, self.keeper.publisher())

        def on_run(run: Run) -> None:
            self.on_run(run, card.output)
            card.start(run)
            begun(run)

        try:
            return await solve(
                task.task,
                isolation=self.sandbox.protection.isolation,
                sandbox=self.sandbox,
                name=notebook_name(self.shell.user_ns),
                listeners=[card.listen, listener],
                on_run=on_run,
                show=False,
                **task.arguments,
            )
        finally:
            await card.finish()
