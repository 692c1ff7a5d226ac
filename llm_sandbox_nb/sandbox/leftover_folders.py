"""Temporary folders with an owner. The owner is a process that keeps a file in the folder locked until it ends."""

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
"""Age at which an empty folder without a lock file is considered a leftover of an earlier version."""


def remove_left_folders(prefix: str, lock: str, in_use: Callable[[Path], bool] = lambda folder: False) -> int:
    """Remove this user's folders whose owners were killed. Return the number of folders that are still in use.

    Args:
        prefix: beginning of the folders' names.
        lock: name of the file that the owner locks. A folder without this file belongs to another program.
        in_use: function that returns True if a folder without an owner still has other users.
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
    """Make a folder that this process owns. Return the folder, and the descriptor of its locked file."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    partial = folder / f"{lock}.partial"
    try:
        file = os.open(partial, os.O_CREAT | os.O_RDWR | NOT_INHERITED, 0o600)
        try:
            try_lock(file)
            if not is_windows():
                partial.rename(folder / lock)  # after the lock, so that nobody else can lock it first
        except BaseException:
            os.close(file)
            raise
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder, file


class TemporaryFolder:
    """A folder that `close` removes. If its owner is killed, the next process of this package removes the folder."""

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
