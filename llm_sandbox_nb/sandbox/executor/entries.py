"""Entries of the filesystem: their records in memory, and functions that open, change and delete them."""

from __future__ import annotations

import binascii
import errno
import os
import stat

from .frames import bytes_to_text
from .light import dump
from .mounts import mount_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Signature = tuple[int, ...]
    """Tuple of mode, owner, group, size, mtime, ctime, inode and device."""
    Record = tuple[Signature, int, Any, Any, Any]
    """Tuple of signature, base, detail, link and xattrs. README.md describes these fields."""
    Memory = dict[bytes, Record]
    """Records of all entries that a scan has found, by path."""

CTIME_INDEX = 5  # place of the ctime in a `Signature`
UNKNOWN_CTIME = -1  # makes the next scan read the content again
KINDS = {
    stat.S_IFDIR: "d", stat.S_IFREG: "f", stat.S_IFLNK: "l", stat.S_IFIFO: "p", stat.S_IFCHR: "c", stat.S_IFBLK: "b",
}  # fmt: skip
MAX_XATTRS_CHARACTERS = 64 * 1024  # of the JSON text of one entry's attributes; the host has the same limit
OPEN_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def signature(info: os.stat_result) -> Signature:
    """Return values that describe an entry. After a change of the entry, at least one of them differs."""
    return (
        info.st_mode, info.st_uid, info.st_gid, info.st_size if stat.S_ISREG(info.st_mode) else 0,
        info.st_mtime_ns, info.st_ctime_ns, info.st_ino, info.st_dev,
    )  # fmt: skip


def row_of(path: bytes, record: Record) -> list[Any]:
    """Return the row of an entry, which is the array that is reported to the host."""
    (mode, uid, gid, size, mtime, *_), base, detail, link, xattrs = record
    kind = KINDS[stat.S_IFMT(mode)]
    return [bytes_to_text(path), kind, base, stat.S_IMODE(mode), uid, gid, mtime, size, detail, link, xattrs]


def same_row(first: Record, second: Record) -> bool:
    """Return True if two records have the same row."""
    return first[0][:CTIME_INDEX] == second[0][:CTIME_INDEX] and first[1:] == second[1:]


def xattrs_of(path: bytes) -> dict[str, str] | None:
    """Return the extended attributes of an entry, including access control lists, with values in base64.

    Return None if the entry has no attributes, or if they cannot be read. Attributes for which there is no room within
    `MAX_XATTRS_CHARACTERS` are left out.
    """
    try:
        names = os.listxattr(path, follow_symlinks=False)
        if not names:
            return None
        found, room = {}, MAX_XATTRS_CHARACTERS
        for name in sorted(names):
            value = os.getxattr(path, name, follow_symlinks=False)
            text = binascii.b2a_base64(value, newline=False).decode("ascii")
            size = len(dump(name)) + len(text) + len(': "", ')
            if size <= room and name != "security.selinux":
                found[name] = text
                room -= size
    except OSError:
        return None
    return found or None


# ---------------------------------------------------------------------------------------- opening and changing


def is_mounted(folder: int, name: bytes, there: os.stat_result | None) -> bool:
    """Return True if a file is mounted on `name`, so that the name cannot be replaced.

    `there` is the result of `status_of` for this name.
    """
    if there is None or not stat.S_ISREG(there.st_mode) or there.st_nlink > 1:
        return False
    if there.st_dev == os.fstat(folder).st_dev:
        return False
    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        return mount_number(fd) != mount_number(folder)
    finally:
        os.close(fd)


def open_existing(folder: int, name: bytes, there: os.stat_result | None) -> int:
    """Open the existing file `name` for writing, even if its owner has made it read-only.

    Raises:
        OSError: if `there`, the result of `status_of`, shows that the name is not that of a regular file.
    """
    if there is None or not stat.S_ISREG(there.st_mode):
        raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), name)
    flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        return os.open(name, flags, dir_fd=folder)
    except PermissionError:
        os.chmod(name, 0o600, dir_fd=folder)
        return os.open(name, flags, dir_fd=folder)


def apply_metadata(target: Any, row: list[Any], info: os.stat_result, folder: int | None = None) -> None:
    """Set owner, mode, attributes and times of `target` to those of `row`. `info` is the present status of `target`.

    `target` is an open file, a path, or a name in `folder`.
    """
    kind, mode, uid, gid, mtime, xattrs = row[1], row[3], row[4], row[5], row[6], row[10]
    extra: dict[str, Any] = {} if folder is None else {"dir_fd": folder}
    if folder is not None and kind == "l":
        extra["follow_symlinks"] = False
    if (uid, gid) != (info.st_uid, info.st_gid):
        os.chown(target, uid, gid, **extra)
    if kind != "l" and (mode != stat.S_IMODE(info.st_mode) or (uid, gid) != (info.st_uid, info.st_gid)):
        os.chmod(target, mode, **extra)
    if kind in ("d", "f"):
        set_xattrs(
            target if folder is None else "/proc/self/fd/%d/%s" % (folder, os.fsdecode(target)), xattrs
        )
    os.utime(target, ns=(mtime, mtime), **extra)


def set_xattrs(target: Any, wanted: dict[str, str] | None) -> None:
    """Set the extended attributes `wanted`, and remove all others, if the filesystem supports extended attributes."""
    try:
        there = os.listxattr(target)
    except OSError:
        return
    if not there and not wanted:
        return
    wanted = wanted or {}
    for name in there:
        if name not in wanted and name != "security.selinux":
            os.removexattr(target, name)
    for name, value in wanted.items():
        os.setxattr(target, name, binascii.a2b_base64(value))


def punch(fd: int, offset: int, size: int) -> None:
    """Make a hole in a file. Write zeros if the filesystem does not support holes."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong]
    if libc.fallocate(fd, 3, offset, size) == 0:
        return
    zeros = bytes(min(size, 1024 * 1024))
    while size > 0:
        written = os.pwrite(fd, zeros[:size], offset)
        offset, size = offset + written, size - written


# -------------------------------------------------------------------------------------------------- deleting


def status_of(folder: int, name: bytes) -> os.stat_result | None:
    """Return the status of an entry, without following a link. Return None if there is no entry."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def remove(folder: int, name: bytes) -> None:
    """Delete an entry and all its content, at any depth, but never through a link. Ignore a missing entry."""
    try:
        os.unlink(name, dir_fd=folder)
        return
    except FileNotFoundError:
        return
    except (IsADirectoryError, PermissionError):
        info = status_of(folder, name)
        if info is None or not stat.S_ISDIR(info.st_mode):
            raise
    try:
        os.rmdir(name, dir_fd=folder)
        return
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.EACCES):
            raise
    step_into(folder, name)
    try:
        empty_here()
    finally:
        os.chdir("/")
    os.rmdir(name, dir_fd=folder)


def step_into(folder: int | None, name: bytes) -> None:
    """Make a folder the working directory, even if its owner has made it inaccessible."""
    fd = os.open(name, OPEN_FOLDER, dir_fd=folder)
    try:
        info = os.fstat(fd)
        if info.st_mode & 0o700 != 0o700 and 0 < os.geteuid() == info.st_uid:
            os.chmod("/proc/self/fd/%d" % fd, 0o700)
        os.chdir("/proc/self/fd/%d" % fd)
    finally:
        os.close(fd)


def empty_here() -> None:
    """Empty the working directory. Use only single names and `..`, because paths can be too long for the kernel."""
    names: list[bytes] = []
    todo = [unlink_files()]
    while todo:
        if todo[-1]:
            name = todo[-1].pop()
            step_into(None, name)
            names.append(name)
            todo.append(unlink_files())
        else:
            todo.pop()
            if names:
                os.chdir("..")
                os.rmdir(names.pop())


def unlink_files() -> list[bytes]:
    """Delete all files in the working directory and return the names of its folders."""
    folders = []
    with os.scandir(b".") as found:
        entries = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in found]
    for name, is_folder in entries:
        if is_folder:
            folders.append(name)
        else:
            os.unlink(name)
    return folders
