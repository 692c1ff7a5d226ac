"""Byte streams between which the proxy forwards data: sockets, and TLS connections that end at the proxy.

The module also has the parser of a client's first TLS message.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import Callable
from typing import Protocol

from llm_sandbox_nb.errors import LLMSandboxError

DRAIN_TIMEOUT = 5.0
"""Seconds that a program has for closing its connection after the reply is complete."""
_PIECE_BYTES = 256 * 1024
_MAX_HELLO_BYTES = 64 * 1024
_SERVER_NAME, _ENCRYPTED_HELLO = 0, 0xFE0D


class Stream(Protocol):
    """A connection from which bytes are read, and to which bytes are written."""

    async def read(self) -> bytes:
        """Return the next bytes, or `b""` at the end."""
        ...

    async def write(self, data: bytes | memoryview) -> None:
        """Send bytes, and wait for buffer space. The caller must not change `data` meanwhile.

        Raises:
            ConnectionError: if the other side has closed the connection.
        """
        ...

    async def end_writing(self) -> None:
        """Close the direction in which `write` sends. The other side can still send bytes."""
        ...


class ClosableStream(Stream, Protocol):
    """A stream that can be closed."""

    async def close(self) -> None:
        """Close the stream after all written bytes were sent."""
        ...


class CountingStream(Stream, Protocol):
    """Connection to a server outside. It counts the bytes sent and received."""

    sent: int
    received: int

    def abort(self) -> None:
        """Close the connection at once."""
        ...


class PlainSocket:
    """Connection for which this process does no TLS: from a program inside, or to a server outside."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._loop = asyncio.get_running_loop()
        self.sent = 0
        self.received = 0

    async def read(self) -> bytes:
        try:
            data = await self._loop.sock_recv(self._socket, _PIECE_BYTES)
        except OSError:
            return b""
        self.received += len(data)
        return data

    async def read_into(self, buffer: memoryview) -> int:
        """Read bytes directly into a buffer. Return the number of bytes, or 0 at the end."""
        try:
            size = await self._loop.sock_recv_into(self._socket, buffer)
        except OSError:
            return 0
        self.received += size
        return size

    async def write(self, data: bytes | memoryview) -> None:
        self.sent += len(data)
        try:
            await self._loop.sock_sendall(self._socket, data)
        except OSError as error:
            raise ConnectionError("the other side has closed the connection") from error

    async def end_writing(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    async def close(self) -> None:
        """See `ClosableStream`. Read until the program closes too, or it could lose the end of the reply."""
        await self.end_writing()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_TIMEOUT):
                while await self.read():
                    pass
        self.abort()

    def abort(self) -> None:
        self._socket.close()


class SocketStream:
    """Connection to a server outside, with TLS."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.sent = 0
        self.received = 0

    async def read(self) -> bytes:
        try:
            data = await self._reader.read(_PIECE_BYTES)
        except (OSError, ssl.SSLError):
            return b""
        self.received += len(data)
        return data

    async def write(self, data: bytes | memoryview) -> None:
        self.sent += len(data)
        self._writer.write(bytes(data))  # the transport keeps bytes that it cannot send at once
        try:
            await self._writer.drain()
        except (OSError, ssl.SSLError) as error:
            raise ConnectionError("the server has closed the connection") from error

    async def end_writing(self) -> None:
        """See `Stream`. Do nothing, because TLS cannot close a single direction."""

    def abort(self) -> None:
        self._writer.transport.abort()


class PrefixedStream:
    """Stream of which the bytes `first` were read already. The method `read` first returns these bytes again."""

    def __init__(self, first: bytes, stream: Stream) -> None:
        self._first = first
        self._stream = stream
        self.write = stream.write
        self.end_writing = stream.end_writing

    async def read(self) -> bytes:
        if self._first:
            first, self._first = self._first, b""
            return first
        return await self._stream.read()


class TlsStream:
    """Server side of TLS over another stream."""

    def __init__(self, stream: Stream, context: ssl.SSLContext) -> None:
        self._stream = stream
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=True)

    async def handshake(self) -> None:
        """Do the TLS handshake. Raises ConnectionError if the client refuses it, for example due to the certificate."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()
                if not await self._fill():
                    raise ConnectionError("the client has left the handshake") from None
            except ssl.SSLError as error:
                await self._flush()
                raise ConnectionError(f"the client refused the handshake ({error.reason})") from error
            else:
                await self._flush()
                return

    async def read(self) -> bytes:
        while True:
            try:
                return self._tls.read(_PIECE_BYTES)
            except ssl.SSLWantReadError:
                await self._flush()
                if not await self._fill():
                    return b""
            except ssl.SSLError:
                return b""

    async def write(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[self._tls.write(view) :]
            except ssl.SSLError as error:
                raise ConnectionError("the client has closed the connection") from error
        await self._flush()

    async def end_writing(self) -> None:
        with contextlib.suppress(ssl.SSLError):
            self._tls.unwrap()
        await self._flush()
        await self._stream.end_writing()

    async def _flush(self) -> None:
        if data := self._out.read():
            await self._stream.write(data)

    async def _fill(self) -> bool:
        data = await self._stream.read()
        self._in.write(data)
        return bool(data)


async def pass_on(
    source: Stream, target: Stream, *, most: int | None = None, heard: Callable[[], None] = lambda: None
) -> int:
    """Forward bytes until `source` ends, or until `most` bytes were forwarded. Call `heard` for each piece.

    Returns:
        The number of forwarded bytes.
    """
    passed = 0
    buffer = memoryview(bytearray(_PIECE_BYTES)) if isinstance(source, PlainSocket) else None
    while most is None or passed < most:
        left = _PIECE_BYTES if most is None else min(most - passed, _PIECE_BYTES)
        piece: bytes | memoryview
        if buffer is not None and isinstance(source, PlainSocket):
            piece = buffer[: await source.read_into(buffer[:left])]
        else:
            piece = (await source.read())[:left]
        if not piece:
            break
        heard()
        await target.write(piece)
        passed += len(piece)
    return passed


class NoTlsError(LLMSandboxError):
    """Error for a client whose first message is not TLS, or has no readable server name. The connection is closed."""


async def read_hello(stream: Stream) -> tuple[bytes, str]:
    """Read a client's first TLS message (ClientHello). Return all bytes that were read, and the server's name in them.

    Raises:
        NoTlsError: if the bytes are not TLS, name no server or several servers, or encrypt the server's name.
    """
    data = message = b""
    start = 0  # offset in `data` of the first TLS record that is not in `message` yet
    while True:
        head = data[start : start + 5]
        if head[:1] not in (b"", b"\x16") or head[1:2] not in (b"", b"\x03"):
            raise NoTlsError("it is not TLS")
        end = start + 5 + int.from_bytes(head[3:])
        if len(head) < 5 or len(data) < end <= start + 5 + 2**14:
            more = await stream.read()
            if not more or len(data) > _MAX_HELLO_BYTES:
                raise NoTlsError("it sent no TLS")
            data += more
            continue
        message += data[start + 5 : end]
        if not start + 5 < end <= start + 5 + 2**14 or message[0] != 1:
            raise NoTlsError("it is not TLS")
        start = end
        whole = 4 + int.from_bytes(message[1:4])
        if whole > _MAX_HELLO_BYTES:
            raise NoTlsError("its first message is too long")
        if len(message) >= whole:
            return data, _name_in(message[4:whole])


def _name_in(hello: bytes) -> str:
    """Return the server's name in the body of a ClientHello."""
    try:
        at = 34
        at += 1 + hello[at]
        at += 2 + int.from_bytes(hello[at : at + 2])
        at += 1 + hello[at]
        end = at + 2 + int.from_bytes(hello[at : at + 2])
        at += 2
        found: list[bytes] = []
        if end != len(hello):
            raise NoTlsError("its first message is malformed")
        while at < end:
            kind, size = struct.unpack_from(">HH", hello, at)
            content = hello[at + 4 : at + 4 + size]
            at += 4 + size
            if kind == _ENCRYPTED_HELLO:
                raise NoTlsError("it hides the server's name (ECH)")
            if kind == _SERVER_NAME:
                found.append(_only_name(content))
    except (IndexError, struct.error) as error:
        raise NoTlsError("its first message is malformed") from error
    if at != end or len(found) != 1:
        raise NoTlsError("it names no server (SNI)")
    return found[0].decode("ascii", "replace").lower()


def _only_name(content: bytes) -> bytes:
    """Return the name in the content of a TLS extension that must have exactly one name."""
    listed, kind, size = struct.unpack_from(">HBH", content)
    if kind or listed != len(content) - 2 or size != listed - 3:
        raise NoTlsError("it does not name one server (SNI)")
    return content[5:]
