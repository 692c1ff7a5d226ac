"""What the WebSockets below `/llm-sandbox/api` have in common."""

from __future__ import annotations

from jupyter_core.utils import ensure_async
from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.base.websocket import WebSocketMixin
from tornado import web
from tornado.websocket import WebSocketHandler

from llm_sandbox_nb.sandbox.errors import SandboxLostError
from llm_sandbox_nb.server.handlers import AUTH_RESOURCE
from llm_sandbox_nb.server.manager import SandboxManager, UnknownSandboxError


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
