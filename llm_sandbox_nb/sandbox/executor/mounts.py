"""Mounts to which commands can write, and ways to detect that a file is still as in the image."""

from __future__ import annotations

import ctypes
import os
import stat
import struct
import time

from .light import named_tuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple

    class Mount(NamedTuple):
        """A writable mount."""

        path: bytes
        base: int
        """Way to detect files that are still as in the image: `FOLDER_BASE`, `FILE_BASE`, or 0 if there is no way."""
else:
    Mount = named_tuple("Mount", "path base")

PSEUDO_FILESYSTEMS = frozenset(
    b"autofs binfmt_misc bpf cgroup cgroup2 configfs debugfs devpts devtmpfs efivarfs fusectl hugetlbfs mqueue"
    b" nsfs proc pstore rpc_pipefs securityfs selinuxfs sysfs tracefs".split()
)
CLOCK_MARGIN_NS = 20_000_000  # the clock of ctimes may be so much behind `time.time_ns`
PREPARATION_NS = 3_000_000_000  # time for an engine to prepare its folders in a new sandbox
FOLDER_BASE, FILE_BASE = 1, 2
"""Values of `Mount.base`: for an overlay, and for a single file that the engine has made before the start."""
AT_FDCWD, AT_SYMLINK_NOFOLLOW, STATX_BTIME = -100, 0x100, 0x800
OVERLAY_PARAMETERS = "/sys/module/overlay/parameters/"


class Epoch:
    """Start time of the sandbox on the clock of ctimes. Changes with a later ctime were made in the sandbox.

    The ctime of a file is the time of its last change, which commands cannot set. If the machine's clock is set back,
    the start time moves back too. So a scan may examine too many entries, but never too few.
    """

    def __init__(self) -> None:
        self.start = time.time_ns() - CLOCK_MARGIN_NS
        self.offset = self.clock_offset()
        self.back = 0

    @staticmethod
    def clock_offset() -> int:
        """Return the difference in nanoseconds between the machine's clock and a clock that never jumps."""
        return time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    def check_clock(self) -> None:
        """Check if the machine's clock was set back, and add the difference to `back`."""
        offset = self.clock_offset()
        if offset < self.offset - CLOCK_MARGIN_NS // 4:
            self.back += self.offset - offset
            self.offset = offset

    def since(self, mount: Mount) -> tuple[int, int]:
        """Return two ctimes in nanoseconds, the first for folders and the second for files.

        A folder with the first ctime or a later ctime must be scanned. A file with the second ctime or a later ctime
        may differ from the image. 0 means that all must be examined. The second ctime is the start of the executor. The
        first is earlier: the creation of the sandbox, because the engine makes some folders between these two times.
        When a command changes something in such a folder later, the ctimes of the folders above stay as they are. So a
        scan from the executor's start would not enter these folders.
        """
        start = self.start - self.back
        if mount.base == FILE_BASE:
            return 0, start
        if mount.base != FOLDER_BASE:
            return 0, 0
        birth = birth_time(mount.path) - PREPARATION_NS - self.back
        return (birth, start) if birth > 0 else (0, 0)


def birth_time(path: bytes) -> int:
    """Return the creation time of a path in nanoseconds, or 0 if the time is unknown.

    The top folder of an overlay has the creation time of the sandbox.
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
    r"""Decode a path of mountinfo, in which special bytes are written like \040."""
    first, *rest = word.split(b"\\")
    return first + b"".join(bytes([int(part[:3], 8)]) + part[3:] for part in rest)


def is_below(path: bytes, folder: bytes) -> bool:
    """Return True if a path is the folder or lies in the folder."""
    return path == folder or path.startswith(folder.rstrip(b"/") + b"/")


def is_ordinary_path(path: bytes) -> bool:
    """Return False for paths in the folders of the kernel (/dev, /proc, /sys), except /dev/shm."""
    in_kernel_folder = any(is_below(path, folder) for folder in (b"/dev", b"/proc", b"/sys"))
    return not in_kernel_folder or is_below(path, b"/dev/shm")


def mount_id(path: bytes) -> bytes:
    """Return the number of the mount that contains a path, in digits. Return b"" if the path does not exist."""
    try:
        fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return mount_number(fd)
    finally:
        os.close(fd)


def mount_number(fd: int) -> bytes:
    """Return the number of the mount that contains an open file, in digits."""
    with open("/proc/self/fdinfo/%d" % fd, "rb") as file:
        return next((line.split()[1] for line in file if line.startswith(b"mnt_id:")), b"")


def keeps_ctimes(kind: bytes, options: bytes) -> bool:
    """Return True if each folder of a filesystem keeps the ctime of the image until something below it is written.

    Only overlays do this. The result is False for an overlay that can rename folders of the image, or copy metadata
    without content. Such an overlay can show files with old ctimes in new places.
    """
    if kind != b"overlay":
        return False
    given = dict(option.partition(b"=")[::2] for option in options.split(b","))
    return all(
        overlay_option(given, name) in (b"off", b"nofollow", b"N") for name in (b"redirect_dir", b"metacopy")
    )


def overlay_option(given: dict[bytes, bytes], name: bytes) -> bytes:
    """Return an option of a mounted overlay, or the kernel's default if the option is not given."""
    if name in given:
        return given[name]
    try:
        with open(OVERLAY_PARAMETERS + name.decode("ascii"), "rb") as file:
            return file.read().strip()
    except OSError:
        return b""


def writable_mounts() -> tuple[list[Mount], set[bytes]]:
    """Return the writable mounts, which a scan examines, and the paths of all mounts."""
    found: list[Mount] = []
    table = mount_table()
    for path, kind, above, writable in table:
        if writable and kind not in PSEUDO_FILESYSTEMS and is_ordinary_path(path):
            single = not stat.S_ISDIR(os.lstat(path).st_mode)
            found.append(
                Mount(path, FILE_BASE if single else FOLDER_BASE if keeps_ctimes(kind, above) else 0)
            )
    return found, {path for path, *_ in table}


def engine_folders() -> tuple[list[bytes], set[bytes]]:
    """Return writable in-memory folders that the engine fills, and the paths of all mounts."""
    table = mount_table()
    found = [
        path
        for path, kind, _, writable in table
        if writable and kind in (b"tmpfs", b"mqueue") and not is_ordinary_path(path) and os.path.isdir(path)
    ]
    return found, {path for path, *_ in table}


def mount_table() -> list[tuple[bytes, bytes, bytes, bool]]:
    """Return four values of each mount: path, kind of filesystem, options of the filesystem, and a bool.

    The bool is True if the mount is writable and no other mount hides it. To find hidden mounts takes milliseconds. So
    the table is kept until the text of /proc/self/mountinfo changes.
    """
    with open("/proc/self/mountinfo", "rb") as file:
        text = file.read()
    if text not in LAST_TABLE:
        LAST_TABLE.clear()
        LAST_TABLE[text] = [mount_row(line) for line in text.splitlines()]
    return LAST_TABLE[text]


LAST_TABLE: dict[bytes, list[tuple[bytes, bytes, bytes, bool]]] = {}
"""The latest result of `mount_table`, by the text of /proc/self/mountinfo."""


def mount_row(line: bytes) -> tuple[bytes, bytes, bytes, bool]:
    """Parse a line of /proc/self/mountinfo. `mount_table` describes the result."""
    words = line.split(b" ")
    number, path, options = words[0], unescape(words[4]), words[5]
    kind, _, above = words[words.index(b"-") + 1 :][:3]
    read_only = b"ro" in (options.split(b",")[0], above.split(b",")[0])
    return path, kind, above, not read_only and mount_id(path) == number
