"""Bytes in both directions between the host and a program, each at the pace of its reader.

The body of such a request is a stream of records with a header `>cI`: a kind, and a number. Each kind says whether so
many bytes follow; `a` says how many more bytes of output the host accepts. Never more is read from the program than
that, so one that writes without end waits, and nothing piles up.
"""

from __future__ import annotations

import os
import struct

from .event_loop import OUT
from .frames import PIPE_READ, STDOUT
from .request import Request

RECORD = struct.Struct(">cI")
ASKED = b"a"


class StreamRequest(Request):
    """Passes on what comes from `reads`, and what goes to `writes`: descriptors that do not block, or -1."""

    def begin(self) -> None:
        self.reads = self.writes = -1
        self.head = b""
        self.left = 0
        self.room = 0
        self.heard = True
        self.coming: list[memoryview] = []

    # ------------------------------------------------------------------------------------------- from the host

    def data(self, data: bytes) -> None:
        """Records, cut anywhere. Bytes for the program are acknowledged when it has taken them."""
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
        """One header: where bytes follow, `left` is their number, and `heard` says whether the program gets them."""
        raise NotImplementedError

    def pump(self) -> None:
        """Give the program what has come, as much as it takes."""
        if self.writes < 0:
            return
        while self.coming:
            try:
                written = os.write(self.writes, self.coming[0])
            except BlockingIOError:
                self.executor.watch(self.writes, OUT, lambda _: self.pump())
                return
            except OSError:  # no program reads it any more
                written = len(self.coming[0])
                self.deaf()
                if self.writes < 0:
                    return
            self.acknowledge(written)
            self.coming[0] = self.coming[0][written:]
            if not self.coming[0]:
                self.coming.pop(0)
        self.executor.unwatch(self.writes)
        self.drained()

    def deaf(self) -> None:
        """The program takes no more bytes; those that come are dropped unless the request ends."""

    def drained(self) -> None:
        """The program has taken all that has come."""

    # --------------------------------------------------------------------------------------------- to the host

    def set_room(self, room: int) -> None:
        """Set how much may be sent to the host; at 0 the program is not read."""
        self.room = room
        if self.reads < 0:
            return
        if room > 0:
            self.executor.watch_output(self.reads, self.read_program)
        else:
            self.executor.unwatch(self.reads)

    def read_program(self) -> None:
        """The program has written something, or writes no more."""
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
        """The program writes no more."""
        raise NotImplementedError
