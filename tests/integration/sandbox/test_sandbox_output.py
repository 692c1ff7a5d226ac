"""Output that is larger than anybody wants, in bounded memory on both sides."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from pathlib import Path

import pytest
from support import with_sandbox as body

MiB = 2**20


def test_the_first_and_last_half_are_kept(opener):
    async def test(box):
        seen = []
        result = await box.run(
            "seq 1 100000; echo error >&2",
            output_limit=1000,
            on_output=lambda stream, data: seen.append((stream, data)),
        )
        whole = b"".join(b"%d\n" % n for n in range(1, 100001))
        marker = b"\n[... %d bytes left out ...]\n" % (len(whole) - 1000)
        assert result.stdout == whole[:500] + marker + whole[-500:]
        assert (result.stderr, result.truncated) == (b"error\n", True)
        assert (result.stdout_bytes, result.stderr_bytes) == (len(whole), 6)
        assert b"".join(data for stream, data in seen if stream == "stdout") == result.stdout
        kept = await box.read_file(result.full_output)
        assert kept.replace(b"error\n", b"") == whole
        assert (await box.run(f"wc -c < {result.full_output}")).stdout.strip() == b"%d" % (len(whole) + 6)

    body(opener, test)


@pytest.mark.parametrize(
    ("size", "cut"), [(999, False), (1000, False), (1001, True), (1002, True), (5000, True)]
)
def test_exactly_at_the_limit(process_opener, size, cut):
    async def test(box):
        for result in (
            await box.run(f"head -c {size} /dev/zero", output_limit=1000),
            await box.exec(["head", "-c", str(size), "/dev/zero"], output_limit=1000),
        ):
            assert result.stdout_bytes == size
            assert result.truncated == cut
            assert (result.full_output is not None) == cut
            assert result.stdout.count(b"\0") == min(size, 1000)

    body(process_opener, test)


@pytest.mark.parametrize("limit", [0, 1, 2, 3])
def test_tiny_limits(process_opener, limit):
    async def test(box):
        result = await box.run("printf abcdefgh", output_limit=limit)
        kept = result.stdout.replace(b"\n[... %d bytes left out ...]\n" % (8 - limit), b"")
        assert kept == b"abcdefgh"[: limit - limit // 2] + (
            b"abcdefgh"[-(limit // 2) :] if limit > 1 else b""
        )

    body(process_opener, test)


def test_both_streams_over_the_limit_of_exec(opener):
    async def test(box):
        script = "head -c 300000 /dev/zero | tr '\\0' o; head -c 300000 /dev/zero | tr '\\0' e >&2"
        result = await box.exec(["sh", "-c", script], output_limit=100_000)
        assert (result.stdout.count(b"o") - 1, result.stderr.count(b"e") - 2) in (
            (100_000, 100_000),
            (100_001, 100_000),
        )
        assert (result.stdout_bytes, result.stderr_bytes) == (300_000, 300_000)
        assert len(await box.read_file(result.full_output)) == 600_000

    body(opener, test)


def test_output_before_a_time_out_is_kept(opener):
    async def test(box):
        result = await box.run("head -c 3000000 /dev/zero; echo end; sleep 611", timeout=2)
        assert result.timed_out
        assert result.stdout == bytes(3_000_000) + b"end\n"
        result = await box.run("yes", timeout=0.5, output_limit=10_000)
        assert result.timed_out
        assert len(result.stdout) < 10_100
        assert (await box.run("echo fine")).stdout == b"fine\n"

    body(opener, test)


def test_a_slow_host_holds_the_command_back(process_opener):
    """Nobody reads for a while: the executor stops reading the command, instead of keeping it all."""

    async def test(box):
        def slow(stream, data):
            import time

            time.sleep(0.01)

        result = await box.run("head -c 8000000 /dev/zero", on_output=slow)
        assert result.stdout_bytes == len(result.stdout) == 8_000_000

    body(process_opener, test)


def resident(pid):
    """Resident memory of a process, in bytes: the most it has had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


@pytest.mark.own_sandbox
def test_a_gigabyte_in_bounded_memory(process_opener):
    async def test(box):
        executor = box.executor["pid"]
        before = resident(executor)
        gc.collect()
        tracemalloc.start()
        result = await box.run("head -c 1073741824 /dev/zero | tr '\\0' x", timeout=120)
        ours = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert (result.exit_code, result.stdout_bytes) == (0, 1024 * MiB)
        assert (result.truncated, len(result.stdout) - 10 * MiB < 100) == (True, True)
        assert (await box.run(f"stat -c %s {result.full_output}")).stdout == b"%d\n" % (256 * MiB)
        theirs = resident(executor) - before
        print(f"1 GB of output: executor +{theirs / MiB:.0f} MiB, host peak {ours / MiB:.0f} MiB")
        assert theirs < 64 * MiB
        assert ours < 64 * MiB

    body(process_opener, test, timeout=150)


@pytest.mark.own_sandbox
def test_a_gigabyte_everywhere(strong_opener):
    async def test(box):
        result = await box.run("head -c 1073741824 /dev/zero >&2", timeout=120)
        assert (result.exit_code, result.stderr_bytes) == (0, 1024 * MiB)
        status = (await box.run("cat /proc/1/status")).stdout.decode()
        peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
        assert peak < 96 * 1024

    body(strong_opener, test, timeout=150)


@pytest.mark.alike
@pytest.mark.own_sandbox
def test_idle_costs_nothing(opener):
    async def test(box):
        await box.run("sleep 30 &")
        stat = f"/proc/{box.executor['pid']}/stat"
        before = (await box.run(f"cat {stat}")).stdout.rpartition(b")")[2].split()
        await asyncio.sleep(3)
        after = (await box.run(f"cat {stat}")).stdout.rpartition(b")")[2].split()
        ticks = int(after[11]) + int(after[12]) - int(before[11]) - int(before[12])
        assert ticks <= 3  # of 300, and the two `cat` cost some

    body(opener, test)
