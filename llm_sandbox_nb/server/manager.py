"""The manager: one sandbox per notebook, from first use to the end of its kernel."""

from __future__ import annotations

import asyncio
import uuid
from collections import defaultdict
from collections.abc import MutableMapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from traitlets import Float, Instance, Integer, default
from traitlets.config import LoggingConfigurable

from llm_sandbox_nb import __version__
from llm_sandbox_nb.sandbox.channel_sandbox import ChannelSandbox
from llm_sandbox_nb.sandbox.errors import PolicyError, SandboxError, SandboxLostError
from llm_sandbox_nb.server.kernels import ServerKernels
from llm_sandbox_nb.server.managed import ManagedSandbox
from llm_sandbox_nb.server.opener import Opener
from llm_sandbox_nb.server.policy import SandboxPolicy, SandboxRequest
from llm_sandbox_nb.server.relay import Hang, RelayClient, Send
from llm_sandbox_nb.server.restart import restart_processes
from llm_sandbox_nb.server.watcher import Watcher

_ADOPTION_WAIT = 10.0


class UnknownSandboxError(SandboxError):
    """There is no such sandbox, or no such kernel, on this server."""


class SandboxManager(LoggingConfigurable):
    """Starts, finds and ends sandboxes. Used from the Jupyter server's event loop only."""

    max_sandboxes = Integer(8, help="How many sandboxes may run at once; 0 means any number.").tag(
        config=True
    )
    cull_idle_timeout = Float(
        7200, help="Seconds after which a sandbox that nobody uses is ended; 0 means never."
    ).tag(config=True)
    watch_interval = Float(
        5, help="Seconds between two looks at kernels that have ended and sandboxes that are idle."
    ).tag(config=True)
    reap_interval = Float(
        20, help="Seconds between two looks for containers whose owner has died; 0 means only at the start."
    ).tag(config=True)
    dead_kernel_grace = Float(
        20, help="Seconds a kernel that has died may take to be restarted before its sandbox is ended."
    ).tag(config=True)
    adoption_grace = Float(
        30,
        help="Seconds that a sandbox adopted from an ended server waits for a kernel of its notebook.",
    ).tag(config=True)
    close_timeout = Float(5, help="Seconds that ending all sandboxes may take when the server stops.").tag(
        config=True
    )
    max_download_bytes = Integer(
        256 * 1024 * 1024, help="Largest file, in bytes, that can be downloaded over REST."
    ).tag(config=True)
    policy = Instance(SandboxPolicy)

    @default("policy")
    def _default_policy(self) -> SandboxPolicy:
        return SandboxPolicy(parent=self)

    def __init__(
        self,
        *,
        kernels: ServerKernels,
        server_key: str,
        activity_times: MutableMapping[str, datetime] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.kernels = kernels
        self._opener = Opener(server_key)
        self._activity_times = {} if activity_times is None else activity_times
        self._sandboxes: dict[str, ManagedSandbox] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._watcher = Watcher(self)
        self._closing = False

    async def ready(self) -> None:
        """Wait until what an ended server left is taken back, so that nobody is told that it is gone."""
        self._watcher.start(self._opener)
        await self._watcher.adopted(_ADOPTION_WAIT)

    def connect(self, sandbox_id: str, send: Send, hang: Hang) -> RelayClient:
        """Connect a client to a running sandbox. Raises as `running`."""
        managed, sandbox = self.get(sandbox_id), self.running(sandbox_id)

        def leave(code: int, reason: str) -> None:
            managed.clients.discard(client)
            hang(code, reason)

        client = RelayClient(
            sandbox.channel, dict(sandbox.executor), send, leave, lambda: self.note_activity(managed)
        )
        managed.clients.add(client)
        return client

    # -- looking -------------------------------------------------------------------------------------------

    def all(self) -> list[ManagedSandbox]:
        """All sandboxes, oldest first."""
        return sorted(self._sandboxes.values(), key=lambda one: one.created)

    def busy(self) -> list[ManagedSandbox]:
        """Those with a request under way."""
        return [one for one in self.all() if one.requests]

    def get(self, sandbox_id: str) -> ManagedSandbox:
        """The sandbox with this id. Raises UnknownSandboxError."""
        try:
            return self._sandboxes[sandbox_id]
        except KeyError:
            raise UnknownSandboxError(
                "This server has no such sandbox; it was stopped, culled or never was."
            ) from None

    def running(self, sandbox_id: str, *, used: bool = True) -> ChannelSandbox:
        """What runs under this id; it counts as used unless told otherwise.

        Raises:
            UnknownSandboxError: there is none of this id.
            SandboxLostError: it is lost, or not there yet.
        """
        managed = self.get(sandbox_id)
        if managed.sandbox is None or managed.state != "running":
            raise SandboxLostError(f"The sandbox is not running ({managed.state}); try again, or reset it.")
        if used:
            self.note_activity(managed)
        return managed.sandbox

    async def notebook_of(self, kernel_id: str) -> str | None:
        """Path of the notebook that a kernel of ours runs. Raises UnknownSandboxError for any other."""
        if not self.kernels.owns(kernel_id):
            raise UnknownSandboxError("This server has no such kernel.")
        return await self.kernels.notebook(kernel_id)

    async def find(self, kernel_id: str) -> ManagedSandbox | None:
        """The sandbox of a kernel: its own, else the one that its notebook had with a kernel that is gone."""
        own = [managed for managed in self._sandboxes.values() if managed.fork_of is None]
        for managed in own:
            if managed.kernel_id == kernel_id:
                managed.unclaimed_since = None
                return managed
        notebook = await self.kernels.notebook(kernel_id)
        for managed in own:
            if notebook and managed.notebook == notebook and not self.kernels.owns(managed.kernel_id):
                managed.kernel_id, managed.unclaimed_since = kernel_id, None
                return managed
        return None

    def info(self) -> dict[str, Any]:
        """What this server offers and allows."""
        return {
            "version": __version__,
            "policy": self.policy.to_json(),
            "sandboxes": len(self._sandboxes),
            "max_sandboxes": self.max_sandboxes,
            "cull_idle_timeout": self.cull_idle_timeout,
        }

    def note_activity(self, managed: ManagedSandbox) -> None:
        """A sandbox was used: it is not idle, and neither is this server (JupyterHub asks)."""
        managed.touch()
        self._activity_times["llm_sandbox_nb"] = datetime.now(UTC)

    # -- starting and ending -------------------------------------------------------------------------------

    async def acquire(
        self, kernel_id: str, request: SandboxRequest, *, fresh: bool = False
    ) -> tuple[ManagedSandbox, bool]:
        """The kernel's sandbox and whether it is new; one that was lost is replaced, as is any when `fresh`.

        Raises:
            UnknownSandboxError: the kernel is not this server's.
            PolicyError: the site does not allow it, or has as many as it allows.
            IsolationUnavailableError, ImageError, SandboxLostError: it cannot be started.
        """
        await self.ready()
        notebook = await self.notebook_of(kernel_id)
        spec = self.policy.resolve(request)
        async with self._locks[kernel_id]:
            managed = await self.find(kernel_id)
            if managed is not None and not fresh and managed.state != "lost":
                self.note_activity(managed)
                return managed, False
            if managed is not None:
                await self.end(managed, "It was replaced by a new one.")
            managed = ManagedSandbox(uuid.uuid4().hex, kernel_id, notebook, spec)
            await self._start(managed)
            return managed, True

    async def fork(self, sandbox_id: str) -> ManagedSandbox:
        """A second sandbox of the same kernel, with the same settings and nothing done in it.

        It ends with its kernel, when it is stopped, or when nobody uses it. Raises as `acquire`.
        """
        managed = self.get(sandbox_id)
        spec = replace(managed.spec, isolation=self.running(sandbox_id).protection.isolation)
        new = ManagedSandbox(
            uuid.uuid4().hex, managed.kernel_id, managed.notebook, spec, managed.fork_of or managed.id
        )
        await self._start(new)
        return new

    async def reset(self, sandbox_id: str) -> ManagedSandbox:
        """End a sandbox and start an empty one with the same id and settings. Raises as `acquire`."""
        managed = self.get(sandbox_id)
        async with self._locks[managed.kernel_id]:
            self.get(sandbox_id)
            await self.end(managed, "It was reset; the next use finds an empty one.")
            managed = ManagedSandbox(managed.id, managed.kernel_id, managed.notebook, managed.spec)
            await self._start(managed)
        return managed

    async def restart(self, sandbox_id: str) -> ManagedSandbox:
        """End everything that runs in a sandbox; its files stay. Raises as `running`."""
        managed = self.get(sandbox_id)
        await restart_processes(self.running(sandbox_id))
        return managed

    async def stop(self, sandbox_id: str, reason: str) -> None:
        """End a sandbox for good. Raises UnknownSandboxError."""
        await self.end(self.get(sandbox_id), reason)

    async def end(self, managed: ManagedSandbox, reason: str) -> None:
        """End this very sandbox, if it is still there; `reason` is told to its clients and the log."""
        if self._sandboxes.get(managed.id) is not managed:
            return
        del self._sandboxes[managed.id]
        self.log.info("Ending sandbox %s of kernel %s. %s", managed.id, managed.kernel_id, reason)
        try:
            await managed.end(reason)
        except SandboxError as error:
            self.log.warning("Sandbox %s did not end cleanly: %s", managed.id, error)

    def adopt(self, managed: ManagedSandbox) -> None:
        """Take in a sandbox that outlived the server that started it."""
        self._sandboxes.setdefault(managed.id, managed)

    async def start(self) -> None:
        """Take back what an ended server left, then watch; `ready` does it too, should nobody call this."""
        self._watcher.start(self._opener)

    async def close(self) -> None:
        """End all sandboxes within `close_timeout`; what is left ends by itself when its lease runs out."""
        self._closing = True
        await self._watcher.stop()
        ends = [self.end(managed, "The Jupyter server is stopping.") for managed in self.all()]
        try:
            await asyncio.wait_for(asyncio.gather(*ends), self.close_timeout)
        except TimeoutError:
            self.log.warning("Not all sandboxes ended in time; they end by themselves within a minute.")
        self._opener.close()

    async def _start(self, managed: ManagedSandbox) -> None:
        if self._closing:
            raise SandboxLostError("The Jupyter server is stopping and starts no more sandboxes.")
        if 0 < self.max_sandboxes <= len(self._sandboxes):
            raise PolicyError(
                f"This server runs {len(self._sandboxes)} sandboxes, as many as its site allows; stop one "
                "with `%sandbox stop` in its notebook, or shut that notebook's kernel down."
            )
        self._sandboxes[managed.id] = managed
        try:
            await managed.start(self._opener.open(managed))
        except BaseException:
            self._sandboxes.pop(managed.id, None)
            raise
        self.note_activity(managed)
        self.log.info("Started sandbox %s for kernel %s.", managed.id, managed.kernel_id)
