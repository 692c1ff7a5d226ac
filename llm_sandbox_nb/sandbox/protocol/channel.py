"""Concurrent requests over one connection to an executor, which is never trusted.

Whatever the executor does (garbage, silence, endless output, wrong ids), the host's memory use is limited, and every
call ends. A call ends with its answer or with `SandboxLostError`. The executor applies the time-out of a call, so a
call that was timed out also has an answer.

A request with a body has these frames. `>` comes from the host, `<` from the executor:

    > REQUEST  {"op": "exec", "argv": ["sort"], ...}
    > DATA* END             the body, at most `WINDOW` bytes ahead of the acknowledgements
    < ACK*                  bytes of the body that the executor has consumed
    < STDOUT* STDERR* GAP*  output, passed to the `sink` of the call
    < RESPONSE {"exit_code": 0, ...}

The host may send CANCEL at any time. The executor still sends RESPONSE. Requests overlap, so each frame has the number
of its request. The host sends PING all the time, and the executor answers PONG. `PINGS_LOST` * `PING_EVERY` is below
`LEASE`, so the host notices a broken connection before the executor ends the sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any, Protocol

from llm_sandbox_nb.plain_text import plain
from llm_sandbox_nb.sandbox.contract import FileEntry
from llm_sandbox_nb.sandbox.errors import SandboxLostError
from llm_sandbox_nb.sandbox.protocol.frames import (
    HEADER,
    MAX_PAYLOAD,
    WINDOW,
    Frame,
    Kind,
    ProtocolError,
    StreamTransport,
    Transport,
    body_frames,
    json_frame,
)

__all__ = ["Body", "Channel", "Deliver", "ExecutorConnection", "Sink", "StreamTransport", "Transport"]

PING_EVERY = 5.0
"""Seconds between two pings. Each ping renews the executor's lease."""
PINGS_LOST = 6
"""Number of unanswered pings after which the sandbox counts as lost."""
GRACE = 15.0
"""Seconds that the executor has for its answer after the time-out of a call. Then the sandbox counts as lost."""
SETTLE_SECONDS = 10.0
"""Maximum seconds to wait for the response to a cancelled request."""
LEASE = 45.0
"""Seconds without a frame from the host after which an executor ends its sandbox."""
MAX_ABANDONED_BYTES = 64 * 1024 * 1024
"""Maximum bytes that the executor may still send for a cancelled request."""
MAX_PARAMS_BYTES = MAX_PAYLOAD - 4096
"""Maximum bytes of parameters in a REQUEST frame. Larger parameters are sent at the beginning of the body."""

Body = bytes | AsyncIterator[bytes]
"""The body of a request: bytes, or an iterator of pieces."""
Sink = Callable[[int, bytes], None]
"""Function that is called with the kind and payload of each frame that comes before the response. If the function
raises an exception, the call raises this exception too. `ProtocolError` also ends the whole channel.
"""
Deliver = Callable[[str, int, Iterator[bytes]], Awaitable[None]]
"""Function that puts a file into the sandbox. Its arguments are the file's name, size in bytes, and content. It raises
SandboxError or OSError if the file cannot be put there."""

logger = logging.getLogger(__name__)


class ExecutorConnection(Protocol):
    """A living connection to the executor of a sandbox, as far as the file history needs it."""

    deliver: Deliver | None
    """Function that puts a file into the sandbox from outside, faster than through the connection. None if that is not
    possible."""
    release_pack: Callable[[], None] | None
    """Function that frees the memory of the files that `deliver` has made, if the executor gets descriptors of them.
    None if `deliver` puts files into the top folder of the sandbox instead.
    """

    async def request_files(
        self,
        params: Mapping[str, Any],
        sink: Callable[[int, bytes], None] | None,
        timeout: float,
        body: Body | None = None,
    ) -> dict[str, Any]:
        """Send a request about files and return the response. Raises SandboxLostError."""
        ...

    async def list_files(self, path: str, *, depth: int = 1, limit: int = 10_000) -> list[FileEntry]:
        """See `Sandbox.list_files`."""
        ...

    def broke_protocol(self, error: ProtocolError) -> Exception:
        """End a sandbox that has sent invalid data. Return the exception for the caller to raise."""
        ...


class _Call:
    """A request that was not answered yet."""

    def __init__(self, op: str, sink: Sink | None) -> None:
        self.op = op
        self.sink = sink
        self.answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.unacknowledged = 0
        self.room = asyncio.Event()


class Channel:
    """Channel for requests to one executor. Use it only in the event loop in which `hello` was awaited."""

    def __init__(self, transport: Transport, *, ping_every: float = PING_EVERY) -> None:
        self._ping_every = ping_every
        self._numbers = itertools.count(1)
        self._tasks: list[asyncio.Task[None]] = []
        self._holders: set[object] = set()
        self._flowing = asyncio.Event()
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop in which `hello` was awaited."""
        self.on_lost: Callable[[SandboxLostError], None] | None = None
        self.why_ended: Callable[[], str] = lambda: ""
        """Function that returns the reason why the connection ended, e.g. the executor's stderr, or an empty text."""
        self._use(transport)

    def _use(self, transport: Transport) -> None:
        """Use `transport` from now on, and drop all state of the former connection."""
        for task in self._tasks:
            task.cancel()
        self._transport = transport
        self._calls: dict[int, _Call] = {}
        self._abandoned: dict[int, int] = {}
        self._pings = 0
        self.lost: SandboxLostError | None = None

    async def ensure_connected(self) -> None:
        """Reconnect if the connection was lost.

        Only subclasses can reconnect. In this class, a sandbox is lost as soon as its connection is lost.

        Raises:
            SandboxLostError: if the sandbox is lost.
        """
        self._check()

    async def hello(
        self, params: Mapping[str, Any], *, adopt: bool = False, timeout: float = 30.0
    ) -> dict[str, Any]:
        """Become the owner of the executor, start to read frames, and return the executor's answer.

        Args:
            params: parameters of the greeting, such as `lease`, `directories`, `cwd` and `spill`.
            adopt: True if the executor had another owner, who may have left an incomplete frame in either direction.
            timeout: seconds in which the executor must answer.

        Raises:
            SandboxLostError: if there is no valid answer.
        """
        self.loop = asyncio.get_running_loop()
        nonce = secrets.token_hex(16)
        hello = json_frame(Kind.HELLO, 0, {"lease": LEASE, **params, "nonce": nonce})
        try:
            async with asyncio.timeout(timeout):
                answer = await self._exchange_hello(hello, nonce, adopt)
        except TimeoutError:
            self.fail(f"it did not answer within {timeout:g} seconds after its start")
        except ProtocolError as error:
            self.fail(str(error))
        self._check()
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._keep_alive())]
        return answer

    async def _exchange_hello(self, hello: Frame, nonce: str, adopt: bool) -> dict[str, Any]:
        def is_answer(frame: Frame) -> bool:
            return frame.kind == Kind.HELLO and frame.json().get("nonce") == nonce

        if adopt and isinstance(self._transport, StreamTransport):
            self._transport.write_raw(bytes(MAX_PAYLOAD + HEADER.size))
            self._transport.write([hello])
            frame = await self._transport.find_frame(is_answer)
        else:
            self._transport.write([hello])
            frame = await self._transport.read_frame()
        if frame is None:
            self.fail(self._ended())
            self._check()
        if frame is None or not is_answer(frame):
            raise ProtocolError("its first answer is not a valid HELLO")
        return frame.json()

    def _ended(self) -> str:
        reason = self.why_ended()
        return f"its program ended{f' ({reason})' if reason else ''}"

    # ------------------------------------------------------------------------------------------------- calls

    async def call(
        self,
        params: Mapping[str, Any],
        *,
        body: Body | None = None,
        sink: Sink | None = None,
        timeout: float | None = None,
        begun: Callable[[int], None] | None = None,
    ) -> dict[str, Any]:
        """Send a request and return its response.

        Args:
            params: the request, with its operation `op`. Large parameters are sent at the beginning of the body.
            body: bytes that belong to the request. None if there is no body.
            sink: function that receives the frames before the response. None if the request has no such frames.
            timeout: seconds until the answer is due. If there is still no answer `GRACE` seconds later, the sandbox
                counts as lost. None for no limit.
            begun: function that is called with the request's number as soon as the request is sent. `cancel` takes this
                number.

        Raises:
            SandboxLostError: if the sandbox is lost, before or during the call.
        """
        self._check()
        number = next(self._numbers)
        call = self._calls[number] = _Call(params["op"], sink)
        head = json.dumps(params, separators=(",", ":")).encode("ascii")
        if len(head) > MAX_PARAMS_BYTES:
            params = {"op": params["op"], "head": len(head)}
            rest = b"" if body is None else body
            body = head + rest if isinstance(rest, bytes) else _joined(head, rest)
        request = json_frame(Kind.REQUEST, number, {**params, "body": body is not None})
        sender: asyncio.Task[None] | None = None
        if body is None:
            self._write(request)
        elif isinstance(body, bytes) and len(body) <= WINDOW:
            call.unacknowledged += len(body)
            self._write(request, *body_frames(number, body), Frame(Kind.END, number))
        else:
            self._write(request)
            sender = asyncio.create_task(self._send_body(number, call, body))
        if begun:
            begun(number)
        limit = None if timeout is None else timeout + GRACE
        try:
            await asyncio.wait({call.answer}, timeout=limit)
            if not call.answer.done():
                self.fail(f"it did not answer within {limit:g} seconds")
            return call.answer.result()
        except asyncio.CancelledError:
            self._write(Frame(Kind.CANCEL, number))
            await asyncio.wait({call.answer}, timeout=SETTLE_SECONDS)
            raise
        finally:
            if sender:
                sender.cancel()
            if self._calls.pop(number, None) and not self.lost:
                self._abandoned[number] = 0
                self._write(Frame(Kind.CANCEL, number))

    async def _send_body(self, number: int, call: _Call, body: Body) -> None:
        """Send a long body no faster than the executor consumes the bytes."""
        try:
            async for piece in _pieces(body):
                for frame in body_frames(number, piece):
                    while call.unacknowledged > WINDOW - MAX_PAYLOAD:
                        call.room.clear()
                        await call.room.wait()
                    call.unacknowledged += len(frame.payload)
                    self._write(frame)
            self._write(Frame(Kind.END, number))
        except Exception as error:  # noqa: BLE001 - an error of the body's source belongs to the caller of `call`
            if not call.answer.done():
                call.answer.set_exception(error)

    def cancel_op(self, op: str) -> None:
        """Ask the executor to end all requests with the operation `op`. The executor still answers them."""
        for number, call in self._calls.items():
            if call.op == op:
                self._write(Frame(Kind.CANCEL, number))

    def cancel(self, number: int) -> None:
        """Ask the executor to end a single request. The executor still answers it."""
        if number in self._calls:
            self._write(Frame(Kind.CANCEL, number))

    def hold(self, holder: object) -> None:
        """Stop reading frames until `release` is called, because `holder` cannot keep up.

        Call `release` before so many pings are unanswered that the sandbox counts as lost.
        """
        self._holders.add(holder)
        self._flowing.clear()

    def release(self, holder: object) -> None:
        """Remove `holder`. Resume reading frames if no other holder is left."""
        self._holders.discard(holder)
        if not self._holders:
            self._flowing.set()

    # ---------------------------------------------------------------------------------------------- listening

    async def _listen(self) -> None:
        try:
            while True:
                if self._holders:
                    await self._flowing.wait()
                frame = await self._transport.read_frame()
                if frame is None:
                    self.fail(self._ended())
                    return
                self._take(frame)
        except ProtocolError as error:
            self.fail(f"it broke the protocol: {error}")
        except Exception as error:
            logger.exception("the connection to a sandbox failed")
            self.fail(f"the connection failed: {error}")

    def _take(self, frame: Frame) -> None:
        if frame.kind == Kind.PONG:
            self._pings -= 1
            if self._pings < 0:
                raise ProtocolError("it answered a ping that was not sent")
            return
        call = self._calls.get(frame.request)
        if call is None:
            self._take_abandoned(frame)
        elif frame.kind == Kind.ACK:
            self._acknowledge(call, frame.json().get("bytes"))
        elif frame.kind == Kind.RESPONSE:
            outcome = frame.json()
            del self._calls[frame.request]
            if not call.answer.done():
                call.answer.set_result(outcome)
        elif not frame.payload:
            raise ProtocolError("it sent an empty frame")
        else:
            self._deliver(call, frame)

    def _deliver(self, call: _Call, frame: Frame) -> None:
        if call.sink is None:
            raise ProtocolError("it sent output for a request that expects none")
        try:
            if not call.answer.done():
                call.sink(frame.kind, frame.payload)
        except ProtocolError:
            raise
        # A future refuses StopIteration, and CancelledError in a future would look like a cancellation of the caller.
        except (StopIteration, asyncio.CancelledError) as error:
            call.answer.set_exception(
                RuntimeError(f"a function that gets output raised {type(error).__name__}")
            )
        except Exception as error:  # noqa: BLE001 - an error of the sink belongs to the caller of `call`
            call.answer.set_exception(error)

    def _acknowledge(self, call: _Call, size: object) -> None:
        if not isinstance(size, int) or not 0 < size <= call.unacknowledged:
            raise ProtocolError("it acknowledged bytes that were not sent")
        call.unacknowledged -= size
        call.room.set()

    def _take_abandoned(self, frame: Frame) -> None:
        """Drop a frame of a request for which nobody waits any more."""
        if frame.request not in self._abandoned:
            raise ProtocolError("it answered a request that was not made")
        self._abandoned[frame.request] += len(frame.payload) + HEADER.size
        if frame.kind == Kind.RESPONSE:
            del self._abandoned[frame.request]
        elif self._abandoned[frame.request] > MAX_ABANDONED_BYTES:
            raise ProtocolError("it keeps sending output of a cancelled request")

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(self._ping_every)
            if self._pings >= PINGS_LOST:
                self.fail(f"it has not answered for {self._pings * self._ping_every:g} seconds")
                return
            self._pings += 1
            self._write(Frame(Kind.PING))

    # ------------------------------------------------------------------------------------------------ the end

    def _write(self, *frames: Frame) -> None:
        if self.lost is None:
            try:
                self._transport.write(frames)
            except (OSError, RuntimeError) as error:
                self.fail(f"the connection failed: {error}")

    def _check(self) -> None:
        if self.lost is not None:
            raise SandboxLostError(*self.lost.args)

    def fail(self, reason: str) -> None:
        """Declare the sandbox lost, so that every pending and later call raises `SandboxLostError`."""
        if self.lost is not None:
            return
        self.lost = SandboxLostError(f"The sandbox is lost: {reason}; open a new one.")
        calls, self._calls = self._calls, {}
        for call in calls.values():
            if not call.answer.done():
                call.answer.set_exception(SandboxLostError(*self.lost.args))
                call.answer.exception()  # marks the exception as retrieved, because the caller may be gone
        self._transport.close()
        if self.on_lost:
            self.on_lost(self.lost)

    async def close(self, *, bye: bool = True) -> None:
        """Disconnect. Unless `bye` is False, send BYE first, so that the executor ends everything at once."""
        if bye:
            self._write(Frame(Kind.BYE))
        if self.lost is None:
            self.on_lost = None
            self.fail("it was closed")
        current = asyncio.current_task()
        for task in self._tasks:
            if task is not current:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        self._tasks = []


def last_line(stderr: str) -> str:
    """Return the last line of an executor's stderr, for `Channel.why_ended`. A traceback before this line is left out.

    Control sequences are removed, because the line is logged, and the log may be a terminal.
    """
    return plain(next(reversed(stderr.splitlines()), "")[:200])


async def _joined(head: bytes, body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield head
    async for piece in body:
        yield piece


async def _pieces(body: Body) -> AsyncIterator[bytes]:
    if isinstance(body, bytes):
        yield body
        return
    async for piece in body:
        yield piece
