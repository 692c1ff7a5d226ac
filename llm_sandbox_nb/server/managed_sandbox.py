"""A sandbox of the server: start or adoption, owner, state, and connected clients."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import time
from collections.abc import Coroutine, Iterable
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Protocol, cast

from llm_sandbox_nb.sandbox.client import ChannelSandbox
from llm_sandbox_nb.sandbox.errors import IsolationUnavailableError, SandboxError, SandboxLostError
from llm_sandbox_nb.sandbox.isolations import ISOLATIONS
from llm_sandbox_nb.sandbox.leftover_folders import TemporaryFolder
from llm_sandbox_nb.sandbox.open import (
    AdoptingImplementation,
    OwnSandbox,
    adopting_isolations,
    load_isolation,
    remove_leftovers,
    start_sandbox,
)
from llm_sandbox_nb.sandbox.options import SandboxOptions

State = Literal["starting", "running", "lost"]
_SERVER, _ID, _KERNEL, _NOTEBOOK, _SETTINGS = "server", "server-id", "kernel", "notebook", "settings"
_FORK_OF = "fork-of"

logger = logging.getLogger(__name__)


class ConnectedClient(Protocol):
    """A connection of a client to a managed sandbox."""

    @property
    def requests(self) -> int:
        """Number of pending requests of this client."""
        ...

    def dismiss(self, reason: str) -> None:
        """End the connection because the sandbox has ended. `reason` is one sentence."""
        ...


@dataclass(eq=False)
class ManagedSandbox:
    """A sandbox and its owner. The id survives resets. `sandbox` is None until the sandbox runs."""

    id: str
    kernel_id: str
    notebook: str | None
    options: SandboxOptions
    fork_of: str | None = None
    """Id of the notebook's own sandbox if this sandbox is a fork, else None. A fork never becomes the own sandbox."""
    prepared: bool = False
    """True until the kernel needs the sandbox: see `PreparedSandboxes`."""
    created: float = field(default_factory=time.time)
    last_activity: float = field(default_factory=time.time)
    typed: float = 0.0
    """Time of the last message from a terminal's page: a key, a new size, or the confirmation of output."""
    clients: set[ConnectedClient] = field(default_factory=set)
    sandbox: ChannelSandbox | None = None
    kernel_dead_since: float | None = None
    unclaimed_since: float | None = None
    """Time since which an adopted sandbox has waited for a kernel of this server. None if the sandbox does not wait."""
    _starting: asyncio.Task[ChannelSandbox] | None = None

    @property
    def state(self) -> State:
        if self.sandbox is None:
            return "starting"
        return "lost" if self.sandbox.lost else "running"

    @property
    def requests(self) -> int:
        """Number of pending requests of all clients."""
        return sum(client.requests for client in self.clients)

    @property
    def idle_seconds(self) -> float:
        """Seconds since the last request, or zero while a request is pending."""
        if self.requests or self.sandbox is None:
            self.touch()
        return time.time() - self.last_activity

    def claim(self, fork_of: str | None = None) -> None:
        """Make a prepared sandbox the sandbox of its notebook, or a fork if `fork_of` is given."""
        self.prepared, self.fork_of = False, fork_of
        self.created = self.last_activity = time.time()

    def touch(self) -> None:
        """Reset the idle timer."""
        self.last_activity = time.time()

    async def start(self, opening: Coroutine[Any, Any, ChannelSandbox]) -> None:
        """Start the sandbox by awaiting `opening`. A call of `end` cancels the start.

        Raises:
            SandboxLostError: if the sandbox was ended during the start.
            SandboxError: if `opening` fails.
        """
        self._starting = asyncio.create_task(opening)
        await asyncio.wait({self._starting})
        if self._starting.cancelled():
            raise SandboxLostError("The sandbox was stopped while it was starting; try again.")
        self.sandbox = self._starting.result()
        self.touch()

    async def end(self, reason: str) -> None:
        """Dismiss the clients, and end the sandbox or cancel its start. Raises SandboxError if that fails."""
        for client in list(self.clients):
            client.dismiss(reason)
        self.clients.clear()
        starting = self._starting
        if starting is not None and not starting.done():
            starting.cancel()
            await asyncio.wait({starting})
        sandbox, self.sandbox = self.sandbox, None
        if sandbox is None and starting is not None and not (starting.cancelled() or starting.exception()):
            sandbox = starting.result()
        if sandbox is not None:
            await sandbox.close()

    def to_json(self) -> dict[str, Any]:
        """Return the description for clients, as plain JSON values."""
        box = self.sandbox
        protection = box and asdict(replace(box.protection, details=dict(box.protection.details)))
        return {
            "id": self.id,
            "kernel_id": self.kernel_id,
            "notebook": self.notebook,
            "fork_of": self.fork_of,
            "state": self.state,
            "created": _iso(self.created),
            "last_activity": _iso(self.last_activity),
            "clients": len(self.clients),
            "requests": self.requests,
            "settings": self.options.to_json(),
            "sandbox_id": box.id if box else None,
            "root": box.directories.root if box else None,
            "protection": protection,
        }


def _iso(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds")


class Opener:
    """Opener that starts sandboxes, and adopts those of an earlier server with the same `server_key`."""

    def __init__(self, server_key: str) -> None:
        self._key = hashlib.sha256(server_key.encode()).hexdigest()[:32]
        self._certificates: TemporaryFolder | None = None

    async def open(self, managed: ManagedSandbox) -> ChannelSandbox:
        """Start the sandbox described by `managed`.

        Raises:
            ValueError: if the settings contradict each other.
            IsolationUnavailableError, ImageError, SandboxLostError, SandboxError: if the isolation cannot start it.
        """
        options = managed.options
        if options.ca_bundle_pem:
            options = replace(options, ca_bundle=self._certificate_file(options.ca_bundle_pem))
        try:
            options.check_files()
        except FileNotFoundError as error:
            raise IsolationUnavailableError(f"{error} (SandboxPolicy.ca_bundle of this site)") from error
        return await start_sandbox(options, labels=self._labels(managed), served_elsewhere=True)

    async def adopt(self) -> list[ManagedSandbox]:
        """Adopt the running sandboxes of an earlier server with this key, and return them.

        Of a kernel's sandboxes that are not forks, only the oldest is adopted: the others were prepared and never
        used. They end when their lease expires.
        """
        found = []
        for isolation in adopting_isolations():
            with contextlib.suppress(IsolationUnavailableError):
                own = await asyncio.to_thread(isolation.list_own, {_SERVER: self._key})
                living = _without_prepared(
                    left for left in own if left.owner_dead and left.state == "running"
                )
                found += await asyncio.gather(*(self._adopt(isolation, left) for left in living))
        return [managed for managed in found if managed is not None]

    async def mark_fork(self, managed: ManagedSandbox) -> None:
        """Label a started sandbox as a fork, so that a later server adopts it as a fork. Raises SandboxError."""
        if managed.sandbox is None or managed.fork_of is None:
            return
        name = managed.sandbox.protection.isolation
        if ISOLATIONS[name].survives_owner:
            isolation = cast(AdoptingImplementation, load_isolation(name))
            await isolation.add_label(managed.sandbox, _FORK_OF, managed.fork_of)

    async def reap(self) -> list[str]:
        """Remove leftovers of killed kernels, and sandboxes whose owner is dead. Return the ids of these sandboxes."""
        await asyncio.to_thread(remove_leftovers)
        removed: list[str] = []
        for isolation in adopting_isolations():
            with contextlib.suppress(IsolationUnavailableError):
                removed += await asyncio.to_thread(isolation.reap_orphans)
        return removed

    def close(self) -> None:
        """Remove the files with the certificates of clients."""
        if self._certificates is not None:
            self._certificates.close()

    async def _adopt(self, isolation: AdoptingImplementation, own: OwnSandbox) -> ManagedSandbox | None:
        try:
            kernel, notebook, settings = (own.labels[name] for name in (_KERNEL, _NOTEBOOK, _SETTINGS))
            options = SandboxOptions.from_json(json.loads(settings))
            fork_of = own.labels.get(_FORK_OF) or None
            managed = ManagedSandbox(own.labels[_ID], kernel, notebook or None, options, fork_of)
            managed.sandbox = await isolation.adopt(own.id)
        except (SandboxError, ValueError, KeyError, TypeError, AttributeError) as error:
            logger.warning("The sandbox %s was not adopted: %s", own.id[:12], error)
            return None
        managed.unclaimed_since = time.time()
        return managed

    def _labels(self, managed: ManagedSandbox) -> dict[str, str]:
        return {
            _SERVER: self._key,
            _ID: managed.id,
            _KERNEL: managed.kernel_id,
            _NOTEBOOK: managed.notebook or "",
            _FORK_OF: managed.fork_of or "",
            _SETTINGS: json.dumps(managed.options.to_json()),
        }

    def _certificate_file(self, pem: str) -> Path:
        """Write certificates to a file. It stays until the server ends, because programs in sandboxes may read it."""
        if self._certificates is None:
            self._certificates = TemporaryFolder()
        path = self._certificates.path / f"{hashlib.sha256(pem.encode()).hexdigest()[:32]}.pem"
        path.write_text(pem)
        return path


def _without_prepared(own: Iterable[OwnSandbox]) -> list[OwnSandbox]:
    """Return all forks, and the oldest of each kernel's other sandboxes."""
    kept: list[OwnSandbox] = []
    kernels: set[str] = set()
    for one in sorted(own, key=lambda one: one.created):
        kernel = one.labels.get(_KERNEL, "")
        if one.labels.get(_FORK_OF) or kernel not in kernels:
            kept.append(one)
        if not one.labels.get(_FORK_OF):
            kernels.add(kernel)
    return kept
