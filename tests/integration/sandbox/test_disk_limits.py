"""All files of a sandbox together are bounded, in bytes and in number, in every isolation; nothing else is ended."""

from __future__ import annotations

import pytest
from support import with_sandbox

from llm_sandbox_nb.sandbox.contract import Limits
from llm_sandbox_nb.sandbox.errors import SandboxLostError

pytestmark = pytest.mark.own_sandbox
MEGABYTE = 1024**2
BOUNDED = Limits(disk_bytes=100 * MEGABYTE, files=4000)
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


def test_bytes_of_all_files_together(opener):
    async def test(box):
        assert (await box.run("truncate -s 400M sparse; head -c 40M /dev/zero > allowed")).exit_code == 0
        result = await box.run(f"{WRITE.format('large')}", timeout=100)
        assert (result.exit_code, result.timed_out, result.interrupted) == (137, False, False)
        assert "limit of 100.0 MB" in result.notice
        used = await box.run(f'python3 -c "{USED}"')
        assert 50 * MEGABYTE < int(used.stdout) < 400 * MEGABYTE
        again = await box.run(f"{WRITE.format('again')}", timeout=100)
        assert (again.exit_code, "limit of 100.0 MB" in again.notice) == (137, True)
        assert (
            await box.run("rm large* again*; head -c 10M /dev/zero > other && echo made")
        ).stdout == b"made\n"
        assert (box.protection.disk_bytes, box.protection.files) == (100 * MEGABYTE, 4000)
        assert "disk" in box.protection.details

    with_sandbox(opener, test, limits=BOUNDED, timeout=250)


def test_bytes_are_bounded_also_among_hundreds_of_processes(strong_opener):
    """There the executor does not fork to count."""

    async def test(box):
        await box.run("for i in $(seq 250); do sleep 300 & done; disown -a")
        result = await box.run(WRITE.format("large"), timeout=100)
        assert (result.exit_code, "limit of 100.0 MB" in result.notice) == (137, True)

    with_sandbox(strong_opener, test, limits=BOUNDED, timeout=200)


def test_number_of_files(opener):
    async def test(box):
        result = await box.exec(["python3", "-c", MAKE], timeout=100)
        assert (result.exit_code, "limit of 4000 files" in result.notice) == (137, True)
        count = await box.run("ls | wc -l; rm -f many*; echo kept > kept; cat kept")
        assert int(count.stdout.split()[0]) > 3000
        assert count.stdout.endswith(b"kept\n")

    with_sandbox(opener, test, limits=BOUNDED, timeout=150)


@pytest.mark.alike
def test_files_that_have_no_name_any_more(strong_opener):
    async def test(box):
        result = await box.exec(["python3", "-c", HOLD], timeout=100)
        assert (result.exit_code, "limit of 100.0 MB" in result.notice) == (137, True)

    with_sandbox(strong_opener, test, limits=BOUNDED, timeout=150)


@pytest.mark.alike
def test_jobs_in_the_background(opener):
    async def test(box):
        await box.run(f"({WRITE.format('behind')}) > /dev/null 2>&1 &")
        waiting = await box.run("tail --pid=$! -f /dev/null; echo over", timeout=100)
        assert b"over" in waiting.stdout or waiting.exit_code == 137
        assert "limit of 100.0 MB" in (waiting.notice or (await box.run("true")).notice)

    with_sandbox(opener, test, limits=BOUNDED, timeout=150)


@pytest.mark.alike
def test_who_goes_on_and_on_loses_the_sandbox(strong_opener):
    async def test(box):
        async def write_on():
            for number in range(100):
                assert not (await box.run(WRITE.format(f"more{number}-"), timeout=60)).timed_out

        with pytest.raises(SandboxLostError, match="more and more room"):
            await write_on()

    with_sandbox(strong_opener, test, limits=BOUNDED, timeout=250)
