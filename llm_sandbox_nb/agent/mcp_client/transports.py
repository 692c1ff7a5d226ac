"""Transports to MCP servers: to a program on this machine, to a program in the sandbox, and to a web service.

A server may be hostile. So messages are limited in size, only the end of stderr is kept, and the caller's timeout
limits each wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Protocol

from llm_sandbox_nb.agent.mcp_client.configuration import ServerConfig
from llm_sandbox_nb.errors import LLMSandboxError
from llm_sandbox_nb.mcp_server.messages import MAX_MESSAGE_BYTES, META_VERSION, Json
from llm_sandbox_nb.model.contract import ModelError
from llm_sandbox_nb.sandbox.client import ChannelSandbox
from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.sandbox.errors import SandboxError
from llm_sandbox_nb.sandbox.piped_program import MAX_OUTPUT_BYTES, PipedProgram

if TYPE_CHECKING:
    import httpx

_PIECE_BYTES = 64 * 1024
_MAX_STDERR_BYTES = 2_000
"""Number of bytes at the end of stderr that are kept for an error message."""
_EXIT_SECONDS = 2.0
"""Maximum seconds that a program may take to exit after the end of its input, and again after SIGTERM."""
_POLL_SECONDS = 0.05
_CONNECT_SECONDS = 30.0
_INHERITED_VARIABLES = (
    "HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "SSL_CERT_FILE", "TERM", "TMPDIR", "USER",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
)  # fmt: skip
"""Variables of this process that a server program on this machine inherits. They do not include keys."""


class McpServerError(LLMSandboxError):
    """Error for a server that cannot be reached, has ended, or reports an error.

    The message continues the text "The MCP server NAME ...".
    """


class McpTimeoutError(McpServerError):
    """Error for a server that has not answered in time."""


class ServerTransport(Protocol):
    """Transport to a server."""

    @property
    def exhausted(self) -> bool:
        """True if the connection should be closed and opened again before the next call."""
        ...

    async def open(self, receive: Callable[[bytes], bool], end: Callable[[str], None]) -> None:
        """Connect. Raises McpServerError after a failure.

        `receive` is called with each message, and returns True if the message is an awaited response. `end` is called
        with the reason if the connection is lost.
        """
        ...

    async def send(self, message: Json) -> None:
        """Send a message. Raises McpServerError after a failure."""
        ...

    async def close(self) -> None: ...


class LineSplitter:
    """Splitter of a stream into lines. Its memory is bounded."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Add data, and return the lines that are complete now. Raises McpServerError if a line is too long."""
        start = len(self._rest)
        self._rest += data
        if self._rest.find(b"\n", start) < 0:
            if len(self._rest) > MAX_MESSAGE_BYTES:
                raise McpServerError(f"sent a message of more than {MAX_MESSAGE_BYTES // 1024**2} MB")
            return []
        *lines, rest = bytes(self._rest).split(b"\n")
        self._rest = bytearray(rest)
        return lines


def printable(text: str) -> str:
    """Return the beginning of a server's text in one line, without terminal codes."""
    return " ".join(
        "".join(character if character.isprintable() else " " for character in text[:500]).split()
    )[:300]


class _StderrTail:
    """Last part of a program's stderr, for the error message that says how the program ended."""

    def __init__(self) -> None:
        self._tail = b""

    def add(self, data: bytes) -> None:
        self._tail = (self._tail + data)[-_MAX_STDERR_BYTES:]

    def ending(self, code: int | None) -> str:
        lines = [line.strip() for line in self._tail.decode("utf-8", "replace").splitlines() if line.strip()]
        said = printable(lines[-1]) if lines else ""
        return f"ended{'' if code is None else f' with exit code {code}'}{f': {said}' if said else ''}"


class HostProgram:
    """Transport to a program on this machine."""

    exhausted = False

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._process: asyncio.subprocess.Process | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._stderr = _StderrTail()

    async def open(self, receive: Callable[[bytes], bool], end: Callable[[str], None]) -> None:
        inherited = {name: os.environ[name] for name in _INHERITED_VARIABLES if name in os.environ}
        environment = inherited | dict(self._config.env)
        program = shutil.which(self._config.command, path=environment.get("PATH"))
        if program is None:
            raise McpServerError(
                f"has no program {self._config.command!r:.80} here: install it, or correct `command`"
            )
        try:
            self._process = process = await asyncio.create_subprocess_exec(
                program,
                *self._config.args,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=environment,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise McpServerError(f"cannot be started: {error}") from error
        assert process.stdout is not None
        assert process.stderr is not None
        reading_errors = asyncio.create_task(self._read_errors(process.stderr))
        self._tasks = [asyncio.create_task(self._read(process, receive, end)), reading_errors]

    async def _read(
        self,
        process: asyncio.subprocess.Process,
        receive: Callable[[bytes], bool],
        end: Callable[[str], None],
    ) -> None:
        lines = LineSplitter()
        assert process.stdout is not None
        try:
            while data := await process.stdout.read(_PIECE_BYTES):
                for line in filter(bytes.strip, lines.feed(data)):
                    receive(line)
                    await asyncio.sleep(0)  # an endless stream must not block the event loop
        except McpServerError as error:
            end(str(error))
            return
        end(await self._ending(process))

    async def _ending(self, process: asyncio.subprocess.Process) -> str:
        """Describe the end of the program, with its last errors and its exit code if they arrive soon."""
        _, reading_errors = self._tasks
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_EXIT_SECONDS):
                await asyncio.shield(reading_errors)
                await process.wait()
        return self._stderr.ending(process.returncode)

    async def _read_errors(self, stream: asyncio.StreamReader) -> None:
        while data := await stream.read(_PIECE_BYTES):
            self._stderr.add(data)
            await asyncio.sleep(0)

    async def send(self, message: Json) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            await self._process.stdin.drain()
        except (ConnectionError, RuntimeError) as error:
            raise McpServerError(await self._ending(self._process)) from error

    async def close(self) -> None:
        for task in self._tasks[:1]:
            task.cancel()
        process = self._process
        if process is not None:
            if process.stdin is not None:
                process.stdin.close()
            for number in (0, signal.SIGTERM, signal.SIGKILL):
                if number:
                    # The signal goes to the process group, because the program may have started other processes.
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.killpg(process.pid, number)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_EXIT_SECONDS):
                        await _group_ended(process)
                        break
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _group_ended(process: asyncio.subprocess.Process) -> None:
    """Wait until a program and all other processes of its group have ended."""
    await process.wait()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        while True:
            os.killpg(process.pid, 0)
            await asyncio.sleep(_POLL_SECONDS)


class SandboxProgram:
    """Transport to a program in the sandbox."""

    def __init__(self, config: ServerConfig, box: Sandbox) -> None:
        self._config = config
        self._box = box
        self._program: PipedProgram | None = None
        self._running: asyncio.Task[None] | None = None
        self._stderr = _StderrTail()
        self._lines = LineSplitter()

    @property
    def exhausted(self) -> bool:
        return self._program is not None and self._program.output_bytes > MAX_OUTPUT_BYTES // 4

    async def open(self, receive: Callable[[bytes], bool], end: Callable[[str], None]) -> None:
        if not isinstance(self._box, ChannelSandbox):
            raise McpServerError("cannot run in this kind of sandbox: leave `inside` out")

        def show(is_stdout: bool, data: bytes) -> None:
            if not is_stdout:
                self._stderr.add(data)
                return
            try:
                for line in filter(bytes.strip, self._lines.feed(data)):
                    receive(line)
            except McpServerError as error:
                end(str(error))

        argv = [self._config.command, *self._config.args]
        self._program = PipedProgram(self._box, argv, self._config.env, show)
        self._running = asyncio.create_task(self._run(self._program, end))

    async def _run(self, program: PipedProgram, end: Callable[[str], None]) -> None:
        try:
            end(self._stderr.ending(await program.run()))
        except (SandboxError, OSError) as error:
            end(f"cannot run in the sandbox: {error}")

    async def send(self, message: Json) -> None:
        assert self._program is not None
        try:
            self._program.write(json.dumps(message).encode() + b"\n")
        except ValueError as error:
            raise McpServerError("does not read its input") from error

    async def close(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)


class WebService:
    """Transport to a web service over streamable HTTP."""

    exhausted = False

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._client: httpx.AsyncClient | None = None
        self._headers: dict[str, str] = {}
        """Headers with the session and the protocol version, for each request."""

    async def open(self, receive: Callable[[bytes], bool], end: Callable[[str], None]) -> None:
        import httpx

        from llm_sandbox_nb.model.proxies import http_client  # imported late, because it imports httpx

        # Redirects are not followed, because the new address would get the headers, which may have a key. Compression
        # is refused, because a small compressed body could become very large.
        headers = {"Accept": "application/json, text/event-stream", "Accept-Encoding": "identity"}
        headers |= self._config.headers
        timeout = httpx.Timeout(None, connect=_CONNECT_SECONDS)
        try:
            self._client = http_client(self._config.url, headers=headers, timeout=timeout)
        except (ModelError, httpx.InvalidURL) as error:
            raise McpServerError(f"cannot be reached ({str(error).rstrip('.')})") from error
        self._receive, self._end = receive, end

    def use_version(self, version: str) -> None:
        """Send the protocol version in each later request."""
        self._headers["MCP-Protocol-Version"] = version

    async def send(self, message: Json) -> None:
        """Send a message. Pass the messages in the response to `receive` until the awaited message arrives."""
        import httpx

        assert self._client is not None
        meta = message.get("params", {}).get("_meta", {})
        headers = {**self._headers, "Content-Type": "application/json"}
        if META_VERSION in meta:
            headers |= {"MCP-Protocol-Version": meta[META_VERSION], "Mcp-Method": message["method"]}
            if message["method"] == "tools/call":
                headers["Mcp-Name"] = message["params"]["name"]
        body = json.dumps(message).encode()
        try:
            async with self._client.stream(
                "POST", self._config.url, content=body, headers=headers
            ) as response:
                await self._read(message, response)
        except ModelError as error:
            raise McpServerError(
                "compresses its answers, although the requests refuse compression"
            ) from error
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            raise McpServerError(f"cannot be reached ({type(error).__name__}): check its address") from error

    async def _read(self, message: Json, response: httpx.Response) -> None:
        if session := response.headers.get("mcp-session-id"):
            self._headers["Mcp-Session-Id"] = session
        answered = "id" not in message or "method" not in message
        is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
        if is_stream or response.status_code == 200:
            async for text in _events(response) if is_stream else _whole(response):
                answered = self._receive(text) or answered
                if answered:
                    return
        if response.status_code == 404 and self._headers.pop("Mcp-Session-Id", ""):
            self._end("has ended the session")  # the next call begins a new session
        elif response.status_code in (401, 403):
            raise McpServerError(
                f"refuses access (HTTP {response.status_code}): put a valid token into `headers`"
            )
        elif response.status_code >= 300:
            # A server that knows only newer versions of MCP may answer `initialize` with an error status.
            async for text in _whole(response):
                answered = self._receive(text) or answered
            if not answered:
                raise McpServerError(f"answers with HTTP {response.status_code}: check its address")
        elif not answered:
            self._end("closed the stream without an answer")

    async def close(self) -> None:
        if self._client is None:
            return
        import httpx

        with contextlib.suppress(httpx.HTTPError, httpx.InvalidURL, TimeoutError):
            async with asyncio.timeout(_EXIT_SECONDS):
                if "Mcp-Session-Id" in self._headers:
                    await self._client.delete(self._config.url, headers=self._headers)
        await self._client.aclose()


async def _whole(response: httpx.Response) -> AsyncIterator[bytes]:
    """Yield the complete body of a response. Raises McpServerError if the body is too long."""
    body = bytearray()
    async for piece in response.aiter_raw():
        body += piece
        if len(body) > MAX_MESSAGE_BYTES:
            raise McpServerError(f"sent a message of more than {MAX_MESSAGE_BYTES // 1024**2} MB")
    if body.strip():
        yield bytes(body)


async def _events(response: httpx.Response) -> AsyncIterator[bytes]:
    """Yield the data of each event in a stream. Raises McpServerError if an event is too long."""
    lines, data, size = LineSplitter(), list[bytes](), 0
    async for piece in response.aiter_raw():
        for line in lines.feed(piece):
            if line.startswith(b"data:"):
                data.append(line[5:].strip())
                size += len(line)
                if size > MAX_MESSAGE_BYTES:
                    raise McpServerError(f"sent a message of more than {MAX_MESSAGE_BYTES // 1024**2} MB")
            elif not line.strip() and data:
                yield b"\n".join(data)
                data, size = [], 0
                await asyncio.sleep(0)
    if data:
        yield b"\n".join(data)


def transport_of(config: ServerConfig, box: Sandbox | None) -> ServerTransport:
    """Return a transport to a server. Raises McpServerError if the server has to run in a sandbox that is not open."""
    if config.url:
        return WebService(config)
    if not config.inside:
        return HostProgram(config)
    if box is None:
        raise McpServerError("runs in the sandbox, which is not open")
    return SandboxProgram(config, box)
