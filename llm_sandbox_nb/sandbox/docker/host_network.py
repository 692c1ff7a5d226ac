"""The network of the engine's machine: its own addresses, which `public` closes, and the name servers that it asks.

A list of addresses must be as fresh as can be: where the engine is on this machine, it is read at each start. Else, and
for the name servers that an older engine uses, a short container on the host's network reads it.
"""

from __future__ import annotations

import ipaddress
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from llm_sandbox_nb.sandbox.docker.engine import connect, engine_errors, find_endpoint
from llm_sandbox_nb.sandbox.docker.images import DEFAULT_IMAGE, SLIM_IMAGE
from llm_sandbox_nb.sandbox.docker.network import find_network, gateways_of, is_podman
from llm_sandbox_nb.sandbox.docker.ownership import owner_labels

if TYPE_CHECKING:
    from llm_sandbox_nb.sandbox.docker.api import DockerClient

ROUTES, ADDRESSES_6, RESOLVERS = "/proc/net/fib_trie", "/proc/net/if_inet6", "/etc/resolv.conf"
TELLS_RESOLVERS = 26
"""Docker's first version that writes into a container which name servers its own asks."""
FRESH = 60.0
"""Seconds for which the addresses of another machine count."""
PATIENCE = 30
"""Seconds that the container may take."""
_READ = (
    'for file; do echo "== $file"; while read -r line || [ "$line" ]; do echo "$line"; done <"$file"; done'
)
_lock = threading.Lock()
_read: dict[str, tuple[float, HostNetwork]] = {}
"""For each engine (its URL): when its network was read from a container, and what was found."""


@dataclass(frozen=True)
class HostNetwork:
    """`addresses` as numbers, without loopback and link-local ones; `resolvers` that a container can ask."""

    addresses: frozenset[str] = frozenset()
    resolvers: tuple[str, ...] = ()
    complete: bool = False
    """The engine's machine has been read, and not only this one."""


def closing_order(network: str) -> dict[str, Any]:
    """The order for the sandbox's first program, see `executor.firewall.close_network`, but for what stays open.

    Raises:
        IsolationUnavailableError: no engine answers.
    """
    if network == "none":
        return {}
    client = connect()
    with engine_errors():
        listed = client.api.networks(filters={"driver": "bridge"})
    hosts = {gateway for found in listed for gateway in gateways_of(found)}
    if network == "open":
        return {"public": False, "hosts": sorted(hosts), "complete": False, "resolvers": []}
    if is_podman(client):
        around = read_host_network(bridge="", older=False)
    else:
        around = read_host_network(find_network(), older=_version(client) < TELLS_RESOLVERS)
    return {
        "public": True,
        "hosts": sorted(hosts | around.addresses),
        "complete": around.complete,
        "resolvers": [*around.resolvers],
    }


def _version(client: DockerClient) -> int:
    """The first number of the engine's version; 0 when it says none."""
    with engine_errors():
        first = str(client.version().get("Version")).partition(".")[0]
    return int(first) if first.isdigit() else 0


def read_host_network(bridge: str, older: bool) -> HostNetwork:
    """The network of the engine's machine, and the addresses of this one.

    Args:
        bridge: the id of the sandboxes' network, which shows whether the engine is on this machine; empty on Podman.
        older: the engine does not say in a container which name servers it asks.
    """
    here = _parsed({name: _text(name) for name in (ROUTES, ADDRESSES_6)}).addresses
    local = bool(bridge) and Path("/sys/class/net", f"br-{bridge[:12]}").exists()
    if local and not older:
        return HostNetwork(here, complete=True)
    engine = find_endpoint().url
    with _lock:
        read_at, found = _read.get(engine, (-FRESH, HostNetwork()))
        if engine not in _read or (not local and time.monotonic() - read_at > FRESH):
            found = _from_container(connect())
            _read[engine] = (time.monotonic(), found)
    return HostNetwork(here | found.addresses, found.resolvers, local or found.complete)


def _text(path: str) -> str:
    try:
        return Path(path).read_text("utf-8", "replace")
    except OSError:
        return ""


def _from_container(client: DockerClient) -> HostNetwork:
    """Read it in a container of our own image: another's programs shall not be on the host's network. None: nothing."""
    from llm_sandbox_nb.sandbox.docker.api import APIError, ImageNotFound

    for image in (SLIM_IMAGE, DEFAULT_IMAGE):
        with engine_errors():
            try:
                container = client.containers.create(
                    image,
                    ["bash", "--norc", "-c", _READ, "read", ROUTES, ADDRESSES_6, RESOLVERS],
                    entrypoint=[],
                    user="65534:65534",
                    cap_drop=["ALL"],
                    security_opt=["no-new-privileges:true"],
                    network_mode="host",
                    mem_limit="64m",
                    pids_limit=16,
                    labels=owner_labels(f"look-{token_hex(4)}", PATIENCE, {"look": "network"}),
                )
            except ImageNotFound:
                continue
            except APIError:
                return HostNetwork()
            try:
                container.start()
                container.wait(timeout=PATIENCE)
                output = container.logs(stdout=True, stderr=False).decode("utf-8", "replace")
            except APIError:
                return HostNetwork()
            finally:
                container.remove(force=True, v=True)
        parts = (part.partition("\n") for part in ("\n" + output).split("\n== "))
        return _parsed({name: text for name, _, text in parts})
    return HostNetwork()


def _parsed(files: Mapping[str, str]) -> HostNetwork:
    routes = files.get(ROUTES, "").splitlines()
    found = [
        line.split()[-1] for line, below in pairwise(routes) if below.split() == ["/32", "host", "LOCAL"]
    ]
    found += [
        str(ipaddress.IPv6Address(bytes.fromhex(line.split()[0])))
        for line in files.get(ADDRESSES_6, "").splitlines()
        if line.strip()
    ]
    servers = (line.split() for line in files.get(RESOLVERS, "").splitlines())
    resolvers = [words[1] for words in servers if len(words) > 1 and words[0] == "nameserver"]
    addresses = frozenset(filter(_leads_out, found))
    return HostNetwork(addresses, tuple(filter(_leads_out, resolvers)), complete=bool(addresses))


def _leads_out(address: str) -> bool:
    """It is one, and not one that each machine has for itself."""
    try:
        number = ipaddress.ip_address(address)
    except ValueError:
        return False
    return not (number.is_loopback or number.is_link_local or number.is_unspecified)
