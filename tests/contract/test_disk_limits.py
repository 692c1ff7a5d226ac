"""All files of a sandbox together are bounded, in bytes and in number; what only works goes on.

A limit is noticed soon, also where others write to the same filesystem and delete from it all the time.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sandbox_commands import begun, until
from shared_sandboxes import isolated

from llm_sandbox_nb.sandbox.errors import SandboxLostError
from llm_sandbox_nb.sandbox.limits import Limits
from llm_sandbox_nb.sandbox.open import open_sandbox

MEGABYTE = 1024**2


def bounded(test: Any) -> Any:
    """Give a test a sandbox with limits that no other test has exceeded."""
    limits = Limits(disk_bytes=100 * MEGABYTE, files=4000)
    return pytest.mark.own_sandbox(pytest.mark.sandbox(limits=limits)(test))


USED = "import os; print(sum(os.stat(os.path.join(f, n)).st_blocks * 512 for f, _, s in os.walk('.') for n in s))"
WRITE = "i=0; while :; do i=$((i+1)); head -c 5M /dev/zero > {}$i; sleep .1; done"
MAKE = "import itertools\nfor number in itertools.count(): open(f'many{number}', 'w').close()"
HOLD = """
import os, time
held = []
for number in range(1000):
    held.append(open(f"held{number}", "wb"))
    held[-1].write(bytes(10 * 2**20))
    held[-1].flush()
    os.unlink(f"held{number}")
    time.sleep(.05)
"""
# Stops every child that the executor makes while this program writes.
HINDER = """
import contextlib, os, signal
def parent(pid):
    try:
        return int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
    except OSError:
        return 0
executor = parent(os.getppid())
older = set(os.listdir("/proc"))
with open("large", "wb") as file:
    while True:
        for name in set(os.listdir("/proc")) - older:
            if name.isdigit() and parent(name) == executor:
                with contextlib.suppress(ProcessLookupError):  # it may have ended meanwhile
                    os.kill(int(name), signal.SIGSTOP)
        if file.tell() < 400 * 2**20:
            file.write(bytes(2**20))
            file.flush()
"""


@bounded
@pytest.mark.smoke
async def test_bytes_of_all_files_together(box: Any) -> None:
    assert (await box.run("truncate -s 400M sparse; head -c 40M /dev/zero > allowed")).exit_code == 0
    result = await box.run(WRITE.format("large"), timeout=600)
    assert (result.exit_code, result.timed_out, result.interrupted) == (137, False, False)
    assert "limit of 100.0 MB" in result.notice
    used = await box.run(f'python3 -c "{USED}"')
    assert 50 * MEGABYTE < int(used.stdout) < 400 * MEGABYTE
    again = await box.run(WRITE.format("again"), timeout=600)
    assert again.exit_code == 137
    assert "limit of 100.0 MB" in again.notice
    made = await box.run("rm large* again*; head -c 10M /dev/zero > other && echo made")
    assert made.stdout == b"made\n"
    assert (box.protection.disk_bytes, box.protection.files) == (100 * MEGABYTE, 4000)
    assert "disk" in box.protection.details


@bounded
@pytest.mark.smoke
async def test_number_of_files(box: Any) -> None:
    result = await box.exec(["python3", "-c", MAKE], timeout=600)
    assert result.exit_code == 137
    assert "limit of 4000 files" in result.notice
    count = await box.run("ls | wc -l; rm -f many*; echo kept > kept; cat kept")
    assert int(count.stdout.split()[0]) > 3000
    assert count.stdout.endswith(b"kept\n")


@bounded
@pytest.mark.parametrize("starter", ["the shell", "a program"])
async def test_jobs_in_the_background(box: Any, starter: str) -> None:
    job = f"({WRITE.format('behind')}) > /dev/null 2>&1 & echo $!"
    started = await (box.run(job) if starter == "the shell" else box.exec(["bash", "-c", job]))
    waiting = await box.run(f"tail --pid={int(started.stdout)} -f /dev/null; echo over", timeout=600)
    assert b"over" in waiting.stdout or waiting.exit_code == 137
    assert "limit of 100.0 MB" in (waiting.notice or (await box.run("true")).notice)


@bounded
@isolated
async def test_bytes_are_bounded_also_among_hundreds_of_processes(box: Any) -> None:
    """There the executor does not fork to count."""
    await box.run("for i in $(seq 250); do sleep infinity & done; disown -a")
    result = await box.run(WRITE.format("large"), timeout=600)
    assert result.exit_code == 137
    assert "limit of 100.0 MB" in result.notice


@bounded
@pytest.mark.smoke
async def test_commands_cannot_stop_the_count(box: Any) -> None:
    await box.write_file("hinder.py", HINDER.encode())
    result = await box.run("python3 hinder.py", timeout=60)
    assert (result.exit_code, result.timed_out) == (137, False)
    assert "limit of 100.0 MB" in result.notice


@bounded
@isolated
async def test_files_that_have_no_name_any_more(box: Any) -> None:
    result = await box.exec(["python3", "-c", HOLD], timeout=600)
    assert result.exit_code == 137
    assert "limit of 100.0 MB" in result.notice


@bounded
@pytest.mark.campaign
@isolated
async def test_who_never_stops_writing_loses_the_sandbox(box: Any) -> None:
    async def write_on() -> None:
        for number in range(100):
            assert not (await box.run(WRITE.format(f"more{number}-"), timeout=600)).timed_out

    with pytest.raises(SandboxLostError, match="kept growing beyond its limit"):
        await write_on()


# ------------------------------------------------------------------------------------------- beside others

STEPS = 150
"""Of a tenth of a second each; without others' files in the way it takes twenty."""
OTHERS = """
import os, time
COUNT = 600
for number in range(COUNT):
    with open(f"theirs{number}", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, 2**20)
    for more in range(20):
        open(f"theirs{number}-{more}", "w").close()
print("begun", flush=True)
for number in range(COUNT):
    for more in range(20):
        os.unlink(f"theirs{number}-{more}")
    os.unlink(f"theirs{number}")
    time.sleep(.1)
"""
"""Deletes ten times what the sandbox under test writes, for a minute."""
BYTES = "for n in $(seq 600); do head -c 100000 /dev/zero >> one; echo $n; sleep .1; done"
FILES = (
    "for n in $(seq 600); do for m in 0 1 2 3 4 5 6 7 8 9; do : > many$n-$m; done; echo $n; sleep .1; done"
)
HELD = """python3 -c "
import os, time
with open('held', 'wb') as file:
    os.unlink('held')
    for number in range(600):
        os.posix_fallocate(file.fileno(), number * 100_000, 100_000)
        print(number, flush=True)
        time.sleep(.1)
" """


@pytest.mark.parametrize(
    "command",
    [BYTES, *(pytest.param(one, marks=pytest.mark.campaign) for one in (FILES, HELD))],
    ids=["bytes", "files", "held"],
)
async def test_others_who_delete_do_not_hide_what_commands_write(isolation: str, command: str) -> None:
    limits = Limits(disk_bytes=2 * MEGABYTE, files=200)
    async with open_sandbox(isolation) as others, open_sandbox(isolation, limits=limits) as box:
        theirs = await begun(others, ["python3", "-c", OTHERS], timeout=None)
        result = await box.run(command, timeout=600)
        assert not theirs.done()
        theirs.cancel()
        assert (result.exit_code, "over its limit" in result.notice) == (137, True)
        assert int(result.stdout.split()[-1]) < STEPS


async def test_a_job_in_the_background_is_seen_beside_others(isolation: str) -> None:
    """No request is there that would say that somebody writes."""
    async with (
        open_sandbox(isolation) as others,
        open_sandbox(isolation, limits=Limits(disk_bytes=2 * MEGABYTE)) as box,
    ):
        theirs = await begun(others, ["python3", "-c", OTHERS], timeout=None)
        await box.run(f"({BYTES}) > /dev/null 2>&1 & disown -a")

        async def noticed() -> bool:
            await asyncio.sleep(2)
            return "over its limit" in (await box.run("true")).notice

        await until(noticed)
        assert not theirs.done()
        theirs.cancel()
        assert int((await box.run("stat -c %s one")).stdout) < STEPS * 100_000
