"""Tasks whose rows are made by code, and scripted runs of these tasks for a warm-up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from llm_sandbox_nb.agent.run_limits import RunLimits
from llm_sandbox_nb.agent.sandbox_pool import SandboxPool
from llm_sandbox_nb.benchmark.attempt import HowToAsk, in_sandbox
from llm_sandbox_nb.benchmark.rows import Row
from llm_sandbox_nb.benchmark.task import Task
from llm_sandbox_nb.model.contract import Model
from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.training import ledger, tiny
from llm_sandbox_nb.training.config import TrainingConfig
from llm_sandbox_nb.training.rollouts import RolloutError, open_sandboxes, run_options
from llm_sandbox_nb.trajectory.trajectory import Trajectory

MakeRows = Callable[[int, int], list[Row]]
"""Function that takes a number of rows and a seed, and makes the rows."""
_RUNS_AT_ONCE = 16


@dataclass(frozen=True)
class MadeTask:
    """Task whose rows are made by code."""

    task: Callable[[Task], Task]
    """Function that returns the benchmark task with the prompts and the scorer for the rows."""
    rows: MakeRows
    held_out_rows: MakeRows
    """Function that makes the rows for validations and evaluations."""
    demonstrator: Callable[[str, Row], Model]
    """Function that takes a seed and a row, and returns the scripted model for the row."""


MADE = {
    tiny.NOTES: MadeTask(
        tiny.notes_task, tiny.notes_rows, tiny.notes_rows, lambda seed, row: tiny.NotesDemonstrator(seed)
    ),
    ledger.LEDGER: MadeTask(
        ledger.ledger_task,
        ledger.ledger_rows,
        partial(ledger.ledger_rows, held_out=True),
        ledger.LedgerDemonstrator,
    ),
    ledger.LEDGER_OTHER: MadeTask(
        ledger.other_task,
        partial(ledger.ledger_rows, kinds=ledger.OTHER_KINDS),
        partial(ledger.ledger_rows, kinds=ledger.OTHER_KINDS, held_out=True),
        ledger.LedgerDemonstrator,
    ),
}
"""Tasks whose rows are made by code. The keys are values of `data.rows` in the configuration."""


def held_out(made: MadeTask, count: int, config: TrainingConfig) -> list[Row]:
    """Make rows with another seed than the rows of the training and the rows of its scripted runs."""
    return made.held_out_rows(count, config.seed + 2)


async def scripted_runs(task: Task, config: TrainingConfig, folder: Path) -> Sequence[Trajectory]:
    """Run the task's scripted model on rows that the training does not use. The runs are recorded below `folder`."""
    made, rollouts = MADE[config.data.rows], config.rollouts
    limits = RunLimits(steps=rollouts.turns, tokens=None)
    at_once = asyncio.Semaphore(_RUNS_AT_ONCE)
    async with SandboxPool(_RUNS_AT_ONCE) as pool:

        @asynccontextmanager
        async def lease(task: Task, row: Row) -> AsyncIterator[Sandbox]:
            async with pool.lease(open_sandboxes(rollouts)) as box:
                yield box

        async def one(row: Row) -> Trajectory:
            model = made.demonstrator(f"{config.seed}-{row.id}", row)
            how = HowToAsk(model, limits=limits, **run_options(rollouts))
            async with at_once:
                attempt = await in_sandbox(task, row, how, lease, folder / row.id, documents="files")
            if attempt.error_kind:
                raise RolloutError(f"A scripted run failed: {attempt.error}")
            return attempt.run.trajectory

        rows = made.rows(config.warm_up.count, config.seed + 1)
        return await asyncio.gather(*(one(row) for row in rows))
