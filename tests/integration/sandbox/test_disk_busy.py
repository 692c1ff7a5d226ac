"""A limit of disk is noticed soon, also where others write to the same filesystem and delete from it all the time."""

from __future__ import annotations

import asyncio
import time

import pytest
from support import run

from llm_sandbox_nb.sandbox.contract import Limits

MEGABYTE = 1024**2
SECONDS = 15
"""Without others' files in the way it takes two on a machine with nothing else to do."""
OTHERS = """
import os, time
def hold(number):
    with open(f"theirs{number}", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, 2**20)
    for more in range(20):
        open(f"theirs{number}-{more}", "w").close()
COUNT = 600
for number in range(COUNT):
    hold(number)
open("ready", "w").close()
for number in range(COUNT):
    for more in range(20):
        os.unlink(f"theirs{number}-{more}")
    os.unlink(f"theirs{number}")
    time.sleep(.1)
"""
"""Deletes ten times what the sandbox under test writes, for a minute."""
BYTES = "for n in $(seq 600); do head -c 100000 /dev/zero >> one; sleep .1; done"
FILES = "for n in $(seq 6000); do : > many$n; ((n % 10)) || sleep .1; done"
HELD = """python3 -c "
import os, time
with open('held', 'wb') as file:
    os.unlink('held')
    for number in range(600):
        os.posix_fallocate(file.fileno(), number * 100_000, 100_000)
        time.sleep(.1)
" """


@pytest.mark.parametrize("command", [BYTES, FILES, HELD], ids=["bytes", "files", "held"])
def test_others_who_delete_do_not_hide_what_commands_write(opener, command):
    async def test():
        async with opener() as others, opener(limits=Limits(disk_bytes=2 * MEGABYTE, files=200)) as box:
            theirs = asyncio.create_task(others.exec(["python3", "-c", OTHERS], timeout=200))
            await others.run("until [ -e ready ]; do sleep .1; done", timeout=100)
            started = time.monotonic()
            result = await box.run(command, timeout=100)
            took = time.monotonic() - started
            assert not theirs.done()
            theirs.cancel()
            assert (result.exit_code, "over its limit" in result.notice) == (137, True)
            assert took < SECONDS

    run(test(), 100)


def test_a_job_in_the_background_is_seen_too(opener):
    """No request is there that would say that somebody writes."""

    async def test():
        async with opener() as others, opener(limits=Limits(disk_bytes=2 * MEGABYTE)) as box:
            theirs = asyncio.create_task(others.exec(["python3", "-c", OTHERS], timeout=200))
            await others.run("until [ -e ready ]; do sleep .1; done", timeout=100)
            await box.run(f"({BYTES}) > /dev/null 2>&1 & disown -a")
            deadline = time.monotonic() + SECONDS
            while "over its limit" not in (await box.run("true")).notice:
                assert time.monotonic() < deadline
                await asyncio.sleep(2)
            assert not theirs.done()
            theirs.cancel()

    run(test(), 100)
