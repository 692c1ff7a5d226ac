"""Requests that move bytes in both directions between the host and a program, at the pace of the reader.

The body of such a request is a stream of records with a header `>cI`: a kind and a number. For some kinds, the number
is the size of the bytes that follow. A record of kind `a` means that the host accepts so many more bytes of output. The
executor reads no more bytes from the program than the host accepts. So a program that never stops writing has to wait,
and its output does not accumulate.
"""

from __future__ import annotations

import os
import struct

from .event_loop import OUT
from .frames import PIPE_READ, STDOUT, write_pending
from .request import Request

RECORD = struct.Struct(">cI")
ASKED = b"a"


class StreamRequest(Request):
    """Request that moves bytes from descriptor `reads` to the host, and from the host to descriptor `writes`.

    Both descriptors are non-blocking. A closed descriptor is -1.
    """

    def begin(self) -> None:
        self.reads = self.writes = -1
        self.head = b""
        self.left = 0
        self.room = 0
        self.heard = True
        self.coming: list[memoryview] = []

    # ------------------------------------------------------------------------------------------- from the host

    def data(self, data: bytes) -> None:
        """Handle a piece of the body, which may begin or end within a record.

        Bytes for the program are acknowledged when the program gets them. All other bytes are acknowledged at once.
        """
        view, self.head = memoryview(self.head + data), b""
        used = 0
        while view:
            if self.left:
                piece, view = view[: self.left], view[self.left :]
                self.left -= len(piece)
                if self.heard:
                    self.coming.append(piece)
                else:
                    used += len(piece)
            elif len(view) < RECORD.size:
                self.head, view = bytes(view), view[:0]
            else:
                kind, value = RECORD.unpack_from(view)
                view = view[RECORD.size :]
                used += RECORD.size
                if kind == ASKED:
                    self.set_room(self.room + value)
                else:
                    self.take_record(kind, value)
        self.acknowledge(used)
        self.pump()

    def take_record(self, kind: bytes, value: int) -> None:
        """Handle the header of a record. Set `left` to the number of bytes that follow.

        Set `heard` to False if these bytes are to be dropped.
        """
        raise NotImplementedError

    def pump(self) -> None:
        """Write as many received bytes as the program accepts."""
        if self.writes < 0:
            return
        while self.coming:
            written, has_reader = write_pending(self.writes, self.coming)
            self.acknowledge(written)
            if has_reader and self.coming:
                self.executor.watch(self.writes, OUT, lambda _: self.pump())
                return
            if not has_reader:
                self.deaf()
                if self.writes < 0:
                    return
                self.acknowledge(len(self.coming.pop(0)))
        self.executor.unwatch(self.writes)
        self.drained()

    def deaf(self) -> None:
        """Handle a program that accepts no more bytes. Further bytes are dropped."""

    def drained(self) -> None:
        """Handle the moment when all received bytes were written."""

    # --------------------------------------------------------------------------------------------- to the host

    def set_room(self, room: int) -> None:
        """Set the number of bytes that may be sent to the host. With 0, the program's output is not read."""
        self.room = room
        if self.reads < 0:
            return
        if room > 0:
            self.executor.watch_output(self.reads, self.read_program)
        else:
            self.executor.unwatch(self.reads)

    def read_program(self) -> None:
        """Forward output of the program, or handle its end."""
        try:
            data = os.read(self.reads, min(PIPE_READ, self.room))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self.send(STDOUT, data)
            self.set_room(self.room - len(data))
        else:
            self.executor.unwatch(self.reads)
            self.ended_writing()

    def ended_writing(self) -> None:
        """Handle the end of the program's output."""
        raise NotImplementedError
