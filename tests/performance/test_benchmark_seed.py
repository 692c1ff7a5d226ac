"""Tasks a minute and memory per worker beside the seed package's `benchmark`: same engine, image, script, server."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from agent_scripts import bash, script_text, turn
from memory_of import PeakMemory
from scripted_server import ScriptedServer
from support import require, size

from llm_sandbox_nb.agent.tools.toolbox import TOOLS
from llm_sandbox_nb.benchmark.results import read_results
from llm_sandbox_nb.sandbox.docker.engine import connect
from llm_sandbox_nb.sandbox.docker.images import DEFAULT_IMAGE

pytestmark = [
    pytest.mark.docker,
    pytest.mark.bubblewrap,
    pytest.mark.timeout(1500),
    pytest.mark.usefixtures("docker_engine"),
]


class Load(NamedTuple):
    """Tasks of a benchmark, and the number of tasks at a time."""

    tasks: int
    workers: int

    def __str__(self) -> str:
        return f"{self.tasks} tasks, {self.workers} workers"


FULL = size(Load(16, 8), Load(128, 64))
FEWER = size((Load(8, 4),), (Load(16, 4), Load(48, 16)))
"""With `FULL`, the points of the plot in docs/explanation/performance.md."""
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


LITELLM = """
import asyncio, json, os, sys, time
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
import litellm
url, count, at_once = sys.argv[1], int(sys.argv[2]), asyncio.Semaphore(int(sys.argv[3]))
messages, tools = json.load(sys.stdin)
async def ask():
    async with at_once:
        stream = await litellm.acompletion(
            model="openai/scripted", api_base=url, api_key="key", stream=True, tools=tools,
            messages=messages, _skip_mcp_handler=True,
        )
        async for _ in stream:
            pass
async def all():
    await ask()  # the first one imports more
    begun = time.process_time()
    await asyncio.gather(*(ask() for _ in range(count)))
    print(time.process_time() - begun)
asyncio.run(all())
"""


@dataclass(frozen=True)
class Measured:
    """One side."""

    seconds: float
    solved: int
    """Tasks that came to their right end: the seed's commands fail where the engine answers late."""
    memory: float
    """Bytes of all processes of the runner at their peak, by the number of workers."""

    @property
    def per_minute(self) -> float:
        return 60 * self.solved / self.seconds


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


def rows(load: Load) -> list[dict[str, Any]]:
    return [
        {"id": f"r{number}", "domain": "x", "problem_statement": "Write.", "ground_truth": GOLD}
        for number in range(load.tasks)
    ]


def measure(command: list[str], folder: Path, load: Load, more: dict[str, str]) -> Measured:
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
    return Measured(seconds, 0, peak.bytes / load.workers)


def seed_side(python: Path, folder: Path, load: Load, url: str, image: str) -> Measured:
    task = folder / "task"
    task.mkdir(parents=True)
    (task / "config.yaml").write_text(SEED_CONFIG.format(folder=task))
    (task / "reward.py").write_text(SEED_SCORER)
    (task / "data.json").write_text(json.dumps(rows(load)))
    words = [str(python.with_name("llm-in-sandbox")), "benchmark", "--task", str(task)]
    words += ["--llm_name", "openai/scripted", "--llm_base_url", url, "--docker_image", image]
    words += ["--num_workers", str(load.workers), "--output_dir", str(folder / "out")]
    measured = measure(words, folder, load, {"LLM_API_KEY": "key"})
    (results,) = (folder / "out").rglob("results.json")
    found = json.loads(results.read_text())
    assert found["total"] == load.tasks
    return replace(measured, solved=round(load.tasks * found["mean_score"]))


def our_side(folder: Path, load: Load, url: str, *engine: str) -> Measured:
    task = folder / "task"
    task.mkdir(parents=True)
    (task / "task.yaml").write_text(OUR_TASK)
    (task / "scorer.py").write_text("def score(answer, gold, **row):\n    return float(answer == gold)\n")
    (task / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(load)))
    words = [sys.executable, "-m", "llm_sandbox_nb", "benchmark", "run", str(task), "--api_key", "key"]
    words += ["--model", "openai/scripted", "--llm_base_url", url, "--isolation", *engine]
    words += ["--workers", str(load.workers), "--out", str(folder / "out")]
    measured = measure(words, folder, load, {})
    results = read_results(folder / "out")
    assert len(results) == load.tasks
    assert {(result.score, result.error_kind, result.turns) for result in results} == {(1.0, "", 5)}
    return replace(measured, solved=load.tasks)


def engine_seconds(image: str) -> float:
    """CPU seconds of the whole machine that a container takes from creation to removal, by docker-py alone."""
    client: Any = connect()

    def live(_: int) -> None:
        made = client.api.create_container(image, ["sleep", "infinity"])
        client.api.start(made["Id"])
        client.api.remove_container(made["Id"], force=True)

    with ThreadPoolExecutor(FULL.workers) as pool:
        before = busy_seconds()
        list(pool.map(live, range(FULL.tasks)))
        return (busy_seconds() - before) / FULL.tasks


def model_seconds(folder: Path) -> float:
    """CPU seconds that LiteLLM takes for the requests of a task, without a sandbox and without waiting."""
    with ScriptedServer(script_text(*[turn(bash("true"))] * 5, chunk=100_000), strict=False) as server:
        words = [sys.executable, "-c", LITELLM, server.url, str(5 * FULL.tasks), str(FULL.workers)]
        asked = json.dumps([half_way(), TOOLS.schemas()])
        done = subprocess.run(words, check=True, capture_output=True, text=True, cwd=folder, input=asked)
    return float(done.stdout) / FULL.tasks


def half_way() -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": "system", "content": "You work in /testbed."}]
    messages.append({"role": "user", "content": "Write."})
    for number in range(2):
        function = {"name": "execute_bash", "arguments": json.dumps({"command": f"echo {number}"})}
        call = {"id": f"call_{number}", "type": "function", "function": function}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": f"{number}\n"})
    return messages


def busy_seconds() -> float:
    """CPU seconds that all processes of this machine have used, the kernel's included."""
    user, nice, system, _, _, irq, softirq = map(int, Path("/proc/stat").read_text().split()[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def tell_limit(ours: Measured, image: str, folder: Path, measured: Any) -> None:
    """How much is left to be gained: containers and LiteLLM by themselves, with no line of ours."""
    engine, model, cores = engine_seconds(image), model_seconds(folder), os.cpu_count() or 1
    limit = 60 * cores / (engine + model)
    note = f"a task takes {engine:.2f} s of CPU for its container and {model:.2f} s in LiteLLM: {limit:.0f} a minute"
    measured("benchmark, tasks a minute, what containers and LiteLLM allow / ours", limit / ours.per_minute, "x",
             bar="none", note=f"{note} on {cores} cores")  # fmt: skip


def tell_tasks_a_minute(load: Load, sides: dict[str, Measured], measured: Any) -> None:
    """Rows for the plot, which `table.py` finds by their names."""
    for name, side in sides.items():
        measured(f"benchmark with {load.workers} workers, {name}", side.per_minute, "tasks a minute", bar="none",
                 note=f"{side.solved} of {load.tasks} tasks solved")  # fmt: skip


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(SCRIPT, strict=False) as server:
        yield server


def test_tasks_a_minute_and_memory_against_the_seed(
    seed_python: Path, image: str, server: ScriptedServer, measured: Any, tmp_path: Path
) -> None:
    require("bubblewrap")
    ours = our_side(tmp_path / "ours", FULL, server.url, "docker", "--docker_image", image)
    assert len(server.requests) == 5 * FULL.tasks
    seed = seed_side(seed_python, tmp_path / "seed", FULL, server.url, image)
    without = our_side(tmp_path / "bubblewrap", FULL, server.url, "bubblewrap")
    tell_tasks_a_minute(FULL, {"seed package": seed, "docker": ours, "bubblewrap": without}, measured)
    tell_limit(ours, image, tmp_path, measured)
    shutil.rmtree(tmp_path)
    for name, side in (("same engine", ours), ("ours with bubblewrap", without)):
        faster = side.per_minute / seed.per_minute
        note = (
            f"{side.per_minute:.0f} against {seed.per_minute:.0f} solved a minute (it solved {seed.solved})"
        )
        measured(f"benchmark, tasks a minute, ours / seed package, {name}", faster, "x",
                 bar="at least 10 with 64 workers", note=f"{note}; {FULL}")  # fmt: skip
        # The table has the bars; these notice a step back.
        assert faster >= size(1.1, 1.3), (side, seed)
    # With bubblewrap the sandboxes are the runner's own children, so only this compares like with like.
    smaller = seed.memory / ours.memory
    note = f"{ours.memory / 1e6:.1f} against {seed.memory / 1e6:.0f} MB; {FULL}"
    measured("benchmark, memory per worker, seed package / ours, same engine", smaller, "x",
             bar="at least 10 with 64 workers", note=note)  # fmt: skip
    assert smaller >= size(2, 10), (ours, seed)


def test_tasks_a_minute_with_fewer_workers(
    seed_python: Path, image: str, server: ScriptedServer, measured: Any, tmp_path: Path
) -> None:
    require("bubblewrap")
    for load in FEWER:
        folder = tmp_path / str(load.workers)
        seed = seed_side(seed_python, folder / "seed", load, server.url, image)
        ours = our_side(folder / "ours", load, server.url, "docker", "--docker_image", image)
        without = our_side(folder / "bubblewrap", load, server.url, "bubblewrap")
        tell_tasks_a_minute(load, {"seed package": seed, "docker": ours, "bubblewrap": without}, measured)
        shutil.rmtree(folder)
        assert ours.per_minute > 1.1 * seed.per_minute, (load, ours, seed)
        assert without.per_minute > 1.1 * seed.per_minute, (load, without, seed)
