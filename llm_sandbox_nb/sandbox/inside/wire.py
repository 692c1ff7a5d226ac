"""The frames and small helpers that every part of the executor uses."""

from __future__ import annotations

import json
import os
import struct

HEADER = struct.Struct(">2sBIII")
CHECKED = struct.Struct(">2sBII")
MAGIC = b"LS"
MAX_PAYLOAD = 64 * 1024
REQUEST, DATA, END, STDOUT, STDERR, GAP, RESPONSE, CANCEL, HELLO, PING, PONG, ACK, BYE = range(1, 14)
PIPE_READ = 256 * 1024


def text_to_bytes(text: str) -> bytes:
    """A name as it came in JSON, as the bytes that the kernel knows."""
    return text.encode("utf-8", "surrogateescape")


def bytes_to_text(data: bytes) -> str:
    """The reverse of `text_to_bytes`."""
    return data.decode("utf-8", "surrogateescape")


def write_all(fd: int, data: bytes) -> None:
    """Write everything to a blocking descriptor."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def dump(value: object) -> bytes:
    """JSON in ASCII."""
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def quietly_close(*fds: int) -> None:
    """Close descriptors that may be closed already (-1)."""
    for fd in fds:
        if fd >= 0:
            os.close(fd)
