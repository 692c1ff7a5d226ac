"""An HTTP proxy that adds a token to each request, for clients that cannot send headers."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

_PIECE_BYTES = 64 * 1024
_TIMEOUT_SECONDS = 120
_OF_ONE_CONNECTION = {"connection", "transfer-encoding", "keep-alive"}
"""Headers that a proxy does not pass on."""


@contextmanager
def token_proxy(url: str, token: str) -> Iterator[str]:
    """Serve `url` with the token until the end of the block. Yields the address, with the path of `url`."""
    target = urlsplit(url)

    class Handler(BaseHTTPRequestHandler):
        def _pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            connection = http.client.HTTPConnection(
                target.hostname or "", target.port, timeout=_TIMEOUT_SECONDS
            )
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in _OF_ONE_CONNECTION:
                    connection.putheader(name, value)
            connection.putheader("Authorization", f"Bearer {token}")
            connection.endheaders(body)
            answer = connection.getresponse()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in _OF_ONE_CONNECTION:
                    self.send_header(name, value)
            self.end_headers()
            while piece := answer.read1(_PIECE_BYTES):
                self.wfile.write(piece)
            connection.close()

        do_GET = do_POST = do_DELETE = _pass_on

        def log_message(self, *_: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as proxy:
        proxy.daemon_threads = True
        serving = threading.Thread(target=proxy.serve_forever)
        serving.start()
        try:
            yield f"http://127.0.0.1:{proxy.server_address[1]}{target.path}"
        finally:
            proxy.shutdown()
            serving.join()
