"""Tasks a minute of one process, what a resumed benchmark costs, and that the cost does not grow with its length."""

from __future__ import annotations

import json
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from benchmark_models import FunctionModel, calls, turn_of
from best_of import best_of
from support import require, run, size

from llm_sandbox_nb.benchmark.attempt import HowToAsk
from llm_sandbox_nb.benchmark.commands import prepare
from llm_sandbox_nb.benchmark.digests import signed
from llm_sandbox_nb.benchmark.results import Result, write_result
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
    rows = [Row(f"r{number}", "Write.", "0\n1\n2") for number in range(TASKS)]
    one_by_one = TASKS * TURNS * LATENCY
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def once() -> float:
        model = FunctionModel(worker, delay=LATENCY)
        options = RunnerOptions(Path(tempfile.mkdtemp(dir=tmp_path)), WORKERS)
        runner = Runner(HowToAsk(model, ModelSettings()), make_opener(isolation), options)
        started = time.monotonic()
        results = run(runner.run(plan([(load_task("demo"), rows)], ("sandbox",), 1)), 500)
        seconds = time.monotonic() - started
        assert [result.error for result in results if result.error] == []
        assert {result.score for result in results} == {1.0}
        assert model.most > WORKERS / 2
        return seconds

    seconds = best_of(3, once, bar=one_by_one / 5)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) / 1024
    print(f"{TASKS} tasks with {WORKERS} workers: {seconds:.1f} s, {60 * TASKS / seconds:.0f} a minute,")
    print(f"one by one the model alone takes {one_by_one:.0f} s; memory grew by {grown:.0f} MB")
    assert seconds <= one_by_one / 5
    assert grown < 4 * WORKERS  # megabytes; the sandboxes' own processes are theirs


def test_start_that_resumes_ten_thousand_items(tmp_path: Path, measured: Callable[..., None]) -> None:
    rows = [
        {"id": f"r{number}", "problem_statement": "Add.", "ground_truth": "1"} for number in range(10_000)
    ]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = {"model": "scripted/strawberry", "data": str(data), "out": str(tmp_path / "out"), "repeats": 1}
    first = prepare(["math"], flags, {})
    first.lock.release()
    for item in first.items:
        done = Result(*item.key, score=1.0, answer="1", stop_reason="submitted")
        write_result(tmp_path / "out", signed(done, item.task, item.row, None))

    def once() -> float:
        started = time.process_time()
        again = prepare(["math"], flags, {})
        assert run(again.runner.run(again.items)) == []
        seconds = time.process_time() - started
        again.lock.release()
        return seconds

    seconds = best_of(3, once, bar=2)
    measured("benchmark: start that resumes 10,000 items", seconds, "s", bar="at most 2 s of CPU")
    assert seconds <= 2


@pytest.mark.timeout(600)
def test_a_long_benchmark_takes_no_more_than_a_short_one(
    tmp_path: Path, measured: Callable[..., None]
) -> None:
    isolation, process = require("bubblewrap"), psutil.Process()
    rows = [Row(f"r{number}", "Write.", "0\n1\n2") for number in range(size(120, 1000))]
    taken: list[tuple[int, int]] = []

    def note(result: Result) -> None:
        taken.append((process.memory_info().rss, process.num_fds()))

    how = HowToAsk(FunctionModel(worker), ModelSettings())
    runner = Runner(how, make_opener(isolation), RunnerOptions(tmp_path, 8), on_result=note)
    results = run(runner.run(plan([(load_task("demo"), rows)], ("sandbox",), 1)), 500)
    assert {result.score for result in results} == {1.0}
    assert sum(result.reused for result in results) >= len(rows) - 16
    quarter = len(taken) // 4
    memory = [max(rss for rss, _ in part) / 2**20 for part in (taken[:quarter], taken[-quarter:])]
    files = [max(open for _, open in part) for part in (taken[:quarter], taken[-quarter:])]
    grown = (memory[1] - memory[0]) / (len(rows) / 1000)
    note_text = f"{len(rows)} tasks; open files {files[0]}, then {files[1]}"
    measured("benchmark: memory that 1,000 tasks add", grown, "MB", bar="under 40 MB", note=note_text)
    assert files[1] <= files[0] + 4
    assert grown < 40
