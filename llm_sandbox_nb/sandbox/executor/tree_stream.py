"""File trees as a stream, out of the sandbox (`pack`) and into the sandbox (`unpack`).

A tree is sent as records. A record has a header `>BHI` (kind, length of the path, mode), the path, and content. The
content is a sequence of chunks. A chunk begins with its length as `>I`. The last chunk is empty. The kinds are:

    D  a directory, without content
    F  a file
    H  another name (hard link) of a file; the content is the file's first name
    L  a symbolic link, only in trees into the sandbox; the content is the target
    S  an entry that was skipped; the content is the reason
    E  the end of the tree, without content
"""

from __future__ import annotations

import errno
import os
import stat
import struct

from .files import CHUNK_SIZE, OPEN_NEW, OPEN_READ
from .frames import text_to_bytes, write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

RECORD = struct.Struct(">BHI")
CHUNK = struct.Struct(">I")
DIRECTORY, FILE, LINK, SAME, SKIPPED, THE_END = b"DFLHSE"
MAX_TREE_ENTRIES = 100_000  # in one transfer
MAX_TREE_DEPTH = 98
"""Maximum number of folders above a file. Deeper folders are not entered."""
MAX_NAMES_BYTES = 32 * 1024 * 1024  # of all paths in one transfer


class TreeWriter:
    """A writer of a tree to fd 1. `limit` is the maximum number of bytes of content."""

    def __init__(self, limit: int) -> None:
        self.left = limit
        self.names_left = MAX_NAMES_BYTES
        self.entries_left = MAX_TREE_ENTRIES
        self.full = False
        self.linked: dict[tuple[int, int], bytes] = {}

    def record(self, kind: int, path: bytes, mode: int) -> None:
        """Write the header of an entry."""
        self.entries_left -= 1
        self.names_left -= len(path)
        write_all(1, RECORD.pack(kind, len(path), mode) + path)

    def has_room(self) -> bool:
        """Return True if the limits allow another entry. The first time that they do not, write a record about it."""
        if self.entries_left > 0 and self.names_left > 0:
            return True
        if not self.full:
            self.full = True
            self.skip(b".", b"there are more files than one transfer allows")
        return False

    def skip(self, path: bytes, reason: bytes) -> None:
        """Write a record about an entry that is left out."""
        self.record(SKIPPED, path, 0)
        write_all(1, CHUNK.pack(len(reason)) + reason + CHUNK.pack(0))

    def file(self, path: bytes, name: bytes) -> None:
        """Write the regular file at `path` as the entry `name`. The size of the file may change meanwhile."""
        try:
            fd = os.open(path, OPEN_READ | os.O_NOFOLLOW)
        except OSError as error:
            self.skip(name, os.strerror(error.errno or 0).lower().encode())
            return
        try:
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode):
                self.skip(name, b"it is not a regular file")
            elif info.st_nlink > 1 and (info.st_dev, info.st_ino) in self.linked:
                first = self.linked[info.st_dev, info.st_ino]
                self.record(SAME, name, 0)
                self.names_left -= len(first)
                write_all(1, CHUNK.pack(len(first)) + first + CHUNK.pack(0))
            elif info.st_size > self.left:
                self.skip(name, b"there is no room for it within the limit")
            else:
                if info.st_nlink > 1:
                    self.linked[info.st_dev, info.st_ino] = name
                self.record(FILE, name, stat.S_IMODE(info.st_mode))
                self.content(fd)
        finally:
            os.close(fd)

    def content(self, fd: int) -> None:
        """Write an open file in chunks. Cut a growing file at the limit."""
        while True:
            data = os.read(fd, min(CHUNK_SIZE, self.left))
            if not data:
                break
            self.left -= len(data)
            write_all(1, CHUNK.pack(len(data)) + data)
        write_all(1, CHUNK.pack(0))

    def tree(self, folder: bytes, prefix: bytes) -> None:
        """Write everything below a folder. `prefix` comes before the names of the entries."""
        try:
            with os.scandir(folder) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError as error:
            self.skip(prefix.rstrip(b"/") or b".", os.strerror(error.errno or 0).lower().encode())
            return
        for entry in entries:
            if not self.has_room():
                return
            name = prefix + entry.name
            if entry.is_symlink():
                self.skip(name, b"it is a link")
            elif entry.is_dir(follow_symlinks=False):
                self.record(DIRECTORY, name, 0o755)
                if name.count(b"/") < MAX_TREE_DEPTH:
                    self.tree(entry.path, name + b"/")
                else:
                    self.skip(name + b"/*", b"it lies too deep")
            elif entry.is_file(follow_symlinks=False):
                self.file(entry.path, name)
            else:
                self.skip(name, b"it is not a regular file")


def pack(params: dict[str, Any]) -> dict[str, Any]:
    """Write a file, or the content of a folder, to fd 1 as a tree."""
    path = text_to_bytes(params["path"])
    writer = TreeWriter(int(params["limit"]))
    if stat.S_ISDIR(os.stat(path).st_mode):
        os.scandir(path).close()
        writer.tree(path, b"")
    else:
        writer.file(os.path.realpath(path), os.path.basename(path))
    writer.record(THE_END, b"", 0)
    return {}


class TreeReader:
    """A reader of a tree from fd 0."""

    def __init__(self) -> None:
        self.buffer = b""

    def take(self, size: int) -> bytes:
        """Read exactly `size` bytes."""
        while len(self.buffer) < size:
            data = os.read(0, CHUNK_SIZE)
            if not data:
                raise OSError(errno.EIO, "the upload ended too early")
            self.buffer += data
        data, self.buffer = self.buffer[:size], self.buffer[size:]
        return data

    def content(self) -> Iterator[bytes]:
        """Yield the chunks of the current entry."""
        while True:
            size = CHUNK.unpack(self.take(CHUNK.size))[0]
            if not size:
                return
            yield self.take(size)


def unpack(params: dict[str, Any]) -> dict[str, Any]:
    """Unpack the tree in the body into a folder. Replace files and links of the same name. Keep all other files."""
    target = text_to_bytes(params["path"])
    os.makedirs(target, exist_ok=True)
    reader = TreeReader()
    while True:
        kind, length, mode = RECORD.unpack(reader.take(RECORD.size))
        path = os.path.join(target, reader.take(length))
        if kind == THE_END:
            return {}
        if os.path.islink(path) or (kind != DIRECTORY and os.path.isfile(path)):
            os.unlink(path)  # even a link to a folder, so that nothing is written to its target
        if kind == DIRECTORY:
            os.makedirs(path, exist_ok=True)
        elif kind == LINK:
            os.symlink(b"".join(reader.content()), path)
        elif kind == SAME:
            os.link(os.path.join(target, b"".join(reader.content())), path, follow_symlinks=False)
        else:
            receive_file(reader, path, mode)


def receive_file(reader: TreeReader, path: bytes, mode: int) -> None:
    """Write one file of an upload."""
    fd = os.open(path, OPEN_NEW, 0o666)
    try:
        for data in reader.content():
            write_all(fd, data)
        os.fchmod(fd, 0o755 if mode & 0o100 else 0o644)
    finally:
        os.close(fd)
