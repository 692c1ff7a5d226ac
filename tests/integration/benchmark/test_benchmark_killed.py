"""A benchmark that is killed at half and started again, in isolations that isolate: every item once, nothing left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_scripts import bash, script_text, turn

from llm_sandbox_nb.benchmark.results import FILE, Result, read_results
from llm_sandbox_nb.sandbox.bubblewrap.limits import find_bases, find_groups
from llm_sandbox_nb.sandbox.docker.engine import connect
from llm_sandbox_nb.sandbox.docker.ownership import owner_of

ITEMS = 8
MARK = "a-benchmark-that-is-killed"

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(900)]


def task_and_model(folder: Path) -> tuple[str, str]:
    """Problems that take some seconds each; their processes can be told by an argument."""
    task = folder / "slow"
    task.mkdir()
    (task / "task.yaml").write_text("scorer: exact\n")
    rows = [{"id": f"s{n}", "problem_statement": f"p{n}", "ground_truth": "3"} for n in range(ITEMS)]
    (task / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    mark = f"{MARK}-{os.getpid()}"
    work = bash(f"(exec -a {mark} sleep 600) & sleep 1; echo 3 > answer.txt")
    path = folder / "script.yaml"
    path.write_text(script_text(turn(work), turn({"tool": "submit"}, delay=1)))
    return str(task), f"scripted/{path}"


@pytest.fixture
def start() -> Iterator[Callable[[str, str, Path, str], subprocess.Popen[bytes]]]:
    """Start a benchmark; what still runs in the end is killed."""
    started: list[subprocess.Popen[bytes]] = []

    def one(task: str, model: str, out: Path, isolation: str) -> subprocess.Popen[bytes]:
        started.append(begin(task, model, out, isolation))
        return started[-1]

    yield one
    for process in started:
        if process.poll() is None:
            process.kill()
            process.communicate()


def begin(task: str, model: str, out: Path, isolation: str) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "llm_sandbox_nb", "benchmark", "run", task, "--model", model]
    words += ["--isolation", isolation, "--workers", "3", "--out", str(out)]
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def inside_left() -> list[int]:
    """Processes of our sandboxes, seen from the host."""
    mark, found = f"{MARK}-{os.getpid()}".encode(), []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "cmdline").read_bytes().startswith(mark):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def engine_left(isolation: str, pids: set[int]) -> list[str]:
    """Containers, or control groups, that these processes made."""
    if isolation == "docker":
        client: Any = connect()
        found = [(one, owner_of(one)) for one in client.api.containers(all=True)]
        return [one["Id"] for one, owner in found if owner and owner.pid in pids]
    names = [str(group) for group in find_groups()]
    return [name for name in names if any(f"-{pid}-" in name for pid in pids)]


def wait_for(what: str, true: Any, patience: float = 300) -> None:
    deadline = time.monotonic() + patience
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def outcome(result: Result) -> tuple[Any, ...]:
    return result.key, result.score, result.answer, result.stop_reason, result.error_kind, result.turns


def test_the_same_results_and_no_sandbox_left(
    strong_isolation: str, tmp_path: Path, start: Callable[..., subprocess.Popen[bytes]]
) -> None:
    task, model = task_and_model(tmp_path)
    out = tmp_path / "out"
    lines = out / "slow" / "sandbox" / FILE
    started = start(task, model, out, strong_isolation)
    wait_for("half of the items", lambda: lines.exists() and lines.read_bytes().count(b"\n") >= ITEMS // 2)
    # Both have to be seen, else that they are gone would say nothing.
    wait_for("a sandbox at work", inside_left, 60)
    assert engine_left(strong_isolation, {started.pid}) or not (strong_isolation == "docker" or find_bases())
    started.send_signal(signal.SIGKILL)
    started.communicate()
    done = {result.key for result in read_results(out)}
    assert ITEMS // 2 <= len(done) < ITEMS

    again = start(task, model, out, strong_isolation)
    told = again.communicate(timeout=400)[1].decode()
    assert again.returncode == 0, told
    assert f"{len(done)} of {ITEMS} were done before" in told
    found = [json.loads(line) for line in lines.read_bytes().splitlines() if line.endswith(b"}")]
    assert Counter(line["item"] for line in found) == {f"s{n}": 1 for n in range(ITEMS)}
    pids = {started.pid, again.pid}
    wait_for("sandboxes are left", lambda: not engine_left(strong_isolation, pids))
    wait_for("processes are left", lambda: not inside_left())

    expected = {(("slow", "sandbox", f"s{n}", 0), 1.0, "3", "submitted", "", 2) for n in range(ITEMS)}
    results = read_results(out)
    assert {outcome(one) for one in results} == expected
    if strong_isolation == "docker":
        assert all(one.memory_peak and one.disk is not None for one in results)
