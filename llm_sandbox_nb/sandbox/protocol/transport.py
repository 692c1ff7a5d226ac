"""How frames travel between a channel and an executor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from llm_sandbox_nb.sandbox.protocol.frames import (
    HEADER,
    MAX_PAYLOAD,
    Frame,
    FrameScanner,
    decode,
    decode_header,
)


class Transport(Protocol):
    """How frames travel. The channel is the only user."""

    async def read_frame(self) -> Frame | None:
        """The next frame, or None when the other side has closed.

        Raises:
            ProtocolError: what arrived is no frame.
        """

    def write(self, frames: Sequence[Frame]) -> None:
        """Queue frames; the channel bounds how much can be queued."""

    def close(self) -> None:
        """Close the connection; twice is fine."""


class ByteReader(Protocol):
    """What of `asyncio.StreamReader` is used."""

    async def read(self, n: int = ..., /) -> bytes:
        """At least one byte and at most `n`, or nothing at the end."""


class ByteWriter(Protocol):
    """What of `asyncio.StreamWriter` is used."""

    def write(self, data: bytes, /) -> None:
        """Queue bytes."""

    def close(self) -> None:
        """Close the connection."""


class StreamTransport:
    """Frames over a byte stream."""

    def __init__(self, reader: ByteReader, writer: ByteWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._buffer = bytearray()

    async def read_frame(self) -> Frame | None:
        """The next frame, or None at the end of the stream."""
        try:
            if not await self._fill(HEADER.size):
                return None
            header = bytes(self._buffer[: HEADER.size])
            length = decode_header(header)[2]
            if not await self._fill(HEADER.size + length):
                return None
        except OSError:
            return None
        frame = decode(header, bytes(self._buffer[HEADER.size : HEADER.size + length]))
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
        """Skip to a frame that is `wanted`: the stream may start anywhere in what was sent to another owner."""
        scanner = FrameScanner()
        scanner.feed(bytes(self._buffer))
        while True:
            frame = scanner.take()
            if frame is not None and wanted(frame):
                self._buffer = bytearray(scanner.rest)
                return frame
            if frame is None:
                data = await self._reader.read(MAX_PAYLOAD)
                if not data:
                    return None
                scanner.feed(data)

    def write_raw(self, data: bytes) -> None:
        """Queue what is no frame: the executor's source, or zeros that end another owner's frame."""
        self._writer.write(data)

    def write(self, frames: Sequence[Frame]) -> None:
        """Queue frames."""
        self._writer.write(b"".join(frame.encode() for frame in frames))

    def close(self) -> None:
        """Close the stream."""
        self._writer.close()
