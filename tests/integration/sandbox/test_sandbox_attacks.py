"""Commands that try to hurt the sandbox from within: it stays usable, or ends in a clear error."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys

import pytest
from support import with_sandbox as body

from llm_sandbox_nb.sandbox.contract import Limits
from llm_sandbox_nb.sandbox.errors import SandboxLostError

pytestmark = pytest.mark.own_sandbox


async def works(box):
    result = await box.run("x=1; echo works $((x + 1))", timeout=60)
    assert (result.stdout, result.exit_code) == (b"works 2\n", 0)
    assert (await box.exec(["echo", "beside"], timeout=60)).stdout == b"beside\n"
    await box.write_file("probe", b"probe")
    assert await box.read_file("probe") == b"probe"


@pytest.mark.parametrize(
    "command",
    [
        "kill -9 -1",
        "for signal in KILL STOP TERM INT HUP QUIT USR1 USR2 ALRM PIPE RTMAX; do kill -$signal 1; done",
        "setsid sh -c 'sleep 0.1; kill -9 -1' & sleep 1; echo over",
        "kill -STOP $PPID; kill -STOP $$",
        "kill -CHLD 1; for i in 1 2 3 4 5 6 7 8 9; do kill -CHLD 1; done",
        'exec 0<&- 1>&- 2>&-; for fd in {3..400}; do eval "exec $fd<&-"; done; kill $$',
    ],
)
def test_killing_everything(strong_opener, command):
    async def test(box):
        await box.run(command, timeout=3)
        await works(box)

    body(strong_opener, test)


@pytest.mark.parametrize("profile", ["standard", "strict"])
def test_the_executor_cannot_be_looked_into(strong_opener, profile):
    async def test(box):
        for attack in (
            "cat /proc/1/mem",
            "cat /proc/1/environ",
            "readlink /proc/1/fd/0",
            "echo x > /proc/1/fd/1",
            "cat /proc/1/fd/0",
        ):
            result = await box.run(attack, timeout=5)
            assert (result.stdout, result.exit_code) == (b"", 1), attack
        probe = "import ctypes; print(ctypes.CDLL(None).ptrace(16, 1, 0, 0))"
        assert (await box.exec(["python3", "-c", probe])).stdout == b"-1\n"
        await works(box)

    body(strong_opener, test, profile=profile)


def test_fork_bomb(strong_opener):
    async def test(box):
        bomb = "bomb() { bomb | bomb & }; bomb; sleep 30"
        result = await box.run(bomb, timeout=2)
        assert result.timed_out
        await asyncio.sleep(0.5)
        await works(box)
        count = await box.run("ls -d /proc/[0-9]* | wc -l")
        assert int(count.stdout) < 15

    body(strong_opener, test, timeout=120)


def test_fork_bomb_that_leaves_its_session(strong_opener, busy_machine):
    """Hundreds of processes that never sleep, on a machine that has others to serve: the executor still ends them."""

    async def test(box):
        bomb = "import os\nwhile True:\n  try:\n    if os.fork() == 0: os.setsid()\n  except OSError: pass"
        result = await box.exec(["python3", "-c", bomb], timeout=1.5)
        assert result.timed_out
        await works(box)
        count = await box.run("ls -d /proc/[0-9]* | wc -l")
        assert int(count.stdout) < 15

    body(strong_opener, test, timeout=120)


def test_no_process_left_to_be_had(strong_opener):
    async def test(box):
        await box.run("for i in {1..600}; do sleep 99 & done 2>/dev/null", timeout=10)
        for call in (
            lambda: box.exec(["true"], timeout=5),
            lambda: box.read_file("/etc/passwd"),
            lambda: box.changes(),
            lambda: box.list_files("."),
        ):
            with contextlib.suppress(BlockingIOError):  # "resource temporarily unavailable"
                await call()
        await box.run("exit", timeout=5)
        assert box.lost is None
        killer = asyncio.ensure_future(box.run("kill -9 -1", timeout=5))
        await asyncio.sleep(0.1)
        if box.lost is None:
            await killer
            await works(box)

    body(strong_opener, test, timeout=120, limits=Limits(pids=64))


def test_memory_hog_dies_and_the_sandbox_lives(strong_opener):
    async def test(box):
        result = await box.run("python3 -c 'x = bytearray(8 * 1024**3); print(len(x))'", timeout=60)
        assert result.exit_code != 0
        await works(box)

    body(strong_opener, test, timeout=120)


def test_forged_reports_and_tampered_shell(opener):
    async def test(box):
        await box.run(
            "_LLM_STATUS() { :; }; printf() { :; }; builtin() { :; }; eval() { :; }; kill() { :; }", timeout=2
        )
        await box.run("true", timeout=2)
        await box.run("unset -f printf builtin eval kill; exit", timeout=2)
        await works(box)
        await box.run(
            "readonly _LLM_STATUS PS1; declare -i _LLM_STATUS; PROMPT_COMMAND='echo p'; PS1='$(echo ps1)> '",
            timeout=2,
        )
        await box.run("echo", timeout=2)
        await box.run("exit")
        await works(box)
        await box.run("PROMPT_COMMAND='echo prompt'; PS1='(venv) '; PS0=zero")
        await asyncio.sleep(0.1)
        result = await box.run("echo clean")
        assert (result.stdout, result.stderr, result.background) == (b"clean\n", b"", b"")

    body(opener, test)


def test_output_that_looks_like_frames(opener):
    async def test(box):
        frame = b"LS\x07\x00\x00\x00\x01\x00\x00\x00\x02\x00\x00\x00\x00{}"
        await box.write_file("frames", frame * 5000)
        result = await box.run("cat frames; cat frames >&2")
        assert result.stdout == result.stderr == frame * 5000
        await works(box)

    body(opener, test)


def test_filling_everything_with_output(opener):
    async def test(box):
        tasks = [
            asyncio.ensure_future(
                box.exec(["sh", "-c", "yes | head -c 30000000; yes >&2"], timeout=2, output_limit=1000)
            )
            for _ in range(4)
        ]
        result = await box.run("yes background & yes", timeout=1, output_limit=1000)
        assert result.timed_out
        for task in tasks:
            assert (await task).timed_out
        await works(box)

    body(opener, test)


def test_the_watcher_may_be_killed(opener):
    async def test(box):
        await box.run("echo 1 > a")
        assert [change.kind for change in (await box.changes()).files] == ["added"]
        await box.run(
            "for p in $(pgrep -P 1 python; pgrep -P $PPID python); do [ $p = 1 ] || kill -9 $p; done"
        )
        await asyncio.sleep(0.2)
        lost = await box.changes()
        if lost.incomplete:
            assert "lost" in lost.incomplete
        await box.run("echo 2 > b")
        assert [change.path.rpartition("/")[2] for change in (await box.changes()).files] == ["b"]

    body(opener, test)


def test_a_dead_executor_is_said(process_opener):
    async def test(box):
        waiting = asyncio.ensure_future(box.exec(["sleep", "631"]))
        await asyncio.sleep(0.2)
        with pytest.raises(SandboxLostError, match="program ended"):
            await box.run("kill -9 $PPID; sleep 632")
        with pytest.raises(SandboxLostError):
            await waiting
        with pytest.raises(SandboxLostError, match="open a new one"):
            await box.run("true")
        with pytest.raises(SandboxLostError):
            await box.read_file("x")
        await box.interrupt()

    body(process_opener, test)


REFUSED = """
import ctypes, errno, os, socket, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    ctypes.set_errno(0)
    answer = libc.syscall(number, *arguments)
    return errno.errorcode.get(ctypes.get_errno(), "none") if answer == -1 else "allowed"
column = ("x86_64", "aarch64").index(os.uname().machine)
print("io_uring", call(425, 0, 0))
for name, numbers in {"keyctl": (250, 219), "add_key": (248, 217), "userfaultfd": (323, 282)}.items():
    print(name, call(numbers[column], 0, -3, 0, 0, 0))
for family in (40, 38, 17, 31):
    try:
        socket.socket(family, socket.SOCK_SEQPACKET if family == 38 else socket.SOCK_STREAM).close()
        print("family", family, "allowed")
    except OSError as error:
        print("family", family, errno.errorcode[error.errno])
"""


@pytest.mark.parametrize("profile", ["standard", "strict"])
def test_system_calls_that_have_led_out_of_sandboxes(strong_opener, profile):
    """The same filter everywhere, whatever the engine's own one lets through; and what it says is in force, is."""
    outside = subprocess.run(
        [sys.executable, "-c", REFUSED], capture_output=True, text=True, check=True
    ).stdout
    assert "allowed" in outside or "EFAULT" in outside

    async def test(box):
        inside = (await box.exec(["python3", "-c", REFUSED])).stdout.decode()
        expected = {"io_uring": "ENOSYS", "keyctl": "EPERM", "add_key": "EPERM", "userfaultfd": "EPERM"}
        families = [f"family {family} EAFNOSUPPORT" for family in (40, 38, 17, 31)]
        assert inside.splitlines() == [*(f"{name} {code}" for name, code in expected.items()), *families]
        assert box.protection.details["system calls"] == "refused: io_uring, kernel keys, vsock"
        administrator = await box.exec(["python3", "-c", REFUSED], user="root")
        assert administrator.stdout.decode() == inside
        await works(box)

    body(strong_opener, test, profile=profile)
