"""Scripted runs of the tiny task, in real sandboxes and with a record like any other: what a tiny model imitates."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from llm_sandbox_nb.agent.limits import RunLimits
from llm_sandbox_nb.benchmark.attempt import HowToAsk, in_sandbox
from llm_sandbox_nb.benchmark.rows import Row
from llm_sandbox_nb.benchmark.task import Task
from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.training.config import TrainingConfig
from llm_sandbox_nb.training.rollouts import RolloutError, open_sandboxes
from llm_sandbox_nb.training.sandbox_pool import SandboxPool
from llm_sandbox_nb.training.tiny import NotesDemonstrator, notes_rows
from llm_sandbox_nb.trajectory.trajectory import Trajectory

_AT_ONCE = 16


async def scripted_runs(task: Task, config: TrainingConfig, folder: Path, count: int) -> list[Trajectory]:
    """`count` runs of the script, recorded below `folder`. Their rows are others than those of the training."""
    limits = RunLimits(steps=config.rollouts.turns, tokens=None)
    rollouts = config.rollouts
    rows = notes_rows(count, config.seed + 1)
    at_once = asyncio.Semaphore(_AT_ONCE)
    async with SandboxPool(open_sandboxes(rollouts), _AT_ONCE) as pool:

        @asynccontextmanager
        async def lease(task: Task, row: Row) -> AsyncIterator[Sandbox]:
            async with pool.lease() as box:
                yield box

        async def one(row: Row) -> Trajectory:
            model = NotesDemonstrator(f"{config.seed}-{row.id}")
            how = HowToAsk(model, limits=limits, command_timeout=rollouts.command_timeout)
            async with at_once:
                made = await in_sandbox(task, row, how, lease, folder / row.id, documents="files")
            if made.error_kind:
                raise RolloutError(f"A scripted run failed: {made.error}")
            return made.run.trajectory

        return list(await asyncio.gather(*(one(row) for row in rows)))
