"""Owners of containers. The owner of a container is the process that made or adopted the container.

A label or the name of a container identifies the owner's process and machine. So other processes can see if the owner
is dead, and then adopt or remove the container.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from llm_sandbox_nb.sandbox.cgroups import read_if_there
from llm_sandbox_nb.sandbox.docker.engine import PREFIX, connect, engine_errors, one_line
from llm_sandbox_nb.sandbox.docker.network import remove_left_networks
from llm_sandbox_nb.sandbox.errors import IsolationUnavailableError
from llm_sandbox_nb.version import __version__

LABEL_ID = f"{PREFIX}.id"
LABEL_OWNER = f"{PREFIX}.owner"
LABEL_CREATED = f"{PREFIX}.created"
LABEL_LEASE = f"{PREFIX}.lease"
LABEL_VERSION = f"{PREFIX}.version"
RESERVED_LABELS = (LABEL_ID, LABEL_OWNER, LABEL_CREATED, LABEL_LEASE, LABEL_VERSION)

_ADDED_LABEL = re.compile(r"_label_([a-z-]+)\.([0-9A-Za-z]+)")
_OWNER_TOKEN = re.compile(r"([0-9a-f]{12})\.([0-9a-f]{12})\.([0-9a-f]{8})\.([0-9]+)\.([0-9a-f]{8})")

GRACE = 30.0
"""Seconds between the time when a sandbox of a dead owner should have ended itself, and its removal by another
process."""
DEFAULT_LEASE = 45.0
"""Lease in seconds of a container whose label for the lease is missing or invalid. When a container has heard nothing
from its owner for the length of its lease, it ends."""

_first_seen: dict[str, float] = {}
"""For each container's id: the time when this process first saw the container running with a dead owner."""
_first_seen_lock = threading.Lock()
_background: set[asyncio.Task[None]] = set()
"""Running tasks. An event loop keeps only weak references, so these references prevent a task from vanishing."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ContainerOwner:
    """Identity of a process. No other process ever has the same identity, even if it gets the same process id."""

    host: str
    """Digest of the machine's identity."""
    boot: str
    """Digest of the machine's current boot."""
    namespace: str
    """Digest of the process-id namespace in which `pid` is valid, e.g. the namespace of a container."""
    pid: int
    started: str
    """Digest of the process's start time."""

    def token(self) -> str:
        """Return the identity as a text, which can be part of a container's name. `parse` reads the text."""
        return f"{self.host}.{self.boot}.{self.namespace}.{self.pid}.{self.started}"

    def is_dead(self) -> bool:
        """Return True if the process has certainly ended.

        Return False if this process cannot know, e.g. because the other process is on another machine.
        """
        here = current_owner()
        if self.host != here.host:
            return False
        if self.boot != here.boot:
            return True
        if self.namespace != here.namespace:
            return False
        return _started(self.pid) != self.started

    @staticmethod
    def parse(text: str) -> ContainerOwner | None:
        """Return the identity that `token` has written into a text. None if the text has no token."""
        match = _OWNER_TOKEN.search(text)
        if match is None:
            return None
        host, boot, namespace, pid, started = match.groups()
        return ContainerOwner(host, boot, namespace, int(pid), started)


def current_owner() -> ContainerOwner:
    """Return the identity of this process."""
    pid = os.getpid()
    return ContainerOwner(_host(), _boot(), _namespace(pid), pid, _started(pid))


def owner_labels(sandbox_id: str, lease: float, more: Mapping[str, str]) -> dict[str, str]:
    """Return all labels of a new container: sandbox id, owner, times and version, and the labels `more`.

    The package's prefix is put before the names in `more`.
    """
    return {
        **{name: value for name, value in _with_prefix(more).items() if name not in RESERVED_LABELS},
        LABEL_ID: sandbox_id,
        LABEL_OWNER: current_owner().token(),
        LABEL_CREATED: f"{time.time():.3f}",
        LABEL_LEASE: f"{lease:g}",
        LABEL_VERSION: __version__,
    }


def _with_prefix(labels: Mapping[str, str]) -> dict[str, str]:
    return {
        name if name.startswith(f"{PREFIX}.") else f"{PREFIX}.{name}": value for name, value in labels.items()
    }


def container_name(sandbox_id: str) -> str:
    return f"{PREFIX}-{sandbox_id}"


def adopted_name(sandbox_id: str, name: str = "") -> str:
    """Return the name for a container that this process adopts.

    The new name contains this process's identity, because engines can change a container's name but not its labels.

    Args:
        sandbox_id: id of the sandbox.
        name: the present name of the container. The new name keeps labels that `labelled_name` has added.
    """
    added = "".join(match[0] for match in _ADDED_LABEL.finditer(name))
    return f"{PREFIX}-{sandbox_id}_adopted_{current_owner().token()}{added}"


def labelled_name(name: str, label: str, value: str) -> str:
    """Return a container's name with a further label in it. `OwnContainer.labels` includes the labels in names."""
    return f"{name.lstrip('/')}_label_{label}.{value}"


def owner_of(container: Mapping[str, Any]) -> ContainerOwner | None:
    """Return the process that last adopted a container, or else made it. None if this package has not made it.

    `container` is the engine's description, with the fields `Labels` and `Names`.
    """
    labels = container.get("Labels") or {}
    made_by = ContainerOwner.parse(labels.get(LABEL_OWNER, ""))
    if made_by is None or not labels.get(LABEL_ID):
        return None
    for name in container.get("Names") or ():
        if name.lstrip("/").startswith(f"{PREFIX}-{labels[LABEL_ID]}_adopted_"):
            return ContainerOwner.parse(name) or made_by
    return made_by


def _digest(text: str, length: int) -> str:
    return sha256(text.encode()).hexdigest()[:length]


@cache
def _host() -> str:
    # The digest includes the host name, because cloned machines often have the same id, and may use the same engine.
    machine = read_if_there(Path("/etc/machine-id")) or read_if_there(Path("/var/lib/dbus/machine-id"))
    return _digest(f"{machine} {socket.gethostname()}", 12)


@cache
def _boot() -> str:
    return _digest(
        read_if_there(Path("/proc/sys/kernel/random/boot_id"))
        or _output("sysctl", "-n", "kern.bootsessionuuid"),
        12,
    )


def _namespace(pid: int) -> str:
    try:
        return _digest(str(Path(f"/proc/{pid}/ns/pid").readlink()), 8)
    except OSError:
        return _digest(sys.platform, 8)


def _started(pid: int) -> str:
    """Return a digest of a process's start time. Empty if the process does not exist or is a zombie."""
    if sys.platform != "linux":
        return _digest(started, 8) if (started := _output("ps", "-o", "lstart=", "-p", str(pid))) else ""
    fields = read_if_there(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return "" if len(fields) < 20 or fields[0] in "ZX" else _digest(fields[19], 8)


def _output(*command: str) -> str:
    fixed = {
        **os.environ,
        "LC_ALL": "C",
        "TZ": "UTC",
    }  # all processes must get the same text for the same time
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False, env=fixed)
        return run.stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


@dataclass(frozen=True)
class OwnContainer:
    """A container that this package has made on the current engine."""

    id: str
    sandbox_id: str
    state: str
    """State in the engine's words: `created`, `running`, `exited`, ..."""
    owner_dead: bool
    created: float
    """Start time in seconds since the epoch."""
    labels: Mapping[str, str]
    """Labels without the package's prefix, including labels that were added later."""


def list_own(labels: Mapping[str, str] | None = None) -> list[OwnContainer]:
    """Return the containers of this package that have all of `labels`, whoever their owner is.

    Raises:
        IsolationUnavailableError: if no engine answers.
    """
    filters = [LABEL_OWNER, *(f"{name}={value}" for name, value in _with_prefix(labels or {}).items())]
    with engine_errors():
        listed = connect().api.containers(all=True, filters={"label": filters})
    return [own for container in listed if (own := _own(container)) is not None]


def reap_orphans(*, grace: float = GRACE, clock: Callable[[], float] = time.monotonic) -> list[str]:
    """Remove the sandboxes of owners that have certainly ended. Return the ids of the removed containers.

    A container that never started or has ended is removed at once. A running container can still be adopted until it
    ends itself at the end of its lease. So this function removes a running container only if this process first saw it
    with a dead owner longer ago than its lease and `grace` together. Containers of other programs, of living owners,
    and of owners on other machines are not touched.

    Raises:
        IsolationUnavailableError: if no engine answers.
    """
    own = list_own()
    remove_left_networks({container.sandbox_id for container in own})
    orphans = [container for container in own if container.owner_dead]
    overdue = _overdue({c.id: c for c in orphans if c.state in ("running", "paused")}, grace, clock())
    ended = {c.id for c in orphans if c.state in ("created", "exited", "dead")}
    return [container for container in sorted(ended | overdue) if _remove(container)]


def reap_in_background() -> None:
    """Start `reap_orphans` in a thread, and do not wait for its end. Log its errors."""
    task = asyncio.get_running_loop().create_task(_reap_quietly())
    _background.add(task)
    task.add_done_callback(_background.discard)


async def _reap_quietly() -> None:
    try:
        removed = await asyncio.to_thread(reap_orphans)
    except IsolationUnavailableError as error:
        logger.info("Could not look for orphaned sandboxes: %s", error)
    else:
        for container in removed:
            logger.info("Removed the orphaned sandbox %s", container[:12])


def _own(container: Mapping[str, Any]) -> OwnContainer | None:
    owner = owner_of(container)
    if owner is None:
        return None
    labels: dict[str, str] = container["Labels"]
    created = float(container.get("Created") or 0)
    with contextlib.suppress(ValueError):
        created = float(labels.get(LABEL_CREATED, created))
    state = str(container.get("State", ""))
    bare = {name.removeprefix(f"{PREFIX}."): value for name, value in labels.items()}
    for name in container.get("Names") or ():
        bare.update(_ADDED_LABEL.findall(name))
    return OwnContainer(container["Id"], labels[LABEL_ID], state, owner.is_dead(), created, bare)


def _overdue(running: Mapping[str, OwnContainer], grace: float, now: float) -> set[str]:
    """Return the ids of containers that were first seen longer ago than their lease and `grace` together.

    `running` are all running containers with a dead owner, by id. `now` is the present time in seconds.
    """
    overdue = set()
    with _first_seen_lock:
        for id in [*_first_seen]:
            if id not in running:
                del _first_seen[id]
        for id, container in running.items():
            lease = DEFAULT_LEASE
            with contextlib.suppress(ValueError):
                lease = float(container.labels.get(LABEL_LEASE.removeprefix(f"{PREFIX}."), DEFAULT_LEASE))
            if now - _first_seen.setdefault(id, now) > lease + grace:
                overdue.add(id)
    return overdue


def _remove(container: str) -> bool:
    from llm_sandbox_nb.sandbox.docker.api import APIError, NotFound

    try:
        with engine_errors():
            connect().api.remove_container(container, force=True, v=True)
    except NotFound:
        return False
    except APIError as error:
        if error.status_code != 409:
            logger.warning(
                "The orphaned sandbox %s could not be removed: %s", container[:12], one_line(error)
            )
        return False
    return True
