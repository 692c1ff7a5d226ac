"""Isolation `process`: it says that it isolates nothing, hands on little, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from sandbox_commands import until_living
from support import child_pids, eventually, own_mark, until

from llm_sandbox_nb.sandbox import process
from llm_sandbox_nb.sandbox.contract import Directories
from llm_sandbox_nb.sandbox.errors import IsolationUnavailableError, SandboxError
from llm_sandbox_nb.sandbox.open import open_sandbox
from llm_sandbox_nb.sandbox.process import INHERITED_VARIABLES

pytestmark = [pytest.mark.own_sandbox, pytest.mark.isolations("process")]


async def test_it_says_that_it_protects_nothing(box: Any) -> None:
    protection = box.protection
    assert protection.isolation == "process"
    assert protection.protects.startswith("Nothing")
    assert "everything that you can" in protection.does_not_protect
    assert (protection.network, protection.memory_bytes, protection.seccomp) == ("open", None, "none")


async def test_it_says_that_keys_of_other_programs_can_be_read(box: Any) -> None:
    owner = subprocess.Popen(["sleep", "infinity"], env={**os.environ, "SOME_API_KEY": "canary-key"})  # noqa: ASYNC220
    try:
        read = await box.run(f"tr '\\0' '\\n' < /proc/{owner.pid}/environ")
    finally:
        owner.kill()
        owner.wait()
    assert b"canary-key" in read.stdout
    assert "keys in the environment" in box.protection.does_not_protect


@pytest.fixture
def secret_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "canary-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary-secret")
    monkeypatch.setenv("PYTHONPATH", "/canary-path")
    monkeypatch.setenv("BASH_ENV", "/canary-bash-env")


@pytest.mark.usefixtures("secret_environment")
@pytest.mark.sandbox(env={"MINE": "é b"})
async def test_only_the_allow_list_goes_in(box: Any) -> None:
    by_shell = (await box.run("env; echo $HOME")).stdout.decode()
    by_exec = (await box.exec(["env"])).stdout.decode()
    assert "canary" not in by_shell + by_exec
    names = {line.partition("=")[0] for line in by_exec.splitlines()}
    assert names <= {
        *INHERITED_VARIABLES,
        "HOME",
        "TMPDIR",
        "USER",
        "LOGNAME",
        "EMAIL",
        "LLM_SANDBOX_ID",
        "MINE",
    }
    assert "MINE=é b" in by_exec
    assert by_shell.splitlines()[-1].startswith(str(Path(box.directories.root).parent))


def test_a_program_without_an_environment_is_not_waited_for() -> None:
    """Only a process between two programs is: it has no arguments either."""
    with subprocess.Popen(["sleep", "infinity"], env={}) as bare:
        arguments = Path(f"/proc/{bare.pid}/cmdline")
        until(lambda: arguments.read_bytes())  # it is between two programs for a moment itself
        begins = process._is_starting(bare.pid)
        bare.kill()
    assert (begins, process._is_starting(bare.pid)) == (False, False)


async def test_nothing_is_left() -> None:
    """Neither when it is closed, nor when its executor was killed before."""
    for killed in (False, True):
        mark = own_mark()
        async with open_sandbox("process") as box:
            root = Path(box.directories.root)
            jobs = f"setsid sleep {mark} & (trap '' TERM HUP; sleep {mark}) & echo x > output/x; mkdir -m 0 closed"
            await box.run(jobs)
            await box.exec(["sh", "-c", f"setsid sleep {mark} & echo"])
            result = await box.run("seq 100000", output_limit=5000)
            kept = Path(result.full_output)
            assert kept.is_relative_to(root.parent)
            assert kept.read_bytes().endswith(b"100000\n")
            await until_living(mark, 3)
            assert (root.name, root.parent.name[:12]) == ("testbed", "llm-sandbox-")
            if killed:
                os.kill(box.executor["pid"], signal.SIGKILL)
        assert not root.parent.exists()
        await until_living(mark, 0)


async def test_a_close_whose_caller_is_cancelled_leaves_nothing() -> None:
    for turns in range(1, 6):
        box = await open_sandbox("process")
        await box.checkpoint()
        folders = [Path(box.directories.root).parent, box.history.folder]
        closing = asyncio.create_task(box.close())
        for _ in range(turns):
            await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait({closing})
        await eventually(lambda folders=folders: not any(folder.exists() for folder in folders))


def test_a_process_that_just_begins_is_found_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """While it changes into its program, its environment reads as empty."""
    started = subprocess.Popen(["sleep", "infinity"], env={process._ID_VARIABLE: "begins"})
    looks, environ = [0], process._environ

    def at_first_empty(pid: int) -> list[bytes]:
        looks[0] += pid == started.pid
        return [b""] if pid == started.pid and looks[0] <= 3 else environ(pid)

    monkeypatch.setattr(process, "_environ", at_first_empty)
    monkeypatch.setattr(process, "_is_starting", lambda pid: pid == started.pid and looks[0] <= 3)
    process._kill_marked("begins")
    assert started.wait(60) == -signal.SIGKILL


async def test_a_folder_of_the_user_is_kept(tmp_path: Path) -> None:
    async with open_sandbox("process", directories=Directories(str(tmp_path / "mine"))) as box:
        await box.run("echo kept > output/kept")
    assert (tmp_path / "mine/output/kept").read_text() == "kept\n"


async def test_two_at_once_do_not_meet() -> None:
    async with open_sandbox("process") as one, open_sandbox("process") as two:
        assert one.id != two.id
        await one.run("x=1; echo one > f")
        assert (await two.run("echo ${x-unset}; ls f")).stdout == b"unset\n"


@pytest.mark.parametrize(
    ("fails", "call"),
    [("make_owned_folder", 1), ("executor_source", 1), ("_protection", 1), ("_protection", 2)],
)
async def test_a_start_that_fails_is_one_sentence_and_leaves_nothing(
    fails: str, call: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The last call fails when the executor runs already."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    children, original, calls = child_pids(), getattr(process, fails), itertools.count(1)

    def failing(*args: Any) -> Any:
        if next(calls) == call:
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(*args)

    monkeypatch.setattr(process, fails, failing)
    with pytest.raises(SandboxError, match=r"cannot start \(.*No space left on device\): "):
        await open_sandbox("process")
    assert not list(tmp_path.iterdir())
    assert child_pids() <= children


async def test_without_bash(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(IsolationUnavailableError, match="needs bash: install it"):
        await open_sandbox("process")


OWNER = """
import asyncio
from llm_sandbox_nb.sandbox.open import open_sandbox

async def main():
    print("here", flush=True)
    async with open_sandbox("process") as box:
        await box.run("echo content > file")
        await asyncio.Event().wait()

asyncio.run(main())
"""


def start_owner(folder: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "TMPDIR": str(folder)}
    return subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, env=environment)


def end(*owners: subprocess.Popen[bytes]) -> None:
    for owner in owners:
        owner.kill()
        owner.wait()
        assert owner.stdout
        owner.stdout.close()


def test_what_is_left_when_everybody_was_killed_goes_with_the_next_start(tmp_path: Path) -> None:
    """And the folder of one that lives stays."""

    def folders() -> set[Path]:
        return {file.parent.parent for file in tmp_path.glob("*/testbed/file") if file.read_text()}

    living = start_owner(tmp_path)
    until(lambda: len(folders()) == 1)
    (kept,) = folders()
    killed = start_owner(tmp_path)
    until(lambda: len(folders()) == 2)
    (left,) = folders() - {kept}
    killed.send_signal(signal.SIGSTOP)  # it would remove the folder when its executor is gone

    def of_it() -> list[int]:
        found = []
        for environ in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if f"LLM_SANDBOX_FOLDER={left}".encode() in environ.read_bytes():
                    found.append(int(environ.parent.name))
        return found

    for pid in of_it():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    end(killed)
    until(lambda: not of_it())
    assert folders() == {kept, left}, "nobody is there to remove it"
    third = start_owner(tmp_path)
    until(lambda: not left.exists() and len(folders()) == 2)
    assert kept in folders()
    end(living, third)


def is_empty(folder: Path) -> bool:
    """True also for one that is just removed, and for the file with which Python tries a temporary folder."""
    try:
        return not [*folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return True


@pytest.mark.parametrize("wanted", range(6))
def test_no_folder_is_left_by_an_owner_that_is_killed_at_any_instant_of_a_start(
    wanted: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each change of what is in the folder: when it has so many entries, of which its executor makes the fifth.

    Its executor removes it. Where there was none yet, the next start does.
    """
    owner = start_owner(tmp_path)
    assert owner.stdout
    owner.stdout.readline()
    until(lambda: len([*tmp_path.rglob("*")]) >= wanted)
    end(owner)
    if wanted < 5:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        until(lambda: process.remove_leftovers() == 0)
        # The executor may still be removing its folder, the lock first: then it is not counted. An owner that was
        # killed before its folder had a lock has left an empty one, which counts as another program's.
        until(lambda: all(is_empty(path) for path in tmp_path.iterdir()))
    else:
        until(lambda: not [*tmp_path.iterdir()])
