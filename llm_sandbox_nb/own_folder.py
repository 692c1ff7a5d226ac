"""Reading, writing and removal of files below one folder, without ever following a link.

A run folder from another person may contain links, pipes and devices in any place. Below the folder, each part of a
path is therefore opened relative to its parent folder, without following links. Only regular files are opened. Windows
cannot open a file relative to a folder: there, every part of the path is checked before the file is opened. The path of
the folder itself may contain links, because the user chose this path.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path, PurePath
from typing import IO

from llm_sandbox_nb.errors import LLMSandboxError

_OPENS_RELATIVE = {os.open, os.mkdir, os.unlink, os.rename} <= os.supports_dir_fd
_FOLDER_FLAGS = (
    os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
)
_NO_LINK_NO_WAIT = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
"""Flags with which `os.open` neither follows a link nor waits for the other end of a pipe."""
_BINARY = getattr(os, "O_BINARY", 0)
MAX_DEPTH = 64
"""Maximum nesting depth of the folders that are searched."""
MAX_NAMES = 100_000
"""Maximum number of paths that `file_names` yields."""


class NotOwnFileError(LLMSandboxError, OSError):
    """Error for a link, a path that leads out of its folder, an entry of the wrong kind or a file that is too large."""


def expanded(path: str | Path) -> Path:
    """Return the path with the home folder in place of `~` or `~user`.

    A path such as `~$a.xlsx`, in which no user follows the `~`, is returned unchanged.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def open_file(folder: Path, name: str | PurePath, flags: int = os.O_RDONLY, mode: int = 0o666) -> int:
    """Open the regular file `name` below `folder`, and return its descriptor.

    Raises:
        FileNotFoundError: if the file is missing.
        NotOwnFileError: if `name` is not a regular file below `folder`.
    """
    parts = _parts(name)
    with _opened(folder, parts[:-1]) as (parent, path):
        return _open_regular(parent, path, parts[-1], flags, mode)


def read_file(folder: Path, name: str | PurePath, most: int) -> bytes:
    """Read the regular file `name` below `folder`.

    Raises:
        FileNotFoundError: if the file is missing.
        NotOwnFileError: if `name` is not a regular file below `folder`, or the file has more than `most` bytes.
    """
    with os.fdopen(open_file(folder, name), "rb") as file:
        if os.fstat(file.fileno()).st_size > most:
            raise NotOwnFileError(f"{PurePath(name)} is larger than {most} bytes")
        return file.read(most)


def is_file(folder: Path, name: str | PurePath) -> bool:
    """Return True if `name` is a regular file below `folder` that can be opened without following a link."""
    try:
        os.close(open_file(folder, name))
    except OSError:
        return False
    return True


def write_file(folder: Path, name: str | PurePath, data: bytes) -> None:
    """Write the file `name` below `folder` atomically, and make missing folders.

    Raises:
        NotOwnFileError: if a parent of the file is not a folder.
        OSError: if the file cannot be written; no partial file is left.
    """
    with _replaced(folder, _parts(name), 0o666) as file:
        file.write(data)


@contextlib.contextmanager
def _replaced(folder: Path, parts: tuple[str, ...], mode: int) -> Iterator[IO[bytes]]:
    """Yield a new file for writing. At the end of the `with` block, the new file replaces the file at `parts`."""
    partial = f".{parts[-1]}.{secrets.token_hex(4)}.partial"
    with _opened(folder, parts[:-1], make=True) as (parent, path):
        descriptor = _open_regular(parent, path, partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
            if parent is None:
                (path / partial).replace(path / parts[-1])
            else:
                os.rename(partial, parts[-1], src_dir_fd=parent, dst_dir_fd=parent)
        except OSError:
            with contextlib.suppress(OSError):
                _unlink(parent, path, partial)
            raise


def unshare_file(folder: Path, name: str | PurePath) -> None:
    """Replace a file that has several hard links by a copy, so that later writes do not change the other links.

    Raises:
        NotOwnFileError: if `name` is not a regular file below `folder`.
        OSError: if the copy cannot be written. The file is then unchanged.
    """
    parts = _parts(name)
    try:
        descriptor = open_file(folder, name)
    except FileNotFoundError:
        return
    with os.fdopen(descriptor, "rb") as file:
        info = os.fstat(descriptor)
        if info.st_nlink < 2:
            return
        with _replaced(folder, parts, stat.S_IMODE(info.st_mode)) as copy:
            shutil.copyfileobj(file, copy)


def remove_file(folder: Path, name: str | PurePath) -> None:
    """Remove the file or the link `name` below `folder`, never the target of a link.

    Raises:
        FileNotFoundError: if the file is missing.
        NotOwnFileError: if a parent of the file is not a folder.
    """
    parts = _parts(name)
    with _opened(folder, parts[:-1]) as (parent, path):
        _unlink(parent, path, parts[-1])


def open_folder(folder: Path, name: str | PurePath, *, make: bool = False) -> int:
    """Open the folder `name` below `folder`, and return its descriptor. Windows cannot do this.

    Raises:
        FileNotFoundError: if the folder is missing, and `make` is false.
        NotOwnFileError: if `name` is not a folder below `folder`.
    """
    with _opened(folder, _parts(name), make=make) as (descriptor, _):
        assert descriptor is not None
        return os.dup(descriptor)


def check_folder(folder: Path) -> None:
    """Raise NotOwnFileError unless `folder` is a folder and not a link."""
    info = folder.lstat()
    if not stat.S_ISDIR(info.st_mode):
        raise NotOwnFileError(f"{folder} is {kind_of(info.st_mode)} instead of a folder")


def file_names(folder: Path) -> Iterator[str]:
    """Yield the relative paths of the regular files below a folder. Yield nothing if the folder is itself a link."""
    try:
        check_folder(folder)
    except OSError:
        return
    names = (
        str(inner / entry.name) for inner, entry in _entries(folder) if entry.is_file(follow_symlinks=False)
    )
    yield from islice(names, MAX_NAMES)


def names_below(folder: Path, wanted: Callable[[str], bool]) -> Iterator[Path]:
    """Yield the paths below `folder` whose last part `wanted` accepts. Links and pipes are included, but no folders."""
    for inner, entry in _entries(folder):
        if wanted(entry.name):
            yield folder / inner / entry.name


def status_below(folder: Path) -> Iterator[os.stat_result]:
    """Yield the status (size, times, kind) of each file, folder and link below a folder. Links are not followed."""
    for _, entry in _entries(folder, folders=True):
        with contextlib.suppress(OSError):
            yield entry.stat(follow_symlinks=False)


def _entries(folder: Path, *, folders: bool = False) -> Iterator[tuple[PurePath, os.DirEntry[str]]]:
    """Yield each entry below `folder` with the relative path of its parent folder. Links are not followed.

    Entries that are folders are yielded only if `folders` is True.
    """
    todo = [(PurePath(), 0)]
    while todo:
        inner, depth = todo.pop()
        try:
            with os.scandir(folder / inner) as entries:
                here = list(entries)
        except OSError:
            continue
        for entry in here:
            is_folder = entry.is_dir(follow_symlinks=False)
            if is_folder and depth < MAX_DEPTH:
                todo.append((inner / entry.name, depth + 1))
            if folders or not is_folder:
                yield inner, entry


def _parts(name: str | PurePath) -> tuple[str, ...]:
    text = os.fspath(name)
    parts = PurePath(os.path.normpath(text)).parts
    if PurePath(text).is_absolute() or not parts or os.pardir in parts or "\0" in text:
        raise NotOwnFileError(f"{text!r} is not a path of a file below its folder")
    return parts


@contextlib.contextmanager
def _opened(folder: Path, parts: tuple[str, ...], *, make: bool = False) -> Iterator[tuple[int | None, Path]]:
    """Yield the descriptor and the path of the folder `parts` below `folder`. On Windows the descriptor is None."""
    if not _OPENS_RELATIVE:
        yield None, _checked_folder(folder, parts, make=make)
        return
    here = os.open(folder, _FOLDER_FLAGS)
    try:
        for count, part in enumerate(parts, 1):
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, dir_fd=here)
            try:
                inner = os.open(part, _FOLDER_FLAGS | _NO_LINK_NO_WAIT, dir_fd=here)
            except FileNotFoundError:
                raise
            except OSError as error:
                raise _kind_error(error, folder.joinpath(*parts[:count]), "folder") from None
            os.close(here)
            here = inner
        yield here, folder.joinpath(*parts)
    finally:
        os.close(here)


def _checked_folder(folder: Path, parts: tuple[str, ...], *, make: bool) -> Path:
    path = folder
    for part in parts:
        path = path / part
        if make:
            path.mkdir(exist_ok=True)
        check_folder(path)
    return path


def _open_regular(parent: int | None, path: Path, name: str, flags: int, mode: int) -> int:
    place = path / name
    if parent is None and place.is_symlink():
        raise NotOwnFileError(f"{place} is a link instead of a file")
    try:
        descriptor = os.open(
            place if parent is None else name, flags | _NO_LINK_NO_WAIT | _BINARY, mode, dir_fd=parent
        )
    except (FileNotFoundError, FileExistsError):
        raise
    except OSError as error:
        raise _kind_error(error, place, "file") from None
    kind = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(kind):
        os.close(descriptor)
        raise NotOwnFileError(f"{place} is {kind_of(kind)} instead of a file")
    return descriptor


def _unlink(parent: int | None, path: Path, name: str) -> None:
    os.unlink(path / name if parent is None else name, dir_fd=parent)


def _kind_error(error: OSError, path: Path, wanted: str) -> OSError:
    """Return a NotOwnFileError if the entry at `path` is not of the `wanted` kind. Otherwise return `error`."""
    with contextlib.suppress(OSError):
        kind = path.lstat().st_mode
        if not (stat.S_ISREG(kind) if wanted == "file" else stat.S_ISDIR(kind)):
            return NotOwnFileError(f"{path} is {kind_of(kind)} instead of a {wanted}")
    return error


def kind_of(mode: int) -> str:
    """Return the kind of a directory entry with its article, such as `a link` or `a device`."""
    kinds = {
        stat.S_IFLNK: "a link", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder",
        stat.S_IFREG: "a file",
    }  # fmt: skip
    return kinds.get(stat.S_IFMT(mode), "a device")
