"""An agent of the Agent Client Protocol, without a model: executes one command in the sandbox of `notebook-sandbox`.

jupyter-ai starts it with a Python that has `acp` and `mcp`, and names the MCP servers when a chat begins.
"""

import asyncio

from acp import (
    Agent,
    InitializeResponse,
    NewSessionResponse,
    PromptResponse,
    run_agent,
    text_block,
    update_agent_message,
)
from acp.schema import AgentCapabilities, McpCapabilities
from mcp import ClientSession
from mcp.client.streamable_http import streamablehttp_client


class OneCommand(Agent):
    def on_connect(self, conn):
        self._client = conn

    async def initialize(self, protocol_version, **more):
        abilities = AgentCapabilities(mcp_capabilities=McpCapabilities(http=True))
        return InitializeResponse(protocol_version=protocol_version, agent_capabilities=abilities)

    async def new_session(self, cwd, mcp_servers=None, **more):
        self._servers = mcp_servers
        return NewSessionResponse(session_id="session")

    async def prompt(self, prompt, session_id, **more):
        (server,) = [one for one in self._servers if one.name == "notebook-sandbox"]
        headers = {header.name: header.value for header in server.headers}
        async with (
            streamablehttp_client(server.url, headers=headers) as (read, write, _),
            ClientSession(read, write) as session,
        ):
            await session.initialize()
            result = await session.call_tool("run_command", {"command": "echo from-acp"})
        said = update_agent_message(text_block(result.content[0].text))
        await self._client.session_update(session_id=session_id, update=said)
        # The HTTP API of jupyter-ai reads the chat at the end of the turn, perhaps before it has handled the update.
        await asyncio.sleep(2)
        return PromptResponse(stop_reason="end_turn")


asyncio.run(run_agent(OneCommand()))
