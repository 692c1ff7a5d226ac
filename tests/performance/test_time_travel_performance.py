"""What checkpoints add to a run: nothing that a person would notice, as they are taken while the model thinks."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
from best_of import best_of
from support import run as in_loop
from talking_model import TalkingModel

from llm_sandbox_nb.agent.session import Session
from llm_sandbox_nb.runs.solve import solve
from llm_sandbox_nb.sandbox.open import open_sandbox

Measured = Callable[..., None]
STEPS = 24
COMMAND = "echo turn {number} >> log.txt; head -c 200000 /dev/urandom > data{number}; pwd > /dev/null"


def seen_works(monkeypatch: pytest.MonkeyPatch) -> list[Session]:
    works: list[Session] = []
    begin = Session.__init__

    def noted(self: Session, *arguments: Any, **more: Any) -> None:
        works.append(self)
        begin(self, *arguments, **more)

    monkeypatch.setattr(Session, "__init__", noted)
    return works


def slowest_of_twenty(seconds: list[float]) -> float:
    return statistics.quantiles(seconds, n=20, method="inclusive")[-1]


def test_a_checkpoint_is_hidden_behind_a_model_that_thinks_for_a_second(
    strong_isolation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measured: Measured
) -> None:
    """The seconds that calls wait for one; on the first call the one of the beginning."""
    works = seen_works(monkeypatch)

    async def body() -> None:
        async with open_sandbox(strong_isolation) as box:
            model = TalkingModel(STEPS, delay=1.0, command=COMMAND)
            folder = tempfile.mkdtemp(dir=tmp_path)
            made = await solve("A task.", model=model, sandbox=box, output_dir=folder)
            assert len(made.trajectory.checkpoints) == STEPS + 1

    def once() -> list[float]:
        in_loop(body(), timeout=240)
        checkpoints = works.pop().checkpoints
        assert checkpoints is not None
        waited = checkpoints.waited[:STEPS]
        assert len(waited) == STEPS
        return waited

    waited = best_of(3, once, bar=0.005, by=slowest_of_twenty)
    late = slowest_of_twenty(waited)
    note = f"{STEPS} calls, model 1 s, p50 {statistics.median(waited) * 1e3:.2f} ms, slowest {max(waited) * 1e3:.1f} ms"
    bar = "p95 under 5 ms"
    measured(f"a call waits for a checkpoint, {strong_isolation}, p95", late * 1e3, "ms", bar=bar, note=note)
    assert late <= 0.005, note


def test_the_wait_is_seen_when_the_model_does_not_think(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What measures the wait does measure it: a checkpoint of 0.2 s shows when the model answers at once."""
    works = seen_works(monkeypatch)

    async def body() -> None:
        async with open_sandbox("process") as box:
            take = box.checkpoint

            async def slowly(*, keep: Collection[str] = ()) -> str:
                await asyncio.sleep(0.2)
                return await take(keep=keep)

            monkeypatch.setattr(box, "checkpoint", slowly)
            await solve(
                "A task.", model=TalkingModel(4), sandbox=box, isolation="process", output_dir=tmp_path
            )

    in_loop(body())
    [work] = works
    assert work.checkpoints is not None
    assert statistics.median(work.checkpoints.waited[:4]) > 0.1
