"""The content of files in pieces that are named by their digest, for the filesystem's history."""

from __future__ import annotations

import errno
import os
import stat

from .files import OPEN_READ
from .records import CHUNK_SIZE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

TRIES = 3
NOATIME = getattr(os, "O_NOATIME", 0)


class UnkeptError(Exception):
    """A file's content cannot be taken. Says why."""


class ContentReader:
    """Reads files, and hands on the pieces that the host does not have.

    Args:
        send: takes a piece that is new; None when only metadata is wanted.
        known: whether the host has the piece of a digest.
        file_limit: bytes of one file.
        limit: bytes to send.
    """

    def __init__(
        self,
        send: Callable[[bytes], None] | None,
        known: Callable[[str], bool],
        file_limit: int,
        limit: int,
    ) -> None:
        from hashlib import sha256

        self.sha256 = sha256
        self.send = send
        self.known = known
        self.file_limit = file_limit
        self.left = limit
        self.sent: set[str] = set()

    def read(self, path: bytes, look: os.stat_result) -> tuple[list[Any], os.stat_result, bool]:
        """The pieces of a file, how it looked when they were read, and whether it stayed like that.

        Raises:
            FileNotFoundError: it is gone, or something else has its name.
            UnkeptError: it is too large, or cannot be read.
        """
        fd = open_same(path, look)
        try:
            for _ in range(TRIES):
                before = os.fstat(fd)
                if before.st_size > self.file_limit:
                    raise UnkeptError("Too large to be kept")
                detail = [self.piece(fd, *part) for part in parts(fd, before)]
                after = os.fstat(fd)
                if same_content(before, after):
                    return [part for part in detail if part], after, True
            return [part for part in detail if part], after, False
        except OSError as error:
            raise UnkeptError("Could not be read (%s)" % os.strerror(error.errno or 0).lower()) from None
        finally:
            os.close(fd)

    def piece(self, fd: int, offset: int, size: int) -> tuple[int, int, str] | None:
        """One piece, sent if need be."""
        data = os.pread(fd, size, offset)
        while len(data) < size:
            more = os.pread(fd, size - len(data), offset + len(data))
            if not more:
                break
            data += more
        if not data:
            return None
        digest = self.sha256(data).hexdigest()
        if digest not in self.sent and not self.known(digest) and self.send:
            if len(data) > self.left:
                raise UnkeptError("No room for it in one checkpoint")
            self.left -= len(data)
            self.send(data)
            self.sent.add(digest)
        return offset, len(data), digest


def same_content(before: os.stat_result, after: os.stat_result) -> bool:
    """Whether nothing was written between two looks at an open file."""
    return (before.st_size, before.st_mtime_ns, before.st_ctime_ns) == (
        after.st_size, after.st_mtime_ns, after.st_ctime_ns,
    )  # fmt: skip


def open_same(path: bytes, look: os.stat_result) -> int:
    """Open a file that was looked at, or the one that has its place."""
    fd = open_quietly(path, look)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return fd


def open_quietly(path: bytes, look: os.stat_result) -> int:
    """Open a file, also one that its owner has closed to itself."""
    try:
        return os.open(path, OPEN_READ | os.O_NOFOLLOW | NOATIME)
    except PermissionError:
        pass
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None
        raise
    try:
        return os.open(path, OPEN_READ | os.O_NOFOLLOW)
    except PermissionError:
        if look.st_uid != os.geteuid() or look.st_mode & stat.S_IRUSR:
            raise
    os.chmod(path, stat.S_IMODE(look.st_mode) | stat.S_IRUSR)
    try:
        return os.open(path, OPEN_READ | os.O_NOFOLLOW)
    finally:
        os.chmod(path, stat.S_IMODE(look.st_mode))


def parts(fd: int, look: os.stat_result) -> Iterator[tuple[int, int]]:
    """Where a file has data, cut at multiples of the largest piece: a file that grows keeps its pieces."""
    end = look.st_size
    if look.st_blocks * 512 >= end:
        yield from cut(0, end)
        return
    start = 0
    while start < end:
        try:
            start = os.lseek(fd, start, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return
        stop = min(os.lseek(fd, start, os.SEEK_HOLE), end)
        if stop <= start:
            return
        yield from cut(start, stop)
        start = stop


def cut(start: int, stop: int) -> Iterator[tuple[int, int]]:
    """A range in pieces."""
    while start < stop:
        size = min(stop, (start // CHUNK_SIZE + 1) * CHUNK_SIZE) - start
        yield start, size
        start += size
