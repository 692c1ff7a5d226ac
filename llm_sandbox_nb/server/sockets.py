"""The WebSockets below `/llm-sandbox/api`: what they have in common, and a sandbox's channel."""

from __future__ import annotations

from typing import Any

from jupyter_core.utils import ensure_async
from jupyter_server.auth.decorator import ws_authenticated
from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.base.websocket import WebSocketMixin
from tornado import web
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from llm_sandbox_nb.sandbox.errors import SandboxLostError
from llm_sandbox_nb.sandbox.protocol.frames import MESSAGE_LIMIT
from llm_sandbox_nb.server.handlers import API, AUTH_RESOURCE, ID
from llm_sandbox_nb.server.manager import SandboxManager, UnknownSandboxError
from llm_sandbox_nb.server.relay import SANDBOX_ENDED, RelayClient


class Socket(WebSocketMixin, WebSocketHandler, JupyterHandler):
    """A connection for who may execute; its `get` calls `authorise`."""

    auth_resource = AUTH_RESOURCE

    def set_default_headers(self) -> None:
        """JupyterHandler's headers mean nothing to a WebSocket."""

    def get_compression_options(self) -> None:
        """Never compress: most clients are on this machine, and it costs more than it saves."""

    async def authorise(self) -> None:
        """Refuse who may not execute. Raises HTTPError."""
        allowed = await ensure_async(
            self.authorizer.is_authorized(self, self.current_user, "execute", AUTH_RESOURCE)
        )
        if not allowed:
            raise web.HTTPError(403, f"User is not authorized to execute on resource: {AUTH_RESOURCE}.")


class SandboxSocket(Socket):
    """A connection to a sandbox that runs; its `get` calls `admit`."""

    @property
    def manager(self) -> SandboxManager:
        """The manager of this server's sandboxes."""
        manager: SandboxManager = self.settings["llm_sandbox_manager"]
        return manager

    async def admit(self, sandbox_id: str) -> None:
        """Refuse who may not execute, and a sandbox that does not run. Raises HTTPError."""
        await self.authorise()
        try:
            await self.manager.ready()
            self.manager.running(sandbox_id)
        except UnknownSandboxError as error:
            raise web.HTTPError(404, str(error)) from error
        except SandboxLostError as error:
            raise web.HTTPError(410, str(error)) from error


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
