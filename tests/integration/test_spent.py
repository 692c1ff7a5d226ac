"""What a sandbox has used is what it has used, whatever it says itself."""

from __future__ import annotations

import pytest
from support import with_sandbox

from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.sandbox.opening import open_sandbox
from llm_sandbox_nb.sandbox.spent import Spent, spent_by

HOG = "python3 -c 'held = bytearray(80_000_000); print(len(held))'"
FILE = "head -c 30000000 /dev/urandom > /testbed/file"


def test_memory_and_disk_come_from_the_engine(strong_isolation: str) -> None:
    async def body(box: Sandbox) -> None:
        before = await spent_by(box)
        assert before.memory_peak is not None
        assert before.disk is not None
        assert before.memory_peak < 60e6
        assert (await box.run(HOG)).exit_code == 0
        after = await spent_by(box)
        assert after.memory_peak is not None
        assert 80e6 < after.memory_peak < 200e6
        assert (await box.run(FILE)).exit_code == 0
        filled = await spent_by(box)
        assert filled.disk is not None
        grown = filled.disk - before.disk
        assert 29e6 < grown < 40e6 if strong_isolation == "docker" else filled.disk == 0

    with_sandbox(lambda: open_sandbox(strong_isolation), body, timeout=120)


def test_what_cannot_be_had_is_nothing(process_opener: object) -> None:
    async def body(box: Sandbox) -> None:
        assert await spent_by(box) == Spent()

    with_sandbox(process_opener, body)  # type: ignore[arg-type]


@pytest.mark.docker
def test_a_container_that_is_gone_is_no_failure(docker_engine: str) -> None:
    async def body(box: Sandbox) -> None:
        await box.close()
        assert await spent_by(box) == Spent()

    with_sandbox(lambda: open_sandbox("docker"), body)
