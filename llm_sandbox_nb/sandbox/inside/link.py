"""The pipe to the host: whole frames in, whole frames out, at the pace at which the host takes them."""

from __future__ import annotations

import os
import time
import zlib

from .poller import IN, OUT, Poller
from .wire import ACK, CHECKED, HEADER, MAGIC, MAX_PAYLOAD, PIPE_READ, dump

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

OUT_HIGH = 1024 * 1024  # stop reading commands' output when so much waits for the host
OUT_LOW = 256 * 1024
ACK_EVERY = 256 * 1024  # a quarter of what the host sends ahead: it never waits for less


class Link(Poller):
    """Frames on fd 0 and fd 1."""

    def __init__(self) -> None:
        super().__init__()
        self.incoming = bytearray()
        self.outgoing: list[bytes] = []
        self.outgoing_size = 0
        self.acknowledged: dict[int, int] = {}
        self.heard = time.monotonic()
        for fd in (0, 1):
            os.set_blocking(fd, False)
        self.watch(0, IN, lambda _: self.read_frames())

    def handle(self, kind: int, number: int, payload: bytes) -> None:
        """One frame of the host."""
        raise NotImplementedError

    def leave(self) -> NoReturn:
        """The host is gone for good."""
        raise NotImplementedError

    def send(self, kind: int, number: int, payload: bytes) -> None:
        """Queue a frame; it leaves when the loop comes round."""
        check = zlib.crc32(payload, zlib.crc32(CHECKED.pack(MAGIC, kind, number, len(payload))))
        self.outgoing.append(HEADER.pack(MAGIC, kind, number, len(payload), check) + payload)
        self.outgoing_size += HEADER.size + len(payload)

    def acknowledge(self, number: int, size: int) -> None:
        """Count body bytes that have been used; told to the host when the loop comes round."""
        if size:
            self.acknowledged[number] = self.acknowledged.get(number, 0) + size

    def flush(self) -> None:
        """Write as much as the pipe takes, and hold commands back when it takes too little."""
        self.queue_acknowledgements()
        self.write_outgoing()
        if self.outgoing:
            self.watch(1, OUT, lambda _: None)
        elif 1 in self.handlers:
            self.unwatch(1)
        if self.paused != (self.outgoing_size > (OUT_LOW if self.paused else OUT_HIGH)):
            self.pause_outputs(not self.paused)

    def queue_acknowledgements(self) -> None:
        """Tell the host how much of its bodies has been used, as soon as that is worth a frame."""
        for number in [number for number, size in self.acknowledged.items() if size >= ACK_EVERY]:
            self.send(ACK, number, dump({"bytes": self.acknowledged.pop(number)}))

    def write_outgoing(self) -> None:
        """Write as much as the pipe takes."""
        while self.outgoing:
            data = self.outgoing[0] if len(self.outgoing) == 1 else b"".join(self.outgoing[:8])
            try:
                written = os.write(1, data)
            except BlockingIOError:
                written = 0
            except OSError:
                self.leave()
            self.outgoing[:8] = [data[written:]] if written < len(data) else []
            self.outgoing_size -= written
            if written < len(data):
                break

    def read_frames(self) -> None:
        """Take what the host has sent. An end of file means that it can never come back."""
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
        """The next whole and valid frame; anything else is skipped, so a new owner can start anywhere."""
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
