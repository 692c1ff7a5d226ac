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
DELETE, MAKE, FILE, PATCH, WRITE, PACKED, HOLE, METADATA = b"DEFPWKHM"
OFFSET = struct.Struct(">Q")
RANGE = struct.Struct(">QQ")
PART = struct.Struct(">QQQ")
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
        self.buffer = b""
        self.at = 0

    def take(self, size: int) -> bytes:
        """Exactly so many bytes."""
        have = len(self.buffer) - self.at
        if have < size:
            parts = [self.buffer[self.at :]]
            while have < size:
                parts.append(self.read(max(PIPE_READ, size - have)))
                have += len(parts[-1])
            self.buffer, self.at = b"".join(parts), 0
        self.at += size
        return self.buffer[self.at - size : self.at]

    def read(self, size: int) -> bytes:
        """At most so many bytes, and not none."""
        data = os.read(self.fd, size)
        if not data:
            raise EOFError
        return data

    def line(self) -> bytes:
        """Up to the end of a line."""
        while b"\n" not in self.buffer[self.at :]:
            self.buffer, self.at = self.buffer[self.at :] + self.read(BATCH), 0
        return self.take(self.buffer.index(b"\n", self.at) + 1 - self.at)

    def record(self) -> tuple[int, bytes]:
        """The next record."""
        kind, size = RECORD.unpack(self.take(RECORD.size))
        if size > RECORD_SIZE:
            raise OSError(errno.EINVAL, "a record is too large")
        return kind, self.take(size)

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
