"""A file with content that the host has put here from outside, for one restore."""

from __future__ import annotations

import errno
import os

from .records import CHUNK_SIZE, PART
from .wire import text_to_bytes

TOP = b"/"


class Pack:
    """The pack of a restore. It loses its name at once, so that nothing is left of it.

    Args:
        name: in the top folder; None when there is to be none.
        top_time: the mtime of that folder before the pack, and what its engine needed for it, came there.
    """

    def __init__(self, name: str | None, top_time: int | None) -> None:
        self.fd = -1
        self.missed = False
        if not name or "/" in name:
            return
        path = os.path.join(TOP, text_to_bytes(name))
        try:
            self.fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            os.unlink(path)
        except OSError:
            pass
        if top_time is not None:
            os.utime(TOP, ns=(os.stat(TOP).st_atime_ns, top_time))

    def copy(self, file: int, part: bytes) -> int:
        """Copy a part into a file; how many bytes.

        Raises:
            OSError: it is not in the pack, or cannot be written.
        """
        offset, place, size = PART.unpack(part)
        left = size
        while left:
            data = os.pread(self.fd, min(left, CHUNK_SIZE), place) if self.fd >= 0 else b""
            if not data:
                self.missed = True
                raise OSError(errno.ENODATA, os.strerror(errno.ENODATA))
            written = os.pwrite(file, data, offset)
            offset, place, left = offset + written, place + written, left - written
        return int(size)

    def close(self) -> None:
        """It is not needed any more."""
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1
