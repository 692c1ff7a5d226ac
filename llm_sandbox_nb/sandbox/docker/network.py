"""The networks of sandboxes, on which they cannot reach each other.

On Docker all sandboxes of an engine share one bridge network without traffic between its members. Podman drops that
option of Docker's without a word. So there each sandbox gets a network of its own, which Podman keeps apart.
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
"""One network for all: stock address pools give only about 30."""
_LABEL = f"{PREFIX}.network"
_ICC = "com.docker.network.bridge.enable_icc"

_known_ids: dict[tuple[str, str], str] = {}
"""The network's id for each engine (its URL) and network name that this process has used."""
_podmans: dict[str, bool] = {}
"""For each engine (its URL) that this process has used, whether it is Podman."""
_OWN_LABEL = f"{PREFIX}.own-network"
"""On a network of one sandbox: its id, and when it was made, in seconds since the epoch."""
_CREATED_LABEL = f"{PREFIX}.created"
_LIBPOD = "/v4.0.0/libpod"
"""Podman's own interface, on the same socket: only there a network can be kept apart from others."""
LONGEST_START = 120.0
"""Seconds after which a network without a container was left behind, and is not one whose sandbox is about to start."""


class NetworkChangedError(SandboxError):
    """The network was removed, or a second one of its name made, while a sandbox started: start it again."""


def network_arguments(network: str, sandbox_id: str) -> tuple[str, dict[str, Any] | None]:
    """The mode and the endpoints with which a container joins its network (`"public"`, `"open"`) or none.

    The network is made when it is missing.

    The endpoint is given by the network's id, because engines refuse a name that exists twice; they refuse the id
    as a mode, too, because they look up its name.

    Raises:
        IsolationUnavailableError: the network cannot be made, or would let sandboxes reach each other.
    """
    if network == "none":
        return "none", None
    if is_podman(connect()):
        name = make_own_network(connect(), sandbox_id)
        return name, {"EndpointsConfig": {name: {}}}
    return NETWORK_NAME, {"EndpointsConfig": {find_network(): {}}}


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


def is_podman(client: DockerClient) -> bool:
    """Whether the engine is Podman, behind Docker's interface."""
    engine = find_endpoint().url
    if engine not in _podmans:
        with engine_errors():
            components = client.version().get("Components") or []
        _podmans[engine] = any("podman" in str(one.get("Name")).lower() for one in components)
    return _podmans[engine]


def own_network_name(sandbox_id: str) -> str:
    """The name of the network that only this sandbox is on."""
    return f"{NETWORK_NAME}-{sandbox_id}"


def make_own_network(client: DockerClient, sandbox_id: str) -> str:
    """The name of a Podman network for one sandbox, which is made if it is missing.

    Raises:
        IsolationUnavailableError: it cannot be made, or Podman would not keep it apart from others.
    """
    name = own_network_name(sandbox_id)
    order = {
        "name": name,
        "driver": "bridge",
        "options": {"isolate": "true"},
        "labels": {_OWN_LABEL: sandbox_id, _CREATED_LABEL: f"{time.time():.3f}"},
    }
    address = f"{client.api.base_url}{_LIBPOD}/networks/create"
    with engine_errors():
        answer = client.api.post(address, json=order, timeout=REQUEST_TIMEOUT)
    if answer.status_code == 409:  # a first attempt to make the container has made it
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
    """Remove the network of one sandbox, unless a container uses it; `remove_left_networks` tries again."""
    from llm_sandbox_nb.sandbox.docker.api import APIError

    with contextlib.suppress(APIError), engine_errors():
        client.api.remove_network(own_network_name(sandbox_id))


def remove_left_networks(sandbox_ids: Collection[str]) -> None:
    """Remove the networks of single sandboxes that are not among `sandbox_ids`, those with a container.

    Raises:
        IsolationUnavailableError: no engine answers.
    """
    client = connect()
    if not is_podman(client):
        return
    with engine_errors():
        listed = client.api.networks(filters={"label": _OWN_LABEL})
    for network in listed:
        labels = network.get("Labels") or {}
        sandbox_id = str(labels.get(_OWN_LABEL, ""))
        with contextlib.suppress(ValueError):
            old = time.time() - float(labels.get(_CREATED_LABEL, "nan")) > LONGEST_START
            if old and sandbox_id not in sandbox_ids and network.get("Name") == own_network_name(sandbox_id):
                remove_own_network(client, sandbox_id)
