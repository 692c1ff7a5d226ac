"""The WebSocket half of `/llm-sandbox/api`: a sandbox's channel."""

from __future__ import annotations

from typing import Any

from jupyter_server.auth.decorator import ws_authenticated
from tornado.websocket import WebSocketClosedError

from llm_sandbox_nb.sandbox.errors import SandboxLostError
from llm_sandbox_nb.sandbox.frame_messages import MESSAGE_LIMIT
from llm_sandbox_nb.server.handlers import API, ID
from llm_sandbox_nb.server.manager import UnknownSandboxError
from llm_sandbox_nb.server.relay import SANDBOX_ENDED, RelayClient
from llm_sandbox_nb.server.sockets import SandboxSocket


class ChannelHandler(SandboxSocket):
    """One client's connection to a sandbox."""

    max_message_size = MESSAGE_LIMIT
    _client: RelayClient | None = None

    @ws_authenticated
    async def get(self, sandbox_id: str) -> None:
        """Authorise before the protocol is switched."""
        await self.admit(sandbox_id)
        await super().get(sandbox_id=sandbox_id)

    def open(self, sandbox_id: str) -> None:
        """Connect the client to the sandbox."""
        super().open()
        self.set_nodelay(True)
        try:
            self._client = self.manager.connect(sandbox_id, self._send, self.close)
        except (UnknownSandboxError, SandboxLostError) as error:
            self.close(SANDBOX_ENDED, str(error)[:100])

    def on_message(self, message: bytes | str) -> None:
        """Frames of the client."""
        if self._client is not None:
            self._client.receive(message)

    def on_close(self) -> None:
        """The client has gone."""
        client, self._client = self._client, None
        if client is not None:
            client.leave()

    async def _send(self, message: bytes) -> None:
        try:
            await self.write_message(message, binary=True)
        except WebSocketClosedError as error:
            raise ConnectionError("the client has gone") from error


channel_routes: list[tuple[str, type[Any]]] = [(rf"{API}/sandboxes/{ID}/channel", ChannelHandler)]
"""Every WebSocket route below the server's base URL."""
