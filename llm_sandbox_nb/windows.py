"""Support for Windows, where no sandbox can be opened, but recorded runs can be read, compared and exported."""

from __future__ import annotations

import contextlib
import os
import sys

WITH_SANDBOX = ("run", "resume", "doctor", "benchmark", "train", "mcp", "examples NAME")
"""Commands that need a sandbox. `examples` without a name needs none: it only lists."""
_LISTED = " and ".join((", ".join(f"`{name}`" for name in WITH_SANDBOX[:-1]), f"`{WITH_SANDBOX[-1]}`"))
NO_SANDBOX = (
    "No sandbox can be opened on Windows: install the package in WSL 2, or use a Jupyter server on Linux; all commands "
    f"except {_LISTED} work here too."
)

FOLDER = getattr(os, "O_DIRECTORY", 0)
NO_LINK = getattr(os, "O_NOFOLLOW", 0)
NO_WAIT = getattr(os, "O_NONBLOCK", 0)
NOT_INHERITED = getattr(os, "O_CLOEXEC", 0)
"""Flags of `os.open`. A flag that the system lacks is zero. On Windows, all four are zero."""


def is_windows() -> bool:
    """Return True on Windows.

    This is a function, because a type checker evaluates a direct comparison with `sys.platform`, and then does not
    check the code for other systems.
    """
    return sys.platform.startswith("win")


def try_lock(descriptor: int) -> bool:
    """Lock an open file until `unlock_and_close`. Return False if another process has the lock.

    On Windows, return True without a lock: Windows lacks `flock`, and no runs are recorded there.

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

    Closing the file does not always release the lock: a child process that was just forked shares the lock until it
    executes its program.
    """
    with contextlib.suppress(ImportError, OSError):
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)
