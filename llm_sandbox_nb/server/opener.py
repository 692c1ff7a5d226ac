"""Starting sandboxes as a spec says, and taking back those that an ended server of ours has left."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from llm_sandbox_nb.sandbox.channel_sandbox import ChannelSandbox
from llm_sandbox_nb.sandbox.errors import IsolationUnavailableError, SandboxError
from llm_sandbox_nb.sandbox.opening import choose_isolation, start_sandbox
from llm_sandbox_nb.sandbox.options import SandboxOptions
from llm_sandbox_nb.server.managed import ManagedSandbox
from llm_sandbox_nb.server.policy import SandboxSpec

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
        options = self._options(managed.spec)
        if options.isolation == "auto":
            options = replace(options, isolation=await choose_isolation(options))
        if options.isolation == "docker":
            from llm_sandbox_nb.sandbox.docker import start_docker_sandbox

            return await start_docker_sandbox(options, labels=self._labels(managed))
        return await start_sandbox(options)

    async def adopt(self) -> list[ManagedSandbox]:
        """Take over the living containers of an ended server of ours; what cannot be taken ends by itself."""
        from llm_sandbox_nb.sandbox.docker_reaper import list_own

        try:
            found = await asyncio.to_thread(list_own, {_SERVER: self._key})
        except IsolationUnavailableError:
            return []
        living = [one for one in found if one.owner_dead and one.state == "running"]
        adopted = await asyncio.gather(*(self._adopt(one.container_id, one.labels) for one in living))
        return [managed for managed in adopted if managed is not None]

    async def reap(self) -> list[str]:
        """Remove containers of ours whose owner has died; their ids."""
        from llm_sandbox_nb.sandbox.docker_reaper import reap_orphans

        try:
            return await asyncio.to_thread(reap_orphans)
        except IsolationUnavailableError:
            return []

    def close(self) -> None:
        """Remove the certificates of clients."""
        if self._certificates is not None:
            self._certificates.cleanup()

    async def _adopt(self, container: str, labels: Mapping[str, str]) -> ManagedSandbox | None:
        from llm_sandbox_nb.sandbox.docker import adopt_docker_sandbox
        from llm_sandbox_nb.sandbox.docker_engine import PREFIX

        try:
            values = {name: labels[f"{PREFIX}.{name}"] for name in (_ID, _KERNEL, _NOTEBOOK, _SETTINGS)}
            spec = SandboxSpec.from_json(json.loads(values[_SETTINGS]))
            fork_of = labels.get(f"{PREFIX}.{_FORK_OF}") or None
            managed = ManagedSandbox(values[_ID], values[_KERNEL], values[_NOTEBOOK] or None, spec, fork_of)
            managed.sandbox = await adopt_docker_sandbox(container)
        except (SandboxError, ValueError, KeyError, TypeError) as error:
            logger.warning("The sandbox in container %s was not adopted: %s", container[:12], error)
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
            _SETTINGS: json.dumps(managed.spec.to_json()),
        }

    def _options(self, spec: SandboxSpec) -> SandboxOptions:
        bundle = self._certificate_file(spec.ca_bundle_pem) if spec.ca_bundle_pem else spec.ca_bundle
        try:
            return SandboxOptions(
                isolation=spec.isolation,
                profile=spec.profile,
                image=spec.image,
                network=spec.network,
                limits=spec.limits,
                ca_bundle=Path(bundle) if bundle else None,
                index_url=spec.index_url,
                proxy=spec.proxy,
            )
        except FileNotFoundError as error:
            raise IsolationUnavailableError(f"{error} (SandboxPolicy.ca_bundle of this site)") from error

    def _certificate_file(self, pem: str) -> str:
        """A file that lives as long as the server: isolation `process` reads it whenever a program starts."""
        if self._certificates is None:
            self._certificates = tempfile.TemporaryDirectory(prefix="llm-sandbox-nb-")
        path = Path(self._certificates.name) / f"{hashlib.sha256(pem.encode()).hexdigest()[:32]}.pem"
        path.write_text(pem)
        return str(path)
