"""A command that uses up the memory of a container says so; one that is killed otherwise does not."""

from __future__ import annotations

import asyncio

import pytest

from llm_sandbox_nb.sandbox.contract import CommandResult
from llm_sandbox_nb.sandbox.limits import Limits
from llm_sandbox_nb.sandbox.open import open_sandbox

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("docker_engine")]


def test_a_command_that_uses_up_the_memory_says_so() -> None:
    async def played() -> list[CommandResult]:
        box = await open_sandbox(isolation="docker", limits=Limits(memory_bytes=256 * 1024**2))
        try:
            eats = await box.run("python3 -c 'x = bytearray(10**9); print(len(x))'")
            return [eats, await box.run("bash -c 'kill -9 $$'")]
        finally:
            await box.close()

    eats, killed = asyncio.run(played())
    assert (eats.exit_code, eats.notice) == (137, "Killed: out of memory (limit 256 MB).")
    assert (killed.exit_code, killed.notice) == (137, "")
