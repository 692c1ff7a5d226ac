"""The time-out that a command gets, from what the model asks for and what the run has left."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from llm_sandbox_nb.agent.run_options import RunOptions
from llm_sandbox_nb.agent.tools.execute_bash import MAX_TIMEOUT
from llm_sandbox_nb.agent.tools.tool import ToolContext
from llm_sandbox_nb.agent.tools.toolbox import TOOLS
from llm_sandbox_nb.sandbox.contract import CommandResult


class Box:
    """Keeps the time-out of the newest command."""

    timeout = 0.0

    async def run(self, command: str, *, timeout: float, on_output: object) -> CommandResult:
        self.timeout = timeout
        return CommandResult(0, b"", b"")


@pytest.mark.parametrize(
    ("asked", "left", "given"),
    [
        (None, None, 120.0),
        (30, None, 30.0),
        (30, 10.0, 10.0),
        (0.2, None, 1.0),
        (-1, None, MAX_TIMEOUT),
        (-1, 900.0, 900.0),
        (0, 900.0, 900.0),
        (10**6, None, MAX_TIMEOUT),
    ],
)
def test_the_timeout_of_a_command(asked: float | None, left: float | None, given: float) -> None:
    box: Any = Box()
    arguments = TOOLS.check("execute_bash", {"command": "ls", "timeout": asked})
    asyncio.run(TOOLS["execute_bash"].execute(arguments, ToolContext(box, RunOptions(), left)))
    assert box.timeout == given
