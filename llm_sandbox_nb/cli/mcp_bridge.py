"""The bridge from stdin and stdout to the MCP endpoint of a Jupyter server on this machine."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import h11

from llm_sandbox_nb.mcp_server.messages import (
    INTERNAL_ERROR,
    META_VERSION,
    Json,
    McpError,
    RpcMessage,
    read_message,
)

_PIECE_BYTES = 64 * 1024
_LIST_TIMEOUT = 3.0
"""Maximum seconds to wait until a server has listed its open notebooks."""


@dataclass(frozen=True)
class OpenNotebook:
    """A notebook whose sandbox is open to outside agents."""

    notebook: str
    """Path of the notebook, as the server names the notebook."""
    url: str
    """Address of the endpoint for the notebook's sandbox."""
    token: str


async def open_notebooks(wanted: Path | None = None) -> list[OpenNotebook]:
    """Return the open notebooks of the user's Jupyter servers on this machine, or only the notebook `wanted`."""
    from jupyter_core.paths import jupyter_runtime_dir

    files = sorted(Path(jupyter_runtime_dir()).glob("jpserver-*.json"))
    found = await asyncio.gather(*(_open_at(file, wanted) for file in files))
    return [notebook for some in found for notebook in some]


async def _open_at(file: Path, wanted: Path | None) -> list[OpenNotebook]:
    """Return the open notebooks of a server; an empty list if the server is gone or lacks the extension."""
    try:
        info = json.loads(file.read_bytes())
        url, token, root = str(info["url"]), str(info.get("token") or ""), Path(str(info["root_dir"]))
        async with asyncio.timeout(_LIST_TIMEOUT):
            status, body = await _get(f"{url}llm-sandbox/api/runs", token)
        runs = json.loads(body)["runs"] if status == 200 else []
    except (OSError, ValueError, KeyError, TypeError, TimeoutError, h11.ProtocolError):
        return []
    found: dict[str, OpenNotebook] = {}
    for run in runs:
        name, sandbox = str(run.get("notebook") or ""), run.get("outside")
        if run.get("state") != "live" or not sandbox:
            continue
        if wanted is None or (root / name).resolve() == wanted.expanduser().resolve():
            found[sandbox] = OpenNotebook(name or "a notebook", f"{url}llm-sandbox/mcp/{sandbox}", token)
    return list(found.values())


class Bridge:
    """Bridge that forwards messages of the client to the server, and the server's answers to the client.

    If the client cancels a request, the connection of the request is closed.
    """

    def __init__(self, opened: OpenNotebook, write: Callable[[Json], None]) -> None:
        self._opened = opened
        self._write = write
        self._session = ""
        self._version = ""
        self._running: dict[Any, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, lines: AsyncIterator[bytes]) -> None:
        """Forward every line of the client until the input ends."""
        try:
            async for line in lines:
                try:
                    message = read_message(line)
                except McpError as error:
                    self._write(error.to_json())
                    continue
                if message.method == "notifications/cancelled":
                    if task := self._running.get(message.params.get("requestId")):
                        task.cancel()
                    continue
                passing = self._pass_on(line, message)
                if message.method == "initialize":
                    await passing  # later requests belong to this session
                    continue
                task = asyncio.ensure_future(passing)
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                if message.id is not None and message.method:
                    self._running[message.id] = task
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _pass_on(self, line: bytes, message: RpcMessage) -> None:
        try:
            async for answer in self._answers(line, message):
                self._write(answer)
        except (OSError, h11.ProtocolError, ValueError) as error:
            if message.id is not None and message.method:
                text = f"The Jupyter server does not answer ({type(error).__name__}): is it still running?"
                self._write(McpError(INTERNAL_ERROR, text).to_json(message.id))
        finally:
            self._running.pop(message.id, None)

    async def _answers(self, line: bytes, message: RpcMessage) -> AsyncIterator[Json]:
        headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        if message.modern:
            headers |= {"MCP-Protocol-Version": str(message.meta[META_VERSION]), "Mcp-Method": message.method}
            if message.method == "tools/call":
                headers["Mcp-Name"] = str(message.params.get("name", ""))
        elif self._session and message.method != "initialize":
            headers |= {"Mcp-Session-Id": self._session, "MCP-Protocol-Version": self._version}
        async with _Request(self._opened.url, self._opened.token, "POST", headers, line.strip()) as request:
            if session := request.headers.get("mcp-session-id"):
                self._session = session
            if request.headers.get("content-type", "").startswith("text/event-stream"):
                async for event in request.events():
                    yield json.loads(event)
                return
            body = json.loads(await request.body() or b"null")
        if not message.method or message.id is None:
            return
        if message.method == "initialize" and isinstance(body, dict) and "result" in body:
            self._version = str(body["result"].get("protocolVersion", ""))
        if not isinstance(body, dict) or "jsonrpc" not in body:
            said = str(body.get("message", "")) if isinstance(body, dict) else ""
            yield McpError(INTERNAL_ERROR, said or f"The server answers {request.status}.").to_json(
                message.id
            )
        else:
            yield body


async def _get(url: str, token: str) -> tuple[int, bytes]:
    async with _Request(url, token, "GET", {}, b"") as request:
        return request.status, await request.body()


class _Request:
    """An HTTP request on a separate connection, which closes with the request."""

    def __init__(self, url: str, token: str, method: str, headers: dict[str, str], body: bytes) -> None:
        self._url = urlsplit(url)
        sent = {"Host": self._url.netloc, "Connection": "close", **headers}
        if token:
            sent["Authorization"] = f"Bearer {token}"
        if method == "POST":
            sent["Content-Length"] = str(len(body))
        self._request = h11.Request(method=method, target=self._url.path, headers=list(sent.items()))
        self._body = body
        self._h11 = h11.Connection(h11.CLIENT)
        self._writer: asyncio.StreamWriter | None = None
        self.status = 0
        self.headers: dict[str, str] = {}

    async def __aenter__(self) -> _Request:
        secure = self._url.scheme == "https"
        host, port = self._url.hostname or "", self._url.port or (443 if secure else 80)
        context = ssl.create_default_context() if secure else None
        self._reader, self._writer = await asyncio.open_connection(host, port, ssl=context)
        for event in (self._request, *([h11.Data(self._body)] if self._body else []), h11.EndOfMessage()):
            self._writer.write(self._h11.send(event) or b"")
        await self._writer.drain()
        event = await self._next()
        if not isinstance(event, h11.Response):
            raise h11.RemoteProtocolError("no response")
        self.status = event.status_code
        self.headers = {name.decode().lower(): value.decode("latin-1") for name, value in event.headers}
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()

    async def _next(self) -> Any:
        while (event := self._h11.next_event()) is h11.NEED_DATA:
            self._h11.receive_data(await self._reader.read(_PIECE_BYTES))
        return event

    async def _pieces(self) -> AsyncIterator[bytes]:
        while isinstance(event := await self._next(), h11.Data):
            yield bytes(event.data)

    async def body(self) -> bytes:
        """Return the body of the answer."""
        return b"".join([piece async for piece in self._pieces()])

    async def events(self) -> AsyncIterator[bytes]:
        """Yield the data of each server-sent event in the answer."""
        rest = b""
        async for piece in self._pieces():
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                if line.startswith(b"data: "):
                    yield line.removeprefix(b"data: ")
