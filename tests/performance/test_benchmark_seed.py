"""Tasks a minute and memory per worker beside the seed package's own `benchmark`: same engine, image, script, server.

`LLM_SANDBOX_BENCHMARK=whole` runs 128 tasks with 64 workers, as the bar says; without it a part is run.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from agent_scripts import bash, script_text, turn
from memory_of import PeakMemory
from scripted_server import ScriptedServer

from llm_sandbox_nb.benchmark.results import read_results
from llm_sandbox_nb.sandbox.docker_engine import connect
from llm_sandbox_nb.sandbox.docker_image import DEFAULT_IMAGE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.docker,
    pytest.mark.timeout(1500),
    pytest.mark.usefixtures("docker_engine"),
]

WHOLE = os.environ.get("LLM_SANDBOX_BENCHMARK") == "whole"
TASKS, WORKERS = (128, 64) if WHOLE else (32, 16)
LATENCY = 1.0
TURNS = [turn(bash(f"echo {number} | tee -a /testbed/answer.txt"), delay=LATENCY) for number in range(4)]
SCRIPT = script_text(*TURNS, turn({"tool": "submit"}, delay=LATENCY), chunk=100_000)
GOLD = "0\n1\n2\n3"
SEED_CONFIG = """
dataset: json
data_files: {folder}/data.json
system_prompt: You work in {{working_dir}}.
instance_prompt: '{{problem_statement}}'
"""
SEED_SCORER = """
def compute_score(answer, gold, **row):
    return float(answer.split() == gold.split())
"""
OUR_TASK = """
scorer: scorer.py
system_prompt: You work in {working_dir}.
instance_prompt: '{problem_statement}'
output_dir: /testbed
"""


@dataclass(frozen=True)
class Measured:
    """One side."""

    seconds: float
    memory: float
    """Bytes of all processes of the runner at their peak, by the number of workers."""
    processes: int

    @property
    def per_minute(self) -> float:
        return 60 * TASKS / self.seconds


@pytest.fixture
def image() -> Iterator[str]:
    """Our image under a name of its own: the seed's containers carry it, and no other does."""
    client: Any = connect()
    name = f"llm-sandbox-nb-beside-seed:{os.getpid()}"
    client.images.get(DEFAULT_IMAGE).tag(name)
    try:
        yield name
    finally:
        for found in client.api.containers(all=True, filters={"name": name.replace(":", "-")}):
            client.api.remove_container(found["Id"], force=True)
        client.images.remove(name)


def rows() -> list[dict[str, Any]]:
    return [
        {"id": f"r{number}", "domain": "x", "problem_statement": "Write.", "ground_truth": GOLD}
        for number in range(TASKS)
    ]


def measure(command: list[str], folder: Path, more: dict[str, str]) -> Measured:
    """Run one side's command to its end; its processes are killed when that takes too long."""
    offline = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hf")}
    with (folder / "log").open("wb") as log:
        started = time.monotonic()
        # A session of its own: asked to end in good order the seed's removes every container of the image.
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdout=log,
            stderr=log,
            env=os.environ | offline | more,
            start_new_session=True,
        )
        try:
            with PeakMemory(process.pid) as peak:
                process.wait(700)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        seconds = time.monotonic() - started
    assert process.returncode == 0, (folder / "log").read_text()[-3000:]
    return Measured(seconds, peak.bytes / WORKERS, peak.processes)


def seed_side(python: Path, folder: Path, url: str, image: str) -> Measured:
    task = folder / "task"
    task.mkdir(parents=True)
    (task / "config.yaml").write_text(SEED_CONFIG.format(folder=task))
    (task / "reward.py").write_text(SEED_SCORER)
    (task / "data.json").write_text(json.dumps(rows()))
    words = [str(python.with_name("llm-in-sandbox")), "benchmark", "--task", str(task)]
    words += ["--llm_name", "openai/scripted", "--llm_base_url", url, "--docker_image", image]
    words += ["--num_workers", str(WORKERS), "--output_dir", str(folder / "out")]
    measured = measure(words, folder, {"LLM_API_KEY": "key"})
    (results,) = (folder / "out").rglob("results.json")
    found = json.loads(results.read_text())
    assert (found["total"], found["mean_score"], found["num_errors"]) == (TASKS, 1.0, 0)
    return measured


def our_side(folder: Path, url: str, image: str) -> Measured:
    task = folder / "task"
    task.mkdir(parents=True)
    (task / "task.yaml").write_text(OUR_TASK)
    (task / "scorer.py").write_text("def score(answer, gold, **row):\n    return float(answer == gold)\n")
    (task / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows()))
    words = [sys.executable, "-m", "llm_sandbox_nb", "benchmark", "run", str(task), "--isolation", "docker"]
    words += [
        "--model",
        "openai/scripted",
        "--llm_base_url",
        url,
        "--docker_image",
        image,
        "--api_key",
        "key",
    ]
    words += ["--workers", str(WORKERS), "--out", str(folder / "out")]
    measured = measure(words, folder, {})
    results = read_results(folder / "out")
    assert len(results) == TASKS
    assert {(result.score, result.error_kind, result.turns) for result in results} == {(1.0, "", 5)}
    return measured


def test_tasks_a_minute_and_memory_against_the_seed(
    seed_python: Path, image: str, measured: Any, tmp_path: Path
) -> None:
    with ScriptedServer(SCRIPT, strict=False) as server:
        ours = our_side(tmp_path / "ours", server.url, image)
        asked = len(server.requests)
        seed = seed_side(seed_python, tmp_path / "seed", server.url, image)
        assert asked == len(server.requests) - asked == 5 * TASKS
    print(ours, seed)
    shutil.rmtree(tmp_path)
    note = f"{ours.per_minute:.0f} against {seed.per_minute:.0f} a minute; {TASKS} tasks, {WORKERS} workers"
    measured("benchmark, tasks a minute, ours / seed package", ours.per_minute / seed.per_minute, "x",
             bar="at least 10", note=note)  # fmt: skip
    note = f"{ours.memory / 1e6:.1f} MB against {seed.memory / 1e6:.0f} MB; {WORKERS} workers"
    measured("benchmark, memory per worker, seed package / ours", seed.memory / ours.memory, "x",
             bar="at least 10", note=note)  # fmt: skip
