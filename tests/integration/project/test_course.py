"""Every notebook of the course: as it is shipped, then in the same kernel with its exercises solved, offline."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import course
import nbformat
import pytest
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from support import BUSY, KEPT_PIDS, require
from warm_kernels import ROOT, connected, kernel_environment, renew, warm_kernel

from notebooks import records

LONGEST = 60.0
"""Seconds of one Run All on a machine that does nothing else."""
OFFLINE = [sys.executable, str(ROOT / "tests" / "no_route.py")]
PLACES = {"bubblewrap": pytest.mark.bubblewrap, "docker": pytest.mark.docker, "process": pytest.mark.campaign}
USUAL = {("bubblewrap", "05-why-agents-fail")}
"""The others are a campaign."""
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def offline_kernel() -> Iterator[KernelManager]:
    """A kernel that has no route out; what it says comes through sockets in a folder."""
    with tempfile.TemporaryDirectory(prefix="lsn-") as folder:
        spec = Path(folder) / "data" / "kernels" / "python3"
        spec.mkdir(parents=True)
        argv = [*OFFLINE, sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        (spec / "kernel.json").write_text(
            json.dumps({"argv": argv, "display_name": "no route", "language": "python"})
        )
        manager = KernelManager(
            kernel_name="python3",
            transport="ipc",
            ip=f"{folder}/k",
            connection_file=f"{folder}/kernel.json",
            client_class="jupyter_client.asynchronous.AsyncKernelClient",
        )
        manager.kernel_spec_manager.kernel_dirs = [str(spec.parent)]
        manager.start_kernel(cwd=folder, env=kernel_environment(Path(folder)))
        pid = manager.provisioner.pid
        KEPT_PIDS.add(pid)
        yield manager
        manager.shutdown_kernel()
        manager.cleanup_resources()
        KEPT_PIDS.discard(pid)


def folder_of(name: str, tmp_path: Path) -> Path:
    folder = tmp_path / "notebooks"
    folder.mkdir()
    shutil.copytree(course.FOLDER / "data", folder / "data")
    shutil.copy(course.FOLDER / f"{name}.ipynb", folder)
    return folder


def run_all(notebook: NotebookNode, manager: KernelManager, folder: Path) -> tuple[NotebookNode, float]:
    """Run all cells of a copy in a kernel that is already there. Gives it with its outputs, and the seconds it took."""
    done = deepcopy(notebook)
    client = NotebookClient(
        done,
        km=manager,
        timeout=BUSY * LONGEST,
        allow_errors=True,
        resources={"metadata": {"path": str(folder)}},
    )
    began = time.monotonic()
    try:
        client.execute()
    finally:
        if client.kc:
            client.kc.stop_channels()
    nbformat.validate(done)
    return done, time.monotonic() - began


def assert_runs(name: str, isolation: str, manager: KernelManager, folder: Path) -> None:
    """Run All as it is shipped, and once more in the same kernel, with the exercises solved."""
    notebook = course.shipped(name)
    first, seconds = run_all(notebook, manager, folder)
    assert course.problems_as_executed(first, "Not yet: ") == []
    second, again = run_all(course.solved(notebook), manager, folder)
    assert course.problems_as_executed(second, "Right: ") == []
    print(f"{name} in {isolation}: {seconds:.1f} s, then {again:.1f} s")
    assert max(seconds, again) < BUSY * LONGEST
    assert course.large_files(folder) == []
    ready = [
        event for record in records(second) for event in record["events"] if event["kind"] == "sandbox.ready"
    ]
    assert {event["protection"]["isolation"] for event in ready} <= {isolation}


@pytest.mark.parametrize("name", course.NAMES)
def test_it_keeps_the_conventions(name: str) -> None:
    assert course.problems_as_written(course.shipped(name)) == []


@pytest.mark.parametrize(
    ("isolation", "name"),
    [
        pytest.param(place, name, marks=[mark] if (place, name) in USUAL else [mark, pytest.mark.campaign])
        for place, mark in PLACES.items()
        for name in course.EXECUTED
    ],
)
def test_it_runs_twice_and_its_solutions_are_right(
    name: str, isolation: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """In Docker with its network, else with none at all."""
    require(isolation)
    folder = folder_of(name, tmp_path)
    environment = kernel_environment(tmp_path, LLM_SANDBOX_ISOLATION=isolation)
    if isolation == "docker":
        with warm_kernel(folder, environment) as manager:
            assert_runs(name, isolation, manager, folder)
        return
    manager = request.getfixturevalue("offline_kernel")
    with connected(manager) as client:
        renew(client, folder, environment)
    assert_runs(name, isolation, manager, folder)


# --------------------------------------------------------------------------------------------- what these tests find

SHIPPED = "answer = None"
CHECK = "print('Right: it is 4.' if answer == 4 else 'Not yet: what is 2 + 2?')"
SOLUTION = "<details><summary>Solution</summary>\n\n```python\nanswer = 4\n```\n\nTwo and two.\n\n</details>"
OPENING = (
    "# Sums\n\nYou will\n\n- add;\n- check.\n\nIt takes about two minutes and needs no key and no internet. "
    "The model is `-m scripted/sums`; `%sandbox key` is for a real one."
)


def small(
    shipped: str = SHIPPED, check: str = CHECK, solution: str = SOLUTION, opening: str = OPENING
) -> NotebookNode:
    cells = [
        new_markdown_cell(opening),
        new_code_cell("%load_ext llm_sandbox_nb"),
        new_code_cell(shipped, metadata={"tags": ["exercise"]}),
        new_code_cell(check, metadata={"tags": ["check"]}),
        new_markdown_cell(solution),
    ]
    return new_notebook(cells=cells, metadata={"kernelspec": {"name": "python3", "display_name": "Python"}})


def test_a_notebook_that_keeps_the_conventions_has_no_problems() -> None:
    assert course.problems_as_written(small()) == []
    in_a_cell = SOLUTION.replace("```python\nanswer = 4", "```text\n%%sandbox -m scripted/x\nAdd.")
    assert course.problems_as_written(small(solution=in_a_cell)) == []
    assert course.solved(small(solution=in_a_cell)).cells[2].source == "%%sandbox -m scripted/x\nAdd."


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"opening": OPENING.replace("# ", "")}, "begin with a title"),
        ({"opening": OPENING.replace("- check.\n", "")}, "two to four goals"),
        ({"opening": OPENING.replace("two minutes", "twenty minutes")}, "about N minutes"),
        ({"opening": OPENING.replace("no key", "a key")}, "no key"),
        ({"opening": OPENING.replace("`%sandbox key`", "A key")}, "%sandbox key"),
        ({"solution": "answer = 4"}, "a folded cell"),
        ({"solution": SOLUTION.replace("python", "text")}, "is fenced as text"),
    ],
)
def test_a_convention_that_is_broken_is_found(changed: dict[str, str], problem: str) -> None:
    (found,) = course.problems_as_written(small(**changed))
    assert problem in found


def test_tags_and_outputs_that_are_wrong_are_found() -> None:
    unchecked, alone, kept, twice = small(), small(), small(), small()
    unchecked.cells[3].metadata = {}
    alone.cells[2].metadata = {}
    kept.cells[1].execution_count = 1
    twice.cells[1].id = twice.cells[2].id
    said = [course.problems_as_written(one) for one in (unchecked, alone, kept, twice)]
    assert "followed by a cell tagged check" in said[0][0]
    assert said[1] == ["it has no exercise", "a cell is tagged check and follows no exercise"]
    assert said[2:] == [["it is saved with outputs"], ["its cells have no ids of their own"]]


def small_run(notebook: NotebookNode, folder: Path, manager: KernelManager) -> NotebookNode:
    with connected(manager) as client:
        renew(client, folder, kernel_environment(folder))
    return run_all(notebook, manager, folder)[0]


def test_what_goes_wrong_in_a_run_is_found(tmp_path: Path, offline_kernel: KernelManager) -> None:
    def problems(verdict: str, **changed: Any) -> list[str]:
        notebook = small(**changed)
        chosen = course.solved(notebook) if verdict == "Right: " else notebook
        return course.problems_as_executed(small_run(chosen, tmp_path, offline_kernel), verdict)

    assert problems("Not yet: ") == []
    assert problems("Right: ") == []
    (wrong,) = problems("Right: ", solution=SOLUTION.replace("answer = 4", "answer = 5"))
    assert "says ['Not yet: what is 2 + 2?']" in wrong
    (two_lines,) = problems("Not yet: ", check=f"{CHECK}\nprint('More.')")
    assert "not one line" in two_lines
    assert "cell 2: ZeroDivisionError: division by zero" in problems("Not yet: ", shipped="answer = 1 / 0")
    silent = small()
    silent.cells.insert(2, new_code_cell("pass", metadata={"tags": ["network"]}))
    (unsaid,) = course.problems_as_executed(small_run(silent, tmp_path, offline_kernel), "Not yet: ")
    assert "does not say so" in unsaid


def test_a_large_file_of_a_run_is_found(tmp_path: Path) -> None:
    kept = tmp_path / "sandbox-runs" / "n" / "20260101-120000-abcd" / "files"
    kept.mkdir(parents=True)
    (kept / "small.png").write_bytes(b"x" * course.LARGEST)
    (kept / "large.mp4").write_bytes(b"x" * (course.LARGEST + 1))
    assert course.large_files(tmp_path) == [f"large.mp4: {course.LARGEST + 1} bytes"]


def test_without_a_route_only_loopback_answers() -> None:
    """The same code reaches its own machine only; with a route it would wait for an answer."""
    code = (
        "import errno, socket\n"
        "with socket.create_server(('127.0.0.1', 0)) as server:\n"
        "    socket.create_connection(server.getsockname()).close()\n"
        "for place in ('192.0.2.1', 80), ('198.51.100.1', 53):\n"
        "    with socket.socket() as sock:\n"
        "        assert sock.connect_ex(place) == errno.ENETUNREACH\n"
        "print(len(open('/proc/net/route').readlines()))"
    )
    done = subprocess.run([*OFFLINE, sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
