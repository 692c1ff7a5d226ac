"""A kernel whose sandbox is open to outside agents, and a plain MCP client of both eras for it."""

from __future__ import annotations

import http.client
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from jupyter_process import JupyterProcess
from live_runs import API, found
from support import PATIENCE

from llm_sandbox_nb.mcp_server.messages import META_CAPABILITIES, META_CLIENT, META_VERSION
from llm_sandbox_nb.runs.run import Run

MODERN = "2026-07-28"


class OpenNotebook:
    """A kernel in which `%sandbox mcp` was executed."""

    def __init__(self, server: JupyterProcess, kernel_id: str, options: str = "") -> None:
        self.server, self.kernel_id = server, kernel_id
        self.file = server.root / f"mcp-{kernel_id}.txt"
        self.shown: list[dict[str, Any]] = []
        self.execute("%load_ext llm_sandbox_nb", "%config SandboxMagics.isolation = 'process'")
        self.printed = self.open(options)
        assert self.file.exists(), self.printed

    def open(self, options: str = "") -> str:
        """Execute `%sandbox mcp`; what it printed."""
        return self.execute(f"%sandbox mcp --out {self.file} {options}")

    def execute(self, *cells: str) -> str:
        """Execute cells; what they printed, and the sentences of their errors."""
        printed: list[str] = []

        def hook(message: dict[str, Any]) -> None:
            content = message["content"]
            if message["msg_type"] in ("display_data", "update_display_data"):
                self.shown.append(content["data"])
            printed.append(str(content.get("text") or content.get("evalue") or ""))

        with self.server.client(self.kernel_id) as client:
            for cell in cells:
                client.execute_interactive(cell, timeout=PATIENCE, allow_stdin=False, output_hook=hook)
        return "".join(printed)

    @property
    def token(self) -> str:
        return self.file.read_text().split("Bearer ")[1].split('"')[0]

    @property
    def model(self) -> dict[str, Any]:
        def live() -> Any:
            runs = [one for one in self.server.get(API)["runs"] if one["kernel_id"] == self.kernel_id]
            return next((one for one in reversed(runs) if one["outside"]), None)

        model: dict[str, Any] = found(live)
        return model

    @property
    def folder(self) -> Path:
        [journal] = self.server.folder.rglob(f"{self.model['id']}/journal.jsonl")
        return journal.parent

    def run(self) -> Run:
        return Run.load(self.folder)

    def decide(self, **body: Any) -> tuple[int, Any]:
        """A person's decision; status and answer."""
        return self.server.ask(f"{API}/{self.model['id']}/control", "POST", body)

    def held(self) -> dict[str, Any]:
        found_call: dict[str, Any] = found(lambda: self.model["held"])
        return found_call

    def client(self, token: str | None = None, **options: Any) -> PlainClient:
        return PlainClient(self.server.url, self.token if token is None else token, **options)


class PlainClient:
    """An MCP client of one era, made of HTTP requests."""

    def __init__(self, url: str, token: str, *, modern: bool = True, elicits: bool = False) -> None:
        """`url` is that of the Jupyter server."""
        self.url, self.token, self.modern = urlsplit(url), token, modern
        self.capabilities: dict[str, Any] = {"elicitation": {}} if elicits else {}
        self.headers: dict[str, str] = {}
        self._ids = itertools.count(1)
        if not modern:
            self._begin()

    def _begin(self) -> None:
        params = {
            "protocolVersion": "2025-11-25",
            "capabilities": self.capabilities,
            "clientInfo": {"name": "old"},
        }
        status, headers, body = self.post({"method": "initialize", "id": next(self._ids), "params": params})
        assert status == 200, body
        self.headers = {"Mcp-Session-Id": headers["mcp-session-id"], "MCP-Protocol-Version": "2025-11-25"}
        assert self.post({"method": "notifications/initialized"})[0] == 202

    def message(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        params = dict(params or {})
        if self.modern:
            params["_meta"] = {
                META_VERSION: MODERN,
                META_CLIENT: {"name": "plain", "version": "1"},
                META_CAPABILITIES: self.capabilities,
                **params.get("_meta", {}),
            }
        return {"id": next(self._ids), "method": method, "params": params}

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.url.hostname or "", self.url.port, timeout=PATIENCE)

    def start(
        self, message: dict[str, Any], headers: dict[str, str] | None = None, path: str = ""
    ) -> http.client.HTTPConnection:
        """Send a message; the connection on which the answer comes."""
        connection = self.connection()
        sent = {
            "Authorization": f"Bearer {self.token}",
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            **self.headers,
        }
        if self.modern and "method" in message:
            sent |= {"MCP-Protocol-Version": MODERN, "Mcp-Method": message["method"]}
            if message["method"] == "tools/call":
                sent["Mcp-Name"] = message["params"]["name"]
        body = json.dumps({"jsonrpc": "2.0", **message})
        connection.request("POST", f"{self.url.path}llm-sandbox/mcp{path}", body, {**sent, **(headers or {})})
        return connection

    def post(self, message: dict[str, Any], **options: Any) -> tuple[int, dict[str, str], Any]:
        connection = self.start(message, **options)
        answer = connection.getresponse()
        headers = {name.lower(): value for name, value in answer.getheaders()}
        body = answer.read()
        connection.close()
        if headers.get("content-type", "").startswith("text/event-stream"):
            return answer.status, headers, list(events(body))[-1]
        return answer.status, headers, json.loads(body) if body else None

    def result(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        status, _, body = self.post(self.message(method, params))
        assert status == 200, body
        assert "result" in body, body
        found_result: dict[str, Any] = body["result"]
        return found_result

    def tool(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        """The result of a call: `text`, `data`, `error`."""
        named = {name.removesuffix("_"): value for name, value in arguments.items()}
        result = self.result("tools/call", {"name": tool, "arguments": named})
        if "content" not in result:
            return result
        return {
            "text": result["content"][0]["text"],
            "data": result["structuredContent"],
            "error": result["isError"],
        }


def events(body: bytes) -> Iterator[Any]:
    for line in body.decode().split("\n"):
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))
