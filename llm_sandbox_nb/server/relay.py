"""The relay between a sandbox and its clients: passes frames between their WebSockets and the sandbox's channel.

A client numbers its requests freely; the server's channel gives each request another number. The input of a client is
limited before it is stored, and the output waits in a limited queue. A client that does not read can delay the sandbox
for at most `MAX_STALL_SECONDS` seconds; then it is disconnected.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from llm_sandbox_nb.sandbox.errors import SandboxLostError
from llm_sandbox_nb.sandbox.protocol.channel import Channel
from llm_sandbox_nb.sandbox.protocol.frames import (
    MESSAGE_LIMIT,
    SANDBOX_ENDED,
    WINDOW,
    Frame,
    Kind,
    ProtocolError,
    json_frame,
    unpack,
)

MAX_REQUESTS = 64
"""Maximum number of pending requests of one client."""
QUEUE_HIGH = 4 * 1024 * 1024
QUEUE_LOW = 1024 * 1024
"""Bytes queued for a client: above `QUEUE_HIGH` the sandbox's output is paused, below `QUEUE_LOW` it continues."""
MAX_STALL_SECONDS = 10.0
"""Maximum seconds for which one client may pause the sandbox's output."""

BROKE_PROTOCOL = 4400
TOO_SLOW = 4429

Send = Callable[[bytes], Awaitable[None]]
"""Function that sends a message and waits for room in the buffer. Raises ConnectionError if the client has left."""
Hang = Callable[[int, str], None]
"""Function that closes the connection with a code and a reason."""


@dataclass(eq=False)
class _Request:
    """A request of a client: the call, and the pieces of the body that are not yet sent."""

    number: int
    op: str
    upstream: int | None = None
    cancelled: bool = False
    body: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)
    kept: int = 0
    task: asyncio.Task[None] | None = None


class RelayClient:
    """Connection of a client to a sandbox."""

    def __init__(
        self, channel: Channel, facts: dict[str, Any], send: Send, hang: Hang, used: Callable[[], None]
    ) -> None:
        """Create the client.

        `facts` is the executor's description of itself. `used` is called at the beginning and the end of each request.
        """
        self._channel = channel
        self._facts = facts
        self._send = send
        self._hang = hang
        self._used = used
        self._requests: dict[int, _Request] = {}
        self._queue: deque[bytes] = deque()
        self._queued = 0
        self._more = asyncio.Event()
        self._held_back: asyncio.TimerHandle | None = None
        self._left = False
        self._sender = asyncio.create_task(self._send_queue())

    @property
    def requests(self) -> int:
        """Number of pending requests, except requests that wait for a connection from inside the sandbox."""
        return sum(request.op != "connection" for request in self._requests.values())

    # -- from the client -----------------------------------------------------------------------------------

    def receive(self, message: bytes | str) -> None:
        """Handle a message of the client. A message that breaks the protocol ends the connection."""
        if self._left:
            return
        try:
            for frame in unpack(message):
                self._take(frame)
        except ProtocolError as error:
            self.leave(BROKE_PROTOCOL, str(error))

    def _take(self, frame: Frame) -> None:
        if frame.kind == Kind.HELLO:
            self._tell(json_frame(Kind.HELLO, 0, {**self._facts, "nonce": frame.json().get("nonce")}))
        elif frame.kind == Kind.PING:
            self._tell(Frame(Kind.PONG, frame.request))
        elif frame.kind == Kind.REQUEST:
            self._begin(frame)
        elif frame.kind == Kind.BYE:
            self.leave()
        elif frame.kind not in (Kind.DATA, Kind.END, Kind.CANCEL):
            raise ProtocolError(f"a client may not send frames of kind {frame.kind}")
        elif request := self._requests.get(frame.request):
            self._go_on(request, frame)

    def _begin(self, frame: Frame) -> None:
        if frame.request in self._requests:
            raise ProtocolError("the number of a request is in use")
        params = frame.json()
        self._used()
        if not isinstance(params.get("op"), str):
            self._refuse(frame.request, "the request does not say what is to be done")
            return
        if len(self._requests) >= MAX_REQUESTS:
            self._refuse(frame.request, f"a client may have only {MAX_REQUESTS} pending requests")
            return
        request = self._requests[frame.request] = _Request(frame.request, params["op"])
        request.task = asyncio.create_task(self._call(request, params))

    def _refuse(self, number: int, message: str) -> None:
        error = {"error": {"kind": "internal", "message": message}}
        self._tell(json_frame(Kind.RESPONSE, number, error))

    def _go_on(self, request: _Request, frame: Frame) -> None:
        if frame.kind == Kind.DATA:
            request.kept += len(frame.payload)
            if not frame.payload or request.kept > WINDOW:
                raise ProtocolError("the body of the request is larger than allowed")
            request.body.put_nowait(frame.payload)
        elif frame.kind == Kind.END:
            request.body.put_nowait(None)
        else:
            request.cancelled = True
            if request.upstream is not None:
                self._channel.cancel(request.upstream)

    async def _body(self, request: _Request) -> AsyncIterator[bytes]:
        while (piece := await request.body.get()) is not None:
            yield piece
            request.kept -= len(piece)
            if request.number in self._requests:
                self._tell(json_frame(Kind.ACK, request.number, {"bytes": len(piece)}))

    async def _call(self, request: _Request, params: dict[str, Any]) -> None:
        def begun(number: int) -> None:
            request.upstream = number
            if request.cancelled:
                self._channel.cancel(number)

        has_body = params.pop("body", False) is True
        try:
            answer = await self._channel.call(
                params,
                body=self._body(request) if has_body else None,
                sink=lambda kind, payload: self._tell(Frame(kind, request.number, payload)),
                begun=begun,
            )
        except SandboxLostError as error:
            self.dismiss(str(error))
            return
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            answer = {"error": {"kind": "internal", "message": f"the request is malformed: {error!r}"}}
        finally:
            self._requests.pop(request.number, None)
        self._used()
        self._tell(json_frame(Kind.RESPONSE, request.number, answer))

    # -- to the client -------------------------------------------------------------------------------------

    def _tell(self, frame: Frame) -> None:
        if self._left:
            return
        message = frame.encode()
        self._queue.append(message)
        self._queued += len(message)
        self._more.set()
        if self._queued > QUEUE_HIGH and self._held_back is None:
            self._channel.hold(self)
            reason = f"The client did not read its messages for {MAX_STALL_SECONDS:g} seconds."
            self._held_back = asyncio.get_running_loop().call_later(
                MAX_STALL_SECONDS, self.leave, TOO_SLOW, reason
            )

    async def _send_queue(self) -> None:
        try:
            while True:
                while not self._queue:
                    self._more.clear()
                    await self._more.wait()
                pieces, size = [], 0
                while self._queue and size + len(self._queue[0]) <= MESSAGE_LIMIT:
                    size += len(self._queue[0])
                    pieces.append(self._queue.popleft())
                message = b"".join(pieces)
                await self._send(message)
                self._queued -= len(message)
                if self._held_back is not None and self._queued < QUEUE_LOW:
                    self._go_ahead()
        except ConnectionError:
            self.leave()

    def _go_ahead(self) -> None:
        if self._held_back is not None:
            self._held_back.cancel()
            self._held_back = None
            self._channel.release(self)

    # -- the end -------------------------------------------------------------------------------------------

    def dismiss(self, reason: str) -> None:
        """End the connection because the sandbox has ended."""
        self.leave(SANDBOX_ENDED, reason)

    def leave(self, code: int = 1000, reason: str = "") -> None:
        """End the connection, and cancel the requests of its client. A second call does nothing."""
        if self._left:
            return
        self._left = True
        self._go_ahead()
        requests, self._requests = self._requests, {}
        for request in requests.values():
            if request.task is not None and request.task is not asyncio.current_task():
                request.task.cancel()
        if self._sender is not asyncio.current_task():
            self._sender.cancel()
        self._queue.clear()
        # A close frame holds at most 123 bytes; the reason is cut between characters.
        self._hang(code, reason.encode()[:120].decode("utf-8", "ignore"))
