"""MCP over stdin and stdout: one message in each line, answered in whatever order the answers come."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any, BinaryIO

from llm_sandbox_nb.mcp_server.endpoint import LEGACY, McpEndpoint, ToolHost, initialized, modern_client
from llm_sandbox_nb.mcp_server.messages import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    MESSAGE_BYTES,
    Id,
    Json,
    McpError,
    RpcMessage,
    notification,
    read_message,
    response,
)
from llm_sandbox_nb.mcp_server.sessions import ClientFacts, McpSession

_LONGEST_LINE = MESSAGE_BYTES + 1
_ANSWER = 300.0
"""Seconds that a client's person has for an answer."""


async def read_lines(stream: BinaryIO) -> AsyncIterator[bytes]:
    """The lines of a pipe, a file or a terminal, until its end."""
    loop, lines = asyncio.get_running_loop(), asyncio.Queue[bytes]()

    def read() -> None:
        while True:
            line = stream.readline(_LONGEST_LINE)
            try:
                loop.call_soon_threadsafe(lines.put_nowait, line)
            except RuntimeError:  # the loop has ended
                return
            if not line:
                return

    threading.Thread(target=read, name="mcp-stdin", daemon=True).start()
    while line := await lines.get():
        if line.strip():
            yield line


class StdioServer:
    """Serves one client. `write` gets each message of the server."""

    def __init__(self, host: ToolHost, write: Callable[[Json], None]) -> None:
        self._host = host
        self._write = write
        self._endpoint = McpEndpoint()
        self._session: McpSession | None = None
        self._running: dict[Id, asyncio.Task[None]] = {}

    async def serve(self, lines: AsyncIterator[bytes]) -> None:
        """Answer every line; what is unanswered when they end is given up."""
        try:
            async for line in lines:
                self._take(line)
        finally:
            tasks = list(self._running.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _take(self, line: bytes) -> None:
        try:
            message = read_message(line)
            if not message.method:
                if self._session is not None:
                    self._session.take(message)
            elif message.id is None:
                self._note(message)
            elif message.method == "initialize" and not message.modern:
                client, version, result = initialized(message)
                self._session = McpSession("stdio", self._host.principal, client, version, 0.0)
                self._write(response(message.id, result))
            elif message.id in self._running:
                raise McpError(INVALID_REQUEST, "The id of this request is in use.")
            else:
                task = self._running[message.id] = asyncio.ensure_future(self._answer(message, message.id))
                task.add_done_callback(lambda _, id=message.id: self._running.pop(id, None))  # type: ignore[misc]
        except McpError as error:
            self._write(error.to_json())

    def _note(self, message: RpcMessage) -> None:
        """Take a notification: the only one that matters is that nobody waits any more."""
        if message.method == "notifications/cancelled":
            task = self._running.get(message.params.get("requestId", ""))
            if task is not None:
                task.cancel()

    async def _answer(self, message: RpcMessage, id: Id) -> None:
        try:
            client = self._session.client if self._session else None
            if message.modern:
                client = modern_client(message)
            result = await self._endpoint.answer(message, client or ClientFacts(), self._host, self)
        except McpError as error:
            self._write(error.to_json(id))
        except Exception as error:  # noqa: BLE001 - a client must hear of it
            text = f"The call failed: {type(error).__name__}."
            self._write(McpError(INTERNAL_ERROR, text).to_json(id))
        else:
            self._write(response(id, result))

    # --- see `ClientLink` ---

    def progress(self, token: str | int, seconds: float, message: str) -> None:
        """See `ClientLink.progress`."""
        params = {"progressToken": token, "progress": seconds, "message": message}
        self._write(notification("notifications/progress", params))

    async def elicit(self, params: Json) -> Json | None:
        """See `ClientLink.elicit`."""
        if self._session is None or self._session.version not in LEGACY:
            return None
        id, answer = self._session.ask()
        self._write({"jsonrpc": "2.0", "id": id, "method": "elicitation/create", "params": params})
        try:
            return await asyncio.wait_for(answer, _ANSWER)
        except TimeoutError:
            return None
        finally:
            self._session.forget(id)


def line_writer(stream: BinaryIO) -> Callable[[Any], None]:
    """Writes each message as one line; nobody hears it when the client has gone."""

    def write(message: Any) -> None:
        with contextlib.suppress(BrokenPipeError, ValueError):
            stream.write(json.dumps(message).encode() + b"\n")
            stream.flush()

    return write
