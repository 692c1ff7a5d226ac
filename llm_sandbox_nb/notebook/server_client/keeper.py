"""The notebook's sandbox at the Jupyter server, for kernels whose server has the extension."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from llm_sandbox_nb.formatting import format_duration
from llm_sandbox_nb.notebook.sandboxes import SandboxStatus, check_matches, prepared_detail
from llm_sandbox_nb.notebook.server_client.address import (
    ANSWER_TIMEOUT,
    START_TIMEOUT,
    ServerAddress,
    ask_server,
    find_own_server,
    own_kernel_id,
)
from llm_sandbox_nb.notebook.server_client.publisher import RunPublisher
from llm_sandbox_nb.notebook.server_client.sandbox import ServerSandbox
from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.sandbox.errors import SandboxError
from llm_sandbox_nb.sandbox.options import SandboxOptions

logger = logging.getLogger(__name__)


async def connect_server() -> ServerKeeper | None:
    """Return a keeper at this kernel's Jupyter server; None if no such server has the extension."""
    kernel_id = own_kernel_id()
    address = await find_own_server(kernel_id) if kernel_id else None
    return ServerKeeper(address, kernel_id) if address and kernel_id else None


class ServerKeeper:
    """A `SandboxKeeper` that asks the server."""

    def __init__(self, address: ServerAddress, kernel_id: str) -> None:
        self._address = address
        self._kernel_id = kernel_id
        self._sandbox: ServerSandbox | None = None
        self._key = ("", "")
        self._ca_bundle: Path | None = None
        """File with the site's own certificates, which the sandbox's network proxy trusts too."""

    def publisher(self) -> RunPublisher:
        return RunPublisher(self._address, self._kernel_id)

    @property
    def url(self) -> str:
        """The server's base URL for processes on this machine, ending in a slash."""
        return self._address.url

    async def mint_token(self, sandbox: Sandbox, *, keep: bool) -> str | None:
        """Return a new token with which outside agents can use a sandbox.

        If `keep` is true and the sandbox has a valid token, that token stays valid, and the result is None.
        """
        _, answer = await self._ask(f"sandboxes/{server_id(sandbox)}/mcp-token", "POST", {"keep": keep})
        token: str | None = answer["token"]
        return token

    async def revoke_token(self, sandbox: Sandbox) -> None:
        await self._ask(f"sandboxes/{server_id(sandbox)}/mcp-token", "DELETE")

    async def acquire(self, options: SandboxOptions, *, fresh: bool = False) -> Sandbox:
        if fresh:
            await self.close()
        body = {"kernel_id": self._kernel_id, "fresh": fresh, **_request(options)}
        status, model = await self._ask("sandboxes", "POST", body, timeout=START_TIMEOUT)
        sandbox = await self._connected(model)
        await self._serve_network(sandbox, model, options)
        # 200: the sandbox ran already. It must match the cell's options, except for the certificates.
        if status == 200:
            started_with = SandboxOptions.from_json(model["settings"])
            started_with = replace(started_with, ca_bundle=options.ca_bundle)
            check_matches(options, started_with=started_with, protection=sandbox.protection)
        return sandbox

    async def _serve_network(
        self, sandbox: ServerSandbox, model: Mapping[str, Any], options: SandboxOptions
    ) -> None:
        """Run the sandbox's network proxy in this kernel, so that secrets never reach the server."""
        from llm_sandbox_nb.sandbox.network.door import MAX_RELAYED_CONNECTIONS, WAY_OUT

        if WAY_OUT not in sandbox.protection.details:
            return
        if sandbox.network is not None:
            if options.ca_bundle == self._ca_bundle:
                return
            await sandbox.network.close()
        self._ca_bundle = options.ca_bundle
        from llm_sandbox_nb.sandbox.network.attach import serve_network

        started = SandboxOptions.from_json({**model["settings"], "isolation": None})
        public = sandbox.protection.network == "public"

        async def serve(sandbox: ServerSandbox) -> object:
            return await serve_network(
                sandbox,
                started.allow,
                started.secrets,
                public=public,
                ca_bundle=options.ca_bundle,
                at_once=MAX_RELAYED_CONNECTIONS,
            )

        sandbox.serve = serve
        await serve(sandbox)

    async def current(self) -> Sandbox | None:
        model = await self._model()
        if not model or model["state"] != "running":
            return None
        sandbox = await self._connected(model)
        with suppress(ValueError):  # a secret has no value in this kernel: the next `acquire` reports this
            await self._serve_network(sandbox, model, SandboxOptions(ca_bundle=self._ca_bundle))
        return sandbox

    async def status(self) -> SandboxStatus:
        _, info = await self._ask("info")
        details = {
            "server": self._address.url,
            "sandboxes on this server": f"{info['sandboxes']} of {info['max_sandboxes'] or 'any number'}",
        }
        model = await self._model()
        if model is None or model["state"] != "running":
            return SandboxStatus("server", details=details)
        sandbox = await self._connected(model)
        idle = datetime.now(UTC) - datetime.fromisoformat(model["last_activity"])
        details["idle"] = format_duration(idle.total_seconds())
        details |= prepared_detail(model.get("prepared_sandboxes", 0))
        return SandboxStatus(
            "server",
            sandbox.id,
            sandbox.protection,
            datetime.fromisoformat(model["created"]).timestamp(),
            details,
        )

    async def prepare(self, options: SandboxOptions, count: int, seconds: float) -> None:
        body = {"kernel_id": self._kernel_id, "count": count, "seconds": seconds, **_request(options)}
        await self._ask("sandboxes/prepare", "POST", body)

    async def stop(self, *, prepared: bool = False) -> bool:
        if prepared:
            with suppress(SandboxError):  # a server of an earlier version knows no preparation
                await self.prepare(SandboxOptions(), 0, 1)
        model = await self._model()
        await self.close()
        if model is None:
            return False
        await self._ask(f"sandboxes/{model['id']}", "DELETE")
        return True

    async def stop_idle(self) -> str | None:
        """See `NotebookSandboxes.stop_idle`."""
        body = {"kernel_id": self._kernel_id, "most": 1}
        _, answer = await self._ask("sandboxes/stop-idle", "POST", body)
        names = [sandbox["notebook"] or "a kernel without a notebook" for sandbox in answer["stopped"]]
        return names[0] if names else None

    async def close(self) -> None:
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            await sandbox.close()

    async def _model(self) -> dict[str, Any] | None:
        _, answer = await self._ask(f"kernels/{self._kernel_id}")
        model: dict[str, Any] | None = answer["sandbox"]
        return model

    async def _connected(self, model: Mapping[str, Any]) -> ServerSandbox:
        """Return the sandbox described by `model`; connect if necessary."""
        key = (str(model["id"]), str(model["sandbox_id"]))
        if self._sandbox is None or self._key != key or self._sandbox.lost:
            await self.close()
            sandbox = ServerSandbox(self._address, model)
            await sandbox.connect()
            self._sandbox, self._key = sandbox, key
        return self._sandbox

    async def _ask(
        self, path: str, method: str = "GET", body: object = None, *, timeout: float = ANSWER_TIMEOUT
    ) -> tuple[int, dict[str, Any]]:
        """See `ask_server`."""
        return await ask_server(self._address, path, method, body, timeout=timeout)


def server_id(sandbox: Sandbox) -> str:
    assert isinstance(sandbox, ServerSandbox)
    return sandbox.server_id


def _request(options: SandboxOptions) -> dict[str, Any]:
    """Return the options as the body of a request. Unset options are left out, so that the site's defaults apply."""
    request = {name: value for name, value in options.to_json().items() if value is not None}
    if request.get("isolation") == "auto":
        del request["isolation"]
    if request.pop("ca_bundle", None):
        request["ca_bundle_pem"] = Path(options.ca_bundle or "").read_text()
    return request
