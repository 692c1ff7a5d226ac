"""What Windows lacks: there no sandbox opens, but recorded runs can be read, compared and exported."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

NO_SANDBOX = (
    "Windows opens no sandbox: install the package in WSL 2, or use a Jupyter server on Linux; "
    "`show`, `export`, `analyze` and `runs` work here too."
)

FOLDER = getattr(os, "O_DIRECTORY", 0)
NO_LINK = getattr(os, "O_NOFOLLOW", 0)
NO_WAIT = getattr(os, "O_NONBLOCK", 0)
NOT_INHERITED = getattr(os, "O_CLOEXEC", 0)
BINARY = getattr(os, "O_BINARY", 0)
"""Flags of `os.open`; zero where the system has none: Windows has only the last one."""


def is_windows() -> bool:
    """Return True if this is Windows; asked by a function, so that type checkers read what follows."""
    return sys.platform.startswith("win")


def open_no_link(path: Path, flags: int = os.O_RDONLY) -> int:
    """Return the descriptor of a file. A link is not followed, and the other end of a FIFO not waited for.

    Raises:
        OSError: if it is a link, or cannot be opened.
    """
    if not NO_LINK and path.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    return os.open(path, flags | NO_LINK | NO_WAIT | NOT_INHERITED | BINARY)


def try_lock(descriptor: int) -> bool:
    """Lock an open file against others that call this, until it is closed; false when another has the lock.

    Windows has no such locks, and no sandbox or run that writes: there it is always true.

    Raises:
        OSError: if the file system has no locks.
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
