"""The server extension: traits, routes, and the steps at the start and the stop of the Jupyter server."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from jupyter_core.paths import jupyter_data_dir
from jupyter_server.extension.application import ExtensionApp
from traitlets import Instance

from llm_sandbox_nb.server.card_handlers import card_routes
from llm_sandbox_nb.server.handlers import rest_routes
from llm_sandbox_nb.server.history_handlers import history_routes
from llm_sandbox_nb.server.history_reader import HistoryReaders
from llm_sandbox_nb.server.kernels import ServerKernels
from llm_sandbox_nb.server.manager import SandboxManager
from llm_sandbox_nb.server.mcp_grants import McpGrants
from llm_sandbox_nb.server.mcp_handlers import McpServices, mcp_routes, mcp_token_routes
from llm_sandbox_nb.server.policy import SandboxPolicy
from llm_sandbox_nb.server.run_handlers import run_routes
from llm_sandbox_nb.server.runs import RunRegistry
from llm_sandbox_nb.server.sockets import socket_routes

SETTING = "llm_sandbox_manager"
RUNS_SETTING = "llm_sandbox_runs"
HISTORIES_SETTING = "llm_sandbox_histories"
MCP_SETTING = "llm_sandbox_mcp"
URL_VARIABLE = "LLM_SANDBOX_SERVER_URL"
TOKEN_VARIABLE = "LLM_SANDBOX_SERVER_TOKEN"
CERTIFICATE_VARIABLE = "LLM_SANDBOX_SERVER_CERTIFICATE"
_WILDCARDS = ("", "0.0.0.0", "::")


class SandboxApp(ExtensionApp):
    """Server extension that manages a sandbox per notebook and offers it to kernels under `/llm-sandbox/api`."""

    name = "llm_sandbox_nb"
    extension_url = "/llm-sandbox/api/info"
    classes = [SandboxManager, SandboxPolicy, RunRegistry]  # noqa: RUF012 - as traitlets declares it

    manager = Instance(SandboxManager, allow_none=True)
    runs = Instance(RunRegistry, allow_none=True)
    histories = Instance(HistoryReaders, allow_none=True)

    def initialize_settings(self) -> None:
        """Create the objects that the handlers use, such as the manager."""
        server: Any = self.serverapp
        kernels = ServerKernels(server.kernel_manager, server.session_manager)
        activity_times = server.web_app.settings["last_activity_times"]
        self.manager = SandboxManager(
            parent=self,
            kernels=kernels,
            server_key=f"{server.root_dir}|{server.base_url}",
            activity_times=activity_times,
        )
        secret = server.web_app.settings["cookie_secret"]
        self.runs = RunRegistry(
            parent=self,
            kernels=kernels,
            secret=secret.encode() if isinstance(secret, str) else secret,
            activity_times=activity_times,
        )
        self.manager.live_kernels = self.runs.live_kernels
        self.histories = HistoryReaders()
        key = hashlib.sha256(f"{server.root_dir}|{server.base_url}".encode()).hexdigest()[:32]
        tokens = Path(jupyter_data_dir()) / "llm_sandbox_nb" / f"mcp-tokens-{key}.json"
        grants = McpGrants(tokens)
        grants.lives = self.manager.has
        self.settings.update(
            {
                SETTING: self.manager,
                RUNS_SETTING: self.runs,
                HISTORIES_SETTING: self.histories,
                MCP_SETTING: McpServices(grants, runs=self.manager.policy.allow_mcp_runs),
            }
        )

    def initialize_handlers(self) -> None:
        """Register the routes. The server adds its base URL to each of them."""
        self.handlers.extend([*rest_routes, *socket_routes, *run_routes, *history_routes, *card_routes])
        self.handlers.extend([*mcp_token_routes, *mcp_routes])

    async def _start_jupyter_server_extension(self, serverapp: Any) -> None:
        """Publish this server's address to later kernels, and adopt sandboxes of an earlier server."""
        os.environ.update(server_variables(serverapp))
        if self.manager is not None:
            await self.manager.start()

    def current_activity(self) -> dict[str, Any] | None:
        """Return the sandboxes with pending requests. They prevent the shutdown of an otherwise idle server."""
        busy = self.manager.busy() if self.manager else []
        return {managed.id: managed.to_json() for managed in busy} or None

    async def stop_extension(self) -> None:
        """End every sandbox. If that takes too long, a sandbox ends when its lease expires."""
        if self.runs is not None:
            self.runs.close()
        if self.histories is not None:
            self.histories.close()
        if self.manager is not None:
            await self.manager.close()


def server_variables(serverapp: Any) -> dict[str, str]:
    """Return the environment variables with which a kernel finds this server. A value may be empty.

    Call this after the server has begun to listen, because its port is not known earlier.
    """
    certificate = serverapp.certfile
    return {
        URL_VARIABLE: _local_url(serverapp),
        TOKEN_VARIABLE: serverapp.identity_provider.token or "",
        CERTIFICATE_VARIABLE: os.path.abspath(certificate) if certificate else "",  # noqa: PTH100
    }


def _local_url(serverapp: Any) -> str:
    """Return the server's base URL for processes on this machine. A wildcard address becomes the loopback address."""
    url = urlsplit(str(serverapp.connection_url))
    if serverapp.ip in _WILDCARDS and not serverapp.sock:
        host = "[::1]" if ":" in serverapp.ip else "127.0.0.1"
        url = url._replace(netloc=f"{host}:{serverapp.port}")
    return url.geturl()
