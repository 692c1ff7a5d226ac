"""Records: the format of checkpoints, descriptions and restores on the wire. README.md describes each kind."""

from __future__ import annotations

import errno
import json
import os
import struct

from .frames import PIPE_READ, bytes_to_text, dump, text_to_bytes, write_all

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
MAX_RECORD_BYTES = 2 * CHUNK_SIZE
BATCH_BYTES = 64 * 1024
MAX_EXAMPLES = 4  # paths in a sentence about what was left out
THE_END = 0  # ends a restore plan on its way to the child; on the wire END does
TOP = b"/"


class RecordWriter:
    """A writer of records to a descriptor: entries and deleted paths in batches, all in the order of the calls."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.records = 0
        self.bytes = 0
        self.buffer: list[bytes] = []
        self.buffered = 0
        self.kind = ENTRIES
        self.batch: list[bytes] = []
        self.batched = 0

    def record(self, kind: int, payload: bytes | memoryview) -> None:
        """Write one record; small ones are sent together, large ones without a copy."""
        self.records += 1
        self.buffer.append(RECORD.pack(kind, len(payload)))
        if len(payload) > BATCH_BYTES:
            self.push()
            write_all(self.fd, payload)
            return
        self.buffer.append(bytes(payload))
        self.buffered += len(payload)
        if self.buffered > BATCH_BYTES:
            self.push()

    def push(self) -> None:
        """Send the records held back."""
        write_all(self.fd, b"".join(self.buffer))
        self.buffer, self.buffered = [], 0

    def row(self, kind: int, row: object) -> None:
        """Add an entry, or the path of a deleted one, to the batch."""
        if kind != self.kind:
            self.end_batch()
            self.kind = kind
        data = dump(row)
        self.batch.append(data)
        self.batched += len(data)
        if self.batched > BATCH_BYTES:
            self.end_batch()

    def end_batch(self) -> None:
        """Write the batch as one record."""
        if self.batch:
            self.record(self.kind, b"[" + b",".join(self.batch) + b"]")
            self.batch, self.batched = [], 0

    def chunk(self, data: memoryview) -> None:
        """Write a piece of content."""
        self.bytes += len(data)
        self.record(CHUNK, data)

    def end(self) -> None:
        self.end_batch()
        self.push()


class RecordReader:
    """A reader of records from a descriptor."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.buffer = b""
        self.at = 0

    def take(self, size: int) -> bytes:
        """Read exactly `size` bytes."""
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
        """Read at most `size` bytes, at least one. Raises EOFError."""
        data = os.read(self.fd, size)
        if not data:
            raise EOFError
        return data

    def line(self) -> bytes:
        """Read up to and including the end of a line."""
        while b"\n" not in self.buffer[self.at :]:
            self.buffer, self.at = self.buffer[self.at :] + self.read(BATCH_BYTES), 0
        return self.take(self.buffer.index(b"\n", self.at) + 1 - self.at)

    def record(self) -> tuple[int, bytes]:
        """Read the kind and payload of the next record."""
        kind, size = RECORD.unpack(self.take(RECORD.size))
        if size > MAX_RECORD_BYTES:
            raise OSError(errno.EINVAL, "a record is too large")
        return kind, self.take(size)

    def rows(self, payload: bytes) -> Any:
        return json.loads(payload)


class Shortfall:
    """Paths that were left out, by reason."""

    def __init__(self) -> None:
        self.reasons: dict[str, list[bytes]] = {}
        self.counts: dict[str, int] = {}

    def add(self, reason: str, path: bytes) -> None:
        self.counts[reason] = self.counts.get(reason, 0) + 1
        named = self.reasons.setdefault(reason, [])
        if len(named) < MAX_EXAMPLES:
            named.append(path[:256])

    def text(self) -> str:
        """Return one sentence per reason."""
        sentences = []
        for reason, paths in self.reasons.items():
            names = ", ".join(bytes_to_text(path) for path in paths)
            more = self.counts[reason] - len(paths)
            sentences.append("%s: %s%s." % (reason, names, " and %d more" % more if more else ""))
        return " ".join(sentences)


class RestorePack:
    """A file with content that the host has put here from outside, for one restore. Its name is removed at once.

    Args:
        name: in the top folder; None without a pack.
        top_time: mtime of that folder before the pack, and the engine's helper files, came there.
    """

    def __init__(self, name: str | None, top_time: int | None) -> None:
        self.fd = -1
        self.missed = False
        if not name or "/" in name:
            return
        path = os.path.join(TOP, text_to_bytes(name))
        try:
            self.fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            os.unlink(path)
        except OSError:
            pass
        if top_time is not None:
            os.utime(TOP, ns=(os.stat(TOP).st_atime_ns, top_time))

    def copy(self, file: int, part: bytes) -> int:
        """Copy a part of the pack into a file. Returns the number of bytes.

        Raises:
            OSError: if the part is not in the pack, or cannot be written.
        """
        offset, place, size = PART.unpack(part)
        left = size
        while left:
            data = os.pread(self.fd, min(left, CHUNK_SIZE), place) if self.fd >= 0 else b""
            if not data:
                self.missed = True
                raise OSError(errno.ENODATA, os.strerror(errno.ENODATA))
            written = os.pwrite(file, data, offset)
            offset, place, left = offset + written, place + written, left - written
        return int(size)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1
