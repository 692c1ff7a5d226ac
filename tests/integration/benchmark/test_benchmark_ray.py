"""A benchmark over the nodes of a Ray cluster: the same results, also when a node's process is killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_scripts import bash, script_text, turn
from ray_cluster import RayCluster, ray_cluster, ray_environment
from scripted_server import ScriptedServer
from support import until

from llm_sandbox_nb.benchmark.results import FILE, Result, read_results
from llm_sandbox_nb.cli import main
from llm_sandbox_nb.trajectory.journal import read_journal

ROWS = 10
ANSWER = script_text(turn(bash("pwd; echo three > answer.txt")), turn({"tool": "submit"}))
SLOW = script_text(turn(bash("pwd; sleep 2; echo three > answer.txt")), turn({"tool": "submit"}, delay=1))
REFUSED = script_text({"error": {"kind": "bad_request"}})
NO_KEY = script_text({"error": {"kind": "authentication"}})

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    with ray_cluster(tmp_path_factory.mktemp("nodes")) as running:
        yield running


@pytest.fixture
def task(tmp_path: Path) -> Path:
    folder = tmp_path / "counted"
    folder.mkdir()
    (folder / "task.yaml").write_text("scorer: exact\n")
    rows = [
        {"id": f"r{n}", "problem_statement": f"p{n}", "ground_truth": "three" if n % 2 else "four"}
        for n in range(ROWS)
    ]
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def words(task: Path, out: Path, model: ScriptedServer, *more: str) -> list[str]:
    return [
        "benchmark", "run", str(task), "--model", "scripted", "--llm_base_url", model.url, "--api_key", "none",
        "--isolation", "process", "--workers", "4", "--attempts", "1", "--out", str(out), *more,
    ]  # fmt: skip


def start(*command: str) -> subprocess.Popen[str]:
    program = [sys.executable, "-m", "llm_sandbox_nb", *command]
    return subprocess.Popen(
        program, env=ray_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen[str], code: int) -> str:
    out, said = process.communicate(timeout=400)
    assert process.returncode == code, f"exit {process.returncode}\n{out}\n{said}"
    assert "Traceback" not in said, said
    return out + said


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    until(lambda: condition() or process.poll() is not None)
    assert process.poll() is None, process.communicate()


def what_counts(results: list[Result]) -> dict[str, Any]:
    """What does not depend on the clock or on where it was done."""
    return {
        one.item: (one.score, one.answer, one.stop_reason, one.error_kind, one.error, one.turns, one.model_tokens,
                   one.detail, bool(one.run))
        for one in results
    }  # fmt: skip


def nodes_of(results: list[Result], out: Path, cluster: RayCluster) -> set[str]:
    """On which nodes the sandboxes of these results were, by the folders that they say they are in."""
    texts = [(out / one.run / "journal.jsonl").read_text("utf-8") for one in results]
    return {folder.name for folder in cluster.folders for text in texts if str(folder) in text}


def test_two_nodes_give_the_same_results_as_this_machine(
    cluster: RayCluster, task: Path, tmp_path: Path
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    with ScriptedServer(ANSWER) as model:
        assert main(words(task, here, model)) == 0
        told = finish(start(*words(task, there, model, "--ray", cluster.address)), 0)
    assert re.search(rf"^counted +sandbox +own .* {ROWS} of {ROWS} +50\.0 ", told, re.MULTILINE), told
    results = read_results(there)
    assert len(results) == ROWS
    assert what_counts(results) == what_counts(read_results(here))
    assert nodes_of(results, there, cluster) == {"a", "b"}
    for result in results:
        assert read_journal(there / result.run / "journal.jsonl")
    cluster.wait_until_clean()


def test_errors_are_counted_by_kind_as_here(cluster: RayCluster, task: Path, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    with ScriptedServer(REFUSED) as model:
        assert main(words(task, here, model)) == 1
        told = finish(start(*words(task, there, model, "--ray", cluster.address)), 1)
    assert f"Errors: {ROWS} bad_request" in told
    assert what_counts(read_results(there)) == what_counts(read_results(here))
    with ScriptedServer(NO_KEY) as model:
        told = finish(start(*words(task, tmp_path / "none", model, "--ray", cluster.address)), 3)
    assert "Stopped; results so far are in" in told
    assert read_results(tmp_path / "none") == []
    cluster.wait_until_clean()


def test_a_killed_worker_loses_no_result(cluster: RayCluster, task: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with ScriptedServer(SLOW) as model:
        process = start(*words(task, out, model, "--ray", cluster.address))
        lines = out / "counted" / "sandbox" / FILE
        wait_for(lines.exists, process)
        (victim,) = cluster.hosts(cluster.folders[0])
        os.kill(victim, signal.SIGKILL)
        finish(process, 0)
    cluster.wait_until_clean()
    kept = [json.loads(line) for line in lines.read_bytes().splitlines()]
    assert Counter(line["item"] for line in kept) == {f"r{n}": 1 for n in range(ROWS)}
    assert {line["error_kind"] for line in kept} == {""}
    assert [line["score"] for line in sorted(kept, key=lambda line: str(line["item"]))] == [0.0, 1.0] * 5


def test_a_dead_node_loses_no_result(cluster: RayCluster, task: Path, tmp_path: Path) -> None:
    """With everything on it, in the middle; what it had under way is done by the others."""
    out, folder = tmp_path / "out", tmp_path / "c"
    folder.mkdir()
    with ScriptedServer(SLOW) as model, cluster.node_to_die(folder) as die:
        process = start(*words(task, out, model, "--ray", cluster.address))
        wait_for(lambda: bool(list(folder.glob("llm-sandbox-nb-host-*/[0-9]*"))), process)
        assert cluster.hosts(folder)
        die()
        finish(process, 0)
    results = read_results(out)
    assert Counter(one.item for one in results) == {f"r{n}": 1 for n in range(ROWS)}
    assert {one.error_kind for one in results} == {""}
    assert sorted(one.score or 0.0 for one in results) == [0.0] * 5 + [1.0] * 5
    cluster.wait_until_clean()


def test_an_interrupt_ends_all_actors_and_sandboxes(cluster: RayCluster, task: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with ScriptedServer(SLOW) as model:
        process = start(*words(task, out, model, "--ray", cluster.address))
        wait_for((out / "counted" / "sandbox" / FILE).exists, process)
        process.send_signal(signal.SIGINT)
        assert "The same command resumes there." in finish(process, 130)
        cluster.wait_until_clean()
        done = len(read_results(out))
        assert 0 < done < ROWS
        assert main(words(task, out, model)) == 0  # and without Ray, for the results are the same
    assert len(read_results(out)) == ROWS


def test_an_address_without_a_cluster_is_one_sentence(task: Path, tmp_path: Path) -> None:
    with ScriptedServer(ANSWER) as model:
        told = finish(start(*words(task, tmp_path / "out", model, "--ray", "127.0.0.1:9")), 3)
    assert "There is no Ray cluster at 127.0.0.1:9" in told
    assert "ray start --head" in told
