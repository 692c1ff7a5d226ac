"""MCP servers at an address: requests to this machine use no proxy, and answers are read as they are."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest
from loopback_http import LoopbackHandler, LoopbackServer
from support import run

from llm_sandbox_nb.agent.errors import InputError
from llm_sandbox_nb.agent.mcp_client.servers import McpServers
from llm_sandbox_nb.known_keys import without_keys

TOOL = {"name": "echo", "inputSchema": {"type": "object"}}


class Service(LoopbackServer):
    """An MCP server. `headers` are those of each answer, `names` the names of its tools, `more` what its list has."""

    def __init__(
        self,
        names: tuple[str, ...] = ("echo",),
        more: Mapping[str, Any] = MappingProxyType({}),
        **headers: str,
    ) -> None:
        asked: list[dict[str, str]] = []

        class Handler(LoopbackHandler):
            def do_POST(self) -> None:
                asked.append(self.lower_headers())
                message = self.body()
                result: dict[str, Any] = {"protocolVersion": "2025-11-25", "serverInfo": {"name": "s"}}
                if message["method"] == "tools/list":
                    result = {"tools": [{**TOOL, "name": name} for name in names], **more}
                answer = {"jsonrpc": "2.0", "id": message.get("id"), "result": result}
                self.send(200 if "id" in message else 202, answer, headers)

        super().__init__(Handler)
        self.asked = asked


def listed(server: Service, address: str = "{root}/mcp", **more: Any) -> list[str]:
    """Return the names of the server's tools for the model. `more` are further parts of the configuration."""

    async def names() -> list[str]:
        configured = {
            "s": {
                "url": address.format(root=server.root),
                "headers": {"Authorization": "Bearer the-token-4711"},
                **more,
            }
        }
        servers = McpServers.from_names(configured)
        assert servers is not None
        try:
            return [tool.name for tool in await servers.tools(set())]
        finally:
            await servers.close()

    return run(names())


def test_a_server_on_this_machine_is_asked_without_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    with Service() as proxy, Service() as server:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.root)
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        assert listed(server) == ["s__echo"]
        assert proxy.asked == []
        assert server.asked[0]["authorization"] == "Bearer the-token-4711"


@pytest.mark.parametrize("encoding", ["zstd", "br", "gzip, gzip"])
def test_an_answer_in_another_compression_is_one_sentence(encoding: str) -> None:
    compressed = pytest.raises(InputError, match="The MCP server s compresses its answers")
    with Service(**{"content-encoding": encoding}) as server, compressed:
        listed(server)


def test_odd_names_of_tools_become_names_for_the_model() -> None:
    odd = ("\ud800" + "x" * 100, "\x1b[31m red", "\u202etxt", "../../x", "<b>", "execute_bash", "a\r\nb: c")
    with Service(odd) as server:
        names = listed(server)
    assert len(set(names)) == len(odd)
    assert all(name.replace("_", "").isalnum() and name.isascii() and len(name) <= 64 for name in names)
    assert all(name.startswith("s__") for name in names)


def test_a_tool_that_is_chosen_by_name_is_offered_once() -> None:
    with Service(("other", *["echo"] * 300, "last")) as server:
        assert listed(server, tools=["last", "echo"]) == ["s__echo", "s__last"]


def test_a_list_of_tools_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    names = tuple("x" * 100_000 + str(number) for number in range(10))
    with Service(names, {"nextCursor": "more"}) as server:
        with pytest.raises(InputError, match="lists tools of more than 32 MB"):
            listed(server)
        assert len(server.asked) < 40


def test_a_key_in_the_address_is_known() -> None:
    with Service() as server:
        listed(server, "{root}/mcp?token=token-in-the-address-1")
    assert "token-in-the-address-1" not in without_keys("GET /mcp?token=token-in-the-address-1")


def test_a_schema_that_refers_to_itself_stays_as_it_is() -> None:
    """References and patterns are for the provider: nothing here follows or executes them."""
    bomb: dict[str, Any] = {f"a{number}": {"$ref": f"#/$defs/a{number + 1}"} for number in range(200)}
    schema = {
        "type": "object", "$defs": bomb | {"me": {"$ref": "#/$defs/me"}},
        "properties": {"x": {"$ref": "#/$defs/me"}, "y": {"type": "string", "pattern": "(a+)+$"}},
    }  # fmt: skip
    from llm_sandbox_nb.agent.mcp_client.definition import DefinedTool, definition_of

    tool = DefinedTool(definition_of({"name": "t", "inputSchema": schema}, "s__t", "s"))
    assert tool.check({"x": {"x": {}}, "y": "a" * 100_000 + "!"})["y"].endswith("!")
    assert json.dumps(tool.definition.parameters["$defs"]) == json.dumps(schema["$defs"])


def test_an_endless_answer_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages without an answer, a line without an end, and an event without an end."""
    from llm_sandbox_nb.agent.mcp_client import connection

    monkeypatch.setattr(connection, "START_SECONDS", 2.0)

    class Endless(LoopbackHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            while True:
                self.wfile.write(self.server.piece)  # type: ignore[attr-defined]

    for piece in (
        b"x" * 2**16,
        b"data: " + b"x" * 2**16 + b"\n",
        b'data: {"jsonrpc":"2.0","method":"a"}\n\n',
        b":\n",
    ):
        with LoopbackServer(Endless) as server:
            server.piece = piece  # type: ignore[attr-defined]

            async def opened(root: str = server.root) -> None:
                servers = McpServers.from_names({"s": {"url": root}})
                assert servers is not None
                try:
                    await servers.tools(set())
                finally:
                    await asyncio.wait_for(servers.close(), 30)

            with pytest.raises(InputError, match=r"The MCP server s (sent a message of more|did not start)"):
                run(opened())
