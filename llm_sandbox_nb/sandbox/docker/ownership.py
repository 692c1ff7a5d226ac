"""Who owns a container: labels that say which process of which machine. Those whose owner has ended are removed."""

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

_TOKEN = re.compile(r"([0-9a-f]{12})\.([0-9a-f]{12})\.([0-9a-f]{8})\.([0-9]+)\.([0-9a-f]{8})")

GRACE = 30.0
"""Seconds beyond its lease after which a running sandbox without owner has clearly failed to end itself."""
DEFAULT_LEASE = 45.0

_first_seen: dict[str, float] = {}
_first_seen_lock = threading.Lock()
_background: set[asyncio.Task[None]] = set()

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ContainerOwner:
    """Identifies one process, also after its number is used again."""

    host: str
    """Digest of the machine's identity."""
    boot: str
    """Digest of the machine's current boot."""
    namespace: str
    """Digest of the process namespace, since a number means nothing outside it."""
    pid: int
    started: str
    """Digest of the time the process started."""

    def token(self) -> str:
        """As text that may be part of a container's name."""
        return f"{self.host}.{self.boot}.{self.namespace}.{self.pid}.{self.started}"

    def is_dead(self) -> bool:
        """True only when the process is certainly gone; False when it lives or cannot be judged here."""
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
        """The owner at the end of a text, or None when it holds none."""
        match = _TOKEN.search(text)
        if match is None:
            return None
        host, boot, namespace, pid, started = match.groups()
        return ContainerOwner(host, boot, namespace, int(pid), started)


def current_owner() -> ContainerOwner:
    """This process."""
    pid = os.getpid()
    return ContainerOwner(_host(), _boot(), _namespace(pid), pid, _started(pid))


def owner_labels(sandbox_id: str, lease: float, more: Mapping[str, str]) -> dict[str, str]:
    """Every label of a new container; it is made with them, so nothing of ours is ever without."""
    extra = {name if name.startswith(f"{PREFIX}.") else f"{PREFIX}.{name}": more[name] for name in more}
    return {
        **{name: value for name, value in extra.items() if name not in RESERVED_LABELS},
        LABEL_ID: sandbox_id,
        LABEL_OWNER: current_owner().token(),
        LABEL_CREATED: f"{time.time():.3f}",
        LABEL_LEASE: f"{lease:g}",
        LABEL_VERSION: __version__,
    }


def container_name(sandbox_id: str) -> str:
    """The name of a new container."""
    return f"{PREFIX}-{sandbox_id}"


def adopted_name(sandbox_id: str) -> str:
    """The name of a container that this process has adopted: labels cannot be changed, a name can."""
    return f"{PREFIX}-{sandbox_id}_adopted_{current_owner().token()}"


def owner_of(container: Mapping[str, Any]) -> ContainerOwner | None:
    """Who owns a container, as the engine lists it: who adopted it last, else who made it; None: not ours."""
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
    # The name too: cloned machines often share one id, and may share an engine.
    machine = _read("/etc/machine-id") or _read("/var/lib/dbus/machine-id")
    return _digest(f"{machine} {socket.gethostname()}", 12)


@cache
def _boot() -> str:
    return _digest(_read("/proc/sys/kernel/random/boot_id") or _ask("sysctl", "-n", "kern.boottime"), 12)


def _namespace(pid: int) -> str:
    try:
        return _digest(str(Path(f"/proc/{pid}/ns/pid").readlink()), 8)
    except OSError:
        return _digest(sys.platform, 8)


def _started(pid: int) -> str:
    """Digest of when a process started; empty when there is none, or it is a zombie."""
    if sys.platform != "linux":
        return _digest(started, 8) if (started := _ask("ps", "-o", "lstart=", "-p", str(pid))) else ""
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return "" if len(fields) < 20 or fields[0] in "ZX" else _digest(fields[19], 8)


def _read(path: str) -> str:
    try:
        return Path(path).read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def _ask(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=False).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


@dataclass(frozen=True)
class OwnContainer:
    """One of our containers on the engine."""

    id: str
    """The container's."""
    sandbox_id: str
    state: str
    """`created`, `running`, `exited`, ..."""
    owner_dead: bool
    created: float
    """Seconds since the epoch."""
    labels: Mapping[str, str]
    """Without our prefix."""


def list_own(labels: Mapping[str, str] | None = None) -> list[OwnContainer]:
    """All containers of ours, of any owner, that carry these labels (names without our prefix get it).

    Raises:
        IsolationUnavailableError: no engine answers.
    """
    wanted = {
        name if name.startswith(f"{PREFIX}.") else f"{PREFIX}.{name}": value
        for name, value in (labels or {}).items()
    }
    filters = [LABEL_OWNER, *(f"{name}={value}" for name, value in wanted.items())]
    with engine_errors():
        listed = connect().api.containers(all=True, filters={"label": filters})
    return [found for container in listed if (found := _own(container)) is not None]


def reap_orphans(*, grace: float = GRACE, clock: Callable[[], float] = time.monotonic) -> list[str]:
    """Remove the sandboxes of owners that are certainly dead; returns their container ids.

    What was never started or has ended is removed at once. What runs ends when its lease is over,
    and may be adopted until then: it is removed only when this process saw it ownerless for longer than its
    lease and `grace`. Containers without our labels, of living owners, or of other machines are left alone.

    Raises:
        IsolationUnavailableError: no engine answers.
    """
    own = list_own()
    remove_left_networks({container.sandbox_id for container in own})
    found = [container for container in own if container.owner_dead]
    overdue = _overdue({c.id: c for c in found if c.state in ("running", "paused")}, grace, clock())
    ended = {c.id for c in found if c.state in ("created", "exited", "dead")}
    return [container for container in sorted(ended | overdue) if _remove(container)]


def reap_in_background() -> None:
    """Start `reap_orphans` beside the event loop; what goes wrong is logged."""
    task = asyncio.get_running_loop().create_task(_reap_quietly())
    _background.add(task)
    task.add_done_callback(_background.discard)


async def _reap_quietly() -> None:
    try:
        removed = await asyncio.to_thread(reap_orphans)
    except IsolationUnavailableError as error:
        logger.info("Orphaned sandboxes were not looked for: %s", error)
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
    given = {name.removeprefix(f"{PREFIX}."): value for name, value in labels.items()}
    return OwnContainer(container["Id"], labels[LABEL_ID], state, owner.is_dead(), created, given)


def _overdue(running: Mapping[str, OwnContainer], grace: float, now: float) -> set[str]:
    """Those that this process has known as running without owner for longer than lease and grace."""
    with _first_seen_lock:
        for container in [*_first_seen]:
            if container not in running:
                del _first_seen[container]
        return {
            container
            for container, found in running.items()
            if now - _first_seen.setdefault(container, now) > _lease(found.labels) + grace
        }


def _lease(labels: Mapping[str, str]) -> float:
    try:
        return float(labels.get(LABEL_LEASE.removeprefix(f"{PREFIX}."), DEFAULT_LEASE))
    except ValueError:
        return DEFAULT_LEASE


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
