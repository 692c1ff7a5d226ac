"""What a sandbox has used is what it has used, whatever it says itself."""

from __future__ import annotations

import pytest
from support import Opener, with_sandbox

from llm_sandbox_nb.benchmark.report import cell_row
from llm_sandbox_nb.benchmark.results import Result
from llm_sandbox_nb.sandbox.contract import ResourceUsage, Sandbox
from llm_sandbox_nb.sandbox.open import resource_usage

HOG = "python3 -c 'held = bytearray(80_000_000); print(len(held))'"
FILE = "head -c 30000000 /dev/urandom > /testbed/file"


def test_memory_and_disk_come_from_the_engine(strong_isolation: str) -> None:
    async def body(box: Sandbox) -> None:
        before = await resource_usage(box)
        assert before.memory_peak is not None
        assert before.disk is not None
        assert before.memory_peak < 60e6
        assert (await box.run(HOG)).exit_code == 0
        after = await resource_usage(box)
        assert after.memory_peak is not None
        assert 80e6 < after.memory_peak < 200e6
        assert (await box.run(FILE)).exit_code == 0
        filled = await resource_usage(box)
        assert filled.disk is not None
        grown = filled.disk - before.disk
        assert 29e6 < grown < 40e6 if strong_isolation == "docker" else filled.disk == 0

    with_sandbox(Opener(strong_isolation), body, timeout=120)


def test_what_cannot_be_had_is_nothing(process_opener: Opener) -> None:
    async def body(box: Sandbox) -> None:
        assert await resource_usage(box) == ResourceUsage()

    with_sandbox(process_opener, body)


@pytest.mark.docker
def test_a_container_that_is_gone_is_no_failure(docker_engine: str) -> None:
    async def body(box: Sandbox) -> None:
        await box.close()
        assert await resource_usage(box) == ResourceUsage()

    with_sandbox(Opener("docker"), body)


def test_a_report_has_what_is_known_of_it() -> None:
    known = [
        Result("t", "sandbox", "a", 0, memory_peak=20_000_000, disk=1_000_000),
        Result("t", "sandbox", "b", 0, memory_peak=40_000_000, disk=None),
        Result("t", "sandbox", "c", 0, memory_peak=900_000_000, error_kind="server"),
    ]
    row = cell_row("t", "sandbox", known)
    assert (row["memory_peak_mb_mean"], row["memory_peak_mb_most"]) == (30.0, 40.0)
    assert (row["disk_mb_mean"], row["disk_mb_most"]) == (1.0, 1.0)
    assert cell_row("t", "llm", [Result("t", "llm", "a", 0)])["memory_peak_mb_mean"] is None
