"""Mounts: which parts of the filesystem commands can write to, and what in them is still as in the image."""

from __future__ import annotations

import ctypes
import os
import stat
import struct
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import NamedTuple

    class Mount(NamedTuple):
        """A path where something writable is mounted."""

        path: bytes
        base: int
        """How to know what is as in the image: `FOLDER_BASE`, `FILE_BASE`, or 0 if that cannot be known."""
else:
    from collections import namedtuple

    Mount = namedtuple("Mount", "path base")

PSEUDO = frozenset(
    b"autofs binfmt_misc bpf cgroup cgroup2 configfs debugfs devpts devtmpfs efivarfs fusectl hugetlbfs mqueue"
    b" nsfs proc pstore rpc_pipefs securityfs selinuxfs sysfs tracefs".split()
)
MARGIN = 20_000_000  # nanoseconds by which the clock of files may be behind ours
PREPARING = 3_000_000_000  # nanoseconds that an engine may take to prepare its own folders in a new sandbox
FOLDER_BASE, FILE_BASE = 1, 2  # an overlay; a single file that the engine made before the start
AT_FDCWD, AT_SYMLINK_NOFOLLOW, STATX_BTIME = -100, 0x100, 0x800
OVERLAY = "/sys/module/overlay/parameters/"


class Epoch:
    """The time since which changes are the sandbox's own, on the clock of the files' ctime.

    Commands cannot set a ctime. When the machine's clock is set back, the time goes back with it: then the
    scan examines a little more than what was changed, never less.
    """

    def __init__(self) -> None:
        self.start = time.time_ns() - MARGIN
        self.offset = self.clock_offset()
        self.back = 0

    @staticmethod
    def clock_offset() -> int:
        """The difference between the clock of the files and one that never jumps."""
        return time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    def check_clock(self) -> None:
        """Notice a clock that was set back."""
        offset = self.clock_offset()
        if offset < self.offset - MARGIN // 4:
            self.back += self.offset - offset
            self.offset = offset

    def since(self, mount: Mount) -> tuple[int, int]:
        """Ctimes from which on folders must be scanned, and files are no longer as in the image.

        The engine prepares folders before we start. What happens in one later does not show in those above it,
        so folders count from the creation of the sandbox.
        """
        start = self.start - self.back
        if mount.base == FILE_BASE:
            return 0, start
        if mount.base != FOLDER_BASE:
            return 0, 0
        birth = birth_time(mount.path) - PREPARING - self.back
        return (birth, start) if birth > 0 else (0, 0)


def birth_time(path: bytes) -> int:
    """When something was created, in nanoseconds, or 0 where that is not known.

    The upper folder of an overlay is created with the sandbox; what the engine prepared in it is younger.
    """
    buffer = ctypes.create_string_buffer(256)
    try:
        failed = ctypes.CDLL(None).statx(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, STATX_BTIME, buffer)
    except AttributeError:
        return 0
    if failed or not struct.unpack_from("<I", buffer)[0] & STATX_BTIME:
        return 0
    seconds, rest = struct.unpack_from("<qI", buffer, 80)
    return int(seconds) * 1_000_000_000 + int(rest)


def unescape(word: bytes) -> bytes:
    r"""A path of mountinfo, in which odd bytes are written like \040."""
    first, *rest = word.split(b"\\")
    return first + b"".join(bytes([int(part[:3], 8)]) + part[3:] for part in rest)


def is_below(path: bytes, folder: bytes) -> bool:
    """Whether a path is the folder or in it."""
    return path == folder or path.startswith(folder.rstrip(b"/") + b"/")


def is_ours(path: bytes) -> bool:
    """Whether a path is a real file, not one of the kernel."""
    if not path.startswith((b"/dev", b"/proc", b"/sys")):
        return True
    if is_below(path, b"/dev"):
        return is_below(path, b"/dev/shm")
    return not is_below(path, b"/proc") and not is_below(path, b"/sys")


def mount_id(path: bytes) -> bytes:
    """Which mount a path leads to, nothing when it leads nowhere."""
    try:
        fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        with open("/proc/self/fdinfo/%d" % fd, "rb") as file:
            return next((line.split()[1] for line in file if line.startswith(b"mnt_id:")), b"")
    finally:
        os.close(fd)


def keeps_ctimes(kind: bytes, options: bytes) -> bool:
    """Whether a folder below which nothing was written keeps the ctime of the image.

    An overlay that can rename a folder of the image, or copy up metadata alone, could show old files in new
    places.
    """
    if kind != b"overlay":
        return False
    given = dict(option.partition(b"=")[::2] for option in options.split(b","))
    return all(
        overlay_option(given, name) in (b"off", b"nofollow", b"N") for name in (b"redirect_dir", b"metacopy")
    )


def overlay_option(given: dict[bytes, bytes], name: bytes) -> bytes:
    """An option of a mounted overlay: its own, or the kernel's."""
    if name in given:
        return given[name]
    try:
        with open(OVERLAY + name.decode("ascii"), "rb") as file:
            return file.read().strip()
    except OSError:
        return b""


def writable_mounts() -> tuple[list[Mount], set[bytes]]:
    """Mounts to scan, and all paths where something is mounted."""
    found: list[Mount] = []
    table = list(mount_table())
    for path, kind, above, writable in table:
        if writable and kind not in PSEUDO and is_ours(path):
            single = not stat.S_ISDIR(os.lstat(path).st_mode)
            found.append(
                Mount(path, FILE_BASE if single else FOLDER_BASE if keeps_ctimes(kind, above) else 0)
            )
    return found, {path for path, *_ in table}


def engine_folders() -> tuple[list[bytes], set[bytes]]:
    """Folders in memory that the engine fills and commands can write to, and all paths where something is mounted."""
    table = list(mount_table())
    found = [
        path
        for path, kind, _, writable in table
        if writable and kind in (b"tmpfs", b"mqueue") and not is_ours(path) and os.path.isdir(path)
    ]
    return found, {path for path, *_ in table}


def mount_table() -> Iterator[tuple[bytes, bytes, bytes, bool]]:
    """Of each mount: path, kind, options of its filesystem, and whether it is reached by its path and writable."""
    with open("/proc/self/mountinfo", "rb") as file:
        lines = file.read().splitlines()
    for line in lines:
        words = line.split(b" ")
        number, path, options = words[0], unescape(words[4]), words[5]
        kind, _, above = words[words.index(b"-") + 1 :][:3]
        read_only = b"ro" in (options.split(b",")[0], above.split(b",")[0])
        yield path, kind, above, not read_only and mount_id(path) == number
