"""The MCP endpoint of a Jupyter server in the process of the tests, with two open sandboxes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from served import Served
from tornado.httpclient import AsyncHTTPClient, HTTPResponse

from llm_sandbox_nb.mcp_server.messages import META_CAPABILITIES, META_VERSION
from llm_sandbox_nb.server.mcp_grants import McpGrants
from llm_sandbox_nb.server.mcp_handlers import McpServices

BOX, OTHER = "a" * 32, "b" * 32


class Kernel:
    """A kernel that executes nothing and says what it was asked."""

    def __init__(self) -> None:
        self.run: Any = None
        self.asked: list[dict[str, Any]] = []
        self.sandboxes: list[dict[str, Any]] = []

    def send(self, message: dict[str, Any]) -> None:
        self.asked.append(message)
        if message["type"] == "tool":
            data = {"said": message["arguments"], "sandboxes": self.sandboxes}
            result = {"text": "ok", "data": data, "error": False}
            self.run.take_answer({"id": message["id"], "error": None, "result": result})

    def dismiss(self, reason: str) -> None:
        """Another connection has taken its place."""


class Endpoint:
    """The endpoint of a server in this process, with two sandboxes that are open."""

    def __init__(self, served: Served, folder: Path, *, runs: bool = False) -> None:
        """`runs`: outside agents may start runs."""
        self.served = served
        self.grants = grants = McpGrants(folder / "tokens.json")
        self.services = McpServices(grants, runs=runs)
        served.settings["llm_sandbox_mcp"] = self.services
        self.token, self.other = grants.mint(BOX, None), grants.mint(OTHER, None)
        self.kernels = {}
        for box in (BOX, OTHER):
            kernel = self.kernels[box] = Kernel()
            kernel.run = served.settings["llm_sandbox_runs"].publish(
                f"run-{box[0]}", f"k-{box[0]}", "o", kernel
            )
            kernel.run.outside = box
        self.address = f"{served.app.connection_url}llm-sandbox/mcp"
        self.host = self.address.split("/")[2]

    def send(
        self,
        body: bytes | dict[str, Any],
        headers: dict[str, str] | None = None,
        method: str = "POST",
        path: str = "",
    ) -> HTTPResponse:
        """Send a request, with the token unless `headers` say otherwise."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        named = {"Authorization": f"Bearer {self.token}", "Accept": "application/json"} | (headers or {})
        sent = {name: value for name, value in named.items() if value}

        async def fetch() -> HTTPResponse:
            return await AsyncHTTPClient().fetch(
                self.address + path, method=method, headers=sent, body=data if method == "POST" else None,
                raise_error=False, request_timeout=60, follow_redirects=False,
            )  # fmt: skip

        return self.served.run(fetch())

    def call(self, tool: str = "run_command", **more: Any) -> HTTPResponse:
        arguments = more.pop("arguments", {"command": "ls"})
        meta = {META_VERSION: "2026-07-28", META_CAPABILITIES: {}}
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
        headers = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": tool}
        body = {**message, "params": {"name": tool, "arguments": arguments, "_meta": meta}}
        return self.send(body, {**headers, **more.pop("headers", {})}, **more)

    @property
    def executed(self) -> int:
        return sum(len(kernel.asked) for kernel in self.kernels.values())
