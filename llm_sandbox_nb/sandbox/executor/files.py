"""Operations that read, write and list files.

They open only regular files and folders, so they never wait for a device or a FIFO, and never touch a device.
"""

from __future__ import annotations

import errno
import os
import stat
import time

from .frames import bytes_to_text, text_to_bytes, write_all
from .light import dump

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

CHUNK_SIZE = 256 * 1024  # bytes
MAX_LISTING_BYTES = 64 * 1024 * 1024  # the host accepts no longer listing, so further entries are left out
OPEN_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
OPEN_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
KINDS = ((stat.S_ISREG, "file"), (stat.S_ISDIR, "directory"), (stat.S_ISLNK, "link"))


def fail(number: int, path: bytes) -> OSError:
    """Return an OSError with an error number, its usual message, and a path."""
    return OSError(number, os.strerror(number), path)


def open_regular(path: bytes) -> int:
    """Open a regular file for reading.

    Raises:
        IsADirectoryError: if the path is a directory.
        PermissionError: if the path is a device, FIFO or socket, or access is denied.
        FileNotFoundError, OSError: as for `open`.
    """
    check_regular(path, os.stat(path))
    fd = os.open(path, OPEN_READ)
    try:
        check_regular(path, os.fstat(fd))
    except OSError:
        os.close(fd)
        raise
    return fd


def check_regular(path: bytes, info: os.stat_result) -> None:
    """Raise OSError for anything but a regular file."""
    if not stat.S_ISREG(info.st_mode):
        raise fail(errno.EISDIR if stat.S_ISDIR(info.st_mode) else errno.EPERM, path)


def read(params: dict[str, Any]) -> dict[str, Any]:
    """Write the content of a regular file to fd 1. Refuse a file that has more than `limit` bytes."""
    path = text_to_bytes(params["path"])
    limit = params["limit"]
    fd = open_regular(path)
    if limit is not None and os.fstat(fd).st_size > limit:
        return {"error": {"kind": "limit"}}
    total = 0
    while True:
        data = os.read(fd, CHUNK_SIZE)
        total += len(data)
        if not data:
            return {}
        if limit is not None and total > limit:
            return {"error": {"kind": "limit"}}
        write_all(1, data)


def body_into(fd: int) -> None:
    """Copy the request's body into a file."""
    while True:
        data = os.read(0, CHUNK_SIZE)
        if not data:
            return
        write_all(fd, data)


def body_complete(params: dict[str, Any], fd: int) -> bool:
    """Return True if the file `fd` has the whole body. If the host dies, the body ends too early."""
    return bool(os.lseek(fd, 0, os.SEEK_END) == params["size"])


def write(params: dict[str, Any]) -> dict[str, Any]:
    """Write the body into a file. An incomplete body changes no file.

    Write a new file in the same folder, with the mode and owner of the old file, and rename the new file to the target.
    But overwrite the target in place if it cannot be replaced: if it has other names (hard links), belongs to another
    user, or is a mount, or if new files in its folder are forbidden.
    """
    path = text_to_bytes(params["path"])
    if path.endswith(b"/"):
        raise fail(errno.EISDIR, path)
    if params["exclusive"] and os.path.lexists(path):
        raise fail(errno.EEXIST, path)
    target = os.path.realpath(path)
    if os.path.islink(target):
        raise fail(errno.ELOOP, path)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    try:
        old = os.stat(target)
    except FileNotFoundError:
        old = None
    if old is not None:
        check_replaceable(target, old)
    if (old is None or old.st_nlink == 1) and write_beside(params, target, old):
        return {}
    write_in_place(params, target)
    return {}


def check_replaceable(target: bytes, old: os.stat_result) -> None:
    """Raise OSError if the target is no regular file, or cannot be written."""
    if stat.S_ISDIR(old.st_mode):
        raise fail(errno.EISDIR, target)
    if not stat.S_ISREG(old.st_mode):
        raise fail(errno.EPERM, target)
    if not os.access(target, os.W_OK):
        raise fail(errno.EACCES, target)


def write_beside(params: dict[str, Any], target: bytes, old: os.stat_result | None) -> bool:
    """Write a new file and rename it over the target. If that is impossible, return False and leave the body unread.

    If the filesystem allows, the new file has no name before it is complete. Then no part of the file remains if this
    process is killed.
    """
    folder = os.path.dirname(target)
    beside = os.path.join(folder, b".llm-sandbox-%d-%x" % (os.getpid(), time.time_ns()))
    if old is not None and old.st_uid != os.geteuid() and os.geteuid() != 0:
        return False
    try:
        try:
            fd = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o666)
        except OSError:  # not every filesystem has files without a name
            fd = os.open(beside, OPEN_NEW, 0o666)
    except OSError:
        if old is None:
            raise
        return False
    try:
        if old is not None:
            try:
                os.fchown(fd, old.st_uid, old.st_gid)
            except PermissionError:  # this user does not belong to the group
                return False
            os.fchmod(fd, stat.S_IMODE(old.st_mode))
        body_into(fd)
        if not body_complete(params, fd):
            raise fail(errno.EIO, target)
        if params["exclusive"]:
            link_open(fd, target)
        else:
            replace(fd, beside, target)
    finally:
        if os.path.lexists(beside):
            os.unlink(beside)
    return True


def link_open(fd: int, name: bytes) -> None:
    """Give an open file a name, which must be new."""
    # Without `src_dir_fd`, Python would not follow the symbolic link in /proc.
    os.link(b"/proc/self/fd/%d" % fd, name, src_dir_fd=fd)


def replace(fd: int, beside: bytes, target: bytes) -> None:
    """Rename the open file to `target`. First give the file the name `beside`, if the file has no name.

    A target that is a mount cannot be replaced, so its content is overwritten.
    """
    if not os.fstat(fd).st_nlink:
        link_open(fd, beside)
    try:
        os.rename(beside, target)
    except OSError as error:
        if error.errno != errno.EBUSY:  # a mounted file, such as /etc/hosts in a container, is busy
            raise
        copy_over(fd, target)


def copy_over(source: int, target: bytes) -> None:
    """Copy the content of an open file into an existing file."""
    os.lseek(source, 0, os.SEEK_SET)
    out = os.open(target, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    while True:
        data = os.read(source, CHUNK_SIZE)
        if not data:
            return
        write_all(out, data)


def write_in_place(params: dict[str, Any], target: bytes) -> None:
    """Overwrite an existing file after the whole body is in memory."""
    held = os.memfd_create("body", os.MFD_CLOEXEC)
    body_into(held)
    if not body_complete(params, held):
        raise fail(errno.EIO, target)
    copy_over(held, target)


def describe(path: bytes, info: os.stat_result) -> bytes:
    """Return one line of a listing."""
    kind = next((name for test, name in KINDS if test(info.st_mode)), "other")
    row = [bytes_to_text(path), kind, info.st_size, stat.S_IMODE(info.st_mode), info.st_mtime]
    return dump(row) + b"\n"


def list_files(params: dict[str, Any]) -> dict[str, Any]:
    """Write one JSON line for each entry below a directory, or for the file at the path."""
    path = os.path.normpath(text_to_bytes(params["path"]))
    if not stat.S_ISDIR(os.stat(path).st_mode):
        write_all(1, describe(path, os.lstat(path)))
        return {}
    os.scandir(path).close()
    room, limit = MAX_LISTING_BYTES, int(params["limit"])
    rows: list[bytes] = []
    for entry in walk(path, int(params["depth"])):
        if len(rows) >= limit:
            break
        try:
            row = describe(entry, os.lstat(entry))
        except OSError:  # it is gone, or its path is too long
            continue
        room -= len(row)
        if room < 0:
            break
        rows.append(row)
    write_all(1, b"".join(rows))
    return {}


def walk(path: bytes, depth: int) -> Iterator[bytes]:
    """Yield the paths below a directory, `depth` levels deep, sorted within each folder. Skip unreadable folders."""
    todo = [sorted_entries(path)]
    while todo:
        entry = next(todo[-1], None)
        if entry is None:
            todo.pop()
            continue
        yield entry.path
        if len(todo) < depth and entry.is_dir(follow_symlinks=False):
            todo.append(sorted_entries(entry.path))


def sorted_entries(path: bytes) -> Iterator[os.DirEntry[bytes]]:
    """Return an iterator over the entries of a folder, sorted by name. It is empty if the folder cannot be read."""
    try:
        with os.scandir(path) as found:
            return iter(sorted(found, key=lambda entry: entry.name))
    except OSError:
        return iter(())
