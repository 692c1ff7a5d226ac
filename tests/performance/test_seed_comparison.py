"""Start, tool call and close beside the package we re-implement, same image, same engine, in turn."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from best_of import best_of
from support import run

from llm_sandbox_nb import open_sandbox
from llm_sandbox_nb.sandbox.docker.images import DEFAULT_IMAGE

pytestmark = [pytest.mark.docker, pytest.mark.timeout(900), pytest.mark.usefixtures("docker_engine")]

ROUNDS = 20
PAIRS = 3


def test_start_tool_call_and_close_against_the_seed(seed_python: Path, measured: Any) -> None:
    run(_ours(DEFAULT_IMAGE))

    def once() -> list[float]:
        pairs = [(_seed(seed_python, DEFAULT_IMAGE), run(_ours(DEFAULT_IMAGE))) for _ in range(PAIRS)]
        return [_ratio(pairs, name) for name in ("round_trip", "close", "start")]

    call, close, start = best_of(
        3, once, bar=1, by=lambda ratios: max(20 / ratios[0], 5 / ratios[1], 1 / ratios[2])
    )
    measured("tool call, seed package / ours", call, "x", bar="at least 20", note="`true`, Docker")
    measured("close, seed package / ours", close, "x", bar="at least 5")
    measured("start and set-up, seed package / ours", start, "x", bar="at least 1")
    assert call >= 20
    assert close >= 5
    assert start >= 1


def _seed(python: Path, image: str) -> dict[str, float]:
    script = Path(__file__).with_name("seed_runtime.py")
    offline = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    command = [str(python), str(script), image, str(ROUNDS)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=offline)
    assert done.returncode == 0, done.stderr
    result: dict[str, float] = json.loads(done.stdout)
    return result


async def _ours(image: str) -> dict[str, float]:
    started = time.perf_counter()
    box = await open_sandbox("docker", image=image)
    start = time.perf_counter() - started
    round_trips = []
    for _ in range(ROUNDS):
        before = time.perf_counter()
        await box.run("true")
        round_trips.append(time.perf_counter() - before)
    before = time.perf_counter()
    await box.close()
    close = time.perf_counter() - before
    return {"start": start, "round_trip": statistics.median(round_trips), "close": close}


def _ratio(pairs: list[tuple[dict[str, float], dict[str, float]]], name: str) -> float:
    return statistics.median(theirs[name] / ours[name] for theirs, ours in pairs)
