"""A Jupyter server in the process of the tests, with our extension, and requests to it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from jupyter_core.paths import jupyter_data_dir
from jupyter_process import STUB, install_stub
from tornado.httpclient import HTTPClientError

from llm_sandbox_nb.server.handlers import API
from llm_sandbox_nb.server.manager import SandboxManager

Answer = tuple[int, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class Served:
    """Made of fixtures of pytest_jupyter."""

    app: Any
    jp_fetch: Any
    jp_ws_fetch: Any
    loop: asyncio.AbstractEventLoop

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(coroutine)

    def fetch(self, path: str, **options: Any) -> Any:
        """The answer to a request that is not refused."""
        return self._inside(self.jp_fetch, path, request_timeout=60, **options)

    def call(self, verb: str, path: str, body: Any = None, **options: Any) -> Answer:
        """A request: status and JSON, of refusals too."""
        data = None if verb == "get" and body is None else json.dumps({} if body is None else body)
        options |= {"method": verb.upper(), "body": data, "allow_nonstandard_methods": True}
        try:
            answer = self.fetch(path, **options)
        except HTTPClientError as error:
            return error.code, _json(error.response.body if error.response else b"")
        return answer.code, _json(answer.body)

    def connect(self, path: str, **options: Any) -> int:
        """Open a WebSocket and close it; the status."""
        try:
            socket = self._inside(self.jp_ws_fetch, path, **options)
        except HTTPClientError as error:
            return error.code
        socket.close()
        return 101

    def _inside(self, request: Any, *arguments: Any, **options: Any) -> Any:
        """Make a request in the loop; one that is made before the loop runs asks for the thread's loop."""

        async def made() -> Any:
            return await request(*arguments, **options)

        return self.run(made())

    @property
    def settings(self) -> dict[str, Any]:
        found: dict[str, Any] = self.app.web_app.settings
        return found

    @property
    def manager(self) -> SandboxManager:
        found: SandboxManager = self.settings["llm_sandbox_manager"]
        return found

    def kernel(self) -> str:
        install_stub(Path(jupyter_data_dir()))
        status, model = self.call("post", "api/kernels", {"name": STUB})
        assert status == 201
        return str(model["id"])

    def ask(self, kernel_id: str, isolation: str | None = "process", **more: Any) -> Answer:
        asked = {"isolation": isolation} if isolation else {}
        return self.call("post", f"{API}/sandboxes", {"kernel_id": kernel_id, **asked, **more})

    def sandboxes(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.call("get", f"{API}/sandboxes")[1]["sandboxes"]
        return found


def _json(data: bytes) -> Any:
    try:
        return json.loads(data or b"null")
    except ValueError:
        return data
