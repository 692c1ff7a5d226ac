"""Isolation `process`: it says that it isolates nothing, hands on little, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support import CAMPAIGN, child_pids, run
from support import with_sandbox as body

from llm_sandbox_nb.sandbox import process
from llm_sandbox_nb.sandbox.contract import Directories
from llm_sandbox_nb.sandbox.process import PASSED_ON

pytestmark = pytest.mark.own_sandbox


def test_it_says_that_it_protects_nothing(process_opener):
    async def test(box):
        protection = box.protection
        assert protection.isolation == "process"
        assert protection.protects.startswith("Nothing")
        assert "everything that you can" in protection.does_not_protect
        assert (protection.network, protection.memory_bytes, protection.seccomp) == ("open", None, "none")

    body(process_opener, test)


def test_it_says_that_keys_of_other_programs_can_be_read(process_opener):
    owner = subprocess.Popen(["sleep", "60"], env={**os.environ, "SOME_API_KEY": "canary-key"})

    async def test(box):
        read = await box.run(f"tr '\\0' '\\n' < /proc/{owner.pid}/environ")
        assert b"canary-key" in read.stdout
        assert "keys in the environment" in box.protection.does_not_protect

    try:
        body(process_opener, test)
    finally:
        owner.kill()
        owner.wait()


def test_only_the_allow_list_goes_in(process_opener, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "canary-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary-secret")
    monkeypatch.setenv("PYTHONPATH", "/canary-path")
    monkeypatch.setenv("BASH_ENV", "/canary-bash-env")

    async def test(box):
        by_shell = (await box.run("env; echo $HOME")).stdout.decode()
        by_exec = (await box.exec(["env"])).stdout.decode()
        assert "canary" not in by_shell + by_exec
        names = {line.partition("=")[0] for line in by_exec.splitlines()}
        assert names <= {*PASSED_ON, "HOME", "TMPDIR", "USER", "LOGNAME", "LLM_SANDBOX_ID", "MINE"}
        assert "MINE=é b" in by_exec
        assert by_shell.splitlines()[-1].startswith(str(Path(box.directories.root).parent))

    body(process_opener, test, env={"MINE": "é b"})


def test_nothing_is_left(process_opener):
    roots = []

    async def test(box):
        roots.append(Path(box.directories.root))
        await box.run(
            "setsid sleep 811 & (trap '' TERM HUP; sleep 812) & echo x > output/x; mkdir -m 0 closed"
        )
        await box.exec(["sh", "-c", "setsid sleep 813 & echo"])

    before = child_pids()
    body(process_opener, test)
    assert roots[0].name == "testbed"
    assert roots[0].parent.name.startswith("llm-sandbox-")
    assert not roots[0].parent.exists()
    assert child_pids() == before
    assert "sleep 81" not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout


def test_nothing_is_left_when_the_executor_was_killed(process_opener):
    roots = []

    async def test(box):
        roots.append(Path(box.directories.root))
        await box.run("setsid sleep 821 & echo")
        os.kill(box.executor["pid"], 9)

    body(process_opener, test)
    assert not roots[0].parent.exists()
    assert "sleep 82" not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout


def test_a_process_that_just_begins_is_found_too(monkeypatch):
    """While it changes into its program, its environment reads as empty."""
    started = subprocess.Popen(["sleep", "823"], env={process._MARK: "begins"})
    looks, environ = [0], process._environ

    def at_first_empty(pid):
        looks[0] += pid == started.pid
        return [b""] if pid == started.pid and looks[0] <= 3 else environ(pid)

    monkeypatch.setattr(process, "_environ", at_first_empty)
    monkeypatch.setattr(process, "_begins", lambda pid: pid == started.pid and looks[0] <= 3)
    process._kill_marked("begins")
    assert started.wait(10) == -signal.SIGKILL


def test_a_folder_of_the_user_is_kept(process_opener, tmp_path):
    async def test(box):
        await box.run("echo kept > output/kept")

    body(process_opener, test, directories=Directories(str(tmp_path / "mine")))
    assert (tmp_path / "mine/output/kept").read_text() == "kept\n"


def test_two_at_once_do_not_meet(process_opener):
    async def both():
        async with process_opener() as one, process_opener() as two:
            assert one.id != two.id
            await one.run("x=1; echo one > f")
            assert (await two.run("echo ${x-unset}; ls f")).stdout == b"unset\n"

    run(both())


def test_without_bash(process_opener, monkeypatch, tmp_path):
    from llm_sandbox_nb.sandbox.errors import IsolationUnavailableError

    monkeypatch.setenv("PATH", str(tmp_path))

    async def test(box):
        raise AssertionError("opened")

    with pytest.raises(IsolationUnavailableError, match="needs bash: install it"):
        body(process_opener, test)


def test_output_over_the_limit_lies_in_the_private_folder_and_goes_with_it(process_opener):
    kept = []

    async def test(box):
        result = await box.run("seq 100000", output_limit=5000)
        kept.append(Path(result.full_output))
        assert kept[0].is_relative_to(Path(box.directories.root).parent)
        assert (await box.read_file(result.full_output)).endswith(b"100000\n")

    body(process_opener, test)
    assert not kept[0].exists()


OWNER = """
import asyncio
from llm_sandbox_nb.sandbox.open import open_sandbox

async def main():
    print("here", flush=True)
    async with open_sandbox("process") as box:
        await box.run("echo content > file")
        await asyncio.sleep(600)

asyncio.run(main())
"""


def test_what_is_left_when_everybody_was_killed_goes_with_the_next_start(tmp_path: Path) -> None:
    """And the folder of one that lives stays."""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.DEVNULL, env=environment)

    def folders() -> set[Path]:
        return {file.parent.parent for file in tmp_path.glob("*/testbed/file") if file.read_text()}

    def wait_for(count: int) -> set[Path]:
        deadline = time.monotonic() + 30
        while len(found := folders()) != count:
            assert time.monotonic() < deadline, found
            time.sleep(0.05)
        return found

    living = start()
    (kept,) = wait_for(1)
    killed = start()
    (left,) = wait_for(2) - {kept}
    killed.send_signal(signal.SIGSTOP)  # it would remove the folder when its executor is gone
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"LLM_SANDBOX_FOLDER={left}".encode() in environ.read_bytes():
                os.kill(int(environ.parent.name), signal.SIGKILL)
    killed.kill()
    killed.wait()
    time.sleep(0.3)
    assert folders() == {kept, left}
    third = start()
    deadline = time.monotonic() + 30
    while left.exists() or len(folders()) < 2:
        assert time.monotonic() < deadline, folders()
        time.sleep(0.05)
    assert kept in folders()
    for one in (living, third):
        one.kill()
        one.wait()


def test_no_folder_is_left_by_an_owner_that_is_killed_at_any_instant_of_a_start(tmp_path: Path) -> None:
    begun = 0
    for instant in range(0, 16, 1 if CAMPAIGN else 3):
        owner = subprocess.Popen(
            [sys.executable, "-c", OWNER], stdout=subprocess.PIPE, env={**os.environ, "TMPDIR": str(tmp_path)}
        )
        assert owner.stdout is not None
        owner.stdout.readline()
        time.sleep(instant * 0.02)
        begun += bool(list(tmp_path.iterdir()))
        owner.kill()
        owner.wait()
        owner.stdout.close()
    assert begun > (4 if CAMPAIGN else 1)
    deadline = time.monotonic() + 30
    while left := list(tmp_path.iterdir()):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
