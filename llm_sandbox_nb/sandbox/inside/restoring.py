"""Making files what they were: the plan of the host, step by step, never through a link.

Everything else in the sandbox has been killed, so nothing changes under our hands.
"""

from __future__ import annotations

import errno
import os
import stat

from .entries import KINDS
from .metadata import apply_metadata, covered, files_in_use, is_mounted, open_existing, punch
from .records import (
    DELETE,
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
    WRITE,
    RecordReader,
)
from .removing import look_at
from .restored_folders import LOST, RestoredFolders
from .wire import text_to_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .entries import Memory
    from .pack import Pack

NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
TYPES = {letter: kind for kind, letter in KINDS.items()}


class Restoring(RestoredFolders):
    """One restore.

    Args:
        memory: what was there before, as a look has told it; becomes what is there afterwards.
        top: the folder that holds everything that may be touched.
        start: the time at which the sandbox was started.
        pack: holds content that is not in the plan itself.
    """

    def __init__(self, memory: Memory, top: bytes, start: int, pack: Pack) -> None:
        super().__init__(memory, top, start)
        self.pack = pack
        self.in_use = files_in_use()
        self.file = -1
        self.file_row: list[Any] = []
        self.shell = b""
        self.written = 0

    def run(self, reader: RecordReader) -> None:
        """Do all that the plan says, and put the folders' metadata last."""
        steps: dict[int, Callable[[Any], None]] = {
            DELETE: self.delete, MAKE: self.make, METADATA: self.change,
        }  # fmt: skip
        while True:
            kind, payload = reader.record()
            if kind in (WRITE, PACKED, HOLE):
                self.content(kind, payload)
                continue
            self.end_file()
            if kind == THE_END:
                break
            if kind == SHELL:
                self.shell = payload
            elif kind in (FILE, PATCH):
                self.attempt(self.begin_patch if kind == PATCH else self.begin_file, reader.rows(payload))
            elif kind in steps:
                for item in reader.rows(payload):
                    self.attempt(steps[kind], item)
            else:
                raise OSError(errno.EINVAL, "the plan has a step that is not known")
        self.finish_folders()

    def attempt(self, step: Callable[[Any], None], item: Any) -> None:
        """One step; what fails is told, and everything else goes on."""
        name = item if isinstance(item, str) else item[0]
        try:
            step(item)
        except OSError as error:
            if step != self.change:
                self.forget_below(text_to_bytes(name))
            self.fail(name, error)

    # ---------------------------------------------------------------------------------------------- steps

    def delete(self, name: str) -> None:
        """A path and everything below it."""
        path = text_to_bytes(name)
        try:
            folder, last = self.enter(path)
            self.remove(folder, path, look_at(folder, last))
        except (FileNotFoundError, NotADirectoryError):
            pass
        self.memory.pop(path, None)

    def make(self, row: list[Any]) -> None:
        """An entry without content."""
        path = text_to_bytes(row[0])
        if row[1] == "d" and path == self.top:
            self.rows[path] = row
            return
        folder, name = self.enter(path)
        there = look_at(folder, name)
        if row[1] == "f" and (row[9] in (None, row[0]) or is_mounted(folder, name, there)):
            self.begin_file(row)
            self.end_file()
            return
        if row[1] != "d" or there is None or not stat.S_ISDIR(there.st_mode):
            self.remove(folder, path, there)
            self.make_anew(folder, name, row)
        elif row[1] == "d":
            self.rows[path] = row

    def make_anew(self, folder: int, name: bytes, row: list[Any]) -> None:
        """An entry where nothing is."""
        if row[1] == "f":
            self.link(folder, name, row)
        else:
            self.make_special(folder, name, row)

    def make_special(self, folder: int, name: bytes, row: list[Any]) -> None:
        """A folder, link, fifo or device."""
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
        """Another name of a file that was made before, unless that has not got its content."""
        if self.memory.get(text_to_bytes(row[9])) is LOST:
            raise OSError(errno.ENODATA, os.strerror(errno.ENODATA), name)
        source, last = os.path.split(text_to_bytes(row[9]))
        fd = self.open_folder(source)
        try:
            os.link(last, name, src_dir_fd=fd, dst_dir_fd=folder, follow_symlinks=False)
        finally:
            os.close(fd)
        self.remember(text_to_bytes(row[0]), row)
        self.resign(text_to_bytes(row[9]))

    def change(self, row: list[Any]) -> None:
        """Only metadata."""
        path = text_to_bytes(row[0])
        if row[1] == "d":
            os.close(self.open_folder(path))
            self.rows[path] = row
            return
        folder, name = self.enter(path)
        look = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_IFMT(look.st_mode) != TYPES[row[1]]:
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        apply_metadata(name, row, look, folder)
        self.remember(path, row)

    # ---------------------------------------------------------------------------------------------- files

    def begin_file(self, row: list[Any]) -> None:
        """A file that gets new content. One that is there is overwritten if only this name leads to it."""
        path = text_to_bytes(row[0])
        folder, name = self.enter(path)
        there = look_at(folder, name)
        if self.is_reusable(path, there) or is_mounted(folder, name, there):
            try:
                self.overwrite(folder, name, there, row)
            except OSError as error:
                if error.errno != errno.ETXTBSY:
                    raise
            else:
                if there and (there.st_blocks * 512 < there.st_size or covered(row[8]) < row[7]):
                    os.ftruncate(self.file, 0)
                return
        self.remove(folder, path, there)
        self.file = os.open(name, NEW, row[3] & 0o777, dir_fd=folder)
        self.file_row = row

    def is_reusable(self, path: bytes, there: os.stat_result | None) -> bool:
        """Whether a file can be overwritten: one of the image would be copied first, one of ours would crash us."""
        if there is None or not stat.S_ISREG(there.st_mode) or there.st_nlink > 1:
            return False
        return there.st_ctime_ns >= self.start and path not in self.in_use

    def begin_patch(self, row: list[Any]) -> None:
        """A file that is there, of which parts get new content."""
        folder, name = self.enter(text_to_bytes(row[0]))
        self.overwrite(folder, name, os.stat(name, dir_fd=folder, follow_symlinks=False), row)

    def overwrite(self, folder: int, name: bytes, there: os.stat_result | None, row: list[Any]) -> None:
        """Open a file that is there, to write into it."""
        self.file = open_existing(folder, name, there)
        self.file_row = row

    def content(self, kind: int, payload: bytes) -> None:
        """A piece of the file's content; after a failure there is no file, and the piece is dropped."""
        if self.file < 0:
            return
        try:
            if kind == HOLE:
                punch(self.file, *RANGE.unpack(payload))
                return
            if kind == PACKED:
                self.written += self.pack.copy(self.file, payload)
                return
            offset = OFFSET.unpack_from(payload)[0]
            data = memoryview(payload)[OFFSET.size :]
            self.written += len(data)
            while data:
                size = os.pwrite(self.file, data, offset)
                data, offset = data[size:], offset + size
        except OSError as error:
            self.fail(self.file_row[0], error)
            self.drop_file()

    def end_file(self) -> None:
        """The file has all its content: size and metadata."""
        if self.file < 0:
            return
        row, fd = self.file_row, self.file
        try:
            look = os.fstat(fd)
            if look.st_size != row[7]:
                os.ftruncate(fd, row[7])
            apply_metadata(fd, row, look)
            self.remember(text_to_bytes(row[0]), row)
        except OSError as error:
            self.fail(row[0], error)
        self.drop_file()

    def drop_file(self) -> None:
        """No file is open any more."""
        os.close(self.file)
        self.file = -1
