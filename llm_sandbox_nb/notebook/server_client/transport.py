"""The executor's frames over a WebSocket of the Jupyter server."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from llm_sandbox_nb.sandbox.errors import SandboxLostError
from llm_sandbox_nb.sandbox.protocol.frames import MESSAGE_LIMIT, Frame, pack, unpack

if TYPE_CHECKING:
    from tornado.websocket import WebSocketClientConnection

    from llm_sandbox_nb.notebook.server_client.address import ServerAddress

SANDBOX_ENDED = 4410
"""WebSocket close code: the sandbox is gone, its reason says why; connecting again is of no use."""
_CONNECT_TIMEOUT = 10.0


class ServerUnreachableError(Exception):
    """The server does not answer at this moment; it may later."""


class WebSocketTransport:
    """Carries frames between a channel of this kernel and a sandbox of the server."""

    def __init__(self, connection: WebSocketClientConnection) -> None:
        self._connection = connection
        self._arrived: deque[Frame] = deque()

    @classmethod
    async def connect(cls, address: ServerAddress, sandbox_id: str) -> WebSocketTransport:
        """Connect to a sandbox.

        Raises:
            ServerUnreachableError: the server cannot be reached; trying again may help.
            SandboxLostError: the server has no such sandbox, or does not let us.
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
        """Why the sandbox is gone, when the server said so."""
        if self._connection.close_code != SANDBOX_ENDED:
            return None
        return self._connection.close_reason or "The sandbox has ended."

    async def read_frame(self) -> Frame | None:
        """The next frame; None when the connection is closed.

        Raises:
            ProtocolError: the server sent something that is no frame.
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
            ConnectionError: the connection is closed.
        """
        from tornado.websocket import WebSocketClosedError

        try:
            for message in pack(frame.encode() for frame in frames):
                self._connection.write_message(message, binary=True)
        except WebSocketClosedError as error:
            raise ConnectionError("the connection to the Jupyter server is closed") from error

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
