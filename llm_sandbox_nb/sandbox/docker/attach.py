"""Docker's attach connection to a container's stdin, stdout and stderr, implemented with asyncio.

docker-py's own attach is not used. It returns a blocking socket, loses the first bytes in a buffer of the HTTP library,
and behaves differently with TLS. This implementation works in the same way with Unix sockets, TCP and TLS.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import struct
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from llm_sandbox_nb.sandbox.docker.engine import Endpoint, no_engine
from llm_sandbox_nb.sandbox.errors import IsolationUnavailableError, SandboxError, SandboxLostError

if TYPE_CHECKING:
    from llm_sandbox_nb.sandbox.docker.api import TLSConfig

_HEADER = struct.Struct(">BxxxI")
_STDOUT, _STDERR = 1, 2
_MAX_PIECE_BYTES = 16 * 1024 * 1024
"""Maximum bytes of a piece of output. Engines send at most 32 KiB in a piece, so a much larger size means that the data
has another format."""
_MAX_ANSWER_BYTES = 64 * 1024
_STDERR_KEPT_BYTES = 4096
CONNECT_TIMEOUT = 20.0
"""Seconds in which the engine must answer the attach request."""


class AttachedReader:
    """Reader of a container's stdout. It also keeps the last bytes of stderr.

    The engine sends both streams over one connection, in pieces with headers.
    """

    def __init__(self, source: asyncio.StreamReader) -> None:
        self._source = source
        self._ready = bytearray()
        self._stderr = bytearray()

    @property
    def stderr(self) -> str:
        """The last bytes that the program has written to stderr, as text."""
        return self._stderr.decode("utf-8", "replace").strip()

    async def read(self, size: int = 65536) -> bytes:
        """Read at least one byte and at most `size` bytes. Return `b""` at the end of the stream."""
        if not self._ready:
            piece = await self._piece()
            if len(piece) <= size:
                return piece
            self._ready += piece
        taken = bytes(memoryview(self._ready)[:size])
        del self._ready[:size]
        return taken

    async def _piece(self) -> bytes:
        """Read one piece of stdout. Return `b""` at the end of the stream."""
        while True:
            try:
                stream, size = _HEADER.unpack(await self._source.readexactly(_HEADER.size))
                if stream > _STDERR or size > _MAX_PIECE_BYTES:
                    raise SandboxLostError(
                        "The sandbox is lost: "
                        "the Docker engine sent data that is not in the form of an attached stream."
                    )
                piece = await self._source.readexactly(size)
            except (asyncio.IncompleteReadError, OSError):
                return b""
            if stream == _STDERR:
                self._stderr += piece
                del self._stderr[:-_STDERR_KEPT_BYTES]
            elif stream == _STDOUT and piece:
                return piece


async def attach(
    endpoint: Endpoint, version: str, container: str
) -> tuple[AttachedReader, asyncio.StreamWriter]:
    """Connect to the stdin, stdout and stderr of a container, which need not have started yet.

    Raises:
        IsolationUnavailableError: if no engine answers.
        SandboxError: if the engine refuses the request.
    """
    path = f"/v{version}/containers/{container}/attach?stream=1&stdin=1&stdout=1&stderr=1"
    return await _connected(endpoint, path, b"")


async def attach_exec(
    endpoint: Endpoint, version: str, exec_id: str
) -> tuple[AttachedReader, asyncio.StreamWriter]:
    """Start a further program in a running container. Connect to the program as `attach` does.

    `exec_id` is the result of docker-py's `exec_create`, called with `stdin=True`.
    """
    return await _connected(endpoint, f"/v{version}/exec/{exec_id}/start", b'{"Detach": false, "Tty": false}')


async def _connected(
    endpoint: Endpoint, path: str, body: bytes
) -> tuple[AttachedReader, asyncio.StreamWriter]:
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT):
            reader, writer = await _open(endpoint)
            try:
                await _request(reader, writer, path, body)
            except BaseException:
                writer.close()
                raise
    except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise no_engine(endpoint.url, error) from error
    return AttachedReader(reader), writer


async def _request(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str, body: bytes
) -> None:
    headers = "Host: docker\r\nConnection: Upgrade\r\nUpgrade: tcp\r\nContent-Type: application/json\r\n"
    headers += f"Content-Length: {len(body)}\r\n"
    writer.write(f"POST {path} HTTP/1.1\r\n{headers}\r\n".encode("ascii") + body)
    await writer.drain()
    answer = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    status = answer.partition(" ")[2][:3] if answer.startswith("HTTP/") else ""
    if status not in ("101", "200"):
        with contextlib.suppress(TimeoutError):
            answer_body = await asyncio.wait_for(reader.read(_MAX_ANSWER_BYTES), 1)
            answer = answer_body.decode("utf-8", "replace") or answer
        raise SandboxError(
            f"The Docker engine refused to attach to the container: {' '.join(answer.split())}."
        )


async def _open(endpoint: Endpoint) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    url = urlsplit(endpoint.reached_at)
    if url.scheme in ("unix", "http+unix"):
        return await asyncio.open_unix_connection(url.netloc + url.path)
    if url.scheme in ("tcp", "http", "https") and url.hostname:
        context = _tls_context(endpoint.tls) if endpoint.tls else None
        port = url.port or (2376 if context else 2375)
        return await asyncio.open_connection(url.hostname, port, ssl=context)
    raise IsolationUnavailableError(
        f"Sandboxes cannot be reached through {endpoint.url}: "
        f"set DOCKER_HOST to a unix://, tcp:// or ssh:// address."
    )


def _tls_context(tls: TLSConfig) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=tls.ca_cert or None)
    if tls.cert:
        context.load_cert_chain(*tls.cert)
    if tls.verify is False:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
