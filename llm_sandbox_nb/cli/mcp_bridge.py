"""The bridge from stdin and stdout to the MCP endpoint of a Jupyter server on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from llm_sandbox_nb.known_keys import public_address
from llm_sandbox_nb.mcp_server.messages import (
    INTERNAL_ERROR,
    META_VERSION,
    Json,
    McpError,
    RpcMessage,
    read_message,
)
from llm_sandbox_nb.own_folder import expanded

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
    """Return the open notebooks of a server. Return an empty list if the server is gone or lacks the extension.

    The same applies if the server's certificate is not trusted; this is reported on stderr.
    """
    try:
        info = json.loads(file.read_bytes())
        url, token, root = str(info["url"]), str(info.get("token") or ""), Path(str(info["root_dir"]))
        async with asyncio.timeout(_LIST_TIMEOUT):
            async with _answered("GET", f"{url}llm-sandbox/api/runs", token, {}) as response:
                body = await response.aread()
        runs = json.loads(body)["runs"] if response.status_code == 200 else []
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        TimeoutError,
        httpx.HTTPError,
        httpx.InvalidURL,
    ) as error:
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            print(
                f"The notebooks of the Jupyter server {public_address(url)} are not offered, because its certificate "
                "is not trusted: set the environment variable SSL_CERT_FILE to the file of its certificate.",
                file=sys.stderr,
            )
        return []
    found: dict[str, OpenNotebook] = {}
    for run in runs:
        name, sandbox = str(run.get("notebook") or ""), run.get("outside")
        if run.get("state") != "live" or not sandbox:
            continue
        if wanted is None or (root / name).resolve() == expanded(wanted).resolve():
            found[sandbox] = OpenNotebook(name or "a notebook", f"{url}llm-sandbox/mcp/{sandbox}", token)
    return list(found.values())


class Bridge:
    """Bridge that forwards messages of the client to the server, and the server's answers to the client.

    If the client cancels a request, the connection of the request is closed.
    """

    def __init__(self, opened: OpenNotebook, write: Callable[[Json], None]) -> None:
        self._opened = opened
        self._write = write
        self._first = b""
        """The client's `initialize` message. The bridge sends it again if the session ends at the server: the client
        would not, because stdio has no sessions."""
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
                    named = message.params.get("requestId")
                    if isinstance(named, str | int) and (task := self._running.get(named)):
                        task.cancel()
                    continue
                passing = self._pass_on(line, message)
                if message.method == "initialize":
                    self._first = line
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
        except (OSError, httpx.HTTPError, ValueError) as error:
            if message.id is not None and message.method:
                text = f"The Jupyter server does not answer ({type(error).__name__}): is it still running?"
                self._write(McpError(INTERNAL_ERROR, text).to_json(message.id))
        finally:
            self._running.pop(message.id, None)

    async def _answers(self, line: bytes, message: RpcMessage, *, again: bool = True) -> AsyncIterator[Json]:
        headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        if message.modern:
            headers |= {"MCP-Protocol-Version": str(message.meta[META_VERSION]), "Mcp-Method": message.method}
            if message.method == "tools/call":
                headers["Mcp-Name"] = str(message.params.get("name", ""))
        elif self._session and message.method != "initialize":
            headers |= {"Mcp-Session-Id": self._session, "MCP-Protocol-Version": self._version}
        async with _answered("POST", self._opened.url, self._opened.token, headers, line.strip()) as response:
            if session := response.headers.get("mcp-session-id"):
                self._session = session
            if response.headers.get("content-type", "").startswith("text/event-stream"):
                async for event in _events(response):
                    yield json.loads(event)
                return
            body = json.loads(await response.aread() or b"null")
        known = isinstance(body, dict) and "jsonrpc" in body
        if response.status_code == 404 and "Mcp-Session-Id" in headers and not known and again:
            self._session = ""
            async for _ in self._answers(self._first, read_message(self._first), again=False):
                pass
            async for answer in self._answers(line, message, again=False):
                yield answer
            return
        if not message.method or message.id is None:
            return
        if message.method == "initialize" and isinstance(body, dict) and "result" in body:
            self._version = str(body["result"].get("protocolVersion", ""))
        if not known:
            said = str(body.get("message", "")) if isinstance(body, dict) else ""
            yield McpError(INTERNAL_ERROR, said or f"The server answers {response.status_code}.").to_json(
                message.id
            )
        else:
            yield body


@contextlib.asynccontextmanager
async def _answered(
    method: str, url: str, token: str, headers: dict[str, str], body: bytes = b""
) -> AsyncIterator[httpx.Response]:
    """Send a request, and yield the answer before its whole body has arrived. Close the connection at the end."""
    if token:
        headers = {**headers, "Authorization": f"Bearer {token}"}
    certificates = ssl.create_default_context() if url.startswith("https:") else False
    async with (
        httpx.AsyncClient(timeout=None, trust_env=False, verify=certificates) as client,
        client.stream(method, url, headers=headers, content=body) as response,
    ):
        yield response


async def _events(response: httpx.Response) -> AsyncIterator[bytes]:
    """Yield the data of each server-sent event. `aiter_lines` of httpx would also split lines within the data."""
    rest = b""
    async for piece in response.aiter_bytes():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data: "):
                yield line.removeprefix(b"data: ")
