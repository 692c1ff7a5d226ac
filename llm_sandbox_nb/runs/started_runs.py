"""Runs that an outside agent starts, follows and stops with the tools `start_run`, `get_run` and `stop_run`."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from llm_sandbox_nb.agent.errors import ControlError
from llm_sandbox_nb.agent.recorder import Listener
from llm_sandbox_nb.errors import LLMSandboxError
from llm_sandbox_nb.runs.outside_agent import OTHER_RUN, OutsideAgent, OutsideError
from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.trajectory import events as ev

logger = logging.getLogger(__name__)
MAX_STARTED_RUNS = 20
"""Maximum number of runs that outside agents can start after one `%sandbox mcp`, because runs cost money."""
NOT_HERE = "Runs cannot be started here: they need the sandbox of a notebook that has executed %sandbox mcp."
EMPTY_TASK = "`task` is empty: write what the other agent has to do. Nothing was done."
NOT_IN_FORK = "A run works in the notebook's sandbox, not in a fork: leave `sandbox` out."
YOUR_CALL = (
    "A call of an outside agent is executed or waits for a person: wait for its result with wait_command."
)
YOUR_RUN = "A run that an outside agent started uses this sandbox: wait for it with get_run, or end it with stop_run."
TOO_MANY = (
    f"Outside agents have started {MAX_STARTED_RUNS} runs, as many as they may: ask the person to execute "
    "%sandbox mcp --stop and %sandbox mcp in the notebook."
)
UNKNOWN = "There is no such run for you: leave run_id out to get the run of your own calls."


@dataclass(frozen=True)
class RunRequest:
    """Arguments of `start_run`."""

    task: str
    model: str | None
    """Name of the model. None stands for the model of the notebook's cells."""
    max_steps: int


Starter = Callable[[RunRequest, Listener, Callable[[Run], None]], Awaitable[object]]
"""Function that executes a run to its end, as a cell does. It calls its last argument as soon as the run's folder
exists."""


@dataclass(eq=False)
class StartedRun:
    """A run that an outside agent has started, with the id by which the agent refers to the run."""

    id: str
    principal: str
    """Name of the caller's token. A caller can use the id of the run only with this token."""
    run: Run
    task: asyncio.Future[object]
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """`asyncio.Event` that is set each time the run records an event."""

    @property
    def ended(self) -> bool:
        return self.task.done()

    async def next_event(self, wait: float) -> None:
        """Wait at most `wait` seconds for an event or the end of the run."""
        self.changed.clear()
        event = asyncio.ensure_future(self.changed.wait())
        both: set[asyncio.Future[Any]] = {event, self.task}
        await asyncio.wait(both, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
        event.cancel()


class StartedRuns:
    """The runs that outside agents have started in a sandbox. Methods must be called in the event loop of the runs."""

    def __init__(self, starter: Starter | None) -> None:
        self._starter = starter
        self._runs: dict[str, StartedRun] = {}
        self._starting = False

    async def start(self, agent: OutsideAgent, request: RunRequest, principal: str) -> StartedRun:
        """Start a run in the sandbox of `agent`. If this coroutine is cancelled before the start, no run starts.

        Raises:
            OutsideError: if a run or a call uses the sandbox, no run can be started here, too many runs were started,
                or the task, the model or a setting is wrong.
        """
        if self._starter is None:
            raise OutsideError(NOT_HERE)
        if not request.task.strip():
            raise OutsideError(EMPTY_TASK)
        if not agent.shared:
            raise OutsideError(NOT_IN_FORK)
        if agent.busy:
            raise OutsideError(YOUR_CALL)
        if self._starting or any(not started.ended for started in self._runs.values()):
            raise OutsideError(YOUR_RUN)
        if len(self._runs) >= MAX_STARTED_RUNS:
            raise OutsideError(TOO_MANY)
        self._starting = True
        try:
            await agent.ready.wait()
            if not await agent.take_sandbox():
                raise OutsideError(OTHER_RUN)
            try:
                await agent.settled()
            finally:
                agent.leave_unless_busy()
            return await self._begin(self._starter, request, principal)
        finally:
            self._starting = False

    async def _begin(self, starter: Starter, request: RunRequest, principal: str) -> StartedRun:
        begun: asyncio.Future[Run] = asyncio.get_running_loop().create_future()
        changed = asyncio.Event()

        def listen(event: ev.Event) -> None:
            changed.set()

        task = asyncio.ensure_future(starter(request, listen, begun.set_result))
        try:
            either: set[asyncio.Future[Any]] = {task, begun}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if not begun.done():
            raise OutsideError(_sentence(task.exception()))
        started = StartedRun(f"run-{secrets.token_hex(12)}", principal, begun.result(), task, changed)
        self._runs[started.id] = started
        task.add_done_callback(_note_end)
        return started

    def find(self, id: str, principal: str) -> StartedRun:
        """Return the run with this id. Raises OutsideError if the caller did not start such a run."""
        started = self._runs.get(id)
        if started is None or started.principal != principal:
            raise OutsideError(UNKNOWN)
        return started

    async def stop(self, started: StartedRun, wait: float) -> None:
        """Stop a run. Wait at most `wait` seconds for its end."""
        with suppress(ControlError):  # the run has ended meanwhile
            started.run.control.stop(source="mcp")
        await asyncio.wait({started.task}, timeout=wait)

    async def close(self, source: str) -> None:
        """Stop all runs, and wait for their ends. `source` is the recorded source of the decision."""
        running = [started for started in self._runs.values() if not started.ended]
        for unfinished in running:
            with suppress(ControlError):
                unfinished.run.control.stop(source=source)
        await asyncio.gather(*(started.task for started in running), return_exceptions=True)


def _sentence(error: BaseException | None) -> str:
    if isinstance(error, LLMSandboxError):
        return str(ev.clean_text(str(error)))
    logger.error("a run of an outside agent could not be started", exc_info=error)
    return "The run could not be started in the notebook's kernel: see the kernel's log."


def _note_end(task: asyncio.Future[object]) -> None:
    """Log the failure of a run. The record has the failure too."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.debug("a run that an outside agent started failed: %s", error)
