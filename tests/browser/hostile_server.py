"""The Jupyter server of the hostile tests: a page with a cookie and an API, and it notes every request."""

from __future__ import annotations

import http.server
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from loopback_http import LoopbackServer

COOKIE = "_xsrf=very-secret; Path=/"
PAGE = """
window.pwned = name => { fetch('/canary/' + name + '/realm', { method: 'POST', keepalive: true }); };
addEventListener('message', event => pwned(String(event.data)));
new BroadcastChannel('lab').onmessage = event => pwned(String(event.data));
localStorage.setItem('secret', 'very-secret');
const click = () => {
  for (const link of document.querySelectorAll('.lsn-view a:not([download])')) link.click();
  for (const line of document.querySelectorAll('.lsn-view details')) line.open = true;
  window.clicked = (window.clicked ?? 0) + 1;
};
(async () => {
  const query = new URLSearchParams(location.search);
  const bundle = await (await fetch('/run/' + query.get('run'))).json();
  lsn.show(bundle, { trusted: query.get('trusted') !== 'no' });
  setTimeout(click, 400);
  setTimeout(click, 800);
  window.shown = true;
})();
"""


@dataclass
class Canary:
    """What reached the server: `hits` has (payload, way) of each request of a payload."""

    address: str = ""
    script: dict[str, str] = field(default_factory=dict)
    runs: dict[str, Any] = field(default_factory=dict)
    hits: list[tuple[str, str]] = field(default_factory=list)

    def names(self) -> set[str]:
        return {name for name, _ in self.hits}


@contextmanager
def canary_server() -> Iterator[Canary]:
    """Serves /page/<script> and /run/<name>; notes what asks for /canary/<payload>/<way>, /api or more."""
    canary = Canary()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            parts = path.strip("/").split("/")
            if parts[0] == "page":
                self.send("text/html; charset=utf-8", canary.script[parts[1]])
            elif parts[0] == "run":
                self.send("application/json", json.dumps(canary.runs[parts[1]]))
            elif path != "/favicon.ico":
                self.note(parts, query)

        def note(self, parts: list[str], query: str) -> None:
            name = parts[1] if len(parts) > 1 else "/".join(parts)
            way = "/".join([parts[0], *parts[2:], query])
            canary.hits.append(
                (name, f"{self.command} {way} cookie={'very-secret' in str(self.headers.get('Cookie'))}")
            )
            self.send("text/javascript", "")

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.do_GET()

        do_PUT = do_DELETE = do_PATCH = do_POST
        do_HEAD = do_OPTIONS = do_GET

        def send(self, mime: str, text: str) -> None:
            data = text.encode()
            self.send_response(200)
            for name, value in (
                ("Content-Type", mime), ("Content-Length", str(len(data))), ("Access-Control-Allow-Origin", "*"),
                ("Set-Cookie", COOKIE), ("Cache-Control", "no-store"),
            ):  # fmt: skip
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with LoopbackServer(Handler) as server:
        canary.address = server.root
        yield canary
