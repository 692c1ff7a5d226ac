"""A task of twelve calls by the official SDK's client, executed by a Python that has `mcp`, of 1.28 or 2.3.

Called with a mode (`legacy`, or `auto` of 2.x), then `http URL TOKEN` or `stdio COMMAND...`. Prints what it saw.
"""

import asyncio
import contextlib
import importlib.metadata
import json
import sys

VERSION = importlib.metadata.version("mcp")
OLD = VERSION.startswith("1.")
MANIFEST = "find . -type f ! -name '.*' -exec sha256sum {} + | sort"


@contextlib.asynccontextmanager
async def connected(mode, kind, *rest):
    """`call(tool, arguments)` and the names of the tools."""
    async with contextlib.AsyncExitStack() as stack:
        if OLD:
            from mcp import ClientSession, StdioServerParameters
            from mcp.client.stdio import stdio_client
            from mcp.client.streamable_http import streamablehttp_client
            from mcp.types import ElicitResult

            async def agree(context, params):
                return ElicitResult(action="accept", content={"undo": True})

            if kind == "http":
                opened = streamablehttp_client(rest[0], headers={"Authorization": f"Bearer {rest[1]}"})
                read, write, _ = await stack.enter_async_context(opened)
            else:
                parameters = StdioServerParameters(command=rest[0], args=list(rest[1:]))
                read, write = await stack.enter_async_context(stdio_client(parameters))
            client = await stack.enter_async_context(ClientSession(read, write, elicitation_callback=agree))
            said = await client.initialize()
            version = said.protocolVersion
        else:
            import httpx2
            from mcp.client.client import Client
            from mcp.client.stdio import StdioServerParameters
            from mcp.client.streamable_http import streamable_http_client
            from mcp_types import ElicitResult

            async def agree(context, params):
                return ElicitResult(action="accept", content={"undo": True})

            if kind == "http":
                headers = {"Authorization": f"Bearer {rest[1]}"}
                web = await stack.enter_async_context(httpx2.AsyncClient(headers=headers, timeout=300))
                server = streamable_http_client(rest[0], http_client=web)
            else:
                server = StdioServerParameters(command=rest[0], args=list(rest[1:]))
            client = await stack.enter_async_context(Client(server, mode=mode, elicitation_callback=agree))
            version = str(client.protocol_version)
        tools = [tool.name for tool in (await client.list_tools()).tools]

        async def call(tool, **arguments):
            named = {name.removesuffix("_"): value for name, value in arguments.items()}
            result = await client.call_tool(tool, named)
            data = result.structuredContent if OLD else result.structured_content
            error = result.isError if OLD else result.is_error
            assert not error, (tool, result.content)
            assert result.content[0].text
            return data

        yield call, tools, version


async def main():
    async with connected(*sys.argv[1:]) as (call, tools, version):
        await call("run_command", command="printf 'a\\nb\\n' > list.txt && mkdir -p src")  # 1
        await call("write_file", path="src/main.py", content="print('one')\n")  # 2
        await call("create_checkpoint", label="before")  # 3
        before = (await call("run_command", command=MANIFEST))["stdout"]  # 4
        await call("edit_file", path="src/main.py", old_string="one", new_string="two")  # 5
        await call("run_command", command="rm list.txt; echo more > more.txt; python3 src/main.py")  # 6
        changes = await call("show_changes", from_="before")  # 7
        fork = (await call("fork", from_="before", label="try"))["sandbox"]  # 8
        forked = (await call("run_command", command=MANIFEST, sandbox=fork))["stdout"]  # 9
        went = await call("rewind", to="before")  # 10
        after = (await call("run_command", command=MANIFEST))["stdout"]  # 11
        undone = await call("rewind", to="undo")  # 12
        found = {
            "sdk": VERSION,
            "version": version,
            "tools": tools,
            "before": before,
            "forked": forked,
            "after": after,
            "changes": sorted(one["kind"] for one in changes["files"]),
            "steps": [went["step"], undone["step"]],
        }
        print(json.dumps(found))


asyncio.run(main())
