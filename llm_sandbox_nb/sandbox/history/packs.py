"""Content in pack files: one per checkpoint, never changed once it has its name."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from llm_sandbox_nb.sandbox.errors import HistoryError
from llm_sandbox_nb.windows import NO_LINK, NO_WAIT, NOT_INHERITED

PARTIAL = ".partial"
PACK = ".pack"


class PackWriter:
    """Writes content to one pack, each piece once. The file has no name before `finish`."""

    def __init__(self, folder: Path) -> None:
        self.name = secrets.token_hex(12) + PACK
        self.size = 0
        self.places: dict[bytes, tuple[int, int, int]] = {}
        """Where each piece is: digest to offset, length and CRC-32."""
        self._path = folder / self.name
        self._file: BinaryIO | None = None

    def add(self, data: bytes, known: Callable[[bytes], object] = lambda _: None) -> bytes:
        """Write a piece, unless it is `known` to be kept elsewhere. Returns its digest."""
        digest = hashlib.sha256(data).digest()
        if digest not in self.places and known(digest) is None:
            if self._file is None:
                self._file = self._partial.open("xb")
            self._file.write(data)
            self.places[digest] = (self.size, len(data), zlib.crc32(data))
            self.size += len(data)
        return digest

    @property
    def _partial(self) -> Path:
        return self._path.with_name(self.name + PARTIAL)

    def finish(self) -> None:
        """Give the file its name; without content there is none."""
        if self._file is not None:
            self._file.close()
            self._partial.rename(self._path)

    def discard(self) -> None:
        """Remove the file."""
        if self._file is not None:
            self._file.close()
            for path in (self._partial, self._path):
                path.unlink(missing_ok=True)


class PackReader:
    """Reads pieces, and checks that they have not changed. A few files stay open."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[str, int] = {}

    def read(self, name: str, offset: int, size: int, check: int) -> bytes:
        """One piece. Its CRC-32 finds a disk that fails; only this user can write here.

        Raises:
            HistoryError: it is damaged.
        """
        data = os.pread(self._descriptor(name), size, offset)
        if len(data) != size or zlib.crc32(data) != check:
            raise HistoryError(
                f"The history in {self._folder.parent} is damaged: {name} has changed on disk."
            )
        return data

    def _descriptor(self, name: str) -> int:
        if name not in self._open:
            if len(self._open) >= 16:
                self.forget(next(iter(self._open)))
            self._open[name] = os.open(self._folder / name, OPEN_PACK)
        return self._open[name]

    def forget(self, name: str) -> None:
        """Close a file."""
        descriptor = self._open.pop(name, None)
        if descriptor is not None:
            os.close(descriptor)

    def close(self) -> None:
        """Close all files."""
        for name in list(self._open):
            self.forget(name)


OPEN_PACK = os.O_RDONLY | NO_LINK | NO_WAIT | NOT_INHERITED
"""Opens neither what a link leads to, nor waits for a FIFO's other end."""


def share(source: Path, target: Path) -> None:
    """Give a file a second name; where the file system cannot, copy it."""
    with contextlib.suppress(FileExistsError):
        try:
            os.link(source, target)
        except FileNotFoundError:
            raise
        except OSError as error:
            if isinstance(error, FileExistsError):
                raise
            shutil.copyfile(source, target)


def stray(folder: Path, known: set[str]) -> Iterator[Path]:
    """Files in a folder of packs that the index does not name: a process was killed while it made or removed them."""
    for path in folder.iterdir():
        if path.name not in known:
            yield path
