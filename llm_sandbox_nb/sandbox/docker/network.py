"""The one bridge network that all sandboxes of an engine share, and on which they cannot reach each other."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from ipaddress import ip_network
from typing import TYPE_CHECKING, Any

from llm_sandbox_nb.sandbox.docker.engine import PREFIX, connect, engine_errors, find_endpoint, one_line
from llm_sandbox_nb.sandbox.errors import IsolationUnavailableError, SandboxError

if TYPE_CHECKING:
    from llm_sandbox_nb.sandbox.docker.api import DockerClient

NETWORK_NAME = PREFIX
"""One network for all: stock address pools give only about 30."""
_LABEL = f"{PREFIX}.network"
_ICC = "com.docker.network.bridge.enable_icc"

_known_ids: dict[tuple[str, str], str] = {}
"""The network's id for each engine (its URL) and network name that this process has used."""


class NetworkChangedError(SandboxError):
    """The network was removed, or a second one of its name made, while a sandbox started: start it again."""


def network_arguments(network: str) -> tuple[str, dict[str, Any] | None]:
    """The mode and the endpoints with which a container joins the shared network (`"open"`) or none.

    The endpoint is given by the network's id, because engines refuse a name that exists twice; they refuse the id
    as a mode, too, because they look up its name.
    """
    if network == "none":
        return "none", None
    return NETWORK_NAME, {"EndpointsConfig": {find_network(): {}}}


def closed_gateways(network: str) -> list[str]:
    """The addresses that the engine's machine has on its bridges, which a sandbox with this network shall not reach."""
    if network == "none":
        return []
    with engine_errors():
        listed = connect().api.networks(filters={"driver": "bridge"})
    return sorted({gateway for found in listed for gateway in gateways_of(found)})


def gateways_of(network: Mapping[str, Any]) -> list[str]:
    """The addresses of the engine's machine on a bridge network, as the engine describes it.

    Engines leave out the one that they chose themselves until they are started again; it is the first of the subnet.
    """
    settings = (network.get("IPAM") or {}).get("Config") or []
    found = []
    for one in settings:
        if one.get("Gateway"):
            found.append(str(one["Gateway"]).partition("/")[0])
        elif one.get("Subnet"):
            found.append(str(ip_network(one["Subnet"], strict=False)[1]))
    return found


def find_network() -> str:
    """The id of the shared network on the current engine, which is made when it is missing.

    Raises:
        IsolationUnavailableError: see `ensure_network`.
    """
    key = (find_endpoint().url, NETWORK_NAME)
    if key not in _known_ids:
        _known_ids[key] = ensure_network(connect(), NETWORK_NAME)
    return _known_ids[key]


def network_changed(error: Exception) -> NetworkChangedError | None:
    """The error to raise when the engine refused something because of the network, after which a retry helps."""
    text = one_line(error)
    if "network" not in text or ("not found" not in text and "is ambiguous" not in text):
        return None
    _known_ids.clear()
    return NetworkChangedError(
        f"The Docker network {NETWORK_NAME} has changed ({text}); open the sandbox again."
    )


def ensure_network(client: DockerClient, name: str) -> str:
    """The id of the network `name`, which is made when it is missing.

    Engines let several processes make networks of one name at the same moment, and a name that exists twice
    cannot be used. So every process uses the id of the oldest, and removes the others unless sandboxes run in
    them.

    Raises:
        IsolationUnavailableError: the network cannot be made, or the existing one lets sandboxes reach each other.
    """
    from llm_sandbox_nb.sandbox.docker.api import APIError

    with engine_errors():
        if not _networks(client, name):
            try:
                client.networks.create(
                    name, driver="bridge", options={_ICC: "false"}, labels={_LABEL: "1"}, check_duplicate=True
                )
            except APIError as error:
                if not _networks(client, name):
                    raise IsolationUnavailableError(
                        f"The network {name} could not be made: {one_line(error)}; "
                        f"use network='none', or free an address pool with `docker network prune`."
                    ) from error
        found = _networks(client, name)
        usable = [network for network in found if (network["Options"] or {}).get(_ICC) == "false"]
        if not usable:
            raise IsolationUnavailableError(
                f"The Docker network {name} lets sandboxes reach each other: "
                f"remove it with `docker network rm {name}`, and it is made again as it should be."
            )
        for duplicate in usable[1:]:
            if _LABEL in (duplicate["Labels"] or {}):
                with contextlib.suppress(APIError):  # it is in use, or another process has removed it
                    client.api.remove_network(duplicate["Id"])
    return str(usable[0]["Id"])


def _networks(client: DockerClient, name: str) -> list[dict[str, Any]]:
    """All networks of exactly this name, the oldest first."""
    found: list[dict[str, Any]] = client.api.networks(names=[name])
    return sorted(
        (network for network in found if network["Name"] == name),
        # Without the Z, which sorts behind digits: engines cut the zeros at the end of fractions of seconds.
        key=lambda network: (network["Created"].removesuffix("Z"), network["Id"]),
    )
