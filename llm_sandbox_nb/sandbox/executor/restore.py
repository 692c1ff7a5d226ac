"""Execution of a restore plan, which the host sends to bring files back to an earlier state.

All commands were killed before, so that no process changes the files meanwhile. Links are never followed.
"""

from __future__ import annotations

import errno
import os
import stat

from .entries import (
    KINDS,
    OPEN_FOLDER,
    UNKNOWN_CTIME,
    apply_metadata,
    is_mounted,
    open_existing,
    punch,
    remove,
    signature,
    status_of,
)
from .frames import bytes_to_text, text_to_bytes
from .light import parse_json
from .mounts import is_below, is_ordinary_path
from .records import (
    DELETE,
    DELIVERED,
    FILE,
    HOLE,
    MAKE,
    METADATA,
    OFFSET,
    PACKED,
    PATCH,
    RANGE,
    SHELL,
    THE_END,
    TOP,
    WRITE,
    RecordReader,
    RestorePack,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .entries import Memory, Record

OPEN_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
TYPES = {letter: kind for kind, letter in KINDS.items()}
MAX_NAMED_FAILURES = 100
LOST: Record = ((0, 0, 0, 0, 0, UNKNOWN_CTIME, 0, 0), 0, None, None, None)
"""Record of a path whose state is unknown. The next scan reports the real state of the path."""


class RestoredFolders:
    """Opener of folders in which a restore changes entries. `finish_folders` then restores the folders' metadata.

    `Restore` describes the arguments.
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

    def fail(self, name: str, error: OSError) -> None:
        """Note a path that could not be restored, so that the next scan reports the path's real state."""
        if len(self.failed) < MAX_NAMED_FAILURES:
            self.failed.append([name, os.strerror(error.errno or errno.EIO).lower()])
        self.memory[text_to_bytes(name)] = LOST

    def enter(self, path: bytes) -> tuple[int, bytes]:
        """Open the folder of a path, and make it writable. Return the folder's descriptor, and the path's last name."""
        folder, _, name = path.rpartition(b"/")
        folder = folder or b"/"
        if not is_ordinary_path(path) or name in (b"", b".", b".."):
            raise OSError(errno.EPERM, os.strerror(errno.EPERM), path)
        if folder != self.folder_path or self.folder < 0:
            self.leave()
            self.folder, self.folder_path = self.open_folder(folder), folder
        if folder not in self.folders:
            info = os.fstat(self.folder)
            self.folders[folder] = (info.st_mtime_ns, info.st_mode)
            self.make_writable(self.folder, info)
        return self.folder, name

    def open_folder(self, path: bytes) -> int:
        """Open a folder, name by name, so that no link is followed. Raises OSError."""
        names = path[len(self.top) :].split(b"/")
        if not is_below(path, self.top) or b".." in names:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM), path)
        fd = os.open(self.top, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        for name in filter(None, names):
            try:
                try:
                    deeper = os.open(name, OPEN_FOLDER, dir_fd=fd)
                except PermissionError:
                    self.make_writable(fd, os.fstat(fd))
                    deeper = os.open(name, OPEN_FOLDER, dir_fd=fd)
            finally:
                os.close(fd)
            fd = deeper
        return fd

    @staticmethod
    def make_writable(fd: int, info: os.stat_result) -> None:
        """Make a folder writable, if its mode forbids writing."""
        if info.st_mode & 0o300 != 0o300 and 0 < os.geteuid() == info.st_uid:
            os.chmod("/proc/self/fd/%d" % fd, stat.S_IMODE(info.st_mode) | 0o700)

    def leave(self) -> None:
        """Close the folder that was entered last."""
        if self.folder >= 0:
            os.close(self.folder)
        self.folder, self.folder_path = -1, b""

    def finish_folders(self) -> None:
        """Restore the earlier metadata of changed folders, or set the metadata that the plan has for a folder.

        Of the folders in the plan, deeper folders come first, because the plan may make a folder above inaccessible.
        """
        for path in self.folders.keys() - self.rows.keys():
            self.try_finish(path, bytes_to_text(path), self.keep_metadata)
        for path in sorted(self.rows, key=lambda path: path.count(b"/"), reverse=True):
            self.try_finish(path, self.rows[path][0], self.finish_folder)
        self.leave()
        for path in self.folders:
            self.remember_ctime(path)

    def try_finish(self, path: bytes, name: str, finish: Callable[[bytes], None]) -> None:
        """Call `finish` for one folder. Note a failure, and let the other folders follow."""
        try:
            finish(path)
        except OSError as error:
            self.fail(name, error)

    def keep_metadata(self, path: bytes) -> None:
        """Restore the metadata that a folder had before its content was changed."""
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
        """Set a folder's metadata as in the plan."""
        row = self.rows[path]
        fd = self.open_folder(path)
        try:
            info = os.fstat(fd)
            try:
                apply_metadata("/proc/self/fd/%d" % fd, row, info)
            except PermissionError:
                if info.st_ctime_ns >= self.start or os.geteuid() in (0, info.st_uid):
                    raise
                # The folder belongs to another user, so commands in this sandbox cannot have changed it. It differs
                # only because the engine has prepared the sandbox of the checkpoint at another time.
        finally:
            os.close(fd)
        self.remember(path, row)

    # --------------------------------------------------------------------------------------------- memory

    def remember_ctime(self, path: bytes) -> None:
        """Remember the new status of a path whose ctime this restore has changed, such as a folder with new entries.

        But forget a folder of the image, so that the next scan reports the folder and its content.
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
        """Remember that an entry is as in the plan. Forget a folder of the image, because its content is not known."""
        if row[1] == "d" and row[2]:
            self.forget_below(path)
            self.memory[path] = LOST
            return
        self.memory[path] = (signature(os.lstat(path)), row[2], row[8], row[9], row[10])

    def remove(self, folder: int, path: bytes, there: os.stat_result | None) -> None:
        """Delete a path from the disk and from `memory`. `there` is the path's status, or None if it does not exist."""
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
        below = path.rstrip(b"/") + b"/"
        for other in [other for other in self.memory if other.startswith(below)]:
            del self.memory[other]
        for other in [other for other in self.rows if other.startswith(below)]:
            del self.rows[other]


class Restore(RestoredFolders):
    """The execution of a restore plan.

    Args:
        memory: entries that the last scan has found. The restore updates them to the new state of the files.
        top: folder outside of which nothing may be changed.
        start: start time of the sandbox in nanoseconds, on the clock of ctimes.
        pack: file with content that is not in the plan itself.
    """

    def __init__(self, memory: Memory, top: bytes, start: int, pack: RestorePack) -> None:
        super().__init__(memory, top, start)
        self.pack = pack
        if pack.top_time is not None:
            self.folders[TOP] = (pack.top_time, os.stat(TOP).st_mode)
        # This file lists the files that this process has mapped, such as libraries.
        with open("/proc/self/maps", "rb") as file:
            self.in_use = {line.split(None, 5)[5].rstrip(b"\n") for line in file if b"/" in line}
        self.file = -1
        self.file_row: list[Any] = []
        self.shell = b""

    def run(self, reader: RecordReader) -> None:
        """Apply the plan. The metadata of folders comes last."""
        steps: dict[int, Callable[[Any], None]] = {
            DELETE: self.delete, MAKE: self.make, METADATA: self.change,
        }  # fmt: skip
        while True:
            kind, payload = reader.record()
            if kind in (WRITE, PACKED, HOLE):
                self.content(kind, payload, reader)
                continue
            self.end_file()
            if kind == THE_END:
                break
            if kind == SHELL:
                self.shell = payload
            elif kind == DELIVERED:
                self.pack.remove()
            elif kind in (FILE, PATCH):
                self.attempt(self.begin_patch if kind == PATCH else self.begin_file, parse_json(payload))
            elif kind in steps:
                for item in parse_json(payload):
                    self.attempt(steps[kind], item)
            else:
                raise OSError(errno.EINVAL, "the plan has an unknown step")
        self.finish_folders()

    def attempt(self, step: Callable[[Any], None], item: Any) -> None:
        """Apply one step. Note a failure, and let the other steps follow."""
        name = item if isinstance(item, str) else item[0]
        try:
            step(item)
        except OSError as error:
            if step != self.change:
                self.forget_below(text_to_bytes(name))
            self.fail(name, error)

    # ---------------------------------------------------------------------------------------------- steps

    def delete(self, name: str) -> None:
        path = text_to_bytes(name)
        try:
            folder, last = self.enter(path)
            self.remove(folder, path, status_of(folder, last))
        except (FileNotFoundError, NotADirectoryError):
            pass
        self.memory.pop(path, None)

    def make(self, row: list[Any]) -> None:
        """Make an entry for which no content follows.

        Such an entry is a folder, a link, a fifo, a device, another name of a file, or a file without content.
        """
        path = text_to_bytes(row[0])
        if row[1] == "d" and path == self.top:
            self.rows[path] = row
            return
        folder, name = self.enter(path)
        there = status_of(folder, name)
        if row[1] == "f" and (row[9] in (None, row[0]) or is_mounted(folder, name, there)):
            self.begin_file(row)
            self.end_file()
            return
        if row[1] != "d" or there is None or not stat.S_ISDIR(there.st_mode):
            self.remove(folder, path, there)
            if row[1] == "f":
                self.link(folder, name, row)
            else:
                self.make_special(folder, name, row)
        else:
            self.rows[path] = row

    def make_special(self, folder: int, name: bytes, row: list[Any]) -> None:
        """Make a folder, link, fifo or device."""
        path, kind = text_to_bytes(row[0]), row[1]
        if kind == "d":
            os.mkdir(name, 0o700, dir_fd=folder)
            self.rows[path] = row
            return
        if kind == "l":
            os.symlink(text_to_bytes(row[8]), name, dir_fd=folder)
        else:
            device = os.makedev(*row[8]) if row[8] else 0
            os.mknod(name, TYPES[kind] | 0o600, device, dir_fd=folder)
        apply_metadata(name, row, os.stat(name, dir_fd=folder, follow_symlinks=False), folder)
        self.remember(path, row)

    def link(self, folder: int, name: bytes, row: list[Any]) -> None:
        """Make another name (hard link) of a file that was made earlier. Raise OSError if the file was not restored."""
        if self.memory.get(text_to_bytes(row[9])) is LOST:
            raise OSError(errno.ENODATA, os.strerror(errno.ENODATA), name)
        source, last = os.path.split(text_to_bytes(row[9]))
        fd = self.open_folder(source)
        try:
            os.link(last, name, src_dir_fd=fd, dst_dir_fd=folder, follow_symlinks=False)
        finally:
            os.close(fd)
        self.remember(text_to_bytes(row[0]), row)
        self.remember_ctime(text_to_bytes(row[9]))

    def change(self, row: list[Any]) -> None:
        """Change only the metadata of an entry."""
        path = text_to_bytes(row[0])
        if row[1] == "d":
            os.close(self.open_folder(path))
            self.rows[path] = row
            return
        folder, name = self.enter(path)
        info = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_IFMT(info.st_mode) != TYPES[row[1]]:
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        apply_metadata(name, row, info, folder)
        self.remember(path, row)

    # ---------------------------------------------------------------------------------------------- files

    def begin_file(self, row: list[Any]) -> None:
        """Open a file to write its whole content. If possible, overwrite an existing file."""
        path = text_to_bytes(row[0])
        folder, name = self.enter(path)
        there = status_of(folder, name)
        if self.is_reusable(path, there) or is_mounted(folder, name, there):
            try:
                self.overwrite(folder, name, there, row)
            except OSError as error:
                if error.errno != errno.ETXTBSY:
                    raise
            else:
                if there and (there.st_blocks * 512 < there.st_size or covered(row[8]) < row[7]):
                    try:
                        os.ftruncate(self.file, 0)
                    except OSError:
                        self.drop_file()
                        raise
                return
        self.remove(folder, path, there)
        self.file = os.open(name, OPEN_NEW, row[3] & 0o777, dir_fd=folder)
        self.file_row = row

    def is_reusable(self, path: bytes, there: os.stat_result | None) -> bool:
        """Return True if a file can be overwritten.

        Such a file has one name, is not of the image, and is not mapped by this process.
        """
        if there is None or not stat.S_ISREG(there.st_mode) or there.st_nlink > 1:
            return False
        return there.st_ctime_ns >= self.start and path not in self.in_use

    def begin_patch(self, row: list[Any]) -> None:
        """Open an existing file to change parts of its content."""
        folder, name = self.enter(text_to_bytes(row[0]))
        self.overwrite(folder, name, os.stat(name, dir_fd=folder, follow_symlinks=False), row)

    def overwrite(self, folder: int, name: bytes, there: os.stat_result | None, row: list[Any]) -> None:
        self.file = open_existing(folder, name, there)
        self.file_row = row

    def content(self, kind: int, payload: bytes, reader: RecordReader) -> None:
        """Write a piece of content into the open file.

        Ignore the piece if no file is open, because then opening the file or writing an earlier piece has failed.
        """
        if self.file < 0:
            return
        try:
            if kind == HOLE:
                punch(self.file, *RANGE.unpack(payload))
                return
            if kind == PACKED:
                self.pack.copy(self.file, payload, lambda: reader.has_arrived(DELIVERED))
                return
            offset = OFFSET.unpack_from(payload)[0]
            data = memoryview(payload)[OFFSET.size :]
            while data:
                size = os.pwrite(self.file, data, offset)
                data, offset = data[size:], offset + size
        except OSError as error:
            self.fail(self.file_row[0], error)
            self.drop_file()

    def end_file(self) -> None:
        """Set the size and the metadata of the open file, and close it."""
        if self.file < 0:
            return
        row, fd = self.file_row, self.file
        try:
            info = os.fstat(fd)
            if info.st_size != row[7]:
                os.ftruncate(fd, row[7])
            apply_metadata(fd, row, info)
            self.remember(text_to_bytes(row[0]), row)
        except OSError as error:
            self.fail(row[0], error)
        self.drop_file()

    def drop_file(self) -> None:
        os.close(self.file)
        self.file = -1


def covered(detail: list[list[Any]] | None) -> int:
    """Return the number of bytes of a file that are not in holes. `detail` is a field of the file's entry."""
    return sum(part[1] for part in detail or ())
