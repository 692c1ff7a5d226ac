"""Finds this package's containers, and removes those whose owner has ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llm_sandbox_nb.sandbox.docker.engine import PREFIX, connect, engine_errors, one_line
from llm_sandbox_nb.sandbox.docker.ownership import (
    LABEL_CREATED,
    LABEL_ID,
    LABEL_LEASE,
    LABEL_OWNER,
    owner_of,
)
from llm_sandbox_nb.sandbox.errors import IsolationUnavailableError

logger = logging.getLogger(__name__)

GRACE = 30.0
"""Seconds beyond its lease after which a running sandbox without owner has clearly failed to end itself."""
DEFAULT_LEASE = 45.0

_first_seen: dict[str, float] = {}
_first_seen_lock = threading.Lock()
_background: set[asyncio.Task[None]] = set()


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


def reap_orphans(*, grace: float = GRACE) -> list[str]:
    """Remove the sandboxes of owners that are certainly dead; returns their container ids.

    What was never started or has ended is removed at once. What runs ends when its lease is over,
    and may be adopted until then: it is removed only when this process saw it ownerless for longer than its
    lease and `grace`. Containers without our labels, of living owners, or of other machines are left alone.

    Raises:
        IsolationUnavailableError: no engine answers.
    """
    found = [container for container in list_own() if container.owner_dead]
    overdue = _overdue({c.id: c for c in found if c.state in ("running", "paused")}, grace)
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


def _overdue(running: Mapping[str, OwnContainer], grace: float) -> set[str]:
    """Those that this process has known as running without owner for longer than lease and grace."""
    now = time.monotonic()
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
