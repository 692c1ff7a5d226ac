"""Trees of files, into a sandbox and out of it: the records they travel as, what is sent, what is written.

The records are those of `executor/tree_stream.py`, on the host's side. What comes out of a sandbox is hostile:
every name is walked from the target's own descriptor, one component at a time, without following links. So neither
a name, nor an existing link, nor one that appears meanwhile can lead a write elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import posixpath
import secrets
import stat
import struct
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self, cast

from llm_sandbox_nb.errors import LLMSandboxError
from llm_sandbox_nb.own_folder import kind_of
from llm_sandbox_nb.sandbox.contract import TransferKind
from llm_sandbox_nb.sandbox.errors import TransferError
from llm_sandbox_nb.sandbox.protocol.frames import Kind, ProtocolError
from llm_sandbox_nb.windows import FOLDER, NO_LINK, NO_WAIT, NOT_INHERITED

RECORD = struct.Struct(">BHI")
"""Kind, length of the path, mode."""
CHUNK = struct.Struct(">I")
"""Length of a piece of content; 0 ends the content."""
CHUNK_SIZE = 256 * 1024
DIRECTORY, FILE, LINK, SAME, SKIPPED, THE_END = b"DFLHSE"
"""`SAME` is a further name of a file that came before. `LINK` only travels into a sandbox."""


def record(kind: int, path: bytes, mode: int = 0) -> bytes:
    """The header of an entry."""
    return RECORD.pack(kind, len(path), mode) + path


class TreeRecordReader:
    """Reads records from a file that an executor filled; nothing in it is believed."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source

    def _take(self, size: int) -> bytes:
        data = self._source.read(size)
        if len(data) != size:
            raise ProtocolError("a tree of files ended too early")
        return data

    def records(self) -> Iterator[tuple[int, bytes, int]]:
        """Kind, path and mode of each entry. The content of a file must be read before the next entry.

        Raises:
            ProtocolError: there is something else than records.
        """
        while True:
            kind, length, mode = RECORD.unpack(self._take(RECORD.size))
            if kind == THE_END:
                return
            if kind not in (DIRECTORY, FILE, SAME, SKIPPED):
                raise ProtocolError("a tree of files holds something that is none")
            yield kind, self._take(length), mode

    def content(self) -> Iterator[bytes]:
        """The pieces of the current entry.

        Raises:
            ProtocolError: it ends too early, or a piece is too large.
        """
        while True:
            size = CHUNK.unpack(self._take(CHUNK.size))[0]
            if size == 0:
                return
            if size > CHUNK_SIZE:
                raise ProtocolError("a tree of files holds a piece that is too large")
            yield self._take(size)


BATCH = 1024 * 1024


_LONGEST = 3500
"""Bytes of a name below the folder that is uploaded: with the target before it, it must be a path."""
_GIT_FILE_MOST = 4096


@dataclass(frozen=True)
class Planned:
    """One entry to be uploaded, under its name inside. `target`: where a link leads, or a file's first name."""

    kind: int
    name: bytes
    path: Path
    mode: int = 0
    target: bytes = b""


@dataclass
class UploadPlan:
    """What an upload takes, and a sentence for each thing that it leaves out, or that will not work inside."""

    entries: list[Planned] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def names(self) -> list[str]:
        """The names of all that is no folder."""
        return [os.fsdecode(entry.name) for entry in self.entries if entry.kind != DIRECTORY]


def plan_upload(source: Path) -> UploadPlan:
    """Everything that an upload of `source` takes: a file under its own name, or a folder's content.

    Links stay links, wherever they lead. Pipes, sockets and devices are left out.

    Raises:
        FileNotFoundError: `source` is missing.
        TransferError: it is neither a file nor a folder, or something in it cannot be read.
    """
    look = source.stat()
    root = source.resolve()
    if stat.S_ISREG(look.st_mode):
        _check_readable(root)
        return UploadPlan([Planned(FILE, os.fsencode(root.name), root, look.st_mode)])
    if not stat.S_ISDIR(look.st_mode):
        raise TransferError(f"{source} is neither a file nor a folder; upload one of these.")
    plan = UploadPlan()
    seen: dict[tuple[int, int], bytes] = {}
    todo = [(root, b"")]
    while todo:
        folder, prefix = todo.pop()
        inner = []
        for path, name in _children(folder, prefix):
            if len(name) > _LONGEST:
                plan.left_out.append(f"{_printable(name[:100])}... was left out: its path is too long.")
                continue
            look = path.lstat()
            if stat.S_ISDIR(look.st_mode):
                plan.entries.append(Planned(DIRECTORY, name, path, look.st_mode))
                inner.append((path, name + b"/"))
            elif stat.S_ISLNK(look.st_mode):
                plan.entries.append(Planned(LINK, name, path, target=os.fsencode(path.readlink())))
            elif not stat.S_ISREG(look.st_mode):
                plan.left_out.append(f"{_printable(name)} was left out: it is {kind_of(look.st_mode)}.")
            elif look.st_nlink > 1 and (first := seen.setdefault((look.st_dev, look.st_ino), name)) != name:
                plan.entries.append(Planned(SAME, name, path, target=first))
            else:
                _check_readable(path)
                plan.entries.append(Planned(FILE, name, path, look.st_mode))
                if path.name == ".git":
                    plan.left_out += _repository_elsewhere(path, name, root)
        todo += reversed(inner)
    return plan


def _children(folder: Path, prefix: bytes) -> list[tuple[Path, bytes]]:
    try:
        return [(path, prefix + os.fsencode(path.name)) for path in sorted(folder.iterdir())]
    except OSError as error:
        raise _unreadable(folder, error) from error


def _check_readable(path: Path) -> None:
    if not os.access(path, os.R_OK):
        raise _unreadable(path, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))


def _unreadable(path: Path, error: OSError) -> TransferError:
    return TransferError(f"{path} cannot be read ({error.strerror}); make it readable, or leave it out.")


def _repository_elsewhere(path: Path, name: bytes, root: Path) -> list[str]:
    """A sentence where a file `.git` names a repository that does not come along, as in a worktree of git."""
    with path.open("rb") as file:
        first = file.read(_GIT_FILE_MOST).partition(b"\n")[0]
    if not first.startswith(b"gitdir: "):
        return []
    named = Path(os.fsdecode(first.removeprefix(b"gitdir: ")))
    if not named.is_absolute() and (path.parent / named).resolve().is_relative_to(root):
        return []
    return [
        f"{_printable(name)} names a repository that is not in the upload ({_printable(os.fsencode(named))}), so git "
        "does not work there: upload a clone, as `git clone` makes it, instead of a worktree."
    ]


def _stream(plan: UploadPlan) -> Iterator[bytes]:
    for entry in plan.entries:
        yield record(entry.kind, entry.name, stat.S_IMODE(entry.mode))
        if entry.kind == FILE:
            yield from _content(entry.path)
        elif entry.kind != DIRECTORY:
            yield CHUNK.pack(len(entry.target)) + entry.target + CHUNK.pack(0)
    yield record(THE_END, b"")


def _content(path: Path) -> Iterator[bytes]:
    """The content of a file. Raises TransferError, also when it has become something else."""
    try:
        with open(os.open(path, os.O_RDONLY | NO_LINK | NO_WAIT | NOT_INHERITED), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise TransferError(f"{path} became something else than a file; upload it again.")
            while data := file.read(CHUNK_SIZE):
                yield CHUNK.pack(len(data)) + data
    except OSError as error:
        raise _unreadable(path, error) from error
    yield CHUNK.pack(0)


def _batch(pieces: Iterator[bytes]) -> bytes:
    """About a megabyte of the stream, or nothing at its end."""
    taken, size = [], 0
    for piece in pieces:
        taken.append(piece)
        size += len(piece)
        if size >= BATCH:
            break
    return b"".join(taken)


async def tree_of(plan: UploadPlan) -> AsyncIterator[bytes]:
    """The stream of an upload; files are read in a thread."""
    pieces = _stream(plan)
    while batch := await asyncio.to_thread(_batch, pieces):
        yield batch


async def file_pieces(source: BinaryIO) -> AsyncIterator[bytes]:
    """The content of an open file from its beginning, read in a thread."""
    await asyncio.to_thread(source.seek, 0)
    while piece := await asyncio.to_thread(source.read, BATCH):
        yield piece


OVERHEAD = 64 * 1024 * 1024
"""Bytes of names and headers that a download may have beside its content."""
IN_MEMORY = 8 * 1024 * 1024
SENTENCES = 1000
MAX_ENTRIES = 100_000
"""The most files and folders that one download makes."""
_FREE_ENTRIES = 1000
_ENTRY_SIZE = 4096
"""Bytes that a file or folder takes on a disk at least, so that a small limit makes few of them."""
_MAX_DEPTH = 100
_MAX_NAME = 255
_PATH_MOST = 4096
_OPEN_FOLDER = os.O_RDONLY | FOLDER | NO_LINK | NOT_INHERITED
_OPEN_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_LINK | NOT_INHERITED


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


def requested_file(source: str, kind: TransferKind | None) -> bytes | None:
    """The only name that a download of `source` may have; None when it is a folder or may be one."""
    name = posixpath.basename(source)
    if name in ("", ".", "..") or kind == "folder":
        return None
    return os.fsencode(name) if kind == "file" or posixpath.splitext(name)[1] else None


def receive_tree(source: BinaryIO, target: Path, limit: int, only: bytes | None = None) -> list[str]:
    """Write a tree below `target` (made if missing), at most `limit` bytes; a sentence for what was left out.

    With `only`, the tree is one file of this name.

    Raises:
        TransferError: what came is no tree, or not the file `only`.
        OSError: the host's disk.
    """
    target.mkdir(parents=True, exist_ok=True)
    folder = os.open(target, os.O_RDONLY | FOLDER | NOT_INHERITED)
    try:
        receiver = _Receiver(folder, limit)
        if only is not None:
            _check_only(only, TreeRecordReader(source))
            source.seek(0)
        receiver.receive(TreeRecordReader(source))
    except ProtocolError as error:
        raise TransferError(f"The sandbox sent files in an invalid form: {error}.") from error
    finally:
        os.close(folder)
    return receiver.sentences


def _check_only(name: bytes, reader: TreeRecordReader) -> None:
    """Read a tree that must be one file, before anything of it is written."""
    records = reader.records()
    kind, path, _ = next(records, (DIRECTORY, b"", 0))
    if kind != DIRECTORY and path == name:
        _drain(reader)
        if next(records, None) is None:
            return
    raise TransferError(
        f"The sandbox sent something else than the file {_printable(name)}; nothing was written. "
        "If it is a folder, write a slash after its name."
    )


class _RefusedError(LLMSandboxError):
    """An entry that is not written; says why."""


class _Receiver:
    def __init__(self, folder: int, limit: int) -> None:
        self.sentences: list[str] = []
        self._folder = folder
        self._left = limit
        self._entries_left = min(MAX_ENTRIES, _FREE_ENTRIES + limit // _ENTRY_SIZE)
        self._unnamed = 0
        self._written: dict[bytes, tuple[int, int]] = {}
        """The files of this transfer by their paths: device and inode."""

    def receive(self, reader: TreeRecordReader) -> None:
        for kind, path, mode in reader.records():
            try:
                if kind == SKIPPED:
                    raise _RefusedError(_reason(reader))
                if kind == FILE:
                    self._file(path, mode, reader)
                elif kind == SAME:
                    self._further_name(path, _short(reader))
                else:
                    os.close(self._enter(_components(path)))
            except _RefusedError as refused:
                if len(self.sentences) < SENTENCES:
                    self.sentences.append(f"{_printable(path)} was left out: {refused}.")
                else:
                    self._unnamed += 1
        if self._unnamed:
            self.sentences.append(f"{self._unnamed} more were left out.")

    def _enter(self, components: list[bytes]) -> int:
        """Open a folder below the target, made if missing."""
        here = os.dup(self._folder)
        for name in components:
            try:
                inner = self._open_folder(name, here)
            finally:
                os.close(here)
            here = inner
        return here

    def _open_folder(self, name: bytes, parent: int) -> int:
        try:
            return os.open(name, _OPEN_FOLDER, dir_fd=parent)
        except FileNotFoundError:
            self._count_entry()
        except OSError as error:
            raise _RefusedError("something that is no folder is in its way") from error
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o755, dir_fd=parent)
        return os.open(name, _OPEN_FOLDER, dir_fd=parent)

    def _count_entry(self) -> None:
        """Files and folders take room even when they are empty."""
        if self._entries_left <= 0:
            raise _RefusedError("there is no room for more files and folders within the limit")
        self._entries_left -= 1

    def _file(self, path: bytes, mode: int, reader: TreeRecordReader) -> None:
        try:
            *parents, name = _components(path)
            folder = self._enter(parents)
        except _RefusedError:
            _drain(reader)
            raise
        try:
            self._written[path] = self._write(folder, name, mode, reader)
        finally:
            os.close(folder)

    def _further_name(self, path: bytes, first: bytes) -> None:
        """Give a file of this very transfer one more name; it takes room once. No other file can be meant."""
        written = self._written.get(first)
        if written is None:
            raise _RefusedError("it is said to be a file that did not come")
        *parents, name = _components(path)
        *first_parents, first_name = _components(first)
        folder = self._enter(parents)
        try:
            _refuse_obstacle(name, folder)
            self._count_entry()
            source = self._enter(first_parents)
            try:
                _link(source, first_name, folder, name, written)
            finally:
                os.close(source)
        finally:
            os.close(folder)
        self._written[path] = written

    def _write(self, folder: int, name: bytes, mode: int, reader: TreeRecordReader) -> tuple[int, int]:
        """Write the file beside its place, then give it its name; a rename does not follow a link.

        Returns its device and inode.
        """
        try:
            _refuse_obstacle(name, folder)
            self._count_entry()
        except _RefusedError:
            _drain(reader)
            raise
        beside = b".llm-sandbox-" + secrets.token_hex(8).encode()
        fd = os.open(beside, _OPEN_NEW, 0o755 if mode & stat.S_IXUSR else 0o644, dir_fd=folder)
        try:
            try:
                complete = self._copy(fd, reader)
                info = os.fstat(fd)
            finally:
                os.close(fd)
            if not complete:
                raise _RefusedError("there is no room for it within the limit")
            os.rename(beside, name, src_dir_fd=folder, dst_dir_fd=folder)
            return info.st_dev, info.st_ino
        except BaseException:
            os.unlink(beside, dir_fd=folder)
            raise

    def _copy(self, fd: int, reader: TreeRecordReader) -> bool:
        """The content, as far as the limit allows; False when it did not."""
        for data in reader.content():
            self._left -= len(data)
            if self._left >= 0:
                view = memoryview(data)
                while view:
                    view = view[os.write(fd, view) :]
        return self._left >= 0


def _link(source: int, first: bytes, folder: int, name: bytes, expected: tuple[int, int]) -> None:
    """Link a file to a further name, if it is still the `expected` one."""
    beside = b".llm-sandbox-" + secrets.token_hex(8).encode()
    try:
        os.link(first, beside, src_dir_fd=source, dst_dir_fd=folder, follow_symlinks=False)
        info = os.lstat(beside, dir_fd=folder)
        if (info.st_dev, info.st_ino) != expected:
            raise _RefusedError("the file that it names was replaced meanwhile")
        os.rename(beside, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError as error:
        raise _RefusedError(f"no second name can be given to a file here ({error.strerror})") from error
    finally:
        with contextlib.suppress(FileNotFoundError):  # a rename to a name of the same file leaves both
            os.unlink(beside, dir_fd=folder)


def _short(reader: TreeRecordReader) -> bytes:
    """The content of an entry that is short: a path."""
    found = b""
    for piece in reader.content():
        found = (found + piece)[:_PATH_MOST]
    return found


def _components(path: bytes) -> list[bytes]:
    """The names of a path that stays below where it starts."""
    names = path.split(b"/")
    if len(names) > _MAX_DEPTH:
        raise _RefusedError("it lies too deep")
    for name in names:
        if name in (b"", b".", b"..") or b"\0" in name or len(name) > _MAX_NAME:
            raise _RefusedError("its name leads elsewhere")
    return names


def _refuse_obstacle(name: bytes, folder: int) -> None:
    """Refuse a file when something that it may not replace is in its place."""
    try:
        mode = os.lstat(name, dir_fd=folder).st_mode
    except FileNotFoundError:
        return
    if stat.S_ISLNK(mode):
        raise _RefusedError("a link is in its place")
    if not stat.S_ISREG(mode):
        raise _RefusedError("something that is no file is in its place")


def _printable(path: bytes) -> str:
    name = os.fsdecode(path)
    return name if name.isprintable() else ascii(name)


def _drain(reader: TreeRecordReader) -> None:
    for _ in reader.content():
        pass


def _reason(reader: TreeRecordReader) -> str:
    """Why the executor left something out, fit to be shown."""
    text = next(iter(list(reader.content())), b"")[:200].decode("utf-8", "replace")
    return text if text.isprintable() and text else "the sandbox could not read it"
