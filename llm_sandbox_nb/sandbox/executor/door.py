"""The only way out of a sandbox whose network is an allow-list: a listener on its own loopback, passed on to the host.

The host asks for connections: each request `connection` takes one. Its body is a stream of records with a header
`>cI` each: `d` and so many bytes for the program inside, `a` and how many more bytes of the program the host accepts.
Frames of stdout are what the program sends; of stderr, `begun` and `ended`: the program has connected, and sends no
more. While nobody asks, connections are closed at once: without its host the door leads nowhere.
"""

from __future__ import annotations

import _socket as socket  # the module in Python takes ten times as long to import
import errno
import fcntl
import os
import struct

from .event_loop import IN, OUT
from .frames import PIPE_READ, STDERR, STDOUT, quietly_close
from .request import Request, describe_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .event_loop import EventLoop, Timer

RECORD = struct.Struct(">cI")
DATA, ASKED = b"d", b"a"
BEGUN, ENDED = b"begun", b"ended"
BACKLOG = 1024
HANDED = 1000
"""Where the starter of a sandbox on this machine has put a Unix socket to itself, by which it takes the listener."""
F_SETPIPE_SZ, PIPE_BYTES = 1031, 256 * 1024
PATIENCE, BUSY_PATIENCE = 2.0, 30.0
"""Seconds for which a connection waits for the host to ask for it: while none is served, and while some are."""


class DoorListener:
    """The listener, and the requests that wait for a connection."""

    def __init__(self, executor: EventLoop) -> None:
        self.executor = executor
        self.listener: socket.socket | None = None
        self.port = 0
        self.waiting: list[ConnectionRequest] = []
        self.served = 0
        self.waited = 0.0
        self.timer: Timer | None = None

    def open(self, port: int) -> bool:
        """Listen, unless it does already; False when it cannot."""
        if self.listener is None:
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            try:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(("127.0.0.1", port))
                listener.listen(BACKLOG)
            except OSError:
                listener.close()
                return False
            listener.setblocking(False)
            self.listener, self.port = listener, port
            widen(0)
            widen(1)
            self.executor.watch(listener.fileno(), IN, lambda _: self.knocked())
        return True

    def hand_out(self) -> None:
        """Give the listener to the host, which takes the connections itself from then on. Raises OSError."""
        if self.listener is None:
            raise OSError(errno.EBADF, "the door is not open")
        with_host = socket.socket(fileno=HANDED)
        try:
            numbers = struct.pack("i", self.listener.fileno())
            with_host.sendmsg([b"d"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)])
        finally:
            with_host.close()
        # Nothing keeps it open here: when its host is gone, connections are refused at once.
        self.executor.unwatch(self.listener.fileno())
        self.listener.close()
        self.listener = None

    def ask(self, request: ConnectionRequest) -> None:
        """The host takes one more connection."""
        self.waiting.append(request)
        if self.port:
            self.open(self.port)  # it is closed when an earlier host had it
        if self.listener is not None:
            self.executor.watch(self.listener.fileno(), IN, lambda _: self.knocked())

    def knocked(self) -> None:
        """A program connects. Without a request that waits for it, it waits a little itself."""
        assert self.listener is not None
        if not self.waiting:
            self.executor.watch(self.listener.fileno(), 0, lambda _: None)
            if self.timer is None:
                self.waited = 0.0
                self.timer = self.executor.after(PATIENCE, self.close_waiting)
            return
        try:
            connection = self.accept()
        except OSError:
            return
        self.waiting.pop(0).begun(connection)

    def accept(self) -> socket.socket:
        """The next connection. Raises OSError when none waits."""
        assert self.listener is not None
        return socket.socket(fileno=self.listener._accept()[0])  # type: ignore[attr-defined] # not in the stubs

    def close_waiting(self) -> None:
        """Close what has waited, if still nobody asks for it."""
        assert self.listener is not None
        self.timer = None
        self.waited += PATIENCE
        if self.waiting:
            return
        if self.served and self.waited < BUSY_PATIENCE:
            self.timer = self.executor.after(PATIENCE, self.close_waiting)
            return
        try:
            while True:
                self.accept().close()
        except OSError:
            pass
        self.executor.watch(self.listener.fileno(), IN, lambda _: self.knocked())


def widen(fd: int) -> None:
    """Let the pipe to the host hold more than one frame: a download waits less often for the other side then."""
    try:
        fcntl.fcntl(fd, F_SETPIPE_SZ, PIPE_BYTES)
    except OSError:  # it is a socket, or the user has too many pipes
        pass


class HandOutRequest(Request):
    """The host takes the listener itself, where it can: nothing is passed on through the executor then."""

    door: DoorListener

    def begin(self) -> None:
        try:
            self.door.hand_out()
        except OSError as error:
            self.respond({"error": describe_error(error)})
        else:
            self.respond({})


class ConnectionRequest(Request):
    """One connection of a program inside, passed on to the host."""

    door: DoorListener

    def begin(self) -> None:
        """Wait for a program that connects."""
        self.socket: socket.socket | None = None
        self.reads = self.writes = -1
        self.head = b""
        self.left = self.room = 0
        self.coming: list[bytes] = []
        self.body_over = self.program_over = False
        self.door.ask(self)

    def begun(self, connection: socket.socket) -> None:
        """A program has connected. It is read and written through two descriptors, which wait for different things."""
        self.socket = connection
        self.door.served += 1
        connection.setblocking(False)
        try:
            self.reads, self.writes = os.dup(connection.fileno()), os.dup(connection.fileno())
        except OSError:
            self.finish()
            return
        self.send(STDERR, BEGUN)
        self.set_room(self.room)
        self.pump()

    def data(self, data: bytes) -> None:
        """Records, cut anywhere. Bytes for the program are acknowledged when it has taken them."""
        data, self.head = self.head + data, b""
        used = 0
        while data:
            if self.left:
                piece, data = data[: self.left], data[self.left :]
                self.left -= len(piece)
                self.coming.append(piece)
            elif len(data) < RECORD.size:
                self.head, data = data, b""
            else:
                kind, value = RECORD.unpack_from(data)
                data = data[RECORD.size :]
                used += RECORD.size
                if kind == DATA:
                    self.left = value
                else:
                    self.set_room(self.room + value)
        self.acknowledge(used)
        self.pump()

    def end(self) -> None:
        """The host sends no more."""
        self.body_over = True
        self.pump()

    def pump(self) -> None:
        """Give the program what has come, as much as it takes."""
        if self.socket is None or self.done:
            return
        while self.coming:
            try:
                written = os.write(self.writes, self.coming[0])
            except BlockingIOError:
                self.executor.watch(self.writes, OUT, lambda _: self.pump())
                return
            except OSError:
                self.finish()
                return
            self.acknowledge(written)
            self.coming[0] = self.coming[0][written:]
            if not self.coming[0]:
                self.coming.pop(0)
        self.executor.unwatch(self.writes)
        if self.body_over:
            try:
                self.socket.shutdown(socket.SHUT_WR)
            except OSError:
                self.program_over = True
            if self.program_over:
                self.finish()

    def set_room(self, room: int) -> None:
        """Set how much may be sent to the host; at 0 the program is not read."""
        self.room = room
        if self.reads < 0 or self.program_over:
            return
        if room > 0:
            self.executor.watch_output(self.reads, self.read_program)
        else:
            self.executor.unwatch(self.reads)

    def read_program(self) -> None:
        """The program has sent something, or sends no more."""
        try:
            data = os.read(self.reads, min(PIPE_READ, self.room))
        except BlockingIOError:
            return
        except OSError:
            self.finish()
            return
        if data:
            self.send(STDOUT, data)
            self.set_room(self.room - len(data))
            return
        self.program_over = True
        self.executor.unwatch(self.reads)
        self.send(STDERR, ENDED)
        self.pump()

    def cancel(self) -> None:
        self.finish()

    def finish(self) -> None:
        """Close the connection and respond."""
        if self.done:
            return
        if self in self.door.waiting:
            self.door.waiting.remove(self)
        for fd in (self.reads, self.writes):
            if fd >= 0:
                self.executor.unwatch(fd)
        quietly_close(self.reads, self.writes)
        self.reads = self.writes = -1
        self.coming.clear()
        if self.socket is not None:
            try:
                self.socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            self.socket.close()
            self.door.served -= 1
        self.respond({})
