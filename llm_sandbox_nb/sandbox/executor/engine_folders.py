"""Folders that an engine fills for each sandbox, such as /dev and /sys/fs/cgroup: no checkpoint holds them.

Where commands can write there, a restore removes what they have made, and names what they have changed.
"""

from __future__ import annotations

import os
import stat

from .entries import FOLDER, remove
from .frames import bytes_to_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .records import Shortfall

    Look = tuple[int, int, int, int, int]

MOST = 10_000
"""Entries that are looked at."""
NOT_KEPT = "Not kept, and removed by a restore"
CHANGED = "only a new sandbox has it as it was"


class EngineFolders:
    """What an engine has put into its folders.

    Args:
        folders: finds them, and all paths where something is mounted.
        start: when the sandbox was started, in nanoseconds of a ctime.
    """

    def __init__(self, folders: Callable[[], tuple[list[bytes], set[bytes]]], start: int) -> None:
        self.folders = folders
        self.known = {
            path: look_of(info)
            for path, info in self.entries()
            if info.st_ctime_ns < start or stat.S_ISCHR(info.st_mode) or stat.S_ISBLK(info.st_mode)
        }

    def entries(self) -> Iterator[tuple[bytes, os.stat_result]]:
        """All that is in them. What is in an entry comes later, unless that is gone by then."""
        folders, points = self.folders()
        todo, left = list(folders), MOST
        while todo:
            try:
                with os.scandir(todo.pop()) as found:
                    here = [(entry.path, entry.stat(follow_symlinks=False)) for entry in found]
            except OSError:
                continue
            for path, info in here:
                if path not in points and left:
                    left -= 1
                    yield path, info
                    if stat.S_ISDIR(info.st_mode):
                        todo.append(path)

    def report(self, shortfall: Shortfall) -> None:
        """Name what commands have made there."""
        for path, _ in self.entries():
            if path not in self.known:
                shortfall.add(NOT_KEPT, path)

    def restore(self) -> list[list[str]]:
        """Remove what commands have made there. Returns the paths where that is not enough, with the reason."""
        problems: list[list[str]] = []
        missing = set(self.known)
        for path, info in self.entries():
            if path not in self.known:
                problems += remove_path(path)
                continue
            missing.discard(path)
            if look_of(info) != self.known[path]:
                problems.append([bytes_to_text(path), CHANGED])
        return problems + [[bytes_to_text(path), CHANGED] for path in sorted(missing)]


def look_of(info: os.stat_result) -> Look:
    """What changes when an entry is changed or replaced; the number of a folder's entries does not count."""
    return info.st_mode, info.st_uid, info.st_gid, info.st_rdev, info.st_ino


def remove_path(path: bytes) -> list[list[str]]:
    """Remove an entry and what is in it. Returns it with the reason if that failed."""
    try:
        folder = os.open(os.path.dirname(path), FOLDER)
        try:
            remove(folder, os.path.basename(path))
        finally:
            os.close(folder)
    except FileNotFoundError:
        pass
    except OSError as error:
        return [[bytes_to_text(path), os.strerror(error.errno or 0).lower()]]
    return []
