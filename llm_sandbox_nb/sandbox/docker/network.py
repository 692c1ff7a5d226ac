"""Docker networks for sandboxes. On these networks, sandboxes cannot reach each other.

On Docker, all sandboxes of an engine share one bridge network. An option of this network forbids traffic between
containers. Podman silently ignores the option. So on Podman each sandbox gets a network of its own, and an option of
Podman separates this network from other networks.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Mapping
from ipaddress import ip_network
from typing import TYPE_CHECKING, Any

from llm_sandbox_nb.sandbox.docker.engine import (
    PREFIX,
    REQUEST_TIMEOUT,
    connect,
    engine_errors,
    find_endpoint,
    one_line,
)
from llm_sandbox_nb.sandbox.errors import IsolationUnavailableError, SandboxError

if TYPE_CHECKING:
    from llm_sandbox_nb.sandbox.docker.api import DockerClient

NETWORK_NAME = PREFIX
"""Name of the network that all sandboxes share. They cannot have a network each, because Docker's default address pools
have room for few networks."""
_LABEL = f"{PREFIX}.network"
_ICC = "com.docker.network.bridge.enable_icc"

_known_ids: dict[tuple[str, str], str] = {}
"""Id of each network that this process has used, by the engine's URL and the network's name."""
_podmans: dict[str, bool] = {}
"""For each engine's URL: True if the engine is Podman."""
_SANDBOX_LABEL = f"{PREFIX}.own-network"
"""Label of a network for one sandbox. Its value is the sandbox's id."""
_CREATED_LABEL = f"{PREFIX}.created"
"""Label of a network for one sandbox. Its value is the creation time in seconds since the epoch."""
_LIBPOD_PATH = "/v4.0.0/libpod"
"""Path of Podman's own API, which is on the same socket as Docker's API. Only Podman's own API can make a network that
is separated from other networks."""
MAX_START_SECONDS = 120.0
"""Maximum seconds from the creation of a Podman network to the creation of its container. A network that is older and
has no container is a leftover."""


class NetworkChangedError(SandboxError):
    """The shared network was removed or duplicated while a sandbox started. A second attempt usually works."""


def network_arguments(network: str, sandbox_id: str) -> tuple[str, dict[str, Any] | None]:
    """Return docker-py's arguments `network_mode` and `networking_config` for a container.

    If the container's network does not exist yet, make it.

    Raises:
        IsolationUnavailableError: if the network cannot be made, or would let sandboxes reach each other.
    """
    if network == "none":
        return "none", None
    if is_podman(connect()):
        name = make_own_network(connect(), sandbox_id)
        return name, {"EndpointsConfig": {name: {}}}
    # If two networks have the same name, engines refuse the name. So the settings have the id. The mode must be a name.
    return NETWORK_NAME, {"EndpointsConfig": {find_network(): {}}}


def gateways_of(network: Mapping[str, Any]) -> list[str]:
    """Return the addresses that the engine's machine has on a bridge network.

    `network` is the engine's description of the network.
    """
    addresses = []
    for subnet in (network.get("IPAM") or {}).get("Config") or []:
        if subnet.get("Gateway"):
            addresses.append(str(subnet["Gateway"]).partition("/")[0])
        elif subnet.get("Subnet"):
            # Until its next restart, an engine does not report a gateway that it has chosen itself. Such a gateway is
            # the first address of the subnet.
            addresses.append(str(ip_network(subnet["Subnet"], strict=False)[1]))
    return addresses


def find_network() -> str:
    """Return the id of the shared network on the current engine. Make the network if there is none.

    Raises:
        IsolationUnavailableError: if no engine answers; see also `ensure_network`.
    """
    key = (find_endpoint().url, NETWORK_NAME)
    if key not in _known_ids:
        _known_ids[key] = ensure_network(connect(), NETWORK_NAME)
    return _known_ids[key]


def network_changed(error: Exception) -> NetworkChangedError | None:
    """Return an exception to raise if an engine's `error` means that the shared network has changed. Otherwise None.

    If the network has changed, also forget its id, so that the next attempt looks for the network again.
    """
    text = one_line(error)
    if "network" not in text or ("not found" not in text and "is ambiguous" not in text):
        return None
    _known_ids.clear()
    return NetworkChangedError(
        f"The Docker network {NETWORK_NAME} has changed ({text}); open the sandbox again."
    )


def ensure_network(client: DockerClient, name: str) -> str:
    """Return the id of the network `name`. Make the network if there is none.

    If several processes make it at the same time, engines make several networks with this name, and then refuse the
    name. So each process uses the id of the oldest network, and removes the other networks unless sandboxes use them.

    Raises:
        IsolationUnavailableError: if the network cannot be made, or an existing network does not separate sandboxes.
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
                f"remove it with `docker network rm {name}`, and the next sandbox makes it correctly."
            )
        for duplicate in usable[1:]:
            if _LABEL in (duplicate["Labels"] or {}):
                with contextlib.suppress(APIError):  # in use, or removed by another process
                    client.api.remove_network(duplicate["Id"])
    return str(usable[0]["Id"])


def _networks(client: DockerClient, name: str) -> list[dict[str, Any]]:
    """Return all networks with exactly this name, the oldest first."""
    found: list[dict[str, Any]] = client.api.networks(names=[name])
    return sorted(
        (network for network in found if network["Name"] == name),
        # Engines write times with a varying number of digits after the point, and a Z at the end. The Z is removed,
        # because it would sort after digits.
        key=lambda network: (network["Created"].removesuffix("Z"), network["Id"]),
    )


def is_podman(client: DockerClient) -> bool:
    """Return True if the engine is Podman, which also serves Docker's API."""
    engine = find_endpoint().url
    if engine not in _podmans:
        with engine_errors():
            components = client.version().get("Components") or []
        _podmans[engine] = any("podman" in str(part.get("Name")).lower() for part in components)
    return _podmans[engine]


def own_network_name(sandbox_id: str) -> str:
    """Return the name of the Podman network for this sandbox."""
    return f"{NETWORK_NAME}-{sandbox_id}"


def make_own_network(client: DockerClient, sandbox_id: str) -> str:
    """Make the Podman network for one sandbox, unless it exists already. Return the network's name.

    Raises:
        IsolationUnavailableError: if Podman cannot make the network, or cannot separate it from other networks.
    """
    name = own_network_name(sandbox_id)
    order = {
        "name": name,
        "driver": "bridge",
        "options": {"isolate": "true"},
        "labels": {_SANDBOX_LABEL: sandbox_id, _CREATED_LABEL: f"{time.time():.3f}"},
    }
    address = f"{client.api.base_url}{_LIBPOD_PATH}/networks/create"
    with engine_errors():
        answer = client.api.post(address, json=order, timeout=REQUEST_TIMEOUT)
    if answer.status_code == 409:  # made by an earlier attempt to make the container
        return name
    if not answer.ok:
        raise IsolationUnavailableError(
            f"Podman could not make the network {name}: {answer.text.strip()[:300]}; use network='none', or Podman 4.3 "
            f"or later."
        )
    if (answer.json().get("options") or {}).get("isolate") != "true":
        remove_own_network(client, sandbox_id)
        raise IsolationUnavailableError(
            "This Podman lets sandboxes reach each other: use network='none', or Podman 4.3 or later."
        )
    return name


def remove_own_network(client: DockerClient, sandbox_id: str) -> None:
    """Remove the Podman network of a sandbox that has ended. If that fails, `remove_left_networks` will try again."""
    from llm_sandbox_nb.sandbox.docker.api import APIError

    with contextlib.suppress(APIError), engine_errors():
        client.api.remove_network(own_network_name(sandbox_id))


def remove_left_networks(sandbox_ids: Collection[str]) -> None:
    """Remove old Podman networks that were made for a sandbox whose container no longer exists.

    `sandbox_ids` are the ids of all sandboxes whose containers exist.

    Raises:
        IsolationUnavailableError: if no engine answers.
    """
    client = connect()
    if not is_podman(client):
        return
    with engine_errors():
        listed = client.api.networks(filters={"label": _SANDBOX_LABEL})
    for network in listed:
        labels = network.get("Labels") or {}
        sandbox_id = str(labels.get(_SANDBOX_LABEL, ""))
        with contextlib.suppress(ValueError):
            old = time.time() - float(labels.get(_CREATED_LABEL, "nan")) > MAX_START_SECONDS
            if old and sandbox_id not in sandbox_ids and network.get("Name") == own_network_name(sandbox_id):
                remove_own_network(client, sandbox_id)
