"""Commands of a step's rollouts run at once: tools take hardly longer than in the longest rollout alone."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from best_of import best_of
from token_policy import SUBMIT, PlainTokenizer, PlayedPolicy, bash

from llm_sandbox_nb.benchmark.rows import Row
from llm_sandbox_nb.benchmark.task import load_task
from llm_sandbox_nb.training.chat_tokens import ChatTokens
from llm_sandbox_nb.training.config import RolloutConfig
from llm_sandbox_nb.training.environment import SandboxEnvironments
from llm_sandbox_nb.training.rollouts import Rollout, RolloutSetting, RolloutWorkers
from llm_sandbox_nb.trajectory import events as ev

Measured = Callable[..., None]
pytestmark = [pytest.mark.campaign, pytest.mark.alone, pytest.mark.bubblewrap, pytest.mark.timeout(900)]
COUNT, COMMANDS = 32, 4
PAUSE = 1.0
"""Seconds of a command. Two cores start and record 32 commands in 0.15 s, which must be small against this."""
SHORT_PAUSE = 0.3
"""The same where commands wait for each other: 32 x 4 of them take 38 s."""
CONFIG = RolloutConfig(
    isolation="bubblewrap", turns=8, prompt_tokens=20_000, completion_tokens=12_000, time=300.0
)
SETTING = RolloutSetting(
    "test", replace(load_task("instruct_pretrain"), scorer="exact"), ChatTokens(PlainTokenizer()), CONFIG
)
ROWS = [Row(f"row-{n}", "Wait.", "1", input_files={"a.txt": "1\n"}) for n in range(COUNT)]


def spans(rollout: Rollout) -> list[tuple[float, float]]:
    assert rollout.trajectory is not None
    ended = [
        event for event in rollout.trajectory.path if isinstance(event, ev.CallFinished) and event.duration
    ]
    return [(event.time - event.duration, event.time) for event in ended]


def covered(found: Iterable[tuple[float, float]]) -> float:
    """Seconds in which at least one command ran."""
    total, until = 0.0, 0.0
    for begin, end in sorted(found):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def test_tools_take_as_long_as_in_the_longest_rollout(
    bubblewrap_engine: None, tmp_path: Path, measured: Measured
) -> None:
    played = PlayedPolicy(lambda place, number: SUBMIT if number % 5 == COMMANDS else bash(f"sleep {PAUSE}"))

    async def two_steps(folder: Path) -> tuple[list[Rollout], float]:
        async with RolloutWorkers(SETTING, COUNT) as workers:
            await workers.run(ROWS, played, folder / "first")  # opens the sandboxes
            began = time.monotonic()
            return await workers.run(ROWS, played, folder / "second"), time.monotonic() - began

    def once() -> tuple[float, float, float]:
        """The ratio, the seconds of tools in the longest rollout, and those of a step."""
        rollouts, seconds = asyncio.run(two_steps(Path(tempfile.mkdtemp(dir=tmp_path))))
        assert all(rollout.stop_reason == "submitted" for rollout in rollouts)
        own = [sum(end - begin for begin, end in spans(rollout)) for rollout in rollouts]
        assert min(own) >= COMMANDS * PAUSE
        ratio = covered(span for rollout in rollouts for span in spans(rollout)) / max(own)
        return ratio, max(own), seconds

    ratio, longest, seconds = best_of(3, once, bar=1.3, by=lambda figures: figures[0])
    note = f"{COUNT} rollouts of {COMMANDS} commands of {PAUSE} s; the longest {longest:.2f} s; a step {seconds:.1f} s"
    measured(
        "rollouts: time in tools by that of the longest rollout", ratio, "x", bar="at most 1.3 x", note=note
    )
    measured(
        "rollouts: a step, bubblewrap",
        COUNT / seconds * 60,
        "a minute",
        bar="none",
        note=f"generation takes no time; {note}",
    )
    assert ratio <= 1.3, note


def test_the_stock_path_executes_one_command_after_another(
    bubblewrap_engine: None, tmp_path: Path, measured: Measured
) -> None:
    """TRL's loop calls the tools of an environment in turn: what it costs, played without TRL."""
    with SandboxEnvironments(SETTING, ROWS, tmp_path, COUNT) as environments:
        made = [environments.environment() for _ in range(COUNT)]
        for environment, row in zip(made, ROWS, strict=True):
            environment.reset(row=row.id)
        began = time.monotonic()
        for _ in range(COMMANDS):
            for environment in made:
                environment.execute_bash(f"sleep {SHORT_PAUSE}")
        seconds = time.monotonic() - began
        assert environments.reward(made) == [0.0] * COUNT
    bar = "none"
    note = f"{COUNT} rollouts of {COMMANDS} commands of {SHORT_PAUSE} s, as TRL's `environment_factory` calls them"
    measured(
        "rollouts: the same through environment_factory", COUNT / seconds * 60, "a minute", bar=bar, note=note
    )
    assert seconds >= COUNT * COMMANDS * SHORT_PAUSE
