"""Starting sandboxes, and adopting those that an earlier server has left."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from llm_sandbox_nb.sandbox.client import ChannelSandbox
from llm_sandbox_nb.sandbox.errors import IsolationUnavailableError, SandboxError
from llm_sandbox_nb.sandbox.open import (
    AdoptingImplementation,
    OwnSandbox,
    adopting_isolations,
    start_sandbox,
)
from llm_sandbox_nb.sandbox.options import SandboxOptions
from llm_sandbox_nb.server.managed_sandbox import ManagedSandbox

_SERVER, _ID, _KERNEL, _NOTEBOOK, _SETTINGS = "server", "server-id", "kernel", "notebook", "settings"
_FORK_OF = "fork-of"

logger = logging.getLogger(__name__)


class Opener:
    """Starts and adopts. `server_key` is the same for a server and the one that is started in its place."""

    def __init__(self, server_key: str) -> None:
        self._key = hashlib.sha256(server_key.encode()).hexdigest()[:32]
        self._certificates: tempfile.TemporaryDirectory[str] | None = None

    async def open(self, managed: ManagedSandbox) -> ChannelSandbox:
        """Start what `managed` is to be.

        Raises:
            ValueError: its settings contradict each other.
            IsolationUnavailableError, ImageError, SandboxLostError, SandboxError: as the isolation does.
        """
        options = managed.options
        if options.ca_bundle_pem:
            options = replace(options, ca_bundle=self._certificate_file(options.ca_bundle_pem))
        try:
            options.check_files()
        except FileNotFoundError as error:
            raise IsolationUnavailableError(f"{error} (SandboxPolicy.ca_bundle of this site)") from error
        return await start_sandbox(options, labels=self._labels(managed))

    async def adopt(self) -> list[ManagedSandbox]:
        """Adopt the living sandboxes that an earlier server of this key has left; others end when their lease does."""
        found = []
        for isolation in adopting_isolations():
            with contextlib.suppress(IsolationUnavailableError):
                own = await asyncio.to_thread(isolation.list_own, {_SERVER: self._key})
                living = [one for one in own if one.owner_dead and one.state == "running"]
                found += await asyncio.gather(*(self._adopt(isolation, one) for one in living))
        return [managed for managed in found if managed is not None]

    async def reap(self) -> list[str]:
        """Remove sandboxes whose owner has died; their ids."""
        removed: list[str] = []
        for isolation in adopting_isolations():
            with contextlib.suppress(IsolationUnavailableError):
                removed += await asyncio.to_thread(isolation.reap_orphans)
        return removed

    def close(self) -> None:
        """Remove the certificates of clients."""
        if self._certificates is not None:
            self._certificates.cleanup()

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
        """A file that lives as long as the server: isolation `process` reads it whenever a program starts."""
        if self._certificates is None:
            self._certificates = tempfile.TemporaryDirectory(prefix="llm-sandbox-nb-")
        path = Path(self._certificates.name) / f"{hashlib.sha256(pem.encode()).hexdigest()[:32]}.pem"
        path.write_text(pem)
        return path
