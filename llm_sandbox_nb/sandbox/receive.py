"""Downloads: a tree from a sandbox, written below one host folder and nowhere else.

Every name is walked from the target's own descriptor, one component at a time, without following links. So
neither a name, nor a link that is there already, nor one that appears meanwhile can lead a write elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import tempfile
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self, cast

from llm_sandbox_nb.sandbox.errors import TransferError
from llm_sandbox_nb.sandbox.frames import Kind, ProtocolError
from llm_sandbox_nb.sandbox.tree import FILE, SKIPPED, TreeReader

OVERHEAD = 64 * 1024 * 1024
"""Bytes of names and headers that a download may have beside its content."""
IN_MEMORY = 8 * 1024 * 1024
SENTENCES = 1000
_MAX_DEPTH = 100
_MAX_NAME = 255
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Spool:
    """Holds what a sandbox sends until it is all there; on disk when it is large."""

    def __init__(self, limit: int) -> None:
        self._left = limit + limit // 1024 + OVERHEAD
        self._file = tempfile.SpooledTemporaryFile(IN_MEMORY)  # noqa: SIM115 - closed by __exit__

    def take(self, kind: int, payload: bytes) -> None:
        """One frame.

        Raises:
            ProtocolError: more came than may.
        """
        self._left -= len(payload)
        if kind != Kind.STDOUT or self._left < 0:
            raise ProtocolError("it sent more files than it may")
        self._file.write(payload)

    def content(self) -> BinaryIO:
        """All that came, from its beginning."""
        self._file.seek(0)
        return cast(BinaryIO, self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def receive_tree(source: BinaryIO, target: Path, limit: int) -> list[str]:
    """Write a tree below `target` (made if missing), at most `limit` bytes; a sentence for what was left out.

    Raises:
        TransferError: what came is no tree.
        OSError: the host's disk.
    """
    target.mkdir(parents=True, exist_ok=True)
    folder = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        receiver = _Receiver(folder, limit)
        receiver.receive(TreeReader(source))
    except ProtocolError as error:
        raise TransferError(f"The sandbox sent files in a way that makes no sense: {error}.") from error
    finally:
        os.close(folder)
    return receiver.sentences


class _RefusedError(Exception):
    """An entry that is not written; says why."""


class _Receiver:
    def __init__(self, folder: int, limit: int) -> None:
        self.sentences: list[str] = []
        self._folder = folder
        self._left = limit
        self._unnamed = 0

    def receive(self, reader: TreeReader) -> None:
        for kind, path, mode in reader.records():
            try:
                if kind == SKIPPED:
                    raise _RefusedError(_reason(reader))
                if kind == FILE:
                    self._file(path, mode, reader)
                else:
                    os.close(self._enter(_components(path)))
            except _RefusedError as refused:
                self._leave_out(path, str(refused))
        if self._unnamed:
            self.sentences.append(f"{self._unnamed} more were left out.")

    def _leave_out(self, path: bytes, why: str) -> None:
        if len(self.sentences) < SENTENCES:
            name = os.fsdecode(path)
            self.sentences.append(f"{name if name.isprintable() else ascii(name)} was left out: {why}.")
        else:
            self._unnamed += 1

    def _enter(self, components: list[bytes]) -> int:
        """Open a folder below the target, made if missing."""
        here = os.dup(self._folder)
        for name in components:
            try:
                inner = _open_folder(name, here)
            finally:
                os.close(here)
            here = inner
        return here

    def _file(self, path: bytes, mode: int, reader: TreeReader) -> None:
        try:
            *parents, name = _components(path)
            folder = self._enter(parents)
        except _RefusedError:
            _drain(reader)
            raise
        try:
            self._write(folder, name, mode, reader)
        finally:
            os.close(folder)

    def _write(self, folder: int, name: bytes, mode: int, reader: TreeReader) -> None:
        """Write the file beside its place, then give it its name; a rename does not follow a link."""
        obstacle = _obstacle(name, folder)
        if obstacle:
            _drain(reader)
            raise _RefusedError(obstacle)
        beside = b".llm-sandbox-" + secrets.token_hex(8).encode()
        fd = os.open(beside, _OPEN_NEW, 0o755 if mode & stat.S_IXUSR else 0o644, dir_fd=folder)
        try:
            try:
                complete = self._copy(fd, reader)
            finally:
                os.close(fd)
            if not complete:
                raise _RefusedError("there is no room for it within the limit")
            os.rename(beside, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            os.unlink(beside, dir_fd=folder)
            raise

    def _copy(self, fd: int, reader: TreeReader) -> bool:
        """The content, as far as the limit allows; False when it did not."""
        for data in reader.content():
            self._left -= len(data)
            if self._left >= 0:
                view = memoryview(data)
                while view:
                    view = view[os.write(fd, view) :]
        return self._left >= 0


def _components(path: bytes) -> list[bytes]:
    """The names of a path that stays below where it starts."""
    names = path.split(b"/")
    if len(names) > _MAX_DEPTH:
        raise _RefusedError("it lies too deep")
    for name in names:
        if name in (b"", b".", b"..") or b"\0" in name or len(name) > _MAX_NAME:
            raise _RefusedError("its name leads elsewhere")
    return names


def _open_folder(name: bytes, parent: int) -> int:
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o755, dir_fd=parent)
    try:
        return os.open(name, _OPEN_FOLDER, dir_fd=parent)
    except OSError as error:
        raise _RefusedError("something that is no folder is in its way") from error


def _obstacle(name: bytes, folder: int) -> str:
    """What is in the way of a file, if it may not be replaced."""
    try:
        mode = os.lstat(name, dir_fd=folder).st_mode
    except FileNotFoundError:
        return ""
    if stat.S_ISREG(mode):
        return ""
    return "a link is in its place" if stat.S_ISLNK(mode) else "something that is no file is in its place"


def _drain(reader: TreeReader) -> None:
    for _ in reader.content():
        pass


def _reason(reader: TreeReader) -> str:
    """Why the executor left something out, fit to be shown."""
    text = next(iter(list(reader.content())), b"")[:200].decode("utf-8", "replace")
    return text if text.isprintable() and text else "the sandbox could not read it"
