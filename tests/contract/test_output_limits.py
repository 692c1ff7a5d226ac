"""Output that is larger than anybody wants, in bounded memory on both sides."""

from __future__ import annotations

import asyncio
import gc
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from shared_sandboxes import isolated
from support import eventually

MiB = 2**20
SENT_MIB = 400
"""More than the whole output that a sandbox keeps (256 MiB), and much more than the memory that is allowed."""
SEND = f"head -c {SENT_MIB * MiB} /dev/zero"


@pytest.mark.smoke
async def test_the_first_and_last_half_are_kept(box: Any) -> None:
    seen: list[tuple[str, bytes]] = []
    command = "seq 1 100000; echo error >&2"
    result = await box.run(command, output_limit=1000, on_output=lambda *piece: seen.append(piece))
    whole = b"".join(b"%d\n" % n for n in range(1, 100001))
    marker = b"\n[... %d bytes left out ...]\n" % (len(whole) - 1000)
    assert result.stdout == whole[:500] + marker + whole[-500:]
    assert (result.stderr, result.truncated) == (b"error\n", True)
    assert (result.stdout_bytes, result.stderr_bytes) == (len(whole), 6)
    assert b"".join(data for stream, data in seen if stream == "stdout") == result.stdout
    kept = await box.read_file(result.full_output)
    assert kept.replace(b"error\n", b"") == whole
    assert (await box.run(f"wc -c < {result.full_output}")).stdout.strip() == b"%d" % (len(whole) + 6)


@pytest.mark.parametrize("raised", [ZeroDivisionError, StopIteration, asyncio.CancelledError])
async def test_a_function_that_fails_at_output_ends_only_its_command(
    box: Any, raised: type[BaseException]
) -> None:
    def fail(*_: object) -> None:
        raise raised

    with pytest.raises((ZeroDivisionError, RuntimeError)):
        await box.run("echo output", on_output=fail)
    assert (await box.run("echo fine")).stdout == b"fine\n"


@pytest.mark.parametrize(
    ("size", "cut"), [(999, False), (1000, False), (1001, True), (1002, True), (5000, True)]
)
async def test_exactly_at_the_limit(box: Any, size: int, cut: bool) -> None:
    for result in (
        await box.run(f"head -c {size} /dev/zero", output_limit=1000),
        await box.exec(["head", "-c", str(size), "/dev/zero"], output_limit=1000),
    ):
        assert result.stdout_bytes == size
        assert (result.truncated, result.full_output is not None) == (cut, cut)
        assert result.stdout.count(b"\0") == min(size, 1000)


@pytest.mark.parametrize("limit", [0, 1, 2, 3])
async def test_tiny_limits(box: Any, limit: int) -> None:
    result = await box.run("printf abcdefgh", output_limit=limit)
    kept = result.stdout.replace(b"\n[... %d bytes left out ...]\n" % (8 - limit), b"")
    last = limit // 2
    assert kept == b"abcdefgh"[: limit - last] + (b"abcdefgh"[-last:] if last else b"")


async def test_both_streams_over_the_limit_of_exec(box: Any) -> None:
    script = "head -c 300000 /dev/zero | tr '\\0' o; head -c 300000 /dev/zero | tr '\\0' e >&2"
    result = await box.exec(["sh", "-c", script], output_limit=100_000)
    left_out = b"\n[... 200000 bytes left out ...]\n"
    assert result.stdout == b"o" * 50_000 + left_out + b"o" * 50_000
    assert result.stderr == b"e" * 50_000 + left_out + b"e" * 50_000
    assert (result.stdout_bytes, result.stderr_bytes) == (300_000, 300_000)
    assert len(await box.read_file(result.full_output)) == 600_000


@pytest.mark.isolations("process")
async def test_a_slow_host_holds_the_command_back(box: Any) -> None:
    """Nobody reads for a while: the executor stops reading the command, instead of keeping it all."""
    result = await box.run("head -c 8000000 /dev/zero", on_output=lambda *_: time.sleep(0.01))
    assert result.stdout_bytes == len(result.stdout) == 8_000_000


def peak(status: str) -> int:
    """The most resident memory that a process has had, in bytes."""
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))


@pytest.mark.isolations("process")
@pytest.mark.own_sandbox
async def test_much_output_in_bounded_memory(box: Any) -> None:
    status = Path(f"/proc/{box.executor['pid']}/status")
    before = peak(status.read_text())
    gc.collect()
    tracemalloc.start()
    result = await box.run(f"{SEND} | tr '\\0' x", timeout=600)
    on_the_host = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (result.exit_code, result.stdout_bytes) == (0, SENT_MIB * MiB)
    assert (result.truncated, len(result.stdout) - 10 * MiB < 100) == (True, True)
    assert (await box.run(f"stat -c %s {result.full_output}")).stdout == b"%d\n" % (256 * MiB)
    assert peak(status.read_text()) - before < 64 * MiB
    assert on_the_host < 64 * MiB


@isolated
@pytest.mark.own_sandbox
async def test_much_output_is_bounded_inside(box: Any) -> None:
    result = await box.run(f"{SEND} >&2", timeout=600)
    assert (result.exit_code, result.stderr_bytes) == (0, SENT_MIB * MiB)
    assert peak((await box.run("cat /proc/1/status")).stdout.decode()) < 96 * MiB


@pytest.mark.isolations("process")
@pytest.mark.own_sandbox
async def test_an_idle_sandbox_costs_nothing(box: Any) -> None:
    """Three seconds in which nobody asks for anything, with a job in the background."""

    def ticks() -> int:
        fields = Path(f"/proc/{box.executor['pid']}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    await box.run("(sleep 3; touch over; sleep infinity) &")
    before = ticks()
    await eventually((Path(box.directories.root) / "over").exists)
    assert ticks() - before <= 2  # of 300
