"""How many tasks a minute one process does, against what waiting for the model alone allows."""

from __future__ import annotations

import json
import resource
import time
from pathlib import Path
from typing import Any

import pytest
from benchmark_models import FunctionModel, calls, turn_of
from support import require, run

from llm_sandbox_nb.benchmark.attempt import HowToAsk
from llm_sandbox_nb.benchmark.rows import Row
from llm_sandbox_nb.benchmark.runner import Runner, RunnerOptions, make_opener, plan
from llm_sandbox_nb.benchmark.task import load_task
from llm_sandbox_nb.model.contract import ModelSettings, Reply

TASKS, WORKERS, TURNS, LATENCY = 96, 48, 4, 3.0


def worker(messages: list[dict[str, Any]]) -> Reply:
    turn = turn_of(messages)
    if turn == TURNS - 1:
        return calls("submit", "{}", number=turn)
    return calls("execute_bash", json.dumps({"command": f"echo {turn} | tee -a answer.txt"}), number=turn)


@pytest.mark.timeout(600)
def test_one_process_keeps_dozens_of_sandboxes_busy(tmp_path: Path) -> None:
    isolation = require("bubblewrap")
    model = FunctionModel(worker, delay=LATENCY)
    rows = [Row(f"r{number}", "Write.", "0\n1\n2") for number in range(TASKS)]
    runner = Runner(
        HowToAsk(model, ModelSettings()), make_opener(isolation), RunnerOptions(tmp_path, WORKERS)
    )
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.monotonic()
    results = run(runner.run(plan([(load_task("demo"), rows)], ("sandbox",), 1)), 500)
    seconds = time.monotonic() - started
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) / 1024
    assert [result.error for result in results if result.error] == []
    assert {result.score for result in results} == {1.0}
    one_by_one = TASKS * TURNS * LATENCY
    print(f"{TASKS} tasks with {WORKERS} workers: {seconds:.1f} s, {60 * TASKS / seconds:.0f} a minute,")
    print(f"one by one the model alone takes {one_by_one:.0f} s; memory grew by {grown:.0f} MB")
    assert model.most > WORKERS / 2
    assert seconds < one_by_one / 5
    assert grown < 4 * WORKERS  # megabytes; the sandboxes' own processes are theirs
