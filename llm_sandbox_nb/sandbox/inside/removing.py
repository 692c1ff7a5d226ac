"""Deleting whatever is there, however deep, never through a link."""

from __future__ import annotations

import errno
import os
import stat

FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def look_at(folder: int, name: bytes) -> os.stat_result | None:
    """What is there, itself."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def remove(folder: int, name: bytes) -> None:
    """What is there and everything below it, however deep; nothing there is no error."""
    try:
        os.unlink(name, dir_fd=folder)
        return
    except FileNotFoundError:
        return
    except (IsADirectoryError, PermissionError):
        look = look_at(folder, name)
        if look is None or not stat.S_ISDIR(look.st_mode):
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
    """Make a folder the working directory, also one that its owner has closed to itself."""
    fd = os.open(name, FOLDER, dir_fd=folder)
    try:
        look = os.fstat(fd)
        if look.st_mode & 0o700 != 0o700 and 0 < os.geteuid() == look.st_uid:
            os.chmod("/proc/self/fd/%d" % fd, 0o700)
        os.chdir("/proc/self/fd/%d" % fd)
    finally:
        os.close(fd)


def empty_here() -> None:
    """Delete all that is in the working directory; with names and `..` alone no depth is too deep."""
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
    """Delete all files in the working directory; the folders that are there."""
    folders = []
    with os.scandir(b".") as found:
        entries = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in found]
    for name, is_folder in entries:
        if is_folder:
            folders.append(name)
        else:
            os.unlink(name)
    return folders
