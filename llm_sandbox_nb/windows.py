"""Support for Windows, where no sandbox opens, but recorded runs can be read, compared and exported."""

from __future__ import annotations

import contextlib
import os
import sys

NO_SANDBOX = (
    "Windows opens no sandbox: install the package in WSL 2, or use a Jupyter server on Linux; "
    "`show`, `export`, `analyze` and `runs` work here too."
)

FOLDER = getattr(os, "O_DIRECTORY", 0)
NO_LINK = getattr(os, "O_NOFOLLOW", 0)
NO_WAIT = getattr(os, "O_NONBLOCK", 0)
NOT_INHERITED = getattr(os, "O_CLOEXEC", 0)
"""Flags of `os.open`. A flag that the system lacks is zero. Windows has none of them."""


def is_windows() -> bool:
    """Return True on Windows.

    This is a function, because a type checker that sees the comparison itself skips the code for other systems.
    """
    return sys.platform.startswith("win")


def try_lock(descriptor: int) -> bool:
    """Lock an open file until `unlock_and_close`. Return False if another process has the lock.

    On Windows the result is always True, because Windows has no such locks, and no program writes to runs there.

    Raises:
        OSError: if the file system does not support locks.
    """
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock_and_close(descriptor: int) -> None:
    """Close a file that `try_lock` may have locked.

    To close the file would not be enough: a child process that was just forked shares the lock until it executes its
    program.
    """
    with contextlib.suppress(ImportError, OSError):
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)
