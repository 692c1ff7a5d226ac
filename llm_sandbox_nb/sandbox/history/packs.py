"""Content in pack files. The new content of a checkpoint is one file, which never changes after its completion."""

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
"""Flags that do not follow links, and do not wait for the other end of a FIFO."""
_COPY_BYTES = 1024 * 1024
MAX_SHARED_BYTES = 128 * 1024 * 1024
"""Maximum bytes of content in memory that several forks share."""


def is_pack_name(name: object) -> bool:
    """Return True for a file name of the kind that `PackWriter` makes. Such a name cannot be a path."""
    return isinstance(name, str) and _NAME_PATTERN.fullmatch(name) is not None


@contextlib.contextmanager
def storing(place: Path) -> Iterator[None]:
    """Raise HistoryNotWrittenError if an error of this machine, such as a full disk, prevents writing the history."""
    try:
        yield
    except (OSError, sqlite3.OperationalError) as error:
        why = error.strerror or str(error) if isinstance(error, OSError) else str(error)
        raise HistoryNotWrittenError(
            f"This machine cannot keep the files in {place} ({why}): free disk space, or choose another output folder."
        ) from error


class PackFolder:
    """Folder of packs, opened once. Packs are opened, renamed and removed relative to the folder, never through a link.

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
            HistoryError: if the name is no pack name, or is the name of something other than a regular file.
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
        """Create a new file for a pack, under its partial name."""
        self._check(name)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | NOT_INHERITED
        return os.fdopen(os.open(name + PARTIAL, flags, 0o666, dir_fd=self._descriptor), "wb")

    def finish(self, name: str) -> None:
        """Rename a new file to the name of its pack."""
        here = self._descriptor
        os.rename(name + PARTIAL, name, src_dir_fd=here, dst_dir_fd=here)

    def remove(self, name: str) -> None:
        """Remove a complete or partial pack. Do nothing for a missing pack."""
        self._check(name.removesuffix(PARTIAL))
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._descriptor)

    def remove_all_but(self, known: Collection[str]) -> None:
        """Remove packs whose names are not in `known`. A process that was killed has left such packs."""
        with os.scandir(self._descriptor) as entries:
            names = [entry.name for entry in entries]
        for name in names:
            if _ANY_NAME_PATTERN.fullmatch(name) and name not in known:
                with contextlib.suppress(IsADirectoryError):
                    self.remove(name)

    def share(self, name: str, other: PackFolder, size: int) -> None:
        """Give the folder `other` a hard link to a pack of this folder, or a copy if the filesystem cannot link.

        A copy has the first `size` bytes of the pack. A pack that `other` already has stays as it is.

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
    """Pieces of content that several forks of one history need at the same time. Each piece is read and checked once.

    A fork uses this object as a context while its files are restored. Pieces are kept in memory only while at least two
    forks do so.
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
        """Return a piece. Call `read` if no other fork has read the piece yet. Raises the exceptions of `read`."""
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
    """Writer of one pack, which stores each piece of content once. `finish` gives the complete file its name."""

    def __init__(self, folder: PackFolder) -> None:
        self.name = secrets.token_hex(12) + PACK
        self.size = 0
        self.places: dict[bytes, tuple[int, int, int]] = {}
        """Offset, length and CRC-32 of each piece, by digest."""
        self._folder = folder
        self._file: BinaryIO | None = None

    def add(self, *parts: bytes | memoryview, known: Callable[[bytes], object] = lambda _: None) -> bytes:
        """Write a piece of content, whose bytes are the joined `parts`. Return the digest of the piece.

        A piece is not written if this pack has the piece already, or if `known` returns a value for the piece's digest.

        Raises:
            HistoryNotWrittenError: if this machine's disk is full.
        """
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
        """Close the file, and rename the file to its final name. Raises HistoryNotWrittenError."""
        if self._file is not None:
            with storing(self._folder.path.parent):
                self._file.close()
                self._folder.finish(self.name)

    def discard(self) -> None:
        """Remove the file."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # the bytes in the buffer may not fit on the disk
                self._file.close()
            for name in (self.name + PARTIAL, self.name):
                self._folder.remove(name)


class PackReader:
    """Reader of pieces, which checks each piece (see `written`). Up to 16 pack files stay open."""

    def __init__(self, folder: PackFolder) -> None:
        self._folder = folder
        self._open: dict[str, int] = {}
        self.written: set[str] = set()
        """Names of packs that this process has written. Of each piece in these packs, the CRC-32 is checked.

        The CRC-32 shows errors of the disk. Other packs may be hostile, so there the SHA-256 of each piece is checked.
        """

    def read(self, digest: bytes, name: str, offset: int, size: int, check: int) -> bytes:
        """Read a piece.

        Raises:
            FileNotFoundError: if the pack is missing.
            HistoryError: if the content does not match its digest, or is incomplete.
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
