"""Opening, changing and describing single entries, for a restore."""

from __future__ import annotations

import binascii
import errno
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def files_in_use() -> set[bytes]:
    """Files that are mapped into our own memory."""
    with open("/proc/self/maps", "rb") as file:
        return {line.split(None, 5)[5].rstrip(b"\n") for line in file if b"/" in line}


def covered(detail: list[list[Any]] | None) -> int:
    """How many bytes of a file are named."""
    return sum(part[1] for part in detail or ())


def is_mounted(folder: int, name: bytes, there: os.stat_result | None) -> bool:
    """Whether a file is mounted on a name: it cannot be replaced."""
    if there is None or not stat.S_ISREG(there.st_mode) or there.st_nlink > 1:
        return False
    if there.st_dev == os.fstat(folder).st_dev:
        return False
    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        return mount_of(fd) != mount_of(folder)
    finally:
        os.close(fd)


def mount_of(fd: int) -> bytes:
    """The number of the mount of an open file."""
    with open("/proc/self/fdinfo/%d" % fd, "rb") as file:
        return next((line for line in file if line.startswith(b"mnt_id:")), b"")


def open_existing(folder: int, name: bytes, there: os.stat_result | None) -> int:
    """Open a file for writing, also one that its owner has closed to itself."""
    if there is None or not stat.S_ISREG(there.st_mode):
        raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), name)
    flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        return os.open(name, flags, dir_fd=folder)
    except PermissionError:
        os.chmod(name, 0o600, dir_fd=folder)
        return os.open(name, flags, dir_fd=folder)


def apply_metadata(target: Any, row: list[Any], look: os.stat_result, folder: int | None = None) -> None:
    """Owner, mode, attributes and times of `target`: an open file, a path, or a name in `folder`."""
    kind, mode, uid, gid, mtime, xattrs = row[1], row[3], row[4], row[5], row[6], row[10]
    if folder is not None:
        extra: dict[str, Any] = {"dir_fd": folder}
    else:
        extra = {}
    if folder is not None and kind == "l":
        extra["follow_symlinks"] = False
    if (uid, gid) != (look.st_uid, look.st_gid):
        os.chown(target, uid, gid, **extra)
    if kind != "l" and (mode != stat.S_IMODE(look.st_mode) or (uid, gid) != (look.st_uid, look.st_gid)):
        os.chmod(target, mode, **extra)
    if kind in ("d", "f"):
        set_xattrs(
            target if folder is None else "/proc/self/fd/%d/%s" % (folder, os.fsdecode(target)), xattrs
        )
    os.utime(target, ns=(mtime, mtime), **extra)


def set_xattrs(target: Any, wanted: dict[str, str] | None) -> None:
    """Exactly these extended attributes, as far as there are any."""
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
    """A hole; zeros where the filesystem has none."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong]
    if libc.fallocate(fd, 3, offset, size) == 0:
        return
    zeros = bytes(min(size, 1024 * 1024))
    while size > 0:
        written = os.pwrite(fd, zeros[:size], offset)
        offset, size = offset + written, size - written
