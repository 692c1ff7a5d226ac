"""Folders in the temporary folder whose owner holds a lock on a file in them for as long as it lives."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from llm_sandbox_nb.windows import NOT_INHERITED, is_windows, try_lock

TEMPORARY, IN_USE = "llm-sandbox-nb-", "in-use"
_OLD = 3600.0
"""Seconds after which an empty folder without a lock counts as left by an earlier version."""


def remove_left_folders(prefix: str, lock: str, in_use: Callable[[Path], bool] = lambda folder: False) -> int:
    """Remove the folders of this user whose owners were killed; how many there are of those that live.

    Args:
        prefix: how the names of the folders begin.
        lock: the name of the file that the owner has locked. A folder without one belongs to another program.
        in_use: whether a folder without an owner has other users still.
    """
    held = 0
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        try:
            file = os.open(folder / lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            if not try_lock(file) or in_use(folder):
                held += 1
            elif os.fstat(file).st_uid == os.getuid():
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            held += 1
        finally:
            os.close(file)
    return held


def make_owned_folder(prefix: str, lock: str) -> tuple[Path, int]:
    """A new folder, and the open file whose lock shows that its owner lives."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    partial = folder / f"{lock}.partial"
    try:
        file = os.open(partial, os.O_CREAT | os.O_RDWR | NOT_INHERITED, 0o600)
        try:
            try_lock(file)
            if not is_windows():
                partial.rename(folder / lock)  # locked before anybody can find it free
        except BaseException:
            os.close(file)
            raise
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder, file


class TemporaryFolder:
    """A folder that `close` removes; when its owner was killed, whoever starts next does."""

    def __init__(self) -> None:
        self.path, self._lock = make_owned_folder(TEMPORARY, IN_USE)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove it. May be called twice."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            if is_windows():  # which removes no file that is open
                os.close(lock)
                shutil.rmtree(self.path, ignore_errors=True)
            else:
                shutil.rmtree(self.path, ignore_errors=True)
                os.close(lock)


def remove_temporary_folders() -> None:
    """Remove the folders of `TemporaryFolder` whose owners were killed, and the empty ones of earlier versions."""
    if is_windows():
        return
    remove_left_folders(TEMPORARY, IN_USE)
    for folder in Path(tempfile.gettempdir()).glob(f"{TEMPORARY}*"):
        with contextlib.suppress(OSError):
            info = folder.lstat()
            if info.st_uid == os.getuid() and time.time() - info.st_mtime > _OLD:
                folder.rmdir()  # fails unless it is an empty folder
