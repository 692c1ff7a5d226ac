"""The wire format between the host and the executor inside a sandbox, and the transport of frames.

A frame is a 15-byte header `>2sBIII` (magic, kind, request number, payload length, checksum) and at most 64 KiB of
payload. The checksum is the CRC-32 of the first 11 header bytes and the payload. It detects frames that a former owner
has left incomplete, but not forged frames. `executor/frames.py` repeats these few constants, because it is sent into
the sandbox, where this module cannot be imported.
"""

from __future__ import annotations

import asyncio
import json
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol

from llm_sandbox_nb.errors import LLMSandboxError

MAGIC = b"LS"
HEADER = struct.Struct(">2sBIII")
MAX_PAYLOAD = 64 * 1024
WINDOW = 1024 * 1024
"""Maximum bytes of a request's body that the host may send before the executor acknowledges them."""


class Kind(IntEnum):
    """Kinds of frames. The last frame of each request is RESPONSE."""

    REQUEST = 1
    """From the host: JSON with `op` and its arguments."""
    DATA = 2
    """From the host: a piece of the request's body. From the executor: output of background jobs before a command."""
    END = 3
    """From the host: the body is complete."""
    STDOUT = 4
    STDERR = 5
    GAP = 6
    """From the executor: JSON `{stream, omitted}`. At this place of the stream, `omitted` bytes are left out."""
    RESPONSE = 7
    """From the executor: the outcome of the request as JSON."""
    CANCEL = 8
    """From the host: end the request and its processes. The response still comes."""
    HELLO = 9
    """From the host: the greeting of a new owner. From the executor: the answer to it."""
    PING = 10
    PONG = 11
    ACK = 12
    """From the executor: JSON `{bytes}`, the number of bytes of the body that were consumed since the last ACK."""
    BYE = 13
    """From the host: end everything at once."""


class ProtocolError(LLMSandboxError):
    """Error for invalid data from the other side."""


@dataclass(frozen=True)
class Frame:
    """A valid frame."""

    kind: int
    request: int = 0
    payload: bytes = b""

    def encode(self) -> bytes:
        """Return the bytes of the frame."""
        if len(self.payload) > MAX_PAYLOAD:
            raise ValueError(f"A frame holds at most {MAX_PAYLOAD} bytes, not {len(self.payload)}.")
        check = checksum(self.kind, self.request, self.payload)
        return HEADER.pack(MAGIC, self.kind, self.request, len(self.payload), check) + self.payload

    def json(self) -> dict[str, Any]:
        """Return the payload as a JSON object.

        Raises:
            ProtocolError: if the payload is not a JSON object.
        """
        try:
            value = json.loads(self.payload)
        except (ValueError, RecursionError) as error:
            raise ProtocolError("a payload is not JSON") from error
        if not isinstance(value, dict):
            raise ProtocolError("a payload is not a JSON object")
        return value


def checksum(kind: int, request: int, payload: bytes) -> int:
    """Return the CRC-32 of a frame: of its header without the checksum, followed by its payload."""
    head = struct.pack(">2sBII", MAGIC, kind, request, len(payload))
    return zlib.crc32(payload, zlib.crc32(head))


def json_frame(kind: Kind, request: int, value: object) -> Frame:
    """Return a frame with a JSON payload. The JSON is ASCII, with escapes for all other characters.

    So file names that are not UTF-8 are preserved. Python represents their invalid bytes by surrogates, which JSON
    escapes.
    """
    return Frame(kind, request, json.dumps(value, separators=(",", ":")).encode("ascii"))


def body_frames(request: int, data: bytes | memoryview) -> Iterator[Frame]:
    """Cut `data` into DATA frames, and yield them."""
    view = memoryview(data)
    for start in range(0, len(view), MAX_PAYLOAD):
        yield Frame(Kind.DATA, request, bytes(view[start : start + MAX_PAYLOAD]))


def decode_header(header: bytes) -> tuple[int, int, int, int]:
    """Return kind, request number, payload length and checksum.

    Raises:
        ProtocolError: if the header is invalid, or the length is above `MAX_PAYLOAD`.
    """
    magic, kind, request, length, check = HEADER.unpack(header)
    if magic != MAGIC:
        raise ProtocolError("the received bytes are not a frame")
    if length > MAX_PAYLOAD:
        raise ProtocolError(f"a frame claims {length} bytes, more than the {MAX_PAYLOAD} allowed")
    return kind, request, length, check


def decode(header: bytes, payload: bytes) -> Frame:
    """Return the frame with this header and payload.

    Raises:
        ProtocolError: if the header is invalid, or the checksum does not match.
    """
    kind, request, length, check = decode_header(header)
    if length != len(payload) or checksum(kind, request, payload) != check:
        raise ProtocolError("a frame is damaged: its checksum does not match")
    return Frame(kind, request, payload)


class Transport(Protocol):
    """A connection that carries the frames of one channel."""

    async def read_frame(self) -> Frame | None:
        """Return the next frame, or None if the other side has closed the connection.

        Raises:
            ProtocolError: if the received bytes are not a frame.
        """

    def write(self, frames: Sequence[Frame]) -> None:
        """Queue frames. A transport does not limit the queue, because the channel does."""

    def close(self) -> None:
        """Close the connection. A second call does nothing."""


class ByteReader(Protocol):
    """The part of `asyncio.StreamReader` that this package uses."""

    async def read(self, n: int = ..., /) -> bytes:
        """Return at least one byte and at most `n`. Return `b""` at the end of the stream."""


class StreamTransport:
    """Transport that sends and receives frames through a byte stream."""

    def __init__(self, reader: ByteReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._buffer = bytearray()

    async def read_frame(self) -> Frame | None:
        """Return the next frame, or None at the end of the stream."""
        try:
            if not await self._fill(HEADER.size):
                return None
            header = bytes(self._buffer[: HEADER.size])
            length = decode_header(header)[2]
            if not await self._fill(HEADER.size + length):
                return None
        except OSError:
            return None
        with memoryview(self._buffer) as view:
            frame = decode(header, bytes(view[HEADER.size : HEADER.size + length]))
        del self._buffer[: HEADER.size + length]
        return frame

    async def _fill(self, size: int) -> bool:
        while len(self._buffer) < size:
            data = await self._reader.read(MAX_PAYLOAD)
            if not data:
                return False
            self._buffer += data
        return True

    async def find_frame(self, wanted: Callable[[Frame], bool]) -> Frame | None:
        """Skip to the first frame for which `wanted` returns True, and return it. Return None at the end of the stream.

        The stream may start within a frame, or with frames for a former owner.
        """
        while True:
            try:
                frame = await self.read_frame()
            except ProtocolError:
                start = self._buffer.find(MAGIC, 1)
                del self._buffer[: start if start > 0 else -1]  # the last byte may begin a frame
                continue
            if frame is None or wanted(frame):
                return frame

    def write_raw(self, data: bytes) -> None:
        """Write bytes that are not a frame: the executor's source, or zeros.

        A new owner of a sandbox writes zeros first. They fill up a frame that the former owner has left incomplete.
        """
        self._writer.write(data)

    def write(self, frames: Sequence[Frame]) -> None:
        self._writer.write(b"".join(frame.encode() for frame in frames))

    def close(self) -> None:
        self._writer.close()


MESSAGE_LIMIT = 4 * (HEADER.size + MAX_PAYLOAD)
"""Maximum bytes of a message that `pack` makes."""
SANDBOX_ENDED = 4410
"""Close code of a WebSocket whose sandbox has ended, so that it is useless to connect again."""


def pack(frames: Iterable[bytes]) -> Iterator[bytes]:
    """Join encoded frames, in order, to messages of at most `MESSAGE_LIMIT` bytes, and yield the messages."""
    waiting: list[bytes] = []
    size = 0
    for frame in frames:
        if size + len(frame) > MESSAGE_LIMIT:
            yield b"".join(waiting)
            waiting, size = [], 0
        waiting.append(frame)
        size += len(frame)
    if waiting:
        yield b"".join(waiting)


def unpack(message: bytes | str | None) -> Iterator[Frame]:
    """Split a message into frames.

    Raises:
        ProtocolError: if the message has anything else than complete, valid frames.
    """
    if not isinstance(message, bytes) or not message or len(message) > MESSAGE_LIMIT:
        raise ProtocolError("a message holds no frames")
    start = 0
    while start < len(message):
        body = start + HEADER.size
        header = message[start:body]
        if len(header) < HEADER.size:
            raise ProtocolError("a message ends within a frame")
        end = body + decode_header(header)[2]
        if end > len(message):
            raise ProtocolError("a message ends within a frame")
        yield decode(header, message[body:end])
        start = end
