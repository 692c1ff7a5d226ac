"""What is remembered of an entry of the filesystem, and how it is told."""

from __future__ import annotations

import binascii
import os
import stat

from .processes import own_tree, read_proc
from .wire import bytes_to_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    Signature = tuple[int, ...]
    """Mode, owner, group, size, mtime, ctime, inode, device."""
    Record = tuple[Signature, int, Any, Any, Any]
    """Signature, base, detail, link, xattrs."""
    Memory = dict[bytes, Record]

CTIME = 5
UNSURE = -1  # in place of a ctime: look at the content again
KINDS = {
    stat.S_IFDIR: "d", stat.S_IFREG: "f", stat.S_IFLNK: "l", stat.S_IFIFO: "p", stat.S_IFCHR: "c", stat.S_IFBLK: "b",
}  # fmt: skip
XATTRS_SIZE = 64 * 1024


def signature(look: os.stat_result) -> Signature:
    """What differs when an entry was changed. The size of a folder is the filesystem's business."""
    return (
        look.st_mode, look.st_uid, look.st_gid, look.st_size if stat.S_ISREG(look.st_mode) else 0,
        look.st_mtime_ns, look.st_ctime_ns, look.st_ino, look.st_dev,
    )  # fmt: skip


def row_of(path: bytes, record: Record) -> list[Any]:
    """An entry as it is told."""
    (mode, uid, gid, size, mtime, *_), base, detail, link, xattrs = record
    kind = KINDS[stat.S_IFMT(mode)]
    return [bytes_to_text(path), kind, base, stat.S_IMODE(mode), uid, gid, mtime, size, detail, link, xattrs]


def same_row(one: Record, other: Record) -> bool:
    """Whether two records are told alike."""
    return one[0][:CTIME] == other[0][:CTIME] and one[1:] == other[1:]


def xattrs_of(path: bytes) -> dict[str, str] | None:
    """Extended attributes, access lists among them."""
    try:
        names = os.listxattr(path, follow_symlinks=False)
        if not names:
            return None
        found = {}
        for name in names:
            value = os.getxattr(path, name, follow_symlinks=False)
            if len(value) <= XATTRS_SIZE and name != "security.selinux":
                found[name] = binascii.b2a_base64(value, newline=False).decode("ascii")
    except OSError:
        return None
    return found or None


def mapped_files() -> set[bytes]:
    """Files that a process has mapped for writing: it can change them without a trace in their times."""
    found = set()
    executor = os.getppid()
    pids = own_tree(executor) if executor != 1 else filter(str.isdigit, os.listdir("/proc"))
    for pid in pids:
        for line in read_maps("/proc/%s/maps" % pid):
            words = line.split(None, 5)
            if len(words) == 6 and words[1].startswith(b"rw") and words[1][3:4] == b"s":
                found.add(words[5].replace(b"\\012", b"\n"))
    return found


def read_maps(path: str) -> Iterable[bytes]:
    """Lines of a process's map, none when it is not ours to read. Nearly all hold nothing that is shared."""
    text = read_proc(path)
    if len(text) == 65536 or b"rw-s" in text or b"rwxs" in text:
        try:
            with open(path, "rb") as file:
                return file.read(4 * 1024 * 1024).splitlines()
        except OSError:
            pass
    return ()
