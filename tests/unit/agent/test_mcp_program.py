"""The end of an MCP server's program, as the caller sees it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from support import run

from llm_sandbox_nb.agent.mcp_client.configuration import server_configs
from llm_sandbox_nb.agent.mcp_client.transports import HostProgram, McpServerError


def test_a_message_to_an_ended_program_names_its_exit_code() -> None:
    """The broken pipe is seen before the exit code is known."""

    async def drain() -> None:
        raise BrokenPipeError

    async def wait() -> None:
        await asyncio.sleep(0)
        process.returncode = 3

    stdin = SimpleNamespace(write=lambda data: None, drain=drain)
    process = SimpleNamespace(stdin=stdin, returncode=None, wait=wait)

    async def send() -> None:
        (config,) = server_configs({"a": {"command": "x"}})
        transport = HostProgram(config)
        reading = asyncio.ensure_future(asyncio.sleep(0))
        transport._process, transport._tasks = process, [reading, reading]  # type: ignore[assignment, list-item]
        with pytest.raises(McpServerError, match="ended with exit code 3"):
            await transport.send({"jsonrpc": "2.0"})

    run(send())
