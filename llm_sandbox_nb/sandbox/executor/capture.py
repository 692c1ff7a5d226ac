"""The output of one command, of which only a limited number of bytes is in memory."""

from __future__ import annotations

import os

from .frames import GAP, STDERR, STDOUT, bytes_to_text, quietly_close, write_all
from .light import dump

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MAX_SPILL_BYTES = 256 * 1024 * 1024
"""Maximum bytes of the file with a command's complete output, because endless output would fill the disk."""


class Capture:
    """The output of one command. At most `limit` bytes of each stream (stdout and stderr) are sent.

    The first `limit / 2` bytes are sent at once, and the last `limit / 2` bytes at the end of the command. When a
    stream has more than `limit` bytes, all output of both streams is also written to the file `spill`, in the order of
    its arrival. The file has at most `MAX_SPILL_BYTES`.
    """

    def __init__(self, send: Callable[[int, bytes], None], limit: int, spill: bytes) -> None:
        self.send = send
        self.tail_cap = limit // 2
        self.limit = limit
        self.room = {STDOUT: limit - limit // 2, STDERR: limit - limit // 2}
        self.total = {STDOUT: 0, STDERR: 0}
        self.tail: dict[int, list[bytes]] = {STDOUT: [], STDERR: []}
        self.tail_size = {STDOUT: 0, STDERR: 0}
        self.spill = spill
        self.spill_fd = -1
        self.spilled = 0
        self.log: list[bytes] | None = []

    def feed(self, stream: int, data: bytes) -> None:
        """Add output of a stream: send it, or hold it back for `finish`. Keep a copy for the file `spill`."""
        self.total[stream] += len(data)
        self._keep(data, self.total[stream] > self.limit)
        head = data[: self.room[stream]]
        if head:
            self.room[stream] -= len(head)
            self.send(stream, head)
        rest = data[len(head) :]
        if rest:
            self.tail[stream].append(rest)
            self.tail_size[stream] += len(rest)
            self._trim(stream)

    def _trim(self, stream: int) -> None:
        pieces = self.tail[stream]
        drop = 0
        while self.tail_size[stream] - len(pieces[drop]) >= self.tail_cap:
            self.tail_size[stream] -= len(pieces[drop])
            drop += 1
            if drop == len(pieces):
                break
        del pieces[:drop]

    def _keep(self, data: bytes, over: bool) -> None:
        if self.log is not None:
            self.log.append(data)
            if over:
                pieces, self.log = self.log, None
                self._open_spill()
                for piece in pieces:
                    self._spill(piece)
        elif self.spill_fd >= 0:
            self._spill(data)

    def _open_spill(self) -> None:
        try:
            os.makedirs(os.path.dirname(self.spill), exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self.spill_fd = os.open(self.spill, flags, 0o644)
        except OSError:
            self.spill_fd = -1

    def _spill(self, data: bytes) -> None:
        data = data[: MAX_SPILL_BYTES - self.spilled]
        try:
            write_all(self.spill_fd, data)
        except OSError:
            self.close()
        self.spilled += len(data)

    def finish(self) -> dict[str, Any]:
        """Send the output that was held back. Return fields for the response: the sizes in bytes, and the file's path.

        The path is None if there is no file.
        """
        for stream, name in ((STDOUT, "stdout"), (STDERR, "stderr")):
            tail = b"".join(self.tail[stream])
            tail = tail[max(0, len(tail) - self.tail_cap) :]
            sent = self.limit - self.limit // 2 - self.room[stream]
            omitted = self.total[stream] - sent - len(tail)
            if omitted:
                self.send(GAP, dump({"stream": name, "omitted": omitted}))
            if tail:
                self.send(stream, tail)
        full = bytes_to_text(self.spill) if self.spill_fd >= 0 else None
        self.close()
        return {"stdout_bytes": self.total[STDOUT], "stderr_bytes": self.total[STDERR], "full_output": full}

    def close(self) -> None:
        quietly_close(self.spill_fd)
        self.spill_fd = -1
