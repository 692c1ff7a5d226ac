"""Pack files, which have the content of files. A checkpoint writes its new content into one pack.

A pack never changes after its completion.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import sqlite3
import stat
import threading
import zlib
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import BinaryIO, Self

from llm_sandbox_nb.own_folder import open_folder
from llm_sandbox_nb.sandbox.errors import HistoryError, HistoryNotWrittenError
from llm_sandbox_nb.windows import NO_LINK, NO_WAIT, NOT_INHERITED

PARTIAL = ".partial"
PACK = ".pack"
_NAME_PATTERN = re.compile(r"[0-9a-f]{24}\.pack")
_ANY_NAME_PATTERN = re.compile(r"[0-9a-f]{24}\.pack(?:\.partial)?")
_OPEN_FLAGS = os.O_RDONLY | NO_LINK | NO_WAIT | NOT_INHERITED
"""Flags with which a link is not followed, and a named pipe (FIFO) is opened without waiting for its other end."""
_COPY_BYTES = 1024 * 1024
MAX_SHARED_BYTES = 128 * 1024 * 1024
"""Maximum bytes of content that `SharedPieces` keeps in memory."""


def is_pack_name(name: object) -> bool:
    """Return True if `name` has the form of a pack's name. Such a name cannot lead to another folder."""
    return isinstance(name, str) and _NAME_PATTERN.fullmatch(name) is not None


@contextlib.contextmanager
def storing(place: Path) -> Iterator[None]:
    """Raise HistoryNotWrittenError if an operation in this context fails, e.g. because the disk is full.

    `place` is the folder that the message names.
    """
    try:
        yield
    except (OSError, sqlite3.OperationalError) as error:
        why = error.strerror or str(error) if isinstance(error, OSError) else str(error)
        raise HistoryNotWrittenError(
            f"This machine cannot keep the files in {place} ({why}): free disk space, or choose another output folder."
        ) from error


class PackFolder:
    """Folder of packs. Its methods work relative to a descriptor of the folder, so that they never follow a link.

    Raises:
        FileNotFoundError: if the folder does not exist and `make` is False.
        NotOwnFileError: if the folder, or a folder between it and `parent`, is a link or not a folder.
    """

    def __init__(self, parent: Path, name: str, *, make: bool = False) -> None:
        self.path = parent / name
        self._descriptor = open_folder(parent, name, make=make)

    def close(self) -> None:
        """Close the folder. A second call does nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def open(self, name: str) -> int:
        """Open a pack. Return its descriptor.

        Raises:
            FileNotFoundError: if the pack is missing.
            HistoryError: if `name` is not the name of a pack, or if the file is not a regular file.
        """
        self._check(name)
        try:
            descriptor = os.open(name, _OPEN_FLAGS, dir_fd=self._descriptor)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):
                raise self._foreign(name) from error
            raise
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise self._foreign(name)
        return descriptor

    def create(self, name: str) -> BinaryIO:
        """Create the file of a new pack. Until `finish` is called, its name ends in `.partial`."""
        self._check(name)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | NOT_INHERITED
        return os.fdopen(os.open(name + PARTIAL, flags, 0o666, dir_fd=self._descriptor), "wb")

    def finish(self, name: str) -> None:
        """Rename a complete new file to `name`, without `.partial`."""
        here = self._descriptor
        os.rename(name + PARTIAL, name, src_dir_fd=here, dst_dir_fd=here)

    def remove(self, name: str) -> None:
        """Remove a complete or partial pack. Do nothing for a missing pack."""
        self._check(name.removesuffix(PARTIAL))
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._descriptor)

    def remove_all_but(self, known: Collection[str]) -> None:
        """Remove all packs whose names are not in `known`. Killed processes leave such packs."""
        with os.scandir(self._descriptor) as entries:
            names = [entry.name for entry in entries]
        for name in names:
            if _ANY_NAME_PATTERN.fullmatch(name) and name not in known:
                with contextlib.suppress(IsADirectoryError):
                    self.remove(name)

    def share(self, name: str, other: PackFolder, size: int) -> None:
        """Make a hard link in the folder `other` to a pack of this folder. If a link is impossible, copy the pack.

        `size` is the number of bytes that are copied. If `other` already has the pack, do nothing.

        Raises:
            HistoryError: if the pack is missing or not a regular file.
        """
        try:
            source = self.open(name)
        except FileNotFoundError as error:
            raise HistoryError(f"The history in {self.path.parent} is damaged: {name} is missing.") from error
        try:
            os.link(
                name,
                name,
                src_dir_fd=self._descriptor,
                dst_dir_fd=other._descriptor,
                follow_symlinks=False,
            )
        except FileExistsError:
            pass
        except OSError:
            other.remove(name + PARTIAL)  # an earlier call may have been interrupted
            with os.fdopen(os.dup(source), "rb") as file, other.create(name) as copy:
                while data := file.read(min(size, _COPY_BYTES)):
                    copy.write(data)
                    size -= len(data)
            other.finish(name)
        finally:
            os.close(source)

    def _check(self, name: str) -> None:
        if not is_pack_name(name):
            raise self._foreign(name)

    def _foreign(self, name: str) -> HistoryError:
        return HistoryError(f"The history in {self.path.parent} is damaged: {name!r:.80} is not a pack.")


class SharedPieces:
    """Pieces of content in memory, for forks of one history that are restored at the same time.

    Thus each piece is read and checked only once. Each fork uses this object as a context during its restore. While
    fewer than two forks use it, no piece is kept.
    """

    def __init__(self) -> None:
        self._users = 0
        self._lock = threading.Lock()
        self._pieces: dict[bytes, bytes] = {}
        self._left = MAX_SHARED_BYTES

    def __enter__(self) -> Self:
        with self._lock:
            self._users += 1
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if self._users < 2:
                self._pieces, self._left = {}, MAX_SHARED_BYTES

    def get(self, digest: bytes, read: Callable[[bytes], bytes]) -> bytes:
        """Return a piece. Call `read`, which may raise exceptions, if the piece is not in memory."""
        if self._users < 2:
            return read(digest)
        found = self._pieces.get(digest)
        if found is None:
            with self._lock:
                found = self._pieces.get(digest)
                if found is None:
                    found = read(digest)
                    if len(found) <= self._left and self._users > 1:
                        self._pieces[digest] = found
                        self._left -= len(found)
        return found


class PackWriter:
    """Writer of one pack. It writes each piece of content once. `finish` completes the pack."""

    def __init__(self, folder: PackFolder) -> None:
        self.name = secrets.token_hex(12) + PACK
        self.size = 0
        self.places: dict[bytes, tuple[int, int, int]] = {}
        """Offset, length and CRC-32 of each piece, by digest."""
        self._folder = folder
        self._file: BinaryIO | None = None

    def add(self, *parts: bytes | memoryview, known: Callable[[bytes], object] = lambda _: None) -> bytes:
        """See `ContentWriter.add`."""
        hashed = hashlib.sha256()
        for part in parts:
            hashed.update(part)
        digest = hashed.digest()
        if digest not in self.places and known(digest) is None:
            size = check = 0
            with storing(self._folder.path.parent):
                if self._file is None:
                    self._file = self._folder.create(self.name)
                for part in parts:
                    self._file.write(part)
                    size, check = size + len(part), zlib.crc32(part, check)
            self.places[digest] = (self.size, size, check)
            self.size += size
        return digest

    def length(self, digest: bytes) -> int | None:
        place = self.places.get(digest)
        return place[1] if place else None

    def finish(self) -> None:
        """Close the file, and rename it to its final name. Do nothing if no piece was written.

        Raises:
            HistoryNotWrittenError: if this machine's disk is full.
        """
        if self._file is not None:
            with storing(self._folder.path.parent):
                self._file.close()
                self._folder.finish(self.name)

    def discard(self) -> None:
        """Remove the file, even if it is complete."""
        if self._file is not None:
            # `close` fails if the rest of the buffer does not fit on the disk.
            with contextlib.suppress(OSError):
                self._file.close()
            for name in (self.name + PARTIAL, self.name):
                self._folder.remove(name)


class PackReader:
    """Reader of pieces of content. It checks each piece; see `written`. At most 16 packs are open at a time."""

    def __init__(self, folder: PackFolder) -> None:
        self._folder = folder
        self._open: dict[str, int] = {}
        self.written: set[str] = set()
        """Names of packs that this process has written. Their pieces are checked with the fast CRC-32, which finds
        errors of the disk. Pieces of other packs, which may be hostile, are checked with the SHA-256."""

    def read(self, digest: bytes, name: str, offset: int, size: int, check: int) -> bytes:
        """Read a piece.

        Raises:
            FileNotFoundError: if the pack is missing.
            HistoryError: if the piece is incomplete, or does not match `check` or `digest`.
        """
        data = os.pread(self._descriptor(name), size, offset)
        same = zlib.crc32(data) == check if name in self.written else hashlib.sha256(data).digest() == digest
        if len(data) != size or not same:
            raise HistoryError(
                f"The history in {self._folder.path.parent} is damaged: {name} has changed on disk."
            )
        return data

    def _descriptor(self, name: str) -> int:
        if name not in self._open:
            if len(self._open) >= 16:
                self.forget(next(iter(self._open)))
            self._open[name] = self._folder.open(name)
        return self._open[name]

    def forget(self, name: str) -> None:
        descriptor = self._open.pop(name, None)
        if descriptor is not None:
            os.close(descriptor)

    def close(self) -> None:
        for name in list(self._open):
            self.forget(name)
