"""The folders of a restore, and what is remembered of them and of what is in them."""

from __future__ import annotations

import errno
import os
import stat

from .entries import UNSURE, signature
from .metadata import apply_metadata
from .mounts import is_below, is_ours
from .removing import FOLDER, remove
from .wire import bytes_to_text, text_to_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .entries import Memory, Record

FAILURES_TOLD = 100
LOST: Record = ((0, 0, 0, 0, 0, UNSURE, 0, 0), 0, None, None, None)


class RestoredFolders:
    """Opens folders to change what is in them, and gives them back the metadata that this changes.

    Args: see `Restoring`.
    """

    def __init__(self, memory: Memory, top: bytes, start: int) -> None:
        self.memory = memory
        self.top = top
        self.start = start
        self.folder_path = b""
        self.folder = -1
        self.folders: dict[bytes, tuple[int, int]] = {}
        self.rows: dict[bytes, list[Any]] = {}
        self.failed: list[list[str]] = []
        self.failures = 0

    def fail(self, name: str, error: OSError) -> None:
        """A path that is not what it should be: the next look tells what it is."""
        self.failures += 1
        if len(self.failed) < FAILURES_TOLD:
            self.failed.append([name, os.strerror(error.errno or errno.EIO).lower()])
        self.memory[text_to_bytes(name)] = LOST

    def enter(self, path: bytes) -> tuple[int, bytes]:
        """The folder of a path, open, and the last name; the folder is about to change."""
        folder, _, name = path.rpartition(b"/")
        folder = folder or b"/"
        if not is_ours(path) or name in (b"", b".", b".."):
            raise OSError(errno.EPERM, os.strerror(errno.EPERM), path)
        if folder != self.folder_path or self.folder < 0:
            self.leave()
            self.folder, self.folder_path = self.open_folder(folder), folder
        if folder not in self.folders:
            look = os.fstat(self.folder)
            self.folders[folder] = (look.st_mtime_ns, look.st_mode)
            self.let_in(self.folder, look)
        return self.folder, name

    def open_folder(self, path: bytes) -> int:
        """Open a folder, name by name."""
        names = path[len(self.top) :].split(b"/")
        if not is_below(path, self.top) or b".." in names:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM), path)
        fd = os.open(self.top, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        for name in filter(None, names):
            try:
                deeper = self.open_name(fd, name)
            finally:
                os.close(fd)
            fd = deeper
        return fd

    def open_name(self, folder: int, name: bytes) -> int:
        """Open a folder in a folder."""
        try:
            return os.open(name, FOLDER, dir_fd=folder)
        except PermissionError:
            self.let_in(folder, os.fstat(folder))
            return os.open(name, FOLDER, dir_fd=folder)

    @staticmethod
    def let_in(fd: int, look: os.stat_result) -> None:
        """A folder that its owner has closed to itself is opened."""
        if look.st_mode & 0o300 != 0o300 and 0 < os.geteuid() == look.st_uid:
            os.chmod("/proc/self/fd/%d" % fd, stat.S_IMODE(look.st_mode) | 0o700)

    def leave(self) -> None:
        """Close the folder that was entered last."""
        if self.folder >= 0:
            os.close(self.folder)
        self.folder, self.folder_path = -1, b""

    def finish_folders(self) -> None:
        """The folders' own metadata, which their content would have changed: the deepest first."""
        for path in self.folders.keys() - self.rows.keys():
            self.try_finish(path, bytes_to_text(path), self.put_back)
        for path in sorted(self.rows, key=lambda path: path.count(b"/"), reverse=True):
            self.try_finish(path, self.rows[path][0], self.finish_folder)
        self.leave()
        for path in self.folders:
            self.resign(path)

    def try_finish(self, path: bytes, name: str, finish: Callable[[bytes], None]) -> None:
        """Metadata of one folder; what is in it is not affected when that fails."""
        try:
            finish(path)
        except OSError as error:
            self.fail(name, error)

    def put_back(self, path: bytes) -> None:
        """What a folder was like before we changed what is in it."""
        mtime, mode = self.folders[path]
        try:
            fd = self.open_folder(path)
        except FileNotFoundError:
            return
        try:
            link = "/proc/self/fd/%d" % fd
            now = os.fstat(fd)
            if now.st_mode != mode:
                os.chmod(link, stat.S_IMODE(mode))
            if now.st_mtime_ns != mtime:
                os.utime(link, ns=(mtime, mtime))
        finally:
            os.close(fd)

    def finish_folder(self, path: bytes) -> None:
        """What the plan says a folder is like."""
        row = self.rows[path]
        fd = self.open_folder(path)
        try:
            look = os.fstat(fd)
            try:
                apply_metadata("/proc/self/fd/%d" % fd, row, look)
            except PermissionError:
                if look.st_ctime_ns >= self.start or os.geteuid() in (0, look.st_uid):
                    raise
                # Nobody here could have changed it: it is another sandbox's, prepared a moment later.
        finally:
            os.close(fd)
        self.remember(path, row)

    # --------------------------------------------------------------------------------------------- memory

    def resign(self, path: bytes) -> None:
        """What was there before, unchanged but for its ctime; a folder in which something was changed.

        Of a folder of the image that is not told what it holds: it is told with the next look, as what is in it is.
        """
        record = self.memory.get(path)
        if record and record is not LOST:
            if record[1] and stat.S_ISDIR(record[0][0]):
                self.memory[path] = LOST
                return
            try:
                self.memory[path] = (signature(os.lstat(path)), *record[1:])
            except OSError:
                self.memory[path] = LOST

    def remember(self, path: bytes, row: list[Any]) -> None:
        """An entry is now what the plan says. What is in a folder of the image is not told, so not known."""
        if row[1] == "d" and row[2]:
            self.forget_below(path)
            self.memory[path] = LOST
            return
        self.memory[path] = (signature(os.lstat(path)), row[2], row[8], row[9], row[10])

    def remove(self, folder: int, path: bytes, there: os.stat_result | None) -> None:
        """Delete a path, from the disk and from memory."""
        if there is None:
            return
        remove(folder, os.path.basename(path))
        self.memory.pop(path, None)
        self.rows.pop(path, None)
        if stat.S_ISDIR(there.st_mode):
            self.forget_below(path)
            self.folders = {other: was for other, was in self.folders.items() if not is_below(other, path)}
            if is_below(self.folder_path, path):
                self.leave()

    def forget_below(self, path: bytes) -> None:
        """Nothing is known of what is below a path any more."""
        below = path.rstrip(b"/") + b"/"
        for other in [other for other in self.memory if other.startswith(below)]:
            del self.memory[other]
        for other in [other for other in self.rows if other.startswith(below)]:
            del self.rows[other]
