"""The format of frames, the pipe to the host, and small functions that all modules use.

The format is repeated from `sandbox/protocol/frames.py`, because that module cannot be imported inside a sandbox.
"""

from __future__ import annotations

import os
import struct
import time
import zlib

from .event_loop import IN, OUT, EventLoop
from .light import dump

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

HEADER = struct.Struct(">2sBIII")
CHECKED = struct.Struct(">2sBII")
MAGIC = b"LS"
MAX_PAYLOAD = 64 * 1024
REQUEST, DATA, END, STDOUT, STDERR, GAP, RESPONSE, CANCEL, HELLO, PING, PONG, ACK, BYE = range(1, 14)
PIPE_READ = 256 * 1024
F_SETPIPE_SZ = 1031
PIPE_BYTES = 1024 * 1024  # the largest pipe that an ordinary user may have by default
HOST_PIPE_BYTES = 256 * 1024  # for a pipe with much content to or from the host; about four full frames
PAUSE_ABOVE_BYTES = 1024 * 1024  # if more bytes wait for the host, commands' output is not read
RESUME_BELOW_BYTES = 256 * 1024  # if fewer bytes wait, commands' output is read again
MAX_WRITTEN_PARTS = 64  # in one system call: the headers and payloads of 32 frames, together at most 2 MiB
HANDED = 1000
"""Descriptor of a Unix socket to the process that started the sandbox, if the isolation provides such a socket.

Descriptors are sent through this socket: the door's listening socket to the host, and a file with content for a restore
(a pack) from the host to the history child.
"""
ACK_EVERY_BYTES = 256 * 1024  # a quarter of the host's window, so that the host never has to wait for an ACK


def text_to_bytes(text: str) -> bytes:
    """Convert a name from JSON to the bytes that the kernel uses."""
    return text.encode("utf-8", "surrogateescape")


def bytes_to_text(data: bytes) -> str:
    """Undo `text_to_bytes`."""
    return data.decode("utf-8", "surrogateescape")


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write everything to a blocking descriptor."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def write_pending(fd: int, pending: list[memoryview]) -> tuple[int, bool]:
    """Write as much of `pending` as a non-blocking descriptor accepts, and remove those bytes from the list.

    Returns:
        The number of written bytes, and False if nobody reads the descriptor any more.
    """
    total = 0
    while pending:
        try:
            written = os.write(fd, pending[0])
        except BlockingIOError:
            break
        except OSError:
            return total, False
        total += written
        pending[0] = pending[0][written:]
        if not pending[0]:
            pending.pop(0)
    return total, True


def enlarge_pipes(*fds: int, size: int = PIPE_BYTES) -> None:
    """Enlarge pipes, so that fewer reads are needed, and writers pause less often."""
    import fcntl

    try:
        for fd in fds:
            fcntl.fcntl(fd, F_SETPIPE_SZ, size)
    except OSError:  # the limit of pipe memory was reached, or the call is forbidden, or this is no pipe
        pass


def quietly_close(*fds: int) -> None:
    """Close descriptors. Ignore -1, which stands for a closed descriptor."""
    for fd in fds:
        if fd >= 0:
            os.close(fd)


class HostPipe(EventLoop):
    """Event loop that exchanges frames with the host on fd 0 and fd 1, at the host's pace."""

    def __init__(self) -> None:
        super().__init__()
        self.incoming = bytearray()
        self.outgoing: list[bytes | memoryview] = []
        self.outgoing_size = 0
        self.acknowledged: dict[int, int] = {}
        self.heard = time.monotonic()
        for fd in (0, 1):
            os.set_blocking(fd, False)
        self.watch(0, IN, lambda _: self.read_frames())

    def handle(self, kind: int, number: int, payload: bytes) -> None:
        """Handle one frame of the host."""
        raise NotImplementedError

    def leave(self) -> NoReturn:
        """End the executor, because the host will not return."""
        raise NotImplementedError

    def send(self, kind: int, number: int, payload: bytes | memoryview) -> None:
        """Queue a frame. The loop sends all queued frames in its next round."""
        check = zlib.crc32(payload, zlib.crc32(CHECKED.pack(MAGIC, kind, number, len(payload))))
        self.outgoing += (HEADER.pack(MAGIC, kind, number, len(payload), check), payload)
        self.outgoing_size += HEADER.size + len(payload)

    def acknowledge(self, number: int, size: int) -> None:
        """Count consumed bytes of a body. When the count reaches `ACK_EVERY_BYTES`, `flush` reports it to the host."""
        if size:
            self.acknowledged[number] = self.acknowledged.get(number, 0) + size

    def flush(self) -> None:
        """Write as many queued bytes as the pipe accepts. While too many bytes wait, stop reading commands' output."""
        for number in [number for number, size in self.acknowledged.items() if size >= ACK_EVERY_BYTES]:
            self.send(ACK, number, dump({"bytes": self.acknowledged.pop(number)}))
        self.write_outgoing()
        if self.outgoing:
            self.watch(1, OUT, lambda _: None)
        elif 1 in self.handlers:
            self.unwatch(1)
        if self.paused != (self.outgoing_size > (RESUME_BELOW_BYTES if self.paused else PAUSE_ABOVE_BYTES)):
            self.pause_outputs(not self.paused)

    def write_outgoing(self) -> None:
        while self.outgoing:
            parts = self.outgoing[:MAX_WRITTEN_PARTS]
            try:
                written = os.writev(1, parts)
            except BlockingIOError:
                return
            except OSError:
                self.leave()
            self.outgoing_size -= written
            done = 0
            while done < len(parts) and written >= len(parts[done]):
                written -= len(parts[done])
                done += 1
            del self.outgoing[:done]
            if done < len(parts):
                self.outgoing[0] = memoryview(parts[done])[written:]
                return

    def read_frames(self) -> None:
        """Read and handle frames from the host. At the end of the pipe, end the executor: no host can return."""
        try:
            data = os.read(0, PIPE_READ)
        except BlockingIOError:
            return
        if not data:
            self.leave()
        self.incoming += data
        while True:
            frame = self.next_frame()
            if frame is None:
                return
            self.heard = time.monotonic()
            self.handle(*frame)

    def next_frame(self) -> tuple[int, int, bytes] | None:
        """Return the next valid frame, or None if it is not complete yet.

        Skip other bytes, because a new owner may begin in the middle of an old owner's frame.
        """
        buffer = self.incoming
        while True:
            start = buffer.find(MAGIC)
            if start < 0:
                del buffer[: max(0, len(buffer) - 1)]
                return None
            del buffer[:start]
            if len(buffer) < HEADER.size:
                return None
            magic, kind, number, length, check = HEADER.unpack_from(buffer)
            if length <= MAX_PAYLOAD:
                if len(buffer) < HEADER.size + length:
                    return None
                with memoryview(buffer) as view:
                    payload = bytes(view[HEADER.size : HEADER.size + length])
                if zlib.crc32(payload, zlib.crc32(CHECKED.pack(magic, kind, number, length))) == check:
                    del buffer[: HEADER.size + length]
                    return kind, number, payload
            del buffer[:1]
