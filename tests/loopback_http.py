"""HTTP servers on loopback that a test plays. They answer in a `with` block, each request in a thread of its own.

class Handler(LoopbackHandler):
    def do_POST(self) -> None:
        self.send(200, {"asked": self.body()})

with LoopbackServer(Handler) as server:
    ask(server.root)
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class LoopbackServer(ThreadingHTTPServer):
    """See the module. A subclass holds what the test says and what was asked; its handlers reach it as `server`."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, handler: type[BaseHTTPRequestHandler], port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), handler)
        self._thread = threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True)

    @property
    def root(self) -> str:
        """The address without a path."""
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def url(self) -> str:
        return f"{self.root}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening, so that nothing answers at the port."""
        self.shutdown()
        self.server_close()
        self._thread.join(60)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Show what went wrong in a handler, but not that a client hung up."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class LoopbackHandler(BaseHTTPRequestHandler):
    """Reads and sends JSON, and logs nothing."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def data(self) -> bytes:
        return self.rfile.read(int(self.headers.get("content-length", 0)))

    def body(self) -> dict[str, Any]:
        return dict(json.loads(self.data() or b"{}"))

    def lower_headers(self) -> dict[str, str]:
        return {name.lower(): value for name, value in self.headers.items()}

    def send(
        self,
        status: int,
        content: Any,
        headers: Mapping[str, str] | None = None,
        kind: str = "application/json",
    ) -> None:
        """Send a text, bytes, or anything else as JSON."""
        text = content if isinstance(content, str | bytes) else json.dumps(content)
        data = text.encode() if isinstance(text, str) else text
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)
