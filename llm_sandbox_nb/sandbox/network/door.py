"""The outer side of a sandbox's door, through which programs inside connect to the proxy.

The inner side is in `executor/door.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import stat
import struct
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future

from llm_sandbox_nb.sandbox.errors import SandboxError, SandboxLostError
from llm_sandbox_nb.sandbox.network.streams import DRAIN_TIMEOUT, ClosableStream, PlainSocket
from llm_sandbox_nb.sandbox.protocol.answers import raise_error
from llm_sandbox_nb.sandbox.protocol.channel import Channel
from llm_sandbox_nb.sandbox.protocol.frames import MAX_PAYLOAD, Kind, ProtocolError

DOOR_PORT = 3128
"""Port of the door, on the loopback interface of the sandbox."""
WAY_OUT, PROXY_ONLY = "way out", f"one proxy, at 127.0.0.1:{DOOR_PORT}; programs that ignore it reach nothing"
"""Key and text in `Protection.details` of a sandbox with a door."""
HANDED = 1000
"""Number of the executor's descriptor of a Unix socket to this process, if the isolation provides such a socket.
Through this Unix socket, the executor sends the door's listening socket."""
MAX_UNREAD_BYTES = 256 * 1024
"""Maximum bytes that a program has sent and the proxy has not read yet. A program that sends more has to wait."""
REQUESTS_IN_ADVANCE = 8
"""Number of requests `connection` that wait in the executor, so that a program that connects is served at once."""
MAX_CONNECTIONS = 256
"""Maximum number of simultaneous connections. Further connections wait in the sandbox."""
MAX_RELAYED_CONNECTIONS = 48
"""Maximum number of simultaneous connections of a sandbox on a Jupyter server, because the server limits requests."""
HAND_OUT_TIMEOUT = 30.0
"""Seconds in which the executor must send its listening socket."""
_RECORD = struct.Struct(">cI")
_PIECE_BYTES = MAX_PAYLOAD - _RECORD.size
_MAX_WAITING_PIECES = 8
"""Maximum number of pieces that wait to be sent to a program."""
_PAUSE = 0.2
"""Seconds until the next try after an error that is not permanent."""
_PASSING_ERRORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ECONNABORTED, errno.EAGAIN)
"""Errors of `accept` that are not permanent. Some end when this process closes other files."""

logger = logging.getLogger(__name__)


class DoorConnection:
    """Connection of a program in the sandbox, forwarded by the executor.

    The program may be hostile, so only a limited number of its bytes is kept in memory.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._arrived: asyncio.Queue[bytes] = asyncio.Queue()
        self._leaving: asyncio.Queue[bytes | None] = asyncio.Queue(_MAX_WAITING_PIECES)
        self._unread = 0
        self._used = MAX_UNREAD_BYTES
        self._over = False
        self.begun = asyncio.Event()
        """Event that is set as soon as a program has connected."""
        self._call = asyncio.create_task(self._carry())

    async def _carry(self) -> None:
        try:
            await self._channel.call({"op": "connection"}, body=self._body(), sink=self._take)
        finally:
            self._over = True
            self._arrived.put_nowait(b"")

    async def wait_begun(self) -> bool:
        """Wait until a program has connected. Return False if the sandbox is gone or refuses the door."""
        begun = asyncio.ensure_future(self.begun.wait())
        try:
            await asyncio.wait({begun, self._call}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            begun.cancel()
        return self.begun.is_set()

    def _take(self, kind: int, payload: bytes) -> None:
        if kind == Kind.STDOUT:
            self._unread += len(payload)
            if self._unread > MAX_UNREAD_BYTES:
                raise ProtocolError("a connection sent more bytes than it may")
            self._arrived.put_nowait(payload)
        elif kind == Kind.STDERR and payload == b"begun":
            self.begun.set()
        elif kind == Kind.STDERR and payload == b"ended":
            self._arrived.put_nowait(b"")
        else:
            raise ProtocolError("a connection sent an unknown message")

    async def _body(self) -> AsyncIterator[bytes]:
        yield _RECORD.pack(b"a", MAX_UNREAD_BYTES)
        self._used = 0
        while (piece := await self._leaving.get()) is not None:
            yield piece

    async def read(self) -> bytes:
        """Return the next bytes from the program, or `b""` at the end."""
        if self._over and self._arrived.empty():
            return b""
        data = await self._arrived.get()
        self._unread -= len(data)
        self._used += len(data)
        if self._used >= MAX_UNREAD_BYTES // 4 and not self._over:
            used, self._used = self._used, 0
            await self._put(_RECORD.pack(b"a", used))
        return data

    async def write(self, data: bytes | memoryview) -> None:
        """Send bytes to the program, and wait for room in the buffer.

        Raises:
            ConnectionError: if the program is gone.
        """
        for start in range(0, len(data), _PIECE_BYTES):
            piece = data[start : start + _PIECE_BYTES]
            await self._put(_RECORD.pack(b"d", len(piece)) + piece)

    async def _put(self, piece: bytes | None) -> None:
        if not self._leaving.full() and not self._call.done():
            self._leaving.put_nowait(piece)
            return
        putting = asyncio.ensure_future(self._leaving.put(piece))
        try:
            await asyncio.wait({putting, self._call}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            done = putting.done()
            putting.cancel()
        if not done or self._call.done():
            raise ConnectionError("the program in the sandbox has closed the connection")

    async def end_writing(self) -> None:
        """Close the direction to the program. The program may still send bytes."""
        with contextlib.suppress(ConnectionError):
            await self._put(None)

    async def close(self) -> None:
        """Close the connection after all written bytes were sent."""
        await self.end_writing()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_TIMEOUT):
                while await self.read():
                    pass
        await self.abort()

    async def abort(self) -> None:
        self._call.cancel()
        with contextlib.suppress(asyncio.CancelledError, SandboxLostError):
            await asyncio.wait({self._call})
            if not self._call.cancelled():
                self._call.exception()


class Door:
    """Door of a sandbox. It accepts connections and calls `serve` with each of them, until `close` is called.

    Args:
        channel: channel to the executor. Without a `listener`, the executor forwards connections through the channel.
        serve: function that serves a single connection to its end.
        listener: the sandbox's listening socket if the executor has sent it. This process then accepts connections
            itself.
        at_once: maximum number of simultaneous connections.
    """

    def __init__(
        self,
        channel: Channel,
        serve: Callable[[ClosableStream], Awaitable[None]],
        *,
        listener: socket.socket | None = None,
        at_once: int = MAX_CONNECTIONS,
    ) -> None:
        self._channel = channel
        self._serve = serve
        self._places = asyncio.Semaphore(at_once)
        self._listener = listener
        takers = (
            [self._take_connections() for _ in range(REQUESTS_IN_ADVANCE)]
            if listener is None
            else [self._accept(listener)]
        )
        self._tasks = {asyncio.create_task(taker) for taker in takers}
        self._closed = ""

    @property
    def closed(self) -> str:
        """Reason why the door is closed. Empty while the door is open."""
        return self._closed or str(self._channel.lost or "")

    async def _accept(self, listener: socket.socket) -> None:
        with listener, contextlib.ExitStack() as ending:
            # At the end, the shutdown wakes a thread that still waits in `_accepted`.
            ending.enter_context(contextlib.suppress(OSError))
            ending.callback(listener.shutdown, socket.SHUT_RDWR)
            while True:
                try:
                    async with self._place() as place:
                        self._begin(PlainSocket(await _accepted(listener)), place)
                except OSError as error:
                    if error.errno not in _PASSING_ERRORS:
                        self._closed = f"its listener failed ({error.strerror})"
                        return
                    await asyncio.sleep(_PAUSE)

    async def _take_connections(self) -> None:
        while True:
            async with self._place() as place:
                connection = DoorConnection(self._channel)
                try:
                    begun = await connection.wait_begun()
                except BaseException:
                    await asyncio.shield(connection.abort())
                    raise
                if begun:
                    self._begin(connection, place)
                    continue
            await connection.abort()
            try:
                await self._channel.ensure_connected()
            except SandboxLostError as error:
                self._closed = str(error)
                return
            # The sandbox is not lost: a restore or a new owner has cancelled all requests.
            await asyncio.sleep(_PAUSE)

    @contextlib.asynccontextmanager
    async def _place(self) -> AsyncIterator[contextlib.AsyncExitStack]:
        """Wait for a place, and hold it until the end, or until `_begin` takes it over for the connection.

        If the place were given back in between, the next `accept` could take it, and the connection would wait.
        """
        async with contextlib.AsyncExitStack() as place:
            await place.enter_async_context(self._places)
            yield place

    def _begin(self, connection: DoorConnection | PlainSocket, place: contextlib.AsyncExitStack) -> None:
        task = asyncio.create_task(self._serve_one(connection, place.pop_all()))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve_one(
        self, connection: DoorConnection | PlainSocket, place: contextlib.AsyncExitStack
    ) -> None:
        async with place:
            try:
                await self._serve(connection)
            except (ConnectionError, SandboxLostError):
                pass
            except Exception:
                logger.exception("a connection of a sandbox could not be served")
            finally:
                if isinstance(connection, PlainSocket):
                    connection.abort()
                else:
                    await asyncio.shield(connection.abort())

    async def close(self) -> None:
        """Close all connections, and accept no further ones. The sandbox then has no network."""
        self._closed = self._closed or "it was closed"
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _accepted(listener: socket.socket) -> socket.socket:
    """Accept a connection. Raises OSError.

    The sandbox may have kept a copy of the listener, with which it can make `accept` block. So each `accept` has a
    thread of its own: if it blocks, only this sandbox has no network.
    """
    loop, found = asyncio.get_running_loop(), Future[socket.socket]()

    def accept() -> None:
        try:
            connection, _ = listener.accept()
        except OSError as error:
            if found.set_running_or_notify_cancel():
                found.set_exception(error)
            return
        if found.set_running_or_notify_cancel():
            found.set_result(connection)
        else:
            connection.close()

    readable = asyncio.Event()
    loop.add_reader(listener, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(listener)
    threading.Thread(target=accept, name="accept", daemon=True).start()
    return await asyncio.wrap_future(found)


async def take_listener(channel: Channel, outside: socket.socket) -> socket.socket:
    """Receive the listening socket of a sandbox's door through the Unix socket `outside`.

    The executor has the other end of the Unix socket as descriptor `HANDED`.

    Raises:
        SandboxLostError: if the sandbox is lost.
        SandboxError: if the executor cannot send the socket, or sends anything else.
    """
    answer = await channel.call({"op": "hand_out"}, timeout=HAND_OUT_TIMEOUT)
    raise_error(answer, "")
    with contextlib.ExitStack() as opened:
        received: list[int] = []
        with contextlib.suppress(OSError):
            _, received, _, _ = socket.recv_fds(outside, 1, 1, socket.MSG_DONTWAIT)
        for number in received:
            opened.callback(os.close, number)
        if len(received) == 1 and stat.S_ISSOCK(os.fstat(received[0]).st_mode):
            listener = socket.socket(fileno=os.dup(received[0]))
            with contextlib.suppress(OSError):
                listens = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                internet = listener.family == socket.AF_INET and listener.type == socket.SOCK_STREAM
                if internet and listens and listener.getsockname() == ("127.0.0.1", DOOR_PORT):
                    listener.setblocking(False)
                    return listener
            listener.close()
    raise SandboxError(
        "The sandbox sent something other than the listening socket of its door; open a new sandbox."
    )
