"""The WebSocket half of `/llm-sandbox/api`: a sandbox's channel."""

from __future__ import annotations

from typing import Any

from jupyter_core.utils import ensure_async
from jupyter_server.auth.decorator import ws_authenticated
from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.base.websocket import WebSocketMixin
from tornado import web
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from llm_sandbox_nb.sandbox.errors import SandboxLostError
from llm_sandbox_nb.sandbox.frame_messages import MESSAGE_LIMIT
from llm_sandbox_nb.server.handlers import API, AUTH_RESOURCE, ID
from llm_sandbox_nb.server.manager import SandboxManager, UnknownSandboxError
from llm_sandbox_nb.server.relay import SANDBOX_ENDED, RelayClient


class ChannelHandler(WebSocketMixin, WebSocketHandler, JupyterHandler):
    """One client's connection to a sandbox."""

    auth_resource = AUTH_RESOURCE
    max_message_size = MESSAGE_LIMIT
    _client: RelayClient | None = None

    @property
    def manager(self) -> SandboxManager:
        """The manager of this server's sandboxes."""
        manager: SandboxManager = self.settings["llm_sandbox_manager"]
        return manager

    def set_default_headers(self) -> None:
        """JupyterHandler's headers mean nothing to a WebSocket."""

    def get_compression_options(self) -> None:
        """Never compress: most clients are on this machine, and it costs more than it saves."""

    @ws_authenticated
    async def get(self, sandbox_id: str) -> None:
        """Authorise, and see that the sandbox runs, before the protocol is switched."""
        allowed = await ensure_async(
            self.authorizer.is_authorized(self, self.current_user, "execute", AUTH_RESOURCE)
        )
        if not allowed:
            raise web.HTTPError(403, f"User is not authorized to execute on resource: {AUTH_RESOURCE}.")
        try:
            await self.manager.ready()
            self.manager.running(sandbox_id)
        except UnknownSandboxError as error:
            raise web.HTTPError(404, str(error)) from error
        except SandboxLostError as error:
            raise web.HTTPError(410, str(error)) from error
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
