"""MCP servers of a run, and their tools, which the model can call."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any

from llm_sandbox_nb.agent.errors import InputError
from llm_sandbox_nb.agent.mcp_client.configuration import ServerConfig, ServerNames, server_configs
from llm_sandbox_nb.agent.mcp_client.connection import McpConnection
from llm_sandbox_nb.agent.mcp_client.definition import (
    DefinedTool,
    Definition,
    definition_of,
    unused_name,
)
from llm_sandbox_nb.agent.mcp_client.results import outcome_of
from llm_sandbox_nb.agent.mcp_client.transports import McpServerError, McpTimeoutError, transport_of
from llm_sandbox_nb.agent.tools.own_tool import bounded
from llm_sandbox_nb.agent.tools.tool import Approval, Outcome, ToolContext
from llm_sandbox_nb.formatting import plural, shorten
from llm_sandbox_nb.mcp_server.messages import Json
from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.sandbox.errors import SandboxError
from llm_sandbox_nb.trajectory import events as ev

MAX_TOOLS = 100
"""Maximum number of tools of a server whose configuration has no `tools`. Providers allow 128 tools in a request, and
each tool costs tokens."""
_MAX_SCHEMA_CHARACTERS = 32_000
_MAX_NOTES = 20
"""Maximum number of different notes about a server in the record."""


class McpServer:
    """MCP server of a run. The server starts when it is needed, and starts again if it has ended.

    If the server does not list its tools in time, the list is requested again in the background. Calls fail at once
    until the server answers.
    """

    def __init__(self, config: ServerConfig, servers: McpServers) -> None:
        self.config = config
        self.facts: dict[str, str] = {}
        self._servers = servers
        self._connection: McpConnection | None = None
        self._noted: set[str] = set()
        self._asking: asyncio.Task[None] | None = None
        """Task that sends requests to a silent server until the server answers."""

    async def listed(self) -> list[Json]:
        """Return the current definitions of the server's tools. Raises McpServerError after a failure."""
        self._require_answers()
        try:
            return await self._list()
        except McpTimeoutError as error:
            self.note(f"The MCP server {error}: its calls fail until it answers.")
            self._asking = asyncio.create_task(self._ask_until_it_answers())
            raise

    async def call(self, tool: str, arguments: Json, timeout: float) -> Json:
        """Return the result of a call. Raises McpServerError after a failure."""
        self._require_answers()
        return await (await self._connected()).call(tool, arguments, timeout)

    async def _list(self) -> list[Json]:
        return await (await self._connected()).list_tools()

    def _require_answers(self) -> None:
        if self._asking is not None and not self._asking.done():
            raise McpServerError("does not answer; its tools work again when it does")

    async def _ask_until_it_answers(self) -> None:
        """Request the list of tools until the server answers or fails. The next call reports such a failure."""
        while True:
            try:
                await self._list()
            except McpTimeoutError:
                continue
            except (McpServerError, SandboxError):
                pass
            return

    async def _connected(self) -> McpConnection:
        if self._connection is not None and not self._connection.usable:
            await self._disconnect()
        if self._connection is None:
            opened = McpConnection(transport_of(self.config, self._servers.box), self.note)
            try:
                await opened.open()
            except BaseException:
                await opened.close()
                raise
            self._connection, self.facts = opened, opened.facts
        return self._connection

    async def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
        await self._disconnect()

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    def note(self, text: str) -> None:
        """Record a note about the server. An equal note is recorded only once."""
        if text not in self._noted and len(self._noted) < _MAX_NOTES:
            self._noted.add(text)
            self._servers.note(text.replace("The MCP server", f"The MCP server {self.config.name}", 1))

    def as_json(self, definitions: Iterable[Definition]) -> dict[str, Any]:
        """Return the server as JSON for the record."""
        listed = [definition.as_json() for definition in definitions if definition.server == self.config.name]
        return {**self.config.as_json(), "server": dict(self.facts), "tools": listed}


class McpServers:
    """All servers of a run."""

    def __init__(self, configs: Iterable[ServerConfig], allowed: Iterable[str] = ()) -> None:
        """Prepare the servers. `allowed` names servers and tools (`server__tool`) whose calls need no approval."""
        self.servers = {config.name: McpServer(config, self) for config in configs}
        self.allowed = frozenset(allowed)
        self.box: Sandbox | None = None
        """Sandbox for servers that run in the sandbox."""
        self.definitions: list[Definition] = []
        self._notes: list[str] = []
        self._emit: Callable[[ev.Event], None] | None = None

    @classmethod
    def from_names(cls, given: ServerNames | None, allowed: str | Iterable[str] = ()) -> McpServers | None:
        """Return the named servers, which are not started yet. Return None if no server is named.

        Raises:
            InputError: if a configuration is invalid.
        """
        if not given:
            return None
        return cls(server_configs(given), [allowed] if isinstance(allowed, str) else allowed)

    def renewed(self, allowed: Iterable[str] | None = None) -> McpServers:
        """Return new objects for the same servers. The new objects have separate connections."""
        configs = (server.config for server in self.servers.values())
        return McpServers(configs, self.allowed if allowed is None else allowed)

    @property
    def inside(self) -> bool:
        """True if a server runs in the sandbox."""
        return any(server.config.inside for server in self.servers.values())

    async def tools(self, taken: Container[str]) -> list[McpTool]:
        """Start the servers, and return their tools. The tools do not get names in `taken`.

        Raises:
            InputError: if a server does not start, or has no tools.
        """
        names = set[str]()
        asked = [asyncio.ensure_future(self._listed(server)) for server in self.servers.values()]
        try:
            listings = await asyncio.gather(*asked)
        finally:  # if one server fails, the others must not start after `close`
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        for server, listing in zip(self.servers.values(), listings, strict=True):
            for raw in self._offered(server, listing):
                name = unused_name(f"{server.config.name}__{raw['name']}", taken, names)
                names.add(name)
                self.definitions.append(definition_of(raw, name, server.config.name))
        return [self.tool(definition) for definition in self.definitions]

    async def _listed(self, server: McpServer) -> list[Json]:
        try:
            return await server.listed()
        except (McpServerError, SandboxError) as error:
            raise InputError(f"The MCP server {server.config.name} {error}.") from error

    def _offered(self, server: McpServer, listing: list[Json]) -> list[Json]:
        """Return the definitions of the tools for the model. Raises InputError if a wanted tool is missing, or all."""
        name, wanted = server.config.name, server.config.tools
        tools = [tool for tool in listing if isinstance(tool.get("name"), str) and tool["name"]]
        if wanted is not None:
            first = {tool["name"]: tool for tool in reversed(tools)}
            missing = [tool for tool in wanted if tool not in first]
            if missing:
                raise InputError(f"The MCP server {name} has no tool {missing[0]!r:.80}: correct `tools`.")
            tools = [tool for tool in tools if tool is first[tool["name"]] and tool["name"] in wanted]
        large = [tool for tool in tools if len(json.dumps(tool.get("inputSchema"))) > _MAX_SCHEMA_CHARACTERS]
        if large:
            server.note(
                f"The MCP server has {plural(len(large), 'tool')} with a schema that is too long: left out."
            )
        tools = [tool for tool in tools if tool not in large] if large else tools
        if not tools:
            raise InputError(f"The MCP server {name} has no tools: leave it out.")
        if wanted is None and len(tools) > MAX_TOOLS:
            server.note(
                f"The MCP server has {len(tools)} tools; the first {MAX_TOOLS} are offered. Choose others with `tools`."
            )
            tools = tools[:MAX_TOOLS]
        return tools

    def tool(self, definition: Definition) -> McpTool:
        """Return the tool for a definition. Raises InputError if the definition's server is missing."""
        server = self.servers.get(definition.server)
        if server is None:
            raise InputError(missing_servers([definition.server]))
        allowed = definition.name in self.allowed or definition.server in self.allowed
        return McpTool(definition, server, allowed=allowed or server.config.inside)

    def attach(self, box: Sandbox, emit: Callable[[ev.Event], None]) -> None:
        """Use the sandbox and the record of a run from now on."""
        self.box, self._emit = box, emit
        notes, self._notes = self._notes, []
        for text in notes:
            self.note(text)

    def note(self, text: str) -> None:
        if self._emit is None:
            self._notes.append(text)
        else:
            self._emit(ev.Noted(text=str(ev.clean_text(text))))

    async def close(self) -> None:
        """End all connections and programs."""
        self._emit = None
        await asyncio.gather(*(server.close() for server in self.servers.values()), return_exceptions=True)

    def as_json(self) -> dict[str, Any]:
        """Return the servers as JSON for the record, with the hashes of their tools' definitions."""
        return {name: server.as_json(self.definitions) for name, server in self.servers.items()}


class McpTool(DefinedTool):
    """Tool of a server. The model always reads the definition that the run began with."""

    def __init__(self, definition: Definition, server: McpServer, *, allowed: bool) -> None:
        """Make the tool. `allowed` is True if calls need no approval."""
        super().__init__(definition)
        self._server = server
        self._allowed = allowed
        self.outside = not server.config.inside
        self._accepted = {definition.sha256}
        """Hashes of the definition that the run began with, and of definitions that a person has accepted."""
        self._changed = ""
        """Hash of a changed definition that a person must approve. Empty if there is none."""
        self._unlisted = ""
        """Reason why the definition could not be read before the call. Empty if there was no problem."""

    async def approval(self) -> Approval | None:
        name, tool = self._server.config.name, self.definition.tool
        refusal = (
            f"Not called: a person has to approve this call of the MCP server {name}, "
            "and nobody can be asked here"
        )
        changed = await self._change()
        self._changed = changed["sha256"] if changed else ""
        if changed is not None:
            text = shorten(" ".join(changed["description"].split()), 500)
            return Approval(
                f"The MCP server {name} has changed the definition of {tool!r:.80} since the run began. Its "
                f"description is now: {text or '(empty)'}",
                f"{refusal}: the server has changed the definition of the tool since the run began.",
                changed=True,
            )
        if self._allowed:
            return None
        return Approval(
            f"The MCP server {name} makes this call outside the sandbox; a rewind does not undo it.",
            f"{refusal}; the option mcp_allow allows it beforehand.",
        )

    async def _change(self) -> dict[str, str] | None:
        """Return hash and description of the tool's present definition if a person has to accept it, and else None."""
        self._unlisted = ""
        try:
            listing = await self._server.listed()
        except (McpServerError, SandboxError) as error:
            self._unlisted = str(error)  # the call will fail, because the definition may have changed
            return None
        now = [
            definition_of(raw, self.name, self._server.config.name)
            for raw in listing
            if raw.get("name") == self.definition.tool
        ]
        if not now or any(definition.sha256 in self._accepted for definition in now):
            return None
        return {"sha256": now[0].sha256, "description": now[0].description}

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> Outcome:
        """Call the tool. If the call fails, the model reads the error as its result."""
        if self._changed:
            self._accepted.add(self._changed)
            self._server.note(
                f"The MCP server may use the changed definition of {self.definition.tool!r:.80}."
            )
            self._changed = ""
        longest = context.options.call_seconds(context.time_left)
        unlisted, self._unlisted = self._unlisted, ""
        try:
            if unlisted:
                raise McpServerError(unlisted)
            result = await self._server.call(self.definition.tool, dict(arguments), longest)
        except McpServerError as error:
            return Outcome(
                bounded(f"Error: the MCP server {self._server.config.name} {error}."), error="tool_failed"
            )
        return await outcome_of(self.name, result, context)


def missing_servers(names: Iterable[str]) -> str:
    """Return the error message for a run that cannot continue without its servers."""
    listed = sorted(set(names))
    value = repr(listed[0] if len(listed) == 1 else listed)
    flags = " ".join(f"--mcp {name}" for name in listed)
    return f"This run had tools of MCP servers: name {', '.join(listed)} again, as in mcp={value} or {flags}."
