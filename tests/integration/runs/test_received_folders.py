"""Run folders that a stranger made: all that can be done with a run ends soon, and touches nothing outside of them.

Each folder is an honest run that was spoiled in one way (`received_folders.py`). A process of its own does everything
with it, so that a hang fails one test and does not hold up the others.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import received_folders
import support
from agent_scripts import SUBMIT, bash, script, turn
from received_folders import SECRET, SPOILED

from llm_sandbox_nb import Run, solve

pytestmark = pytest.mark.engine
PATIENCE = 120.0
"""Seconds in which everything is done with one folder, also on a machine that does much else."""
MEMORY = 600 * 2**20
"""Bytes by which the process may grow with any of them."""
REPLAYED = (
    "file_of_the_host_as_a_pack", "link_to_the_host_as_a_pack", "checkpoint_that_is_its_own_parent",
    "link_to_the_host_in_a_checkpoint", "history is a link to a folder", "history/packs is a link to a folder",
    "history/index.sqlite is a pipe", "files is a link to a folder", "a pack is a pipe", "trigger_on_insert",
    "messages_of_other_kinds", "sandbox_of_other_kinds",
)  # fmt: skip
"""Those that are also replayed and rebuilt, which begins as a fork does."""
KNOWN = {
    "", "InputError", "HistoryError", "JournalError", "RunError", "SandboxError", "ExportError", "UsageError",
    "FileNotFoundError", "RunNotFoundError", "OutputLimitExceededError", "NotOwnFileError",
}  # fmt: skip
"""Errors whose message is one sentence for a person."""


class Worker:
    """A process that answers what all operations gave; another one after it was killed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def ask(self, question: dict[str, Any]) -> dict[str, Any] | None:
        """Its answer; None when it did not end."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, received_folders.__file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=question["cwd"],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            )
            support.KEPT_PIDS.add(self._process.pid)
        process = self._process
        assert process.stdin
        assert process.stdout
        process.stdin.write(json.dumps(question) + "\n")
        process.stdin.flush()
        if select.select([process.stdout], [], [], PATIENCE)[0] and (line := process.stdout.readline()):
            answer: dict[str, Any] = json.loads(line)
            return answer
        self.end()
        return None

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            support.KEPT_PIDS.discard(self._process.pid)
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()
            self._process = None


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    made = Worker()
    yield made
    made.end()


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("honest")
    (folder / "runs").mkdir()
    model = script(
        folder,
        turn(bash("echo one > output/result.txt; mkdir output/below; echo x > output/below/more.txt")),
        turn(bash("echo two > output/result.txt; rm -r output/below; seq 40000")),
        SUBMIT,
        turn(bash("cat output/*.txt")),
        SUBMIT,
    )
    run = asyncio.run(solve("A task.", model=model, isolation="process", output_dir=folder / "runs"))
    assert (run.folder / "blobs").is_dir()
    return run.folder


def make_outside(folder: Path) -> Path:
    """A folder of the host with things that a stranger wants to read, to write or to remove."""
    outside = folder / "outside"
    (outside / "below").mkdir(parents=True)
    for name in ("id_rsa", "result.txt", "lock", "below/more.txt", f"{'ab' * 12}.pack", "journal.jsonl"):
        (outside / name).write_bytes(SECRET)
    sqlite3.connect(outside / "index.sqlite").execute("CREATE TABLE IF NOT EXISTS mine(x)").connection.close()
    for path in outside.rglob("*"):
        os.utime(path, (1000, 2000))  # so that whoever reads it changes the first, also with `relatime`
    return outside


def state(folder: Path) -> dict[str, tuple[object, ...]]:
    """All that can be seen of files without reading them."""
    found = {}
    for path in sorted(folder.rglob("*")):
        info = path.lstat()
        times = () if path.is_dir() else (info.st_mtime, info.st_atime)
        found[str(path)] = (info.st_mode, info.st_size, info.st_ino, *times)
    return found


def do_everything(worker: Worker, honest: Path, folder: Path, name: str) -> dict[str, Any]:
    """Spoil a copy of the honest run, do everything with it, and check that nothing outside has changed."""
    outside = make_outside(folder)
    received = folder / "runs" / honest.name
    shutil.copytree(honest, received)
    SPOILED[name](received, outside)
    before, beside = state(outside), sorted(folder.iterdir())
    question = {
        "folder": str(received),
        "honest": str(honest),
        "script": f"scripted/{honest.parents[1] / 'script.yaml'}",
        "sandbox": needs_sandbox(name),
        "replay": name in REPLAYED,
        "cwd": str(folder),
    }
    answer = worker.ask(question)
    assert answer is not None, f"it did not end within {PATIENCE} seconds"
    assert state(outside) == before
    assert sorted(folder.iterdir()) == beside
    assert SECRET.decode() not in json.dumps(answer)
    assert not holds_secret(folder / "runs")
    subprocess.run(["rm", "-rf", folder / "runs"], check=True)  # some are too deep or too large to be kept
    return answer


def needs_sandbox(name: str) -> bool:
    """Whether the folder is spoiled where a fork and a resume look: the others differ in what is read only."""
    return not name.startswith(("trajectory.json", "run.html", "journal.jsonl", "line_"))


def holds_secret(folder: Path) -> bool:
    found = subprocess.run(
        ["find", folder, "-type", "f", "-size", "-200M", "-exec", "grep", "-qF", SECRET.decode(), "{}", ";", "-print"],
        capture_output=True, check=True,
    )  # fmt: skip
    return bool(found.stdout)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "name",
    # Each takes a second or two: `make test` takes every tenth, and every second of those that are replayed.
    [
        name if not number % 10 or name in REPLAYED[::2] else pytest.param(name, marks=pytest.mark.campaign)
        for number, name in enumerate(SPOILED)
    ],
)
def test_a_spoiled_folder_touches_nothing_outside(
    name: str, worker: Worker, honest: Path, tmp_path: Path
) -> None:
    answer = do_everything(worker, honest, tmp_path, name)
    for operation, (_, kind, said) in answer["told"].items():
        assert kind in KNOWN, f"{operation}: {kind}: {said}"
        assert not kind or ("\n" not in said.strip() and 0 < len(said) < 1000), f"{operation}: {said}"
        assert "Traceback" not in said
    assert answer["memory"] < MEMORY


def test_the_canaries_see_what_they_are_to_see(tmp_path: Path) -> None:
    outside = make_outside(tmp_path)
    before = state(outside)
    (outside / "id_rsa").read_bytes()
    read = state(outside)
    (outside / "lock").write_bytes(b"")
    written = state(outside)
    (outside / "result.txt").unlink()
    assert len({str(one) for one in (before, read, written, state(outside))}) == 4
    (tmp_path / "runs").mkdir()
    assert not holds_secret(tmp_path / "runs")
    (tmp_path / "runs" / "x").write_bytes(b"a" + SECRET)
    assert holds_secret(tmp_path / "runs")


SPOILED["nothing"] = lambda folder, outside: None


@pytest.mark.timeout(300)
@pytest.mark.parametrize("link", ["", "runs", "run"])
def test_with_an_honest_folder_everything_works(
    link: str, worker: Worker, honest: Path, tmp_path: Path
) -> None:
    """The canary, also where a person reaches the folder through a link."""
    copied = shutil.copytree(honest, tmp_path / "data" / honest.name)
    place = copied
    if link:
        place = tmp_path / "link" / honest.name if link == "runs" else tmp_path / "runs" / honest.name
        place.parent.parent.mkdir(exist_ok=True)
        if link == "runs":
            place.parent.symlink_to(tmp_path / "data")
        else:
            place.parent.mkdir()
            place.symlink_to(copied)
    question = {
        "folder": str(place),
        "honest": str(honest),
        "script": f"scripted/{honest.parents[1] / 'script.yaml'}",
        "sandbox": True,
        "replay": True,
        "cwd": str(tmp_path),
    }
    answer = worker.ask(question)
    assert answer is not None
    assert {name: kind for name, (_, kind, _) in answer["told"].items() if kind} == {}
    told = {name: said for name, (_, _, said) in answer["told"].items()}
    assert "result.txt" in told["load"]
    assert "one\\n" in told["history"]
    assert "back again" in told["rewind"] or "again" in told["rewind"]
    assert sorted(Run.load(copied).files) == ["result.txt"]
