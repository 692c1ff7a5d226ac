"""Connection to an MCP server, with handshake, list of tools, and calls.

Requests by the server are refused, except `ping`.

The client begins with `initialize`, as in the protocol up to version 2025-11-25. If the server refuses `initialize`,
each request has the protocol version, the client's name and the client's capabilities in `_meta`, as in the protocol
since version 2026-07-28.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import Callable
from typing import Any

from llm_sandbox_nb.agent.mcp_client.transports import (
    McpServerError,
    McpTimeoutError,
    ServerTransport,
    WebService,
    printable,
)
from llm_sandbox_nb.mcp_server.endpoint import LEGACY, MODERN
from llm_sandbox_nb.mcp_server.messages import (
    META_CAPABILITIES,
    META_CLIENT,
    META_VERSION,
    METHOD_NOT_FOUND,
    Json,
    McpError,
    RpcMessage,
    notification,
    read_message,
    response,
)
from llm_sandbox_nb.trajectory.events import MAX_LEVELS, is_flat
from llm_sandbox_nb.version import __version__

START_SECONDS = 60.0
"""Maximum seconds for the start and first answer of a server. `uvx` and `npx` may have to download the server first."""
LIST_SECONDS = 30.0
MAX_LISTED_TOOLS = 10_000
MAX_LISTED_CHARACTERS = 32 * 1024**2
"""Maximum characters of all listed definitions together."""
_MAX_LISTED_PAGES = 100
_MAX_ANSWERS = 1_000
"""Maximum number of requests by a server that are answered. A server that sends more requests is disconnected."""
_CANCEL_SECONDS = 1.0
_CLIENT = {"name": "llm-sandbox-nb", "version": __version__}


class McpConnection:
    """Connection to a server."""

    def __init__(self, transport: ServerTransport, note: Callable[[str], None]) -> None:
        """Prepare the connection. `note` is called with messages about refused requests and invalid text."""
        self._transport = transport
        self._note = note
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[RpcMessage]] = {}
        self._meta: Json | None = None
        """Value of `_meta` in each request to a server without a handshake. None for a server with a handshake."""
        self._answers = 0
        self._answering: set[asyncio.Task[None]] = set()
        self._invalid = ""
        """Beginning of the newest invalid message."""
        self._ended = ""
        """Reason why the connection has ended. Empty while the connection is open."""
        self.facts: dict[str, str] = {}
        """Name, version and protocol version that the server has stated."""

    @property
    def usable(self) -> bool:
        """True if the connection can be used for another call."""
        return not self._ended and not self._transport.exhausted

    async def open(self) -> None:
        """Connect to the server, and exchange versions. Raises McpServerError if the server cannot be used."""
        async with _within(START_SECONDS, "did not start"):
            await self._transport.open(self._receive, self._end)
            opening = {"protocolVersion": LEGACY[0], "capabilities": {}, "clientInfo": _CLIENT}
            answer = await self._exchange("initialize", opening)
            if answer.result is None:
                self._meta = {META_VERSION: MODERN, META_CLIENT: _CLIENT, META_CAPABILITIES: {}}
                if (await self._exchange("server/discover", {})).result is None:
                    raise McpServerError(
                        f"refuses the connection: {printable(answer.error) or 'no reason given'}"
                    )
                self.facts = {"protocol": MODERN}
                return
            server, version = answer.result.get("serverInfo"), str(answer.result.get("protocolVersion"))[:40]
            named = server if isinstance(server, dict) else {}
            facts = {"name": named.get("name"), "version": named.get("version"), "protocol": version}
            self.facts = {key: printable(str(value))[:100] for key, value in facts.items()}
            if isinstance(self._transport, WebService):
                self._transport.use_version(version)
            await self._transport.send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    async def list_tools(self) -> list[Json]:
        """Return the definitions of the tools as the server sends them. Raises McpServerError after a failure."""
        tools, cursor, size = list[Json](), None, 0
        async with _within(LIST_SECONDS, "did not list its tools"):
            for _ in range(_MAX_LISTED_PAGES):
                result = await self._result("tools/list", {} if cursor is None else {"cursor": cursor})
                listed = result.get("tools")
                page = [tool for tool in listed if isinstance(tool, dict)] if isinstance(listed, list) else []
                size += sum(len(json.dumps(tool)) for tool in page)
                if size > MAX_LISTED_CHARACTERS:
                    raise McpServerError(f"lists tools of more than {MAX_LISTED_CHARACTERS // 1024**2} MB")
                tools += page
                cursor = result.get("nextCursor")
                if not isinstance(cursor, str) or len(tools) >= MAX_LISTED_TOOLS:
                    break
        return tools[:MAX_LISTED_TOOLS]

    async def call(self, tool: str, arguments: Json, timeout: float) -> Json:
        """Return the result of a call.

        Raises:
            McpServerError: if no usable result arrives in `timeout` seconds, or the server reports an error.
        """
        async with _within(timeout, "did not answer"):
            result = await self._result("tools/call", {"name": tool, "arguments": arguments})
        if result.get("resultType") == "input_required":
            raise McpServerError("asks a person for input, which this client refuses")
        return result

    async def close(self) -> None:
        self._end("was closed")
        for task in self._answering:
            task.cancel()
        await self._transport.close()

    async def _result(self, method: str, params: Json) -> Json:
        answer = await self._exchange(method, params)
        if answer.result is None:
            raise McpServerError(f"reports an error: {printable(answer.error) or 'no reason given'}")
        if not is_flat(answer.result):
            raise McpServerError(f"sent a result with more than {MAX_LEVELS} levels")
        return answer.result

    async def _exchange(self, method: str, params: Json) -> RpcMessage:
        if self._ended:
            raise McpServerError(self._ended)
        number = next(self._numbers)
        future: asyncio.Future[RpcMessage] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        meta = {} if self._meta is None else {"_meta": self._meta}
        try:
            await self._transport.send(
                {"jsonrpc": "2.0", "id": number, "method": method, "params": {**params, **meta}}
            )
            return await future
        except asyncio.CancelledError:
            if self._invalid:
                self._note(
                    f"The MCP server sent text that is not a message of MCP, such as {self._invalid!r}."
                )
            if not isinstance(self._transport, WebService):  # a web service notices the end of the request
                await self._cancel(number)
            raise
        finally:
            del self._waiting[number]
            if future.done() and not future.cancelled():
                future.exception()  # mark the exception as read, because asyncio logs an unread exception

    async def _cancel(self, number: int) -> None:
        reason = {"requestId": number, "reason": "The time is over, or a person stopped the call."}
        with contextlib.suppress(McpServerError, TimeoutError):
            async with asyncio.timeout(_CANCEL_SECONDS):
                await self._transport.send(notification("notifications/cancelled", reason))

    def _receive(self, data: bytes) -> bool:
        """Handle a message from the server. Return True if the message is an awaited response."""
        try:
            message = read_message(data)
        except (McpError, UnicodeDecodeError):
            self._invalid = printable(data[:80].decode("utf-8", "replace"))
            return False
        if message.method:
            if message.id is not None:
                self._answer(message)
            return False
        future = self._waiting.get(message.id) if isinstance(message.id, int) else None
        if future is None or future.done():
            return False
        future.set_result(message)
        return True

    def _answer(self, message: RpcMessage) -> None:
        """Answer a request by the server. All requests except `ping` are refused."""
        self._answers += 1
        if self._answers > _MAX_ANSWERS:
            self._end(f"sent more than {_MAX_ANSWERS} requests")
            return
        assert message.id is not None
        answer: Json = response(message.id, {})
        if message.method != "ping":
            method = printable(message.method)[:80]
            self._note(f"The MCP server asked for {method}: refused.")
            answer = McpError(METHOD_NOT_FOUND, f"This client refuses {method}.").to_json(message.id)
        task = asyncio.ensure_future(self._send_answer(answer))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _send_answer(self, answer: Json) -> None:
        with contextlib.suppress(McpServerError):
            await self._transport.send(answer)

    def _end(self, reason: str) -> None:
        self._ended = self._ended or reason
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(McpServerError(reason))


@contextlib.asynccontextmanager
async def _within(seconds: float, failure: str) -> Any:
    """Limit the `with` block to `seconds`. Raises McpTimeoutError after that time."""
    timer = asyncio.timeout(seconds)
    try:
        async with timer:
            yield
    except TimeoutError as error:
        if not timer.expired():
            raise
        raise McpTimeoutError(f"{failure} within {seconds:g} seconds") from error
