"""Records, in which checkpoints, descriptions and restores are sent through a pipe. README.md describes each kind."""

from __future__ import annotations

import _socket as socket  # ten times faster to import than `socket`
import errno
import os
import select
import struct
import time
from collections import deque

from .frames import HANDED, PIPE_READ, bytes_to_text, quietly_close, text_to_bytes, write_all
from .light import dump

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

RECORD = struct.Struct(">BI")
CHUNK, ENTRIES, GONE, SHELL = b"CEGS"
DELETE, MAKE, FILE, PATCH, WRITE, PACKED, HOLE, METADATA, DELIVERED = b"DEFPWKHMA"
OFFSET = struct.Struct(">Q")
RANGE = struct.Struct(">QQ")
PART = struct.Struct(">QQQ")
FD = struct.Struct("i")
CHUNK_SIZE = 1024 * 1024
MAX_RECORD_BYTES = 2 * CHUNK_SIZE
BATCH_BYTES = 64 * 1024
MAX_EXAMPLES = 4  # paths in a sentence about files that were left out
THE_END = 0  # kind of the record after the last step of a restore; the host sends an END frame instead
TOP = b"/"
OPEN_PACK = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
ARRIVAL_SECONDS = 0.005  # between two attempts to read a part of a pack that has not arrived yet


class RecordWriter:
    """A writer of records to a descriptor. The records are in the order of the calls.

    Many entries, or many deleted paths, are joined to a single record (a batch).
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.buffer: list[bytes] = []
        self.buffered = 0
        self.kind = ENTRIES
        self.batch: list[bytes] = []
        self.batched = 0
        self.rows_size = 0
        """Bytes of all entries and deleted paths so far."""

    def record(self, kind: int, payload: bytes | memoryview) -> None:
        """Write one record. Small records are held back and sent together. Large records are sent at once."""
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
        """Send the records that were held back."""
        write_all(self.fd, b"".join(self.buffer))
        self.buffer, self.buffered = [], 0

    def row(self, kind: int, row: object) -> None:
        """Add an entry, or the path of a deleted entry, to the batch."""
        if kind != self.kind:
            self.end_batch()
            self.kind = kind
        data = dump(row)
        self.batch.append(data)
        self.batched += len(data)
        self.rows_size += len(data)
        if self.batched > BATCH_BYTES:
            self.end_batch()

    def end_batch(self) -> None:
        """Write the batch as one record."""
        if self.batch:
            self.record(self.kind, b"[" + b",".join(self.batch) + b"]")
            self.batch, self.batched = [], 0

    def chunk(self, data: memoryview) -> None:
        """Write a piece of content."""
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
        self.ahead: deque[tuple[int, bytes]] = deque()

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
        """Read at least one and at most `size` bytes. Raises EOFError at the end of the stream."""
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
        """Return the kind and payload of the next record."""
        return self.ahead.popleft() if self.ahead else self.read_record()

    def read_record(self) -> tuple[int, bytes]:
        """Read a record that was not read ahead."""
        kind, size = RECORD.unpack(self.take(RECORD.size))
        if size > MAX_RECORD_BYTES:
            raise OSError(errno.EINVAL, "a record is too large")
        return kind, self.take(size)

    def has_arrived(self, kind: int) -> bool:
        """Read records ahead until a record of this kind has come. Then return True.

        Return False if no such record comes within about `ARRIVAL_SECONDS`.
        """
        end = time.monotonic() + ARRIVAL_SECONDS
        while not self.ahead or self.ahead[-1][0] != kind:
            left = max(0.0, end - time.monotonic())
            if self.at == len(self.buffer) and not select.select([self.fd], [], [], left)[0]:
                return False
            self.ahead.append(self.read_record())
        return True


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
        """Return a text with one sentence for each reason. The sentence names at most `MAX_EXAMPLES` paths."""
        sentences = []
        for reason, paths in self.reasons.items():
            names = ", ".join(bytes_to_text(path) for path in paths)
            more = self.counts[reason] - len(paths)
            sentences.append("%s: %s%s." % (reason, names, " and %d more" % more if more else ""))
        return " ".join(sentences)


class RestorePack:
    """The pack: a file with content that the host puts into the sandbox from outside while the restore runs.

    Args:
        name: name of the pack in the top folder. None if there is no pack.
        top_time: mtime of the top folder in nanoseconds, before the pack and the engine's helper files were put there.
            None if the mtime need not be restored.
        handed: True if the pack is not in the top folder, and the host sends its descriptor through `HANDED`.
    """

    def __init__(self, name: str | None, top_time: int | None, handed: bool = False) -> None:
        self.fd = -1
        self.missed = False
        self.path = os.path.join(TOP, text_to_bytes(name)) if name and "/" not in name else b""
        self.top_time = top_time
        self.handed = handed
        self.buffer = memoryview(bytearray(CHUNK_SIZE if name else 0))

    def read(self, size: int, place: int) -> memoryview:
        """Read `size` bytes (at most `CHUNK_SIZE`) at offset `place`, or fewer bytes if the others have not arrived.

        The result is valid until the next call.
        """
        if self.fd < 0:
            try:
                self.fd = self.receive() if self.handed else os.open(self.path, OPEN_PACK)
            except OSError:
                return self.buffer[:0]
        return self.buffer[: os.preadv(self.fd, [self.buffer[:size]], place)]

    def receive(self) -> int:
        """Receive the descriptor of this pack. Close descriptors of packs of failed restores. Raises OSError."""
        with_host = socket.socket(fileno=HANDED)
        try:
            while True:
                name, passed, _, _ = with_host.recvmsg(256, socket.CMSG_SPACE(FD.size), socket.MSG_DONTWAIT)
                numbers: list[int] = [number for _, _, data in passed for (number,) in FD.iter_unpack(data)]
                if not name and not numbers:
                    raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))  # the host has gone
                if os.path.join(TOP, name) == self.path and len(numbers) == 1:
                    return numbers[0]
                quietly_close(*numbers)
        finally:
            with_host.detach()

    def copy(self, file: int, part: bytes, is_whole: Callable[[], bool]) -> None:
        """Copy a part of the pack into a file.

        Args:
            part: offset in the file, offset in the pack, and length, as in a record `PACKED`.
            is_whole: function that waits a moment for bytes of the pack, and returns True if no more will arrive.

        Raises:
            OSError: if the part is not in the pack, or cannot be written.
        """
        offset, place, left = PART.unpack(part)
        whole = False
        while left:
            data = self.read(min(left, CHUNK_SIZE), place)
            if not data and not whole:
                whole = is_whole()
                continue
            if not data:
                self.missed = True
                raise OSError(errno.ENODATA, os.strerror(errno.ENODATA))
            written = os.pwrite(file, data, offset)
            offset, place, left = offset + written, place + written, left - written

    def remove(self) -> None:
        """Close and remove the pack, and restore the time of the top folder."""
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1
        try:
            os.unlink(self.path)
        except OSError:
            pass
        if self.top_time is not None:
            os.utime(TOP, ns=(os.stat(TOP).st_atime_ns, self.top_time))
