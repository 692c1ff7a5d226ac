"""A sandbox at the Jupyter server, used from this kernel: the usual client over a channel that reconnects.

The connection may break while the sandbox lives on, for instance when the server is restarted and adopts the sandbox.
The channel then connects again and repeats the pending requests, except a running command: that command was ended, as
its result states.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from llm_sandbox_nb.errors import LLMSandboxError
from llm_sandbox_nb.notebook.server_client.address import START_TIMEOUT, ServerAddress, ask_server
from llm_sandbox_nb.sandbox.client import ChannelSandbox
from llm_sandbox_nb.sandbox.contract import Directories, Protection
from llm_sandbox_nb.sandbox.errors import SandboxError, SandboxLostError
from llm_sandbox_nb.sandbox.protocol.channel import LEASE, Channel
from llm_sandbox_nb.sandbox.protocol.frames import MESSAGE_LIMIT, SANDBOX_ENDED, Frame, pack, unpack

if TYPE_CHECKING:
    from tornado.websocket import WebSocketClientConnection

_CONNECT_TIMEOUT = 10.0


class ServerUnreachableError(LLMSandboxError):
    """Raised if the server does not answer at this moment, but may answer later."""


class WebSocketTransport:
    """Transport of frames between a channel of this kernel and a sandbox of the server."""

    def __init__(self, connection: WebSocketClientConnection) -> None:
        self._connection = connection
        self._arrived: deque[Frame] = deque()

    @classmethod
    async def connect(cls, address: ServerAddress, sandbox_id: str) -> WebSocketTransport:
        """Connect to a sandbox.

        Raises:
            ServerUnreachableError: if the server cannot be reached; trying again may help.
            SandboxLostError: if the sandbox is unknown to the server, or access is refused.
        """
        from tornado.httpclient import HTTPClientError
        from tornado.websocket import WebSocketError, websocket_connect

        request = address.channel(f"sandboxes/{sandbox_id}/channel", request_timeout=_CONNECT_TIMEOUT)
        try:
            connection = await websocket_connect(request, max_message_size=MESSAGE_LIMIT)
        except HTTPClientError as error:
            if error.code in (403, 404, 410):
                raise SandboxLostError(
                    f"The Jupyter server has no such sandbox for this kernel any more (HTTP {error.code}); "
                    "run the cell again to start a new one."
                ) from error
            raise ServerUnreachableError(str(error)) from error
        except (OSError, WebSocketError) as error:
            raise ServerUnreachableError(str(error)) from error
        if connection.protocol is not None and connection.protocol.stream is not None:
            connection.protocol.stream.set_nodelay(True)
        return cls(connection)

    @property
    def ended(self) -> str | None:
        """The reason why the server ended the sandbox; None if the sandbox has not ended."""
        if self._connection.close_code != SANDBOX_ENDED:
            return None
        return self._connection.close_reason or "The sandbox has ended."

    async def read_frame(self) -> Frame | None:
        """Return the next frame; None if the connection is closed.

        Raises:
            ProtocolError: if the server sent an invalid frame.
        """
        if not self._arrived:
            message = await self._connection.read_message()
            if message is None:
                return None
            self._arrived.extend(unpack(message))
        return self._arrived.popleft()

    def write(self, frames: Sequence[Frame]) -> None:
        """Queue frames.

        Raises:
            ConnectionError: if the connection is closed.
        """
        from tornado.websocket import WebSocketClosedError

        try:
            for message in pack(frame.encode() for frame in frames):
                self._connection.write_message(message, binary=True)
        except WebSocketClosedError as error:
            raise ConnectionError("the connection to the Jupyter server is closed") from error

    def close(self) -> None:
        self._connection.close()


_RETRY_FIRST, _RETRY_MAX = 0.1, 2.0


class ServerSandbox(ChannelSandbox):
    """See `Sandbox`. `close` ends only the connection: the server keeps the sandbox, unless `own` is true."""

    channel: ReconnectingChannel

    def __init__(
        self,
        address: ServerAddress,
        model: Mapping[str, Any],
        *,
        patience: float = LEASE,
        own: bool = False,
    ) -> None:
        """Prepare the connection to a sandbox.

        Args:
            model: the server's description of the sandbox.
            patience: seconds to wait for a server that does not answer.
            own: True if `close` also ends the sandbox, such as a fork.
        """
        self.server_id: str = model["id"]
        self._address = address
        self._patience = patience
        self._own = own
        self._unwanted: asyncio.Task[None] | None = None
        """Task that ends a clone whose caller was cancelled."""
        super().__init__(
            ReconnectingChannel(address, self.server_id, patience),
            id=str(model["sandbox_id"]),
            directories=Directories(model["root"]),
            protection=_protection(model["protection"]),
            kill=self._delete_own,
        )
        self.serve: Callable[[ServerSandbox], Awaitable[object]] | None = None
        """Function that serves the network of this sandbox, and of its forks, from this kernel."""
        self.channel.greeting = self.greeting
        self.channel.on_lost = None  # a broken connection matters only at the next request

    @property
    def lost(self) -> SandboxLostError | None:
        """The reason why the sandbox is lost, from the server or because it was closed here."""
        return self.channel.ended

    async def clone(self) -> ServerSandbox:
        """See `CheckpointingSandbox.clone`. The server applies its policy, and ends the clone when this kernel ends."""
        making = asyncio.ensure_future(
            ask_server(self._address, f"sandboxes/{self.server_id}/fork", "POST", {}, timeout=START_TIMEOUT)
        )
        try:
            _, model = await asyncio.shield(making)
        except asyncio.CancelledError:  # the server makes the clone in any case
            self._unwanted = asyncio.ensure_future(self._end_unwanted(making))
            raise
        sandbox = ServerSandbox(self._address, model, patience=self._patience, own=True)
        try:
            await sandbox.connect()
            sandbox.serve = self.serve
            if self.serve is not None:
                await self.serve(sandbox)
        except BaseException:
            await asyncio.shield(sandbox.close())
            raise
        return sandbox

    async def _end_unwanted(self, making: Awaitable[tuple[int, dict[str, Any]]]) -> None:
        with contextlib.suppress(SandboxError, ValueError):
            _, model = await making
            await self._delete(model["id"])

    async def _delete_own(self) -> None:
        if self._own:
            # If this fails, the server ends the clone, at the latest with this kernel.
            with contextlib.suppress(SandboxError):
                await self._delete(self.server_id)

    async def _delete(self, server_id: str) -> None:
        await ask_server(self._address, f"sandboxes/{server_id}", "DELETE")


class ReconnectingChannel(Channel):
    """A channel over the server's WebSocket, connected at first use, and again after a break."""

    def __init__(self, address: ServerAddress, sandbox_id: str, patience: float) -> None:
        super().__init__(_NoTransport())
        self.lost = SandboxLostError("The sandbox is not connected yet.")
        self.greeting: Mapping[str, Any] = {}
        """Fields of the `hello` message on each new connection."""
        self.why_ended = lambda: self._sandbox_ended() or "the connection to the Jupyter server broke"
        self._address = address
        self._sandbox_id = sandbox_id
        self._patience = patience
        self._connecting = asyncio.Lock()
        self._closed = False

    @property
    def ended(self) -> SandboxLostError | None:
        """The error that makes reconnecting useless; None if there is no such error."""
        if self._closed:
            return SandboxLostError("The connection to the sandbox was closed; ask for the sandbox again.")
        reason = self._sandbox_ended()
        return SandboxLostError(f"The sandbox is lost. {reason}") if reason else None

    def _sandbox_ended(self) -> str | None:
        return self._transport.ended if isinstance(self._transport, WebSocketTransport) else None

    async def ensure_connected(self) -> None:
        """Connect if there is no connection, and wait for a server that does not answer.

        Raises:
            SandboxLostError: if the sandbox has ended, or the server did not answer in time.
        """
        async with self._connecting:
            loop = asyncio.get_running_loop()
            deadline, pause = loop.time() + self._patience, _RETRY_FIRST
            while True:
                if self.ended:
                    raise self.ended
                if not self.lost:
                    return
                try:
                    self._use(await WebSocketTransport.connect(self._address, self._sandbox_id))
                    await self._greet()
                except ServerUnreachableError as error:
                    if loop.time() + pause > deadline:
                        raise SandboxLostError(
                            f"The Jupyter server at {self._address.url} has not answered for "
                            f"{self._patience:g} seconds, so the sandbox is lost ({error}); restart the server "
                            "and this kernel."
                        ) from error
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _RETRY_MAX)

    async def _greet(self) -> None:
        try:
            await self.hello(self.greeting)
        except SandboxLostError as error:
            if self.ended:
                raise self.ended from error
            raise ServerUnreachableError(str(error)) from error

    async def close(self, *, bye: bool = True) -> None:
        self._closed = True
        await super().close(bye=bye)


class _NoTransport:
    """Placeholder for the connection until it exists."""

    async def read_frame(self) -> Frame | None:
        return None

    def write(self, frames: Sequence[Frame]) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def _protection(data: Mapping[str, Any]) -> Protection:
    known = {field.name for field in fields(Protection) if field.init}
    values = {name: value for name, value in data.items() if name in known}
    return Protection(**{**values, "capabilities": tuple(values.get("capabilities", ()))})
