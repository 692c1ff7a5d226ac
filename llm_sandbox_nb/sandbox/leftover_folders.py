"""Folders in the temporary folder whose owner holds a lock on a file in them for as long as it lives."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path


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
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if in_use(folder):
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
        file = os.open(partial, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            partial.rename(folder / lock)  # locked before anybody can find it free
        except BaseException:
            os.close(file)
            raise
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder, file
