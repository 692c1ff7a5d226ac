"""MCP over stdin and stdout, with one message per line. Answers may come in another order than the requests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any, BinaryIO

from llm_sandbox_nb.mcp_server.endpoint import McpEndpoint, ToolHost, initialized
from llm_sandbox_nb.mcp_server.messages import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    MAX_MESSAGE_BYTES,
    Id,
    Json,
    McpError,
    RpcMessage,
    read_message,
    response,
)
from llm_sandbox_nb.mcp_server.sessions import McpSession


async def read_lines(stream: BinaryIO) -> AsyncIterator[bytes]:
    """Yield the lines of a pipe, a file or a terminal until its end. Blank lines are skipped.

    When Python exits, it aborts if a thread still waits in `sys.stdin.buffer`. So the thread opens a reader of its own.
    """
    loop, lines = asyncio.get_running_loop(), asyncio.Queue[bytes]()

    def read() -> None:
        reader = open(stream.fileno(), "rb", closefd=False)  # noqa: SIM115 - the owner of `stream` closes it
        while True:
            line = reader.readline(MAX_MESSAGE_BYTES + 1)
            try:
                loop.call_soon_threadsafe(lines.put_nowait, line)
            except RuntimeError:  # the event loop has ended
                return
            if not line:
                return

    threading.Thread(target=read, name="mcp-stdin", daemon=True).start()
    while line := await lines.get():
        if line.strip():
            yield line


class StdioServer:
    """Server for one client. The function `write` is called with each message to the client."""

    def __init__(self, host: ToolHost, write: Callable[[Json], None]) -> None:
        self._host = host
        self._write = write
        self._endpoint = McpEndpoint()
        self._session: McpSession | None = None
        self._running: dict[Id, asyncio.Task[None]] = {}

    async def serve(self, lines: AsyncIterator[bytes]) -> None:
        """Answer every line. Requests that are unanswered at the end of `lines` are cancelled."""
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
                    self._session.take_answer(message)
            elif message.id is None:
                named = message.params.get("requestId")
                running = self._running.get(named) if isinstance(named, str | int) else None
                if message.method == "notifications/cancelled" and running is not None:
                    running.cancel()
            elif message.method == "initialize" and not message.modern:
                client, result = initialized(message)
                self._session = McpSession("stdio", self._host.principal, client, 0.0)
                self._write(response(message.id, result))
            elif message.id in self._running:
                in_use = McpError(INVALID_REQUEST, "The id of this request is in use.")
                self._write(in_use.to_json(message.id))
            else:
                task = self._running[message.id] = asyncio.ensure_future(self._answer(message, message.id))
                task.add_done_callback(lambda _, id=message.id: self._running.pop(id, None))  # type: ignore[misc]
        except McpError as error:
            self._write(error.to_json())

    async def _answer(self, message: RpcMessage, id: Id) -> None:
        try:
            client = self._session.client if self._session else None
            result = await self._endpoint.answer(message, client, self._host, self)
        except McpError as error:
            self._write(error.to_json(id))
        except Exception as error:  # noqa: BLE001 - the client waits for an answer
            text = f"The call failed: {type(error).__name__}."
            self._write(McpError(INTERNAL_ERROR, text).to_json(id))
        else:
            self._write(response(id, result))

    # --- methods of `ClientLink` ---

    def notify(self, message: Json) -> None:
        self._write(message)

    async def elicit(self, params: Json) -> Json | None:
        return await self._session.elicit(params, self._write) if self._session else None


def line_writer(stream: BinaryIO) -> Callable[[Any], None]:
    """Return a function that writes a message as one line of JSON. After the client has gone, it does nothing."""

    def write(message: Any) -> None:
        with contextlib.suppress(BrokenPipeError, ValueError):
            stream.write(json.dumps(message).encode() + b"\n")
            stream.flush()

    return write
