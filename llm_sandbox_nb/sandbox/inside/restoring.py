"""Making files what they were: the plan of the host, step by step, never through a link.

Everything else in the sandbox has been killed, so nothing changes under our hands.
"""

from __future__ import annotations

import binascii
import errno
import os
import stat

from .looking import KINDS, UNSURE, signature
from .mounts import is_below, is_ours
from .records import (
    DELETE,
    FILE,
    HOLE,
    MAKE,
    METADATA,
    OFFSET,
    PATCH,
    RANGE,
    SHELL,
    THE_END,
    WRITE,
    RecordReader,
)
from .wire import bytes_to_text, text_to_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .looking import Memory, Record

FAILURES_TOLD = 100
FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
TYPES = {letter: kind for kind, letter in KINDS.items()}
LOST: Record = ((0, 0, 0, 0, 0, UNSURE, 0, 0), 0, None, None, None)


class Restoring:
    """One restore.

    Args:
        memory: what was there before, as a look has told it; becomes what is there afterwards.
        top: the folder that holds everything that may be touched.
        start: the time at which the sandbox was started.
    """

    def __init__(self, memory: Memory, top: bytes, start: int) -> None:
        self.memory = memory
        self.top = top
        self.start = start
        self.in_use = files_in_use()
        self.folder_path = b""
        self.folder = -1
        self.folders: dict[bytes, tuple[int, int]] = {}
        self.rows: dict[bytes, list[Any]] = {}
        self.file = -1
        self.file_row: list[Any] = []
        self.shell = b""
        self.written = 0
        self.failed: list[list[str]] = []
        self.failures = 0

    def run(self, reader: RecordReader) -> None:
        """Do all that the plan says, and put the folders' metadata last."""
        steps: dict[int, Callable[[Any], None]] = {
            DELETE: self.delete, MAKE: self.make, METADATA: self.change,
        }  # fmt: skip
        while True:
            kind, payload = reader.record()
            if kind in (WRITE, HOLE):
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

    def fail(self, name: str, error: OSError) -> None:
        """A path that is not what it should be: the next look tells what it is."""
        self.failures += 1
        if len(self.failed) < FAILURES_TOLD:
            self.failed.append([name, os.strerror(error.errno or errno.EIO).lower()])
        self.memory[text_to_bytes(name)] = LOST

    # ------------------------------------------------------------------------------------------- folders

    def enter(self, path: bytes) -> tuple[int, bytes]:
        """The folder of a path, open, and the last name; the folder is about to change."""
        folder, name = os.path.split(path)
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
        """What was there before, unchanged but for its ctime."""
        record = self.memory.get(path)
        if record and record is not LOST:
            try:
                self.memory[path] = (signature(os.lstat(path)), *record[1:])
            except OSError:
                self.memory[path] = LOST

    def remember(self, path: bytes, row: list[Any]) -> None:
        """An entry is now what the plan says. What is in a folder of the image is not told, so not known."""
        if row[1] == "d" and row[2]:
            self.forget_below(path)
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
        """Another name of a file that was made before."""
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
                self.begin_patch(row)
            except OSError as error:
                if error.errno != errno.ETXTBSY:
                    raise
            else:
                if there and (there.st_blocks * 512 < there.st_size or covered(row[8]) < row[7]):
                    os.ftruncate(self.file, 0)
                return
        self.remove(folder, path, there)
        self.file = os.open(name, NEW, 0o600, dir_fd=folder)
        self.file_row = row

    def is_reusable(self, path: bytes, there: os.stat_result | None) -> bool:
        """Whether a file can be overwritten: one of the image would be copied first, one of ours would crash us."""
        if there is None or not stat.S_ISREG(there.st_mode) or there.st_nlink > 1:
            return False
        return there.st_ctime_ns >= self.start and path not in self.in_use

    def begin_patch(self, row: list[Any]) -> None:
        """A file that is there, of which parts get new content."""
        folder, name = self.enter(text_to_bytes(row[0]))
        self.file = open_existing(folder, name)
        self.file_row = row

    def content(self, kind: int, payload: bytes) -> None:
        """A piece of the file's content; after a failure there is no file, and the piece is dropped."""
        if self.file < 0:
            return
        try:
            if kind == HOLE:
                punch(self.file, *RANGE.unpack(payload))
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


def files_in_use() -> set[bytes]:
    """Files that are mapped into our own memory."""
    with open("/proc/self/maps", "rb") as file:
        return {line.split(None, 5)[5].rstrip(b"\n") for line in file if b"/" in line}


def covered(detail: list[list[Any]] | None) -> int:
    """How many bytes of a file are named."""
    return sum(part[1] for part in detail or ())


def look_at(folder: int, name: bytes) -> os.stat_result | None:
    """What is there, itself."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def is_mounted(folder: int, name: bytes, there: os.stat_result | None) -> bool:
    """Whether a file is mounted on a name: it cannot be replaced."""
    if there is None or not stat.S_ISREG(there.st_mode) or there.st_nlink > 1:
        return False
    if there.st_dev == os.fstat(folder).st_dev:
        return False
    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        return mount_of(fd) != mount_of(folder)
    finally:
        os.close(fd)


def mount_of(fd: int) -> bytes:
    """The number of the mount of an open file."""
    with open("/proc/self/fdinfo/%d" % fd, "rb") as file:
        return next((line for line in file if line.startswith(b"mnt_id:")), b"")


def open_existing(folder: int, name: bytes) -> int:
    """Open a file for writing, also one that its owner has closed to itself."""
    there = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if not stat.S_ISREG(there.st_mode):
        raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), name)
    flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        return os.open(name, flags, dir_fd=folder)
    except PermissionError:
        os.chmod(name, 0o600, dir_fd=folder)
        return os.open(name, flags, dir_fd=folder)


def apply_metadata(target: Any, row: list[Any], look: os.stat_result, folder: int | None = None) -> None:
    """Owner, mode, attributes and times of `target`: an open file, a path, or a name in `folder`."""
    kind, mode, uid, gid, mtime, xattrs = row[1], row[3], row[4], row[5], row[6], row[10]
    if folder is not None:
        extra: dict[str, Any] = {"dir_fd": folder}
    else:
        extra = {}
    if folder is not None and kind == "l":
        extra["follow_symlinks"] = False
    if (uid, gid) != (look.st_uid, look.st_gid):
        os.chown(target, uid, gid, **extra)
    if kind != "l" and (mode != stat.S_IMODE(look.st_mode) or (uid, gid) != (look.st_uid, look.st_gid)):
        os.chmod(target, mode, **extra)
    if kind in ("d", "f"):
        set_xattrs(
            target if folder is None else "/proc/self/fd/%d/%s" % (folder, os.fsdecode(target)), xattrs
        )
    os.utime(target, ns=(mtime, mtime), **extra)


def set_xattrs(target: Any, wanted: dict[str, str] | None) -> None:
    """Exactly these extended attributes, as far as there are any."""
    try:
        there = os.listxattr(target)
    except OSError:
        return
    if not there and not wanted:
        return
    wanted = wanted or {}
    for name in there:
        if name not in wanted and name != "security.selinux":
            os.removexattr(target, name)
    for name, value in wanted.items():
        os.setxattr(target, name, binascii.a2b_base64(value))


def punch(fd: int, offset: int, size: int) -> None:
    """A hole; zeros where the filesystem has none."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong]
    if libc.fallocate(fd, 3, offset, size) == 0:
        return
    zeros = bytes(min(size, 1024 * 1024))
    while size > 0:
        written = os.pwrite(fd, zeros[:size], offset)
        offset, size = offset + written, size - written


def remove(folder: int, name: bytes) -> None:
    """What is there and everything below it, however deep; nothing there is no error."""
    try:
        os.unlink(name, dir_fd=folder)
        return
    except FileNotFoundError:
        return
    except (IsADirectoryError, PermissionError):
        look = look_at(folder, name)
        if look is None or not stat.S_ISDIR(look.st_mode):
            raise
    try:
        os.rmdir(name, dir_fd=folder)
        return
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.EACCES):
            raise
    step_into(folder, name)
    try:
        empty_here()
    finally:
        os.chdir("/")
    os.rmdir(name, dir_fd=folder)


def step_into(folder: int | None, name: bytes) -> None:
    """Make a folder the working directory, also one that its owner has closed to itself."""
    fd = os.open(name, FOLDER, dir_fd=folder)
    try:
        look = os.fstat(fd)
        if look.st_mode & 0o700 != 0o700 and 0 < os.geteuid() == look.st_uid:
            os.chmod("/proc/self/fd/%d" % fd, 0o700)
        os.chdir("/proc/self/fd/%d" % fd)
    finally:
        os.close(fd)


def empty_here() -> None:
    """Delete all that is in the working directory; with names and `..` alone no depth is too deep."""
    names: list[bytes] = []
    todo = [unlink_files()]
    while todo:
        if todo[-1]:
            name = todo[-1].pop()
            step_into(None, name)
            names.append(name)
            todo.append(unlink_files())
        else:
            todo.pop()
            if names:
                os.chdir("..")
                os.rmdir(names.pop())


def unlink_files() -> list[bytes]:
    """Delete all files in the working directory; the folders that are there."""
    folders = []
    with os.scandir(b".") as found:
        entries = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in found]
    for name, is_folder in entries:
        if is_folder:
            folders.append(name)
        else:
            os.unlink(name)
    return folders
