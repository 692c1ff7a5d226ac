"""Records of the filesystem's history, out of the sandbox and into it (`history.py` says what they are)."""

from __future__ import annotations

import errno
import json
import os
import struct

from .wire import PIPE_READ, bytes_to_text, dump, write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

RECORD = struct.Struct(">BI")
CHUNK, ENTRIES, GONE, SHELL = b"CEGS"
DELETE, MAKE, FILE, PATCH, WRITE, HOLE, METADATA = b"DEFPWHM"
OFFSET = struct.Struct(">Q")
RANGE = struct.Struct(">QQ")
CHUNK_SIZE = 1024 * 1024
RECORD_SIZE = 2 * CHUNK_SIZE
BATCH = 64 * 1024
NAMES_TOLD = 4  # examples in a sentence about what was left out
THE_END = 0  # ends a restore on its way to the child; the host says it with the END of the body


class RecordWriter:
    """Writes records to a descriptor: entries and gone paths in batches, all in the order they are told."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.records = 0
        self.told = 0
        self.bytes = 0
        self.buffer: list[bytes] = []
        self.buffered = 0
        self.kind = ENTRIES
        self.batch: list[bytes] = []
        self.batched = 0

    def record(self, kind: int, payload: bytes) -> None:
        """One record; small ones leave together."""
        self.records += 1
        self.buffer += (RECORD.pack(kind, len(payload)), payload)
        self.buffered += len(payload)
        if self.buffered > BATCH:
            self.push()

    def push(self) -> None:
        """Write what is held back."""
        write_all(self.fd, b"".join(self.buffer))
        self.buffer, self.buffered = [], 0

    def row(self, kind: int, row: object) -> None:
        """An entry, or the path of one that is gone."""
        if kind != self.kind:
            self.end_batch()
            self.kind = kind
        data = dump(row)
        self.batch.append(data)
        self.batched += len(data)
        self.told += 1
        if self.batched > BATCH:
            self.end_batch()

    def end_batch(self) -> None:
        """Make a record of the rows so far."""
        if self.batch:
            self.record(self.kind, b"[" + b",".join(self.batch) + b"]")
            self.batch, self.batched = [], 0

    def chunk(self, data: bytes) -> None:
        """A piece of content."""
        self.bytes += len(data)
        self.record(CHUNK, data)

    def end(self) -> None:
        """Everything leaves."""
        self.end_batch()
        self.push()


class RecordReader:
    """Reads records from a descriptor."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.buffer = bytearray()

    def fill(self, size: int) -> None:
        """Wait until so many bytes are there."""
        while len(self.buffer) < size:
            data = os.read(self.fd, PIPE_READ)
            if not data:
                raise EOFError
            self.buffer += data

    def line(self) -> bytes:
        """Up to the end of a line."""
        while b"\n" not in self.buffer:
            self.fill(len(self.buffer) + 1)
        line, _, self.buffer = self.buffer.partition(b"\n")
        return bytes(line)

    def record(self) -> tuple[int, bytes]:
        """The next record."""
        self.fill(RECORD.size)
        kind, size = RECORD.unpack_from(self.buffer)
        if size > RECORD_SIZE:
            raise OSError(errno.EINVAL, "a record is too large")
        self.fill(RECORD.size + size)
        payload = bytes(memoryview(self.buffer)[RECORD.size : RECORD.size + size])
        del self.buffer[: RECORD.size + size]
        return kind, payload

    def rows(self, payload: bytes) -> Any:
        """What a record of rows holds."""
        return json.loads(payload)


class Shortfall:
    """What was left out, and why, for a sentence."""

    def __init__(self) -> None:
        self.reasons: dict[str, list[bytes]] = {}
        self.counts: dict[str, int] = {}

    def add(self, reason: str, path: bytes) -> None:
        """One path for which `reason` holds."""
        self.counts[reason] = self.counts.get(reason, 0) + 1
        named = self.reasons.setdefault(reason, [])
        if len(named) < NAMES_TOLD:
            named.append(path[:256])

    def text(self) -> str:
        """All of it in words."""
        said = []
        for reason, paths in self.reasons.items():
            names = ", ".join(bytes_to_text(path) for path in paths)
            more = self.counts[reason] - len(paths)
            said.append("%s: %s%s." % (reason, names, " and %d more" % more if more else ""))
        return " ".join(said)
