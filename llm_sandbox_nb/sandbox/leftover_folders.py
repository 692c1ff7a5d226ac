"""Temporary folders with an owner: a process that locks a file in the folder, and keeps the lock until it ends.

If the owner is killed, the kernel removes the lock. Another process then knows that it may remove the folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from llm_sandbox_nb.windows import NOT_INHERITED, is_windows, try_lock, unlock_and_close

TEMPORARY_PREFIX, LOCK_NAME = "llm-sandbox-nb-", "in-use"
_MIN_AGE_SECONDS = 3600.0
"""Age at which an empty folder without a lock file counts as a leftover of an earlier version of this package."""


def remove_left_folders(prefix: str, lock: str, in_use: Callable[[Path], bool] = lambda folder: False) -> int:
    """Remove this user's folders whose owners were killed. Return the number of folders that are still in use.

    Args:
        prefix: beginning of the folders' names.
        lock: name of the file that the owner locks. A folder without this file is left alone.
        in_use: function that returns True if another process still uses a folder whose owner has ended.
    """
    in_use_count = 0
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        try:
            file = os.open(folder / lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            if not try_lock(file) or in_use(folder):
                in_use_count += 1
            elif os.fstat(file).st_uid == os.getuid():
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            in_use_count += 1
        finally:
            unlock_and_close(file)
    return in_use_count


def make_owned_folder(prefix: str, lock: str) -> tuple[Path, int]:
    """Make a temporary folder that this process owns. Return its path, and the descriptor of the locked file."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    partial = folder / f"{lock}.partial"
    try:
        file = os.open(partial, os.O_CREAT | os.O_RDWR | NOT_INHERITED, 0o600)
        try:
            try_lock(file)
            if not is_windows():
                # The file gets its name only after the lock, so that no other process can lock the file first.
                partial.rename(folder / lock)
        except BaseException:
            os.close(file)
            raise
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder, file


class TemporaryFolder:
    """A temporary folder that `close` removes. After a kill, `remove_temporary_folders` removes it."""

    def __init__(self) -> None:
        self.path, self._lock = make_owned_folder(TEMPORARY_PREFIX, LOCK_NAME)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the folder. A second call does nothing."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            if is_windows():  # Windows cannot remove an open file
                os.close(lock)
                shutil.rmtree(self.path, ignore_errors=True)
            else:
                shutil.rmtree(self.path, ignore_errors=True)
                os.close(lock)


def remove_temporary_folders() -> None:
    """Remove the folders of `TemporaryFolder` whose owners were killed, and empty folders of earlier versions."""
    if is_windows():
        return
    remove_left_folders(TEMPORARY_PREFIX, LOCK_NAME)
    for folder in Path(tempfile.gettempdir()).glob(f"{TEMPORARY_PREFIX}*"):
        with contextlib.suppress(OSError):
            info = folder.lstat()
            if info.st_uid == os.getuid() and time.time() - info.st_mtime > _MIN_AGE_SECONDS:
                folder.rmdir()  # fails for a folder that is not empty
