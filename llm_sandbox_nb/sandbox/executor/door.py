"""The door: a listening socket on the loopback interface, and the only way out of a sandbox whose network is a proxy.

Programs in the sandbox connect to the door, and the host forwards these connections to the proxy. Each request
`connection` of the host serves one connection. The body of the request consists of records as in `stream_request`. The
further kind `d` has bytes for the program; the number in the header is their size. STDOUT frames have bytes from the
program. A STDERR frame says `begun` when a program has connected, and `ended` when the program will send no further
bytes. A connection that gets no request is closed after 2 s, or after 30 s while other connections are served. If
possible, the host accepts connections itself; see `HandOutRequest`.
"""

from __future__ import annotations

import _socket as socket  # ten times faster to import than `socket`
import errno
import os
import struct

from .event_loop import IN
from .frames import HANDED, HOST_PIPE_BYTES, STDERR, enlarge_pipes, quietly_close
from .request import Request, describe_error
from .stream_request import StreamRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .event_loop import EventLoop, Timer
    from .request import ExecutorContext

BEGUN, ENDED = b"begun", b"ended"
BACKLOG = 1024  # connections that may wait to be accepted
WAIT_SECONDS, BUSY_WAIT_SECONDS = 2.0, 30.0
"""Seconds that a connection waits for a request of the host. The longer time applies while others are served."""


class DoorListener:
    """The listening socket, and the requests that wait for a connection."""

    def __init__(self, executor: EventLoop) -> None:
        self.executor = executor
        self.listener: socket.socket | None = None
        self.port = 0
        self.waiting: list[ConnectionRequest] = []
        self.served = 0
        self.waited = 0.0
        self.timer: Timer | None = None

    def open(self, port: int) -> bool:
        """Listen on the port, unless a socket listens already. Return False if the port cannot be opened."""
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
            enlarge_pipes(0, 1, size=HOST_PIPE_BYTES)
            self.executor.watch(listener.fileno(), IN, lambda _: self.knocked())
        return True

    def hand_out(self) -> None:
        """Send the listening socket to the host, which then accepts connections itself. Raises OSError."""
        if self.listener is None:
            raise OSError(errno.EBADF, "the door is not open")
        with_host = socket.socket(fileno=HANDED)
        try:
            numbers = struct.pack("i", self.listener.fileno())
            with_host.sendmsg([b"d"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)])
        finally:
            with_host.detach()
        # The socket is closed in this process, so that connections are refused at once when the host is gone.
        self.executor.unwatch(self.listener.fileno())
        self.listener.close()
        self.listener = None
        if self.timer:
            self.timer.cancel()
            self.timer = None

    def ask(self, request: ConnectionRequest) -> None:
        """Queue a request for a connection."""
        self.waiting.append(request)
        if self.port:
            self.open(self.port)  # the socket is closed if an earlier host has accepted connections itself
        if self.listener is not None:
            self.executor.watch(self.listener.fileno(), IN, lambda _: self.knocked())

    def knocked(self) -> None:
        """Connect a program to a waiting request, or make the program wait a while for a request."""
        assert self.listener is not None
        if not self.waiting:
            self.executor.watch(self.listener.fileno(), 0, lambda _: None)
            if self.timer is None:
                self.waited = 0.0
                self.timer = self.executor.after(WAIT_SECONDS, self.close_waiting)
            return
        try:
            connection = self.accept()
        except OSError:
            return
        self.waiting.pop(0).begun(connection)

    def accept(self) -> socket.socket:
        """Accept the next connection. Raises OSError if no connection waits."""
        assert self.listener is not None
        return socket.socket(fileno=self.listener._accept()[0])  # type: ignore[attr-defined] # not in the stubs

    def close_waiting(self) -> None:
        """Close connections that still wait for a request. They get more time while other connections are served."""
        assert self.listener is not None
        self.timer = None
        self.waited += WAIT_SECONDS
        if self.waiting:
            return
        if self.served and self.waited < BUSY_WAIT_SECONDS:
            self.timer = self.executor.after(WAIT_SECONDS, self.close_waiting)
            return
        try:
            while True:
                self.accept().close()
        except OSError:
            pass
        self.executor.watch(self.listener.fileno(), IN, lambda _: self.knocked())


class HandOutRequest(Request):
    """A request of the host for the listening socket itself, so that no bytes pass through the executor."""

    def __init__(
        self, executor: ExecutorContext, number: int, params: dict[str, Any], door: DoorListener
    ) -> None:
        super().__init__(executor, number, params)
        self.door = door

    def begin(self) -> None:
        try:
            self.door.hand_out()
        except OSError as error:
            self.respond({"error": describe_error(error)})
        else:
            self.respond({})


class ConnectionRequest(StreamRequest):
    """A request that waits for a connection of a program in the sandbox, and forwards its bytes to the host."""

    def __init__(
        self, executor: ExecutorContext, number: int, params: dict[str, Any], door: DoorListener
    ) -> None:
        super().__init__(executor, number, params)
        self.door = door

    def begin(self) -> None:
        super().begin()
        self.socket: socket.socket | None = None
        self.body_over = self.program_over = False
        self.door.ask(self)

    def begun(self, connection: socket.socket) -> None:
        """Forward a new connection.

        Reading and writing get descriptors of their own, because the event loop has one handler for each descriptor.
        """
        self.socket = connection
        self.door.served += 1
        connection.setblocking(False)
        try:
            self.reads = os.dup(connection.fileno())
            self.writes = os.dup(connection.fileno())
        except OSError:
            self.finish()
            return
        self.send(STDERR, BEGUN)
        self.set_room(self.room)
        self.pump()

    def take_record(self, kind: bytes, value: int) -> None:
        self.left = value

    def end(self) -> None:
        self.body_over = True
        self.pump()

    def deaf(self) -> None:
        self.finish()

    def drained(self) -> None:
        """After the host's last byte, close the direction to the program. End if both directions are closed."""
        if self.body_over and self.socket is not None:
            try:
                self.socket.shutdown(socket.SHUT_WR)
            except OSError:
                self.program_over = True
            if self.program_over:
                self.finish()

    def ended_writing(self) -> None:
        self.program_over = True
        quietly_close(self.reads)
        self.reads = -1
        self.send(STDERR, ENDED)
        self.pump()

    def cancel(self) -> None:
        self.finish()

    def finish(self) -> None:
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
