"""Commands that try to hurt a sandbox that isolates, from within: it stays usable, or ends in a clear error."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import sys
from typing import Any

import pytest
from sandbox_commands import begun, living, timed_out, until
from shared_sandboxes import isolated
from support import own_mark

from llm_sandbox_nb.sandbox.limits import Limits
from llm_sandbox_nb.sandbox.open import open_sandbox

pytestmark = isolated
PROFILES = pytest.mark.parametrize(
    "profile",
    [pytest.param(name, marks=pytest.mark.sandbox(profile=name)) for name in ("standard", "strict")],
)


async def works(box: Any) -> None:
    result = await box.run("x=1; echo works $((x + 1))")
    assert (result.stdout, result.exit_code) == (b"works 2\n", 0)
    assert (await box.exec(["echo", "beside"])).stdout == b"beside\n"
    await box.write_file("probe", b"probe")
    assert await box.read_file("probe") == b"probe"


async def until_few(box: Any) -> None:
    async def few() -> bool:
        return int((await box.run("ls -d /proc/[0-9]* | wc -l")).stdout or 99) < 15

    await until(few)


@pytest.mark.parametrize(
    "command",
    [
        "kill -9 -1",
        "for signal in KILL STOP TERM INT HUP QUIT USR1 USR2 ALRM PIPE RTMAX; do kill -$signal 1; done",
        "kill -STOP $PPID; kill -STOP $$",
        "kill -CHLD 1; for i in 1 2 3 4 5 6 7 8 9; do kill -CHLD 1; done",
        'exec 0<&- 1>&- 2>&-; for fd in {3..400}; do eval "exec $fd<&-"; done; kill $$',
    ],
)
async def test_killing_everything(box: Any, command: str) -> None:
    running = await begun(box, f"echo begun; {command}")
    # on purpose: some of these end the command, and some stop it for good
    await asyncio.wait({running}, timeout=1)
    await box.interrupt()  # what has ended is not interrupted
    await running
    await works(box)


async def test_a_job_that_kills_everything_later(box: Any) -> None:
    later = "setsid sh -c 'until [ -e go ]; do sleep 0.02; done; kill -9 -1' &"
    running = await begun(box, f"{later} echo begun; sleep infinity; echo over")
    await box.write_file("go", b"")
    await running
    await works(box)


@PROFILES
async def test_the_executor_cannot_be_looked_into(box: Any, profile: str) -> None:
    for attack in (
        "cat /proc/1/mem",
        "cat /proc/1/environ",
        "readlink /proc/1/fd/0",
        "echo x > /proc/1/fd/1",
        "cat /proc/1/fd/0",
        "for signal in KILL TERM STOP SEGV HUP; do kill -$signal 1 2>/dev/null; done; false",
    ):
        result = await box.run(attack)
        assert (result.stdout, result.exit_code) == (b"", 1), attack
    probe = "import ctypes; print(ctypes.CDLL(None).ptrace(16, 1, 0, 0))"
    assert (await box.exec(["python3", "-c", probe])).stdout == b"-1\n"
    await works(box)


@PROFILES
async def test_fork_bomb(box: Any, profile: str) -> None:
    await timed_out(box, "bomb() { bomb | bomb & }; bomb; echo begun; sleep infinity")
    await works(box)
    await until_few(box)


async def test_fork_bomb_that_leaves_its_session(box: Any, busy_machine: None) -> None:
    """Hundreds of processes that never sleep, on a machine that has others to serve: the executor still ends them."""
    fork = "  try:\n    if os.fork() == 0: os.setsid()\n  except OSError: pass"
    await timed_out(box, ["python3", "-c", f"import os\nprint('begun', flush=True)\nwhile True:\n{fork}"])
    await works(box)
    await until_few(box)


@pytest.mark.own_sandbox
async def test_a_command_that_takes_the_precedence_of_the_executor(box: Any) -> None:
    assert b"new priority 19" in (await box.run("renice 19 1")).stdout
    await box.run("exit")
    assert (await box.run("echo $((1 + 1)); nice")).stdout == b"2\n19\n"
    await works(box)


TAKE_ALL = """
import signal, subprocess
try:
    while True:
        subprocess.Popen(["sleep", "infinity"])
except OSError:
    print("begun", flush=True)
signal.pause()
"""


@pytest.mark.sandbox(limits=Limits(pids=64))
async def test_no_process_left_to_be_had(box: Any) -> None:
    taking = await begun(box, ["python3", "-c", TAKE_ALL])
    for call in (
        lambda: box.exec(["true"]),
        lambda: box.read_file("/etc/passwd"),
        lambda: box.changes(),
        lambda: box.list_files("."),
    ):
        with contextlib.suppress(BlockingIOError):  # "resource temporarily unavailable"
            await call()
    assert (await box.run("x=1; echo $((x + 1))")).stdout == b"2\n"
    await box.run("exit")
    assert box.lost is None
    taking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await taking
    await works(box)


async def outside(probe: str) -> str:
    """What a Python program prints without any isolation: the canary of each attack below."""
    async with open_sandbox("process") as unprotected:
        shown: str = (await unprotected.exec(["python3", "-c", probe])).text
        return shown


async def inside(box: Any, probe: str) -> str:
    shown: str = (await box.exec(["python3", "-c", probe])).text
    await works(box)
    return shown


@PROFILES
@pytest.mark.sandbox(limits=Limits(memory_bytes=256 * 1024**2))
async def test_memory_is_limited(box: Any, profile: str) -> None:
    probe = "block = bytearray(400 * 1024**2); print('allocated', len(block))"
    assert "allocated" in await outside(probe)
    assert "allocated" not in await inside(box, probe)


@PROFILES
@pytest.mark.sandbox(limits=Limits(pids=40))
async def test_the_number_of_processes_is_limited(box: Any, profile: str) -> None:
    probe = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
made = 0
try:
    for made in range(100):
        if os.fork() == 0:
            signal.pause()
    print("all", flush=True)
except OSError as error:
    print(made, error, flush=True)
os.killpg(0, signal.SIGKILL)
"""
    assert "all" in await outside(probe)
    shown = await inside(box, probe)
    assert "Resource temporarily unavailable" in shown
    assert 10 < int(shown.split()[0]) < 40


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> str:
    secret = secrets.token_hex(16)
    monkeypatch.setenv("CANARY_API_KEY", secret)
    return secret


ENVIRONMENTS = """
import glob, os
print(dict(os.environ))
for path in glob.glob("/proc/[0-9]*/environ"):
    try:
        print(open(path, "rb").read())
    except OSError:
        pass
"""


@PROFILES
@pytest.mark.own_sandbox  # opened with the secret in the environment
@pytest.mark.usefixtures("secret")
async def test_the_environment_stays_outside(secret: str, box: Any, profile: str) -> None:
    canary = await asyncio.create_subprocess_exec(
        sys.executable, "-c", ENVIRONMENTS, stdout=asyncio.subprocess.PIPE, env=dict(os.environ)
    )
    assert secret.encode() in (await canary.communicate())[0]
    assert secret not in await inside(box, ENVIRONMENTS)


@PROFILES
async def test_processes_of_the_host_are_neither_seen_nor_killed(box: Any, profile: str) -> None:
    mark = own_mark()
    bystander = await asyncio.create_subprocess_exec("sleep", mark)
    look = "  try: print(open(path).read())\n  except OSError: pass"
    look = f"import glob\nfor path in glob.glob('/proc/[0-9]*/cmdline'):\n{look}"
    assert mark in await outside(look)
    assert mark not in await inside(box, look)
    kill = f"import os; os.kill({bystander.pid}, 9)"
    await inside(box, kill)
    await inside(box, "import os; os.setsid(); os.kill(-1, 9)")
    assert bystander.returncode is None
    assert living(mark) == 1
    await outside(kill)
    assert await bystander.wait() == -9


REFUSED = """
import ctypes, errno, os, socket, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    ctypes.set_errno(0)
    answer = libc.syscall(number, *arguments)
    return errno.errorcode.get(ctypes.get_errno(), "none") if answer == -1 else "allowed"
column = ("x86_64", "aarch64").index(os.uname().machine)
print("io_uring", call(425, 0, 0))
calls = {"keyctl": (250, 219), "add_key": (248, 217), "userfaultfd": (323, 282), "bpf": (321, 280)}
for name, numbers in calls.items():
    print(name, call(numbers[column], 0, -3, 0, 0, 0))
for family in (40, 38, 17, 31):
    try:
        socket.socket(family, socket.SOCK_SEQPACKET if family == 38 else socket.SOCK_STREAM).close()
        print("family", family, "allowed")
    except OSError as error:
        print("family", family, errno.errorcode[error.errno])
socket.socketpair()
socket.socket(socket.AF_INET6).close()
"""


@PROFILES
async def test_system_calls_that_have_led_out_of_sandboxes(box: Any, profile: str) -> None:
    """The same filter everywhere, whatever the engine's own one lets through; and what it says is in force, is."""
    unprotected = await outside(REFUSED)
    assert "allowed" in unprotected or "EFAULT" in unprotected
    shown = await inside(box, REFUSED)
    expected = {
        "io_uring": "ENOSYS",
        "keyctl": "EPERM",
        "add_key": "EPERM",
        "userfaultfd": "EPERM",
        "bpf": "EPERM",
    }
    families = [f"family {family} EAFNOSUPPORT" for family in (40, 38, 17, 31)]
    assert shown.splitlines() == [*(f"{name} {code}" for name, code in expected.items()), *families]
    assert box.protection.details["system calls"] == "refused: io_uring, kernel keys, vsock"
    administrator = await box.exec(["python3", "-c", REFUSED], user="root")
    assert administrator.stdout.decode() == shown
