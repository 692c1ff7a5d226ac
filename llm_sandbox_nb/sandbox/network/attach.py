"""The owner's side of a running sandbox's network: the door, the proxy behind it, and a list of past connections."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from llm_sandbox_nb.sandbox.client import ChannelSandbox
from llm_sandbox_nb.sandbox.contract import Connection
from llm_sandbox_nb.sandbox.errors import SandboxError
from llm_sandbox_nb.sandbox.network.authority import Authority
from llm_sandbox_nb.sandbox.network.door import MAX_CONNECTIONS, Door
from llm_sandbox_nb.sandbox.network.environment import AUTHORITY_FILE, JAVA_AUTHORITY_FILE, JAVA_PASSWORD
from llm_sandbox_nb.sandbox.network.internet import Internet
from llm_sandbox_nb.sandbox.network.policy import Policy
from llm_sandbox_nb.sandbox.network.proxy import Proxy
from llm_sandbox_nb.sandbox.network.secrets import read_secrets

MAX_REMEMBERED_CONNECTIONS = 10_000
"""Maximum number of past connections that are kept. Older connections are dropped."""
_BUNDLES = (
    "/etc/ssl/llm-sandbox-nb-site.pem",
    "/etc/llm-sandbox/ca.pem",
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
    "/etc/ssl/ca-bundle.pem",
)
_INSTALL = """
umask 022
mkdir -p "$(dirname "$1")"
own=$1; shift
rm -f "$own"
for bundle; do [ -r "$bundle" ] && cat "$bundle" && break; done > "$own" 2>/dev/null
cat >> "$own"
"""
_WRITE = 'umask 022; rm -f "$1"; cat > "$1"'

logger = logging.getLogger(__name__)


class AllowedNetwork:
    """See `contract.Network`."""

    def __init__(self, proxy: Proxy, door: Door) -> None:
        self._proxy = proxy
        self._door = door
        self._kept: deque[Connection] = deque(maxlen=MAX_REMEMBERED_CONNECTIONS)
        self.on_connection: Callable[[Connection], None] | None = None
        proxy.report = self._reported

    @property
    def connections(self) -> Sequence[Connection]:
        return tuple(self._kept)

    @property
    def closed(self) -> str:
        return self._door.closed

    @property
    def internet(self) -> Internet:
        """The proxy's access to the internet. Tests set another object."""
        return self._proxy.internet

    @internet.setter
    def internet(self, internet: Internet) -> None:
        self._proxy.internet = internet

    def permit(self, entry: str, *, once: bool = False) -> None:
        self._proxy.policy.permit(entry, once=once)

    async def close(self) -> None:
        await self._door.close()

    def _reported(self, connection: Connection) -> None:
        self._kept.append(connection)
        if self.on_connection is not None:
            self.on_connection(connection)


async def serve_network(
    sandbox: ChannelSandbox,
    allow: Sequence[str],
    secrets: Mapping[str, Sequence[str]],
    *,
    public: bool = False,
    ca_bundle: Path | None = None,
    at_once: int = MAX_CONNECTIONS,
) -> AllowedNetwork:
    """Serve the door of a running sandbox from this process, and set `sandbox.network` to the result.

    Args:
        sandbox: a sandbox with a door.
        allow: entries of the allow-list, see `policy.HostRule`. The hosts of the secrets are allowed too.
        secrets: names of environment variables of this process, each with the hosts that get its value.
        public: True to allow every host with a public address.
        ca_bundle: file with a site's certificates, which the proxy trusts in its own TLS connections.
        at_once: maximum number of simultaneous connections.

    Raises:
        ValueError: if a secret has no value in this process's environment.
        SandboxError: if the certificate of the secrets' authority cannot be written into the sandbox.
    """
    values = read_secrets(secrets)
    policy = Policy([*allow, *(host for secret in values for host in secret.hosts)], public=public)
    proxy = await asyncio.to_thread(Proxy, policy, values, internet=Internet(ca_bundle))
    if proxy.authority is not None:
        await _install(sandbox, proxy.authority, ca_bundle)
    listener = await sandbox.take_listener() if sandbox.take_listener else None
    door = Door(sandbox.channel, proxy.serve, listener=listener, at_once=at_once)
    sandbox.network = network = AllowedNetwork(proxy, door)
    return network


async def _install(sandbox: ChannelSandbox, authority: Authority, site: Path | None) -> None:
    """Write the authority's certificate into the sandbox, in a file with all certificates that are trusted there.

    Write a second such file for Java.
    """
    truststore = await asyncio.to_thread(authority.java_truststore, JAVA_PASSWORD, site)
    for argv, content in (
        (["sh", "-c", _INSTALL, "sh", AUTHORITY_FILE, *_BUNDLES], authority.pem.encode()),
        (["sh", "-c", _WRITE, "sh", JAVA_AUTHORITY_FILE], truststore),
    ):
        done = await sandbox.exec(argv, stdin=content, cwd="/")
        if done.exit_code:
            raise SandboxError(
                "The certificate for the secrets cannot be written into the sandbox: "
                f"{done.text.strip()[:200]}."
            )
