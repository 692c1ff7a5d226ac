"""How a tree of files travels: the records of `inside/trees.py`, on the host's side."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO

from llm_sandbox_nb.sandbox.frames import ProtocolError

RECORD = struct.Struct(">BHI")
"""Kind, length of the path, mode."""
CHUNK = struct.Struct(">I")
"""Length of a piece of content; 0 ends the content."""
CHUNK_SIZE = 256 * 1024
DIRECTORY, FILE, SKIPPED, THE_END = b"DFSE"


def record(kind: int, path: bytes, mode: int = 0) -> bytes:
    """The header of an entry."""
    return RECORD.pack(kind, len(path), mode) + path


class TreeReader:
    """Reads records from a file that an executor filled; nothing in it is believed."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source

    def _take(self, size: int) -> bytes:
        data = self._source.read(size)
        if len(data) != size:
            raise ProtocolError("a tree of files ended too early")
        return data

    def records(self) -> Iterator[tuple[int, bytes, int]]:
        """Kind, path and mode of each entry. The content of a file must be read before the next entry.

        Raises:
            ProtocolError: there is something else than records.
        """
        while True:
            kind, length, mode = RECORD.unpack(self._take(RECORD.size))
            if kind == THE_END:
                return
            if kind not in (DIRECTORY, FILE, SKIPPED):
                raise ProtocolError("a tree of files holds something that is none")
            yield kind, self._take(length), mode

    def content(self) -> Iterator[bytes]:
        """The pieces of the current entry.

        Raises:
            ProtocolError: it ends too early, or a piece is too large.
        """
        while True:
            size = CHUNK.unpack(self._take(CHUNK.size))[0]
            if size == 0:
                return
            if size > CHUNK_SIZE:
                raise ProtocolError("a tree of files holds a piece that is too large")
            yield self._take(size)
