"""Uploads and downloads of file trees.

A tree is sent as a stream of entries. Each entry has a header, and most kinds of entries also have content.
`executor/tree_stream.py` implements the same format for the other side.

A downloaded stream may be hostile. So every path is opened component by component, beginning at the descriptor of the
target, and without following links. Thus a name or a link cannot direct a write out of the target, even if the link
appears during the download.
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
"""Header of an entry: kind, length of the path in bytes, mode. The path follows."""
CHUNK = struct.Struct(">I")
"""Header of a piece of content: the length of the piece in bytes. The length 0 ends the content."""
CHUNK_SIZE = 256 * 1024
DIRECTORY, FILE, LINK, SAME, SKIPPED, THE_END = b"DFLHSE"
"""Kinds of entries. `SAME` is a hard link: another name of a file that came earlier in the stream. `LINK` is a symbolic
link; only uploads have links. `SKIPPED` is an entry that was left out; its content is the reason. `THE_END` ends the
stream."""
NAME_TAKEN = "a file with this name is already there"


def record(kind: int, path: bytes, mode: int = 0) -> bytes:
    """Return the beginning of an entry: its header and its path."""
    return RECORD.pack(kind, len(path), mode) + path


class TreeRecordReader:
    """Reader of the entries in `source`, a file with a tree from an executor. The tree may be hostile."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source

    def _take(self, size: int) -> bytes:
        data = self._source.read(size)
        if len(data) != size:
            raise ProtocolError("a tree of files ended too early")
        return data

    def records(self) -> Iterator[tuple[int, bytes, int]]:
        """Yield kind, path and mode of each entry. The caller must read an entry's content before the next entry.

        Raises:
            ProtocolError: if the file contains anything but valid entries.
        """
        while True:
            kind, length, mode = RECORD.unpack(self._take(RECORD.size))
            if kind == THE_END:
                return
            if kind not in (DIRECTORY, FILE, SAME, SKIPPED):
                raise ProtocolError("a tree of files contains an entry of an unknown kind")
            yield kind, self._take(length), mode

    def content(self) -> Iterator[bytes]:
        """Yield the pieces of the current entry's content.

        Raises:
            ProtocolError: if the content ends too early, or a piece is too large.
        """
        while True:
            size = CHUNK.unpack(self._take(CHUNK.size))[0]
            if size == 0:
                return
            if size > CHUNK_SIZE:
                raise ProtocolError("a tree of files contains a piece that is too large")
            yield self._take(size)


BATCH_BYTES = 1024 * 1024
_MAX_UPLOAD_NAME_BYTES = 3500
"""Maximum bytes of a path relative to the uploaded folder. Linux allows 4096 bytes for the absolute path in the
sandbox, which is longer by the target's path."""
_GIT_FILE_BYTES = 4096
"""Maximum bytes that are read from a file `.git`. In a git worktree, this file names the folder of the repository."""


@dataclass(frozen=True)
class Planned:
    """An entry of an upload."""

    kind: int
    name: bytes
    """Path relative to the target folder."""
    path: Path
    """Path on this machine."""
    mode: int = 0
    target: bytes = b""
    """Target of a symbolic link (`LINK`), or `name` of the file to which a hard link (`SAME`) belongs."""


@dataclass
class UploadPlan:
    """The entries of an upload.

    `left_out` has a sentence for each entry that is left out, or that will not work in the sandbox.
    """

    entries: list[Planned] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def names(self) -> list[str]:
        """Return the names of all entries that are not folders."""
        return [os.fsdecode(entry.name) for entry in self.entries if entry.kind != DIRECTORY]


def plan_upload(source: Path) -> UploadPlan:
    """List the entries of an upload. `source` is a single file, or a folder whose content is uploaded.

    Symbolic links in a folder stay links, wherever they lead. Pipes, sockets and devices are left out. If `source`
    itself is a link to a file, that file is uploaded with the name of the link.

    Raises:
        FileNotFoundError: if `source` is missing.
        TransferError: if `source` is neither a file nor a folder, or an entry cannot be read.
    """
    info = source.stat()
    root = source.resolve()
    if stat.S_ISREG(info.st_mode):
        _check_readable(root)
        return UploadPlan([Planned(FILE, os.fsencode(source.name), root, info.st_mode)])
    if not stat.S_ISDIR(info.st_mode):
        raise TransferError(f"{source} is neither a file nor a folder; upload one of these.")
    plan = UploadPlan()
    first_names: dict[tuple[int, int], bytes] = {}
    todo = [(root, b"")]
    while todo:
        folder, prefix = todo.pop()
        inner = []
        for path, name in _children(folder, prefix):
            if len(name) > _MAX_UPLOAD_NAME_BYTES:
                plan.left_out.append(f"{_printable(name[:100])}... was left out: its path is too long.")
                continue
            info = path.lstat()
            if stat.S_ISDIR(info.st_mode):
                plan.entries.append(Planned(DIRECTORY, name, path, info.st_mode))
                inner.append((path, name + b"/"))
            elif stat.S_ISLNK(info.st_mode):
                plan.entries.append(Planned(LINK, name, path, target=os.fsencode(path.readlink())))
            elif not stat.S_ISREG(info.st_mode):
                plan.left_out.append(f"{_printable(name)} was left out: it is {kind_of(info.st_mode)}.")
            elif info.st_nlink > 1 and (
                (first := first_names.setdefault((info.st_dev, info.st_ino), name)) != name
            ):
                plan.entries.append(Planned(SAME, name, path, target=first))
            else:
                _check_readable(path)
                plan.entries.append(Planned(FILE, name, path, info.st_mode))
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
    """Return a list with one sentence if a file `.git` names a repository outside of the upload. Otherwise empty."""
    with path.open("rb") as file:
        first = file.read(_GIT_FILE_BYTES).partition(b"\n")[0]
    if not first.startswith(b"gitdir: "):
        return []
    named = Path(os.fsdecode(first.removeprefix(b"gitdir: ")))
    if (
        b"\0" not in first
        and not named.is_absolute()
        and (path.parent / named).resolve().is_relative_to(root)
    ):
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
    """Yield the content of a file in the format of the stream. Raises TransferError if the file cannot be read."""
    try:
        with open(os.open(path, os.O_RDONLY | NO_LINK | NO_WAIT | NOT_INHERITED), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise TransferError(f"{path} is not a file any more; upload it again.")
            while data := file.read(CHUNK_SIZE):
                yield CHUNK.pack(len(data)) + data
    except OSError as error:
        raise _unreadable(path, error) from error
    yield CHUNK.pack(0)


def _batch(pieces: Iterator[bytes]) -> bytes:
    """Take pieces until they have about a megabyte, and join them. Return `b""` if no piece is left."""
    batch, size = [], 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece)
        if size >= BATCH_BYTES:
            break
    return b"".join(batch)


async def tree_of(plan: UploadPlan) -> AsyncIterator[bytes]:
    """Yield the stream of an upload. A thread reads the files."""
    pieces = _stream(plan)
    while batch := await asyncio.to_thread(_batch, pieces):
        yield batch


async def file_pieces(source: BinaryIO) -> AsyncIterator[bytes]:
    """Yield the content of an open file from its beginning. A thread reads the file."""
    await asyncio.to_thread(source.seek, 0)
    while piece := await asyncio.to_thread(source.read, BATCH_BYTES):
        yield piece


MAX_OVERHEAD_BYTES = 64 * 1024 * 1024
"""Maximum bytes of a download that are names and headers, in addition to the limit on content."""
MAX_BYTES_IN_MEMORY = 8 * 1024 * 1024
MAX_SENTENCES = 1000
MAX_ENTRIES = 100_000
"""Maximum number of files and folders that a download makes."""
MAX_RECORDS = 10 * MAX_ENTRIES
"""Maximum number of entries that a download reads. A hostile sandbox could send entries for hours."""
_FREE_ENTRIES = 1000
_BYTES_PER_ENTRY = 4096
"""Bytes that even an empty file or folder takes on a disk. A download may make `_FREE_ENTRIES` files and folders, and
one more for each `_BYTES_PER_ENTRY` bytes of its limit."""
_MAX_DEPTH = 100
_MAX_NAME_BYTES = 255
_MAX_PATH_BYTES = 4096
_OPEN_FOLDER = os.O_RDONLY | FOLDER | NO_LINK | NOT_INHERITED
_OPEN_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_LINK | NOT_INHERITED


class Spool:
    """A temporary file that collects a download until it is complete. A small download stays in memory."""

    def __init__(self, limit: int) -> None:
        self._left = limit + limit // 1024 + MAX_OVERHEAD_BYTES
        self._file = tempfile.SpooledTemporaryFile(MAX_BYTES_IN_MEMORY)  # noqa: SIM115 - closed by __exit__

    def take(self, kind: int, payload: bytes) -> None:
        """Add the payload of a frame to the file.

        Raises:
            ProtocolError: if the sandbox has sent more bytes than it may, or a frame of a kind other than STDOUT.
        """
        self._left -= len(payload)
        if kind != Kind.STDOUT or self._left < 0:
            raise ProtocolError("it sent more files than it may")
        self._file.write(payload)

    def content(self) -> BinaryIO:
        """Return the file, positioned at its beginning."""
        self._file.seek(0)
        return cast(BinaryIO, self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def requested_file(source: str, kind: TransferKind | None) -> bytes | None:
    """Return the name of the only file that a download of `source` may contain. None if `source` may be a folder.

    `Sandbox.download` describes `kind`.
    """
    name = posixpath.basename(source)
    if name in ("", ".", "..") or kind == "folder":
        return None
    return os.fsencode(name) if kind == "file" or posixpath.splitext(name)[1] else None


def receive_tree(
    source: BinaryIO, target: Path, limit: int, only: bytes | None = None, *, replace: bool = True
) -> list[str]:
    """Write the files and folders of a downloaded tree.

    Args:
        source: file with the entries of the tree.
        target: the folder, made if missing.
        limit: maximum bytes of content.
        only: if given, the tree must be a single file with this name.
        replace: True to replace existing files; False to leave out files whose names exist in `target`.

    Returns:
        A sentence for each entry that was left out.

    Raises:
        TransferError: if the entries are invalid, or if there is an entry other than the file `only`.
        OSError: if the files cannot be written.
    """
    target.mkdir(parents=True, exist_ok=True)
    folder = os.open(target, os.O_RDONLY | FOLDER | NOT_INHERITED)
    try:
        receiver = _Receiver(folder, limit, replace)
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
    """Raise TransferError if a tree is not a single file with this name. Write nothing."""
    records = reader.records()
    kind, path, _ = next(records, (DIRECTORY, b"", 0))
    if kind != DIRECTORY and path == name:
        _drain(reader)
        if next(records, None) is None:
            return
    raise TransferError(
        f"The sandbox sent something other than the file {_printable(name)}; nothing was written. "
        "If it is a folder, write a slash after its name."
    )


class _RefusedError(LLMSandboxError):
    """Refusal to write an entry. The message is the reason, as the end of a sentence."""


class _Receiver:
    def __init__(self, folder: int, limit: int, replace: bool) -> None:
        self.sentences: list[str] = []
        self._folder = folder
        self._left = limit
        self._replace = replace
        self._entries_left = min(MAX_ENTRIES, _FREE_ENTRIES + limit // _BYTES_PER_ENTRY)
        self._unnamed = 0
        self._written: dict[bytes, tuple[int, int]] = {}
        """Device and inode of each file that this transfer has written, by path."""

    def receive(self, reader: TreeRecordReader) -> None:
        for number, (kind, path, mode) in enumerate(reader.records()):
            if number == MAX_RECORDS:
                self.sentences.append("All further entries were left out.")
                break
            try:
                if kind == SKIPPED:
                    raise _RefusedError(_reason(reader))
                if kind == FILE:
                    self._file(path, mode, reader)
                elif kind == SAME:
                    self._further_name(path, _read_path(reader))
                else:
                    self._make_folder(_components(path))
            except _RefusedError as refused:
                if len(self.sentences) < MAX_SENTENCES:
                    self.sentences.append(f"{_printable(path)} was left out: {refused}.")
                else:
                    self._unnamed += 1
        if self._unnamed:
            self.sentences.append(f"{self._unnamed} more entries were left out.")

    def _make_folder(self, components: list[bytes]) -> None:
        """Make a folder. Count the entry even if the folder exists, because a stream may repeat an entry endlessly."""
        left = self._entries_left
        self._check_room()
        os.close(self._enter(components))
        self._entries_left = min(self._entries_left, left - 1)

    def _enter(self, components: list[bytes]) -> int:
        """Open a folder below the target. Make all missing folders of the path."""
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
            raise _RefusedError("something other than a folder is in its way") from error
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o755, dir_fd=parent)
        return os.open(name, _OPEN_FOLDER, dir_fd=parent)

    def _check_room(self) -> None:
        # Empty files and folders occupy disk space too, but the limit in bytes does not count them.
        if self._entries_left <= 0:
            raise _RefusedError("there is no room for more files and folders within the limit")

    def _count_entry(self) -> None:
        self._check_room()
        self._entries_left -= 1

    def _file(self, path: bytes, mode: int, reader: TreeRecordReader) -> None:
        try:
            *parents, name = _components(path)
            self._check_room()
            folder = self._enter(parents)
        except _RefusedError:
            _drain(reader)
            raise
        try:
            self._written[path] = self._write(folder, name, mode, reader)
        finally:
            os.close(folder)

    def _further_name(self, path: bytes, first: bytes) -> None:
        """Create `path` as a hard link to the file `first`, which this download must have written."""
        written = self._written.get(first)
        if written is None:
            raise _RefusedError("it is a second name of a file that was not sent")
        *parents, name = _components(path)
        self._check_room()
        *first_parents, first_name = _components(first)
        folder = self._enter(parents)
        try:
            self._refuse_obstacle(name, folder)
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
        """Write a file under a temporary name, then rename the file to `name`. A rename follows no link.

        Return the file's device and inode.
        """
        try:
            self._refuse_obstacle(name, folder)
            self._count_entry()
        except _RefusedError:
            _drain(reader)
            raise
        temporary = _temporary_name()
        fd = os.open(temporary, _OPEN_NEW, 0o755 if mode & stat.S_IXUSR else 0o644, dir_fd=folder)
        try:
            try:
                complete = self._copy(fd, reader)
                info = os.fstat(fd)
            finally:
                os.close(fd)
            if not complete:
                raise _RefusedError("there is no room for it within the limit")
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            return info.st_dev, info.st_ino
        except BaseException:
            os.unlink(temporary, dir_fd=folder)
            raise

    def _refuse_obstacle(self, name: bytes, folder: int) -> None:
        """Raise _RefusedError if `name` exists and is not a file, or is a file that must not be replaced."""
        try:
            mode = os.lstat(name, dir_fd=folder).st_mode
        except FileNotFoundError:
            return
        if stat.S_ISLNK(mode):
            raise _RefusedError("a link is in its place")
        if not stat.S_ISREG(mode):
            raise _RefusedError("something other than a file is in its place")
        if not self._replace:
            raise _RefusedError(NAME_TAKEN)

    def _copy(self, fd: int, reader: TreeRecordReader) -> bool:
        """Write the content. Return False if the content exceeds the limit; the rest is then read but not written."""
        for data in reader.content():
            self._left -= len(data)
            if self._left >= 0:
                view = memoryview(data)
                while view:
                    view = view[os.write(fd, view) :]
        return self._left >= 0


def _link(source: int, first: bytes, folder: int, name: bytes, expected: tuple[int, int]) -> None:
    """Make `name` in `folder` a hard link to the file `first` in the folder `source`.

    Raise _RefusedError if the file no longer has the `expected` device and inode.
    """
    temporary = _temporary_name()
    try:
        os.link(first, temporary, src_dir_fd=source, dst_dir_fd=folder, follow_symlinks=False)
        info = os.lstat(temporary, dir_fd=folder)
        if (info.st_dev, info.st_ino) != expected:
            raise _RefusedError("the file that it names was replaced meanwhile")
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError as error:
        raise _RefusedError(f"a file cannot have a second name here ({error.strerror})") from error
    finally:
        # The temporary name still exists if linking failed, or if `name` already was a name of the same file.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=folder)


def _temporary_name() -> bytes:
    return b".llm-sandbox-" + secrets.token_hex(8).encode()


def _read_path(reader: TreeRecordReader) -> bytes:
    path = b""
    for piece in reader.content():
        path = (path + piece)[:_MAX_PATH_BYTES]
    return path


def _components(path: bytes) -> list[bytes]:
    """Split a path into names. Raise _RefusedError if a name is invalid, e.g. `..`, or the path is too deep."""
    names = path.split(b"/")
    if len(names) > _MAX_DEPTH:
        raise _RefusedError("it lies too deep")
    for name in names:
        if name in (b"", b".", b"..") or b"\0" in name or len(name) > _MAX_NAME_BYTES:
            raise _RefusedError("its path has an invalid name")
    return names


def _printable(path: bytes) -> str:
    name = os.fsdecode(path)
    return name if name.isprintable() else ascii(name)


def _drain(reader: TreeRecordReader) -> None:
    for _ in reader.content():
        pass


def _reason(reader: TreeRecordReader) -> str:
    """Return the executor's reason why it left an entry out. If that text is not printable, return a general reason."""
    pieces = reader.content()
    text = next(pieces, b"")[:200].decode("utf-8", "replace")
    for _ in pieces:
        pass
    return text if text.isprintable() and text else "the sandbox could not read it"
