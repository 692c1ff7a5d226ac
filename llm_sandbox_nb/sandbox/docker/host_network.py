"""The network of the machine on which the engine runs, called the host: its addresses and its name servers.

Sandboxes with the network `public` must not reach the host's addresses, so the list of addresses must be fresh. If the
host is this machine, each start of a sandbox reads the list. Otherwise a short-lived container on the host's network
prints the list. On older engines, such a container also finds the name servers.
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

from llm_sandbox_nb.sandbox.cgroups import read_if_there
from llm_sandbox_nb.sandbox.docker.engine import connect, engine_errors, find_endpoint
from llm_sandbox_nb.sandbox.docker.images import DEFAULT_IMAGE, SLIM_IMAGE, output_log
from llm_sandbox_nb.sandbox.docker.network import find_network, gateways_of, is_podman
from llm_sandbox_nb.sandbox.docker.ownership import owner_labels

if TYPE_CHECKING:
    from llm_sandbox_nb.sandbox.docker.api import DockerClient

ROUTES, ADDRESSES_6, RESOLVERS = "/proc/net/fib_trie", "/proc/net/if_inet6", "/etc/resolv.conf"
WRITES_RESOLVERS_VERSION = 26
"""First version of Docker that lists, in a comment in a container's /etc/resolv.conf, the name servers that
Docker's own name server asks."""
MAX_AGE = 60.0
"""Maximum age in seconds of a list of addresses from another machine. An older list is read again."""
READ_TIMEOUT = 30
"""Seconds in which the short-lived container must print the files."""
_PRINT_FILES = (
    'for file; do echo "== $file"; while read -r line || [ "$line" ]; do echo "$line"; done <"$file"; done'
)
_lock = threading.Lock()
_read: dict[str, tuple[float, HostNetwork]] = {}
"""For each engine's URL: monotonic time and result of the last short-lived container."""


@dataclass(frozen=True)
class HostNetwork:
    """Numeric addresses of a machine and of its name servers, without loopback and link-local addresses."""

    addresses: frozenset[str] = frozenset()
    resolvers: tuple[str, ...] = ()
    complete: bool = False
    """True if `addresses` has the addresses of the engine's machine. False if they are unknown."""


def closing_order(network: str) -> dict[str, Any]:
    """Return the dictionary that `executor.firewall.close_network` needs, but without the field `open`.

    The dictionary is empty for the network `none`, which needs no such call.

    Raises:
        IsolationUnavailableError: if no engine answers.
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
        host = read_host_network(bridge="", older=False)
    else:
        with engine_errors():
            major = str(client.version().get("Version")).partition(".")[0]
        older = not major.isdigit() or int(major) < WRITES_RESOLVERS_VERSION
        host = read_host_network(find_network(), older=older)
    return {
        "public": True,
        "hosts": sorted(hosts | host.addresses),
        "complete": host.complete,
        "resolvers": [*host.resolvers],
    }


def read_host_network(bridge: str, older: bool) -> HostNetwork:
    """Return the addresses of this machine and of the engine's machine, and the engine's name servers if `older`.

    Args:
        bridge: id of the sandboxes' network; empty for Podman. If this machine has the network's interface, the engine
            is on this machine.
        older: True if the engine is older than `WRITES_RESOLVERS_VERSION`. Then a container must find the name servers.
    """
    here = _parsed({name: read_if_there(Path(name)) for name in (ROUTES, ADDRESSES_6)}).addresses
    local = bool(bridge) and Path("/sys/class/net", f"br-{bridge[:12]}").exists()
    if local and not older:
        return HostNetwork(here, complete=True)
    engine = find_endpoint().url
    with _lock:
        read_at, there = _read.get(engine, (-MAX_AGE, HostNetwork()))
        if engine not in _read or (not local and time.monotonic() - read_at > MAX_AGE):
            there = _from_container(connect())
            _read[engine] = (time.monotonic(), there)
    return HostNetwork(here | there.addresses, there.resolvers, local or there.complete)


def _from_container(client: DockerClient) -> HostNetwork:
    """Read the addresses and name servers in a container on the host's network. Return an empty result on failure.

    The container uses an image of this package, because programs of other images must not run on the host's network.
    """
    from llm_sandbox_nb.sandbox.docker.api import APIError, ImageNotFound

    for image in (SLIM_IMAGE, DEFAULT_IMAGE):
        with engine_errors():
            try:
                container = client.containers.create(
                    image,
                    ["bash", "--norc", "-c", _PRINT_FILES, "read", ROUTES, ADDRESSES_6, RESOLVERS],
                    entrypoint=[],
                    user="65534:65534",
                    cap_drop=["ALL"],
                    security_opt=["no-new-privileges:true"],
                    network_mode="host",
                    mem_limit="64m",
                    pids_limit=16,
                    labels=owner_labels(f"look-{token_hex(4)}", READ_TIMEOUT, {"look": "network"}),
                    log_config=output_log(),
                )
            except ImageNotFound:
                continue
            except APIError:
                return HostNetwork()
            try:
                container.start()
                container.wait(timeout=READ_TIMEOUT)
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
    addresses = [
        line.split()[-1] for line, below in pairwise(routes) if below.split() == ["/32", "host", "LOCAL"]
    ]
    addresses += [
        str(ipaddress.IPv6Address(bytes.fromhex(line.split()[0])))
        for line in files.get(ADDRESSES_6, "").splitlines()
        if line.strip()
    ]
    servers = (line.split() for line in files.get(RESOLVERS, "").splitlines())
    resolvers = [words[1] for words in servers if len(words) > 1 and words[0] == "nameserver"]
    outer = frozenset(filter(_is_outer, addresses))
    return HostNetwork(outer, tuple(filter(_is_outer, resolvers)), complete=bool(outer))


def _is_outer(address: str) -> bool:
    """Return True for a valid address that is not loopback, link-local or unspecified."""
    try:
        number = ipaddress.ip_address(address)
    except ValueError:
        return False
    return not (number.is_loopback or number.is_link_local or number.is_unspecified)
