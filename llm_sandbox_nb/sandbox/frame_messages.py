"""Frames in messages, for what carries whole messages (a WebSocket): each holds one or more whole frames."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from llm_sandbox_nb.sandbox.frames import HEADER, MAX_PAYLOAD, Frame, ProtocolError, decode, decode_header

MESSAGE_LIMIT = 4 * (HEADER.size + MAX_PAYLOAD)
"""Bytes of the largest message."""


def pack(frames: Iterable[bytes]) -> Iterator[bytes]:
    """As few messages as it takes for these encoded frames, in their order."""
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
    """The frames of a message.

    Raises:
        ProtocolError: it holds anything but whole, undamaged frames.
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
