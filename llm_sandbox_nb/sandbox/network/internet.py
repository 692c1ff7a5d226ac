"""The proxy's access to the internet: look-ups of names, and connections. Tests replace the class `Internet`."""

from __future__ import annotations

import asyncio
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from llm_sandbox_nb.sandbox.network.streams import CountingStream, PlainSocket, SocketStream

CONNECT_TIMEOUT = 20.0
"""Time limit in seconds for connecting to one address."""
MAX_LOOKUPS = 4
"""Maximum number of simultaneous look-ups of a sandbox. Each look-up needs a thread. These threads are not those of
`asyncio.to_thread`, because slow look-ups of hostile names could then delay all other work of this process."""


class Internet:
    """Look-ups of names, and connections to servers, from this process."""

    def __init__(self, ca_bundle: Path | None = None) -> None:
        """Trust the usual certificates and, if given, the certificates of a site in the file `ca_bundle`."""
        self._ca_bundle = ca_bundle
        self._context: ssl.SSLContext | None = None
        self._lookups = ThreadPoolExecutor(MAX_LOOKUPS, "look-up")

    async def addresses(self, host: str, port: int) -> list[str]:
        """Look up the addresses of a host's name, which `checked_host` has checked. Raises OSError."""
        look_up = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        found = await asyncio.get_running_loop().run_in_executor(self._lookups, look_up)
        return list(dict.fromkeys(str(entry[4][0]) for entry in found))

    async def connect(self, address: str, port: int, tls: ssl.SSLContext | None, host: str) -> CountingStream:
        """Connect to an address. With `tls`, use TLS and verify that the server is `host`.

        Raises:
            OSError, ssl.SSLError: if the server does not answer, or cannot be verified.
        """
        async with asyncio.timeout(CONNECT_TIMEOUT):
            if tls is None:
                return await connect_plainly(address, port)
            reader, writer = await asyncio.open_connection(
                address, port, ssl=tls, server_hostname=host, limit=2**20
            )
        return SocketStream(reader, writer)

    @property
    def tls(self) -> ssl.SSLContext:
        """TLS context for the proxy's own TLS connections. It verifies the servers."""
        if self._context is None:
            import certifi

            self._context = ssl.create_default_context(cafile=certifi.where())
            self._context.load_default_certs()
            if self._ca_bundle is not None:
                self._context.load_verify_locations(self._ca_bundle)
            self._context.set_alpn_protocols(["http/1.1"])
        return self._context


async def connect_plainly(address: str, port: int) -> PlainSocket:
    """Connect to a numeric address. Raises OSError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(connection, (address, port))
    except BaseException:
        connection.close()
        raise
    return PlainSocket(connection)
