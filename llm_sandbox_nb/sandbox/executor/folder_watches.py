"""Folder watches, with which the kernel (inotify) reports paths that may have changed since a walk over all files.

A checkpoint needs all changes, but inotify does not report all. The table says how such changes are found. "Walk" means
that `FolderWatches.changed` raises `WalkNeeded`, and the snapshotter walks over all files:

=========================================  ==========================================================================
not reported by inotify                    answer
=========================================  ==========================================================================
more events than the kernel queues         walk
a folder that was made, renamed, removed   walk: a new folder has no watch at first, and through a hard link in such a
                                           folder, a program could write to a file in another folder
a write through another name of a file     files with several names are examined each time; a new name of a known
                                           file, or a write through a deleted name: walk
a write through a mapping, or by `aio`     the kernel reports when the file is closed; files that a process has open
                                           or mapped for writing, or can map for writing, are examined each time; a
                                           process that hides its files: walk; a process with too many mappings: walk,
                                           and a notice
a new name in the executor's folder for    a new entry there: walk; a folder there: always walk
large outputs, which no walk lists
the first change in a folder of the image  such folders have no watch, so their ctimes are checked each time; after a
                                           change: walk
other mounts than before                   walk
a filesystem that a server changes (NFS)   no watches: always walk
=========================================  ==========================================================================

A running program can still hide a change on purpose. It may write with `aio`, and keep the descriptor where /proc does
not show it: inside a socket, or in the descriptor table of one thread. It may hide its memory map, and write through a
mapping again and again. In the isolation `process`, it may write through a hard link outside of the sandbox's folder.
Checkpoints then have the earlier content of the file until the next walk, or until the program ends. But no such change
survives a restore, because the restore comes between two walks over all files.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct

from .mounts import is_below, mount_table
from .processes import MAX_PROC_BYTES, own_tree, read_proc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .entries import Memory

MIN_WATCHED_ENTRIES = 2_000
"""Minimum number of known files and folders. If a sandbox has fewer, no folders are watched, because a walk over so few
takes less than 10 ms."""
MAX_WATCHED_FOLDERS = 32_768
"""Maximum number of watched folders of one sandbox. A watch takes about 1 kB of the kernel's memory."""
WATCHES_SHARE = 8  # one sandbox may take an eighth of the user's watches
SPARE_INSTANCES = 32  # inotify descriptors that stay free for other programs; a user may have 128 by default
MIN_KERNEL = (5, 10)  # the oldest tested kernel; emulations of Linux report older versions
REPORTING_FILESYSTEMS = frozenset(b"btrfs ext2 ext3 ext4 f2fs overlay tmpfs xfs".split())
READ_BYTES = 256 * 1024
EVENT = struct.Struct("iIII")
IN_MODIFY, IN_ATTRIB, IN_CLOSE_WRITE, IN_MOVED_FROM, IN_MOVED_TO, IN_CREATE, IN_DELETE = (
    2,
    4,
    8,
    64,
    128,
    256,
    512,
)
IN_UNMOUNT, IN_Q_OVERFLOW, IN_IGNORED = 0x2000, 0x4000, 0x8000
IN_ONLYDIR, IN_DONT_FOLLOW, IN_ISDIR = 0x1000000, 0x2000000, 0x40000000
RENAMED_OR_REMADE = IN_MOVED_FROM | IN_MOVED_TO | IN_CREATE | IN_DELETE
APPEARED = IN_MOVED_TO | IN_CREATE
MASK = RENAMED_OR_REMADE | IN_MODIFY | IN_ATTRIB | IN_CLOSE_WRITE | IN_ONLYDIR | IN_DONT_FOLLOW
DELETED = b" (deleted)"  # the kernel's mark of a file whose name is gone
UNNAMED_MEMORY = (b"/memfd:", b"/dev/zero", b"/SYSV", b"/anon_hugepage", b"/dev/shm/")


class WalkNeeded(Exception):  # noqa: N818 - it is not an error
    """Request for a walk, because changes may have been missed. The message is the reason."""


class FolderWatches:
    """Watches of all folders of a walk. The walk adds the watch of a folder before it lists the folder.

    Raises:
        OSError: if this user cannot have more inotify descriptors.
    """

    def __init__(self) -> None:
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.fd = -1
        spare = [self.new_instance() for _ in range(SPARE_INSTANCES + 1)]
        self.fd = spare.pop()
        for fd in spare:
            if fd >= 0:
                os.close(fd)
        if self.fd < 0:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        self.folders: dict[int, bytes] = {}
        self.room = min(MAX_WATCHED_FOLDERS, max_watches() // WATCHES_SHARE)
        self.why_walk = ""
        self.unlisted = b""
        """A watched folder that the walk does not list. It is empty if there is no such folder.

        If a file is moved, linked or made in this folder, `changed` asks for a walk. The file may be another name of a
        known file.
        """
        self.always: set[bytes] = set()
        """Paths that are examined each time, because inotify may not report their changes."""

    def new_instance(self) -> int:
        return int(self.libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1

    def add(self, path: bytes) -> None:
        """Watch a folder. After a failure, `changed` raises WalkNeeded."""
        if self.why_walk:
            return
        if len(self.folders) >= self.room:
            self.give_up("there are too many folders")
            return
        watch = self.libc.inotify_add_watch(self.fd, path, MASK)
        if watch < 0:
            self.give_up(os.strerror(ctypes.get_errno()))
        elif self.folders.setdefault(watch, path) != path:
            self.give_up("a folder has two paths")

    def add_unlisted(self, path: bytes) -> None:
        """Watch a folder that the walk does not list. If the folder contains folders, `changed` will ask for a walk."""
        self.add(path)
        self.unlisted = path
        try:
            with os.scandir(path) as found:
                if any(entry.is_dir(follow_symlinks=False) for entry in found):
                    self.give_up("there are folders that no walk lists")
        except OSError:
            self.give_up("a folder cannot be listed")

    def give_up(self, why: str) -> None:
        """Stop watching, so that `changed` raises WalkNeeded from now on."""
        self.why_walk = why
        self.close()

    def changed(self, known: Memory, mapped: set[bytes]) -> set[bytes]:
        """Return all paths that may have changed since the walk or the previous call.

        Args:
            known: all entries at the time of the walk or the previous call.
            mapped: the files that `mapped_files` returns now.

        Raises:
            WalkNeeded: if other paths may have changed too.
        """
        if self.why_walk:
            raise WalkNeeded(self.why_walk)
        # The open files are listed before the events are read. A file that is closed in between makes an event.
        found = written_files(mapped) | self.always
        appeared: set[bytes] = set()
        for watch, mask, name in self.events():
            if mask & (IN_Q_OVERFLOW | IN_UNMOUNT | IN_IGNORED) or watch not in self.folders:
                raise WalkNeeded("a watch has ended, or events were lost")
            if mask & IN_ISDIR and mask & RENAMED_OR_REMADE:
                raise WalkNeeded("a folder was made, renamed or removed")
            folder = self.folders[watch]
            if folder == self.unlisted and mask & APPEARED:
                raise WalkNeeded("a file may have got another name in a folder that is not listed")
            path = os.path.join(folder, name) if name else folder
            if mask & RENAMED_OR_REMADE:
                found.add(folder)
                if mask & APPEARED:
                    appeared.add(path)
            elif path not in known and path not in appeared:
                raise WalkNeeded("a file was written through a name that is gone")
            found.add(path)
        return found

    def events(self) -> Iterator[tuple[int, int, bytes]]:
        """Yield watch, mask and name of each event in the queue."""
        while True:
            try:
                data = os.read(self.fd, READ_BYTES)
            except BlockingIOError:
                return
            at = 0
            while at < len(data):
                watch, mask, _, size = EVENT.unpack_from(data, at)
                at += EVENT.size + size
                yield watch, mask, data[at - size : at].rstrip(b"\0")


def max_watches() -> int:
    """Return the maximum number of watches that this user may have, or 0 if the number is unknown."""
    return int(read_proc("/proc/sys/fs/inotify/max_user_watches") or 0)


def reports_changes(folders: Iterable[bytes], skipped: set[bytes]) -> bool:
    """Return True if the kernel reports all changes below these folders, because only this kernel can make changes.

    `skipped` are paths of mounts that are left out.
    """
    version = os.uname().release.split(".")
    if not all(part.isdigit() for part in version[:2]) or tuple(map(int, version[:2])) < MIN_KERNEL:
        return False
    table = mount_table()
    for folder in folders:
        above = [row for row in table if is_below(folder, row[0])]
        kinds = {max(reversed(above), key=lambda row: len(row[0]))[1]}
        kinds.update(row[1] for row in table if is_below(row[0], folder) and row[0] not in skipped)
        if not kinds <= REPORTING_FILESYSTEMS:
            return False
    return True


# -------------------------------------------------------------------------------- files that processes can change


def running_processes() -> Iterable[str]:
    """Return the pids of the sandbox's processes."""
    executor = os.getppid()
    return map(str, own_tree(executor)) if executor != 1 else filter(str.isdigit, os.listdir("/proc"))


def mapped_files(known: Memory) -> tuple[set[bytes], bool]:
    """Return the files that processes can change through a mapping, perhaps without a change of the files' times.

    Args:
        known: all entries. A mapping for reading is examined only if its file is among them.

    Returns:
        The files, and True if all mappings were examined. False means that a process has too many mappings.
    """
    found, complete = set(), True
    for pid in running_processes():
        text = read_proc("/proc/%s/maps" % pid)
        complete = complete and len(text) < MAX_PROC_BYTES
        protected = set()
        # Most processes have no shared mapping, and splitting a long text takes time.
        for line in text.splitlines() if b"-s " in text or b"xs " in text else ():
            words = line.split(None, 5)
            if len(words) < 6 or words[1][3:4] != b"s":
                continue
            path = words[5].replace(b"\\012", b"\n")
            if words[1][1:2] == b"w":
                found.add(path)
            elif path in known and not known[path][1]:
                protected.add(path)
        if protected - found:
            found |= protected & writable_again(pid, protected)
    return found, complete


def writable_again(pid: str, paths: set[bytes]) -> set[bytes]:
    """Return the files among `paths` whose mappings are read-only, but can be made writable by the process.

    The process can do this if it had opened the file for writing. Return all `paths` if this is unknown.
    """
    text = read_proc("/proc/%s/smaps" % pid)
    if not text or len(text) >= MAX_PROC_BYTES:
        return paths
    found, path = set(), b""
    for line in text.splitlines():
        words = line.split(None, 5)
        if not words[0].endswith(b":"):
            path = words[5].replace(b"\\012", b"\n") if len(words) == 6 else b""
        elif words[0] == b"VmFlags:" and b" mw" in line:
            found.add(path)
    return found


def written_files(mapped: set[bytes]) -> set[bytes]:
    """Return the files that any process of the sandbox has open for writing, and `mapped`.

    Raises:
        WalkNeeded: if the open files of a process cannot be listed, or a file whose name was deleted is open for
            writing or mapped.
    """
    found = set(mapped)
    if any(path.endswith(DELETED) and not path.startswith(UNNAMED_MEMORY) for path in mapped):
        raise WalkNeeded("a process has mapped a file whose name is gone")
    for pid in running_processes():
        folder = b"/proc/%s/fd" % pid.encode("ascii")
        try:
            links = [os.path.join(folder, name) for name in os.listdir(folder)]
        except (FileNotFoundError, ProcessLookupError):
            continue
        except OSError:
            raise WalkNeeded("a process does not show its files") from None
        for link in links:
            try:
                if os.lstat(link).st_mode & stat.S_IWUSR:
                    path = os.readlink(link)
                    if path.endswith(DELETED) and os.stat(link).st_nlink:
                        raise WalkNeeded("a process writes to a file whose name is gone")
                    found.add(path)
            except OSError:  # closed meanwhile
                continue
    return found
