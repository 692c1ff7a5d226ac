"""Manager of sandboxes. Each notebook has one sandbox, from the first use to the end of the notebook's kernel."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, MutableMapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from traitlets import Float, Instance, Integer, default
from traitlets.config import LoggingConfigurable

from llm_sandbox_nb.formatting import format_duration, plural
from llm_sandbox_nb.sandbox.client import ChannelSandbox
from llm_sandbox_nb.sandbox.errors import PolicyError, SandboxError, SandboxLostError
from llm_sandbox_nb.sandbox.options import SandboxOptions
from llm_sandbox_nb.sandbox.prepared import PreparedSandboxes
from llm_sandbox_nb.server.kernels import ServerKernels
from llm_sandbox_nb.server.managed_sandbox import ManagedSandbox, Opener
from llm_sandbox_nb.server.policy import SandboxPolicy
from llm_sandbox_nb.server.processes import restart_processes
from llm_sandbox_nb.server.relay import Hang, RelayClient, Send
from llm_sandbox_nb.version import __version__

_ADOPTION_SECONDS = 10.0


class UnknownSandboxError(SandboxError):
    """Raised for an id that no sandbox or kernel of this server has."""


class SandboxManager(LoggingConfigurable):
    """Manager that starts, finds and ends sandboxes. Use the manager from the Jupyter server's event loop only."""

    max_sandboxes = Integer(8, help="Maximum number of running sandboxes; 0: any number.").tag(config=True)
    cull_idle_timeout = Float(
        7200, help="Seconds after which the server ends an unused sandbox; 0 means never."
    ).tag(config=True)
    watch_interval = Float(
        5, help="Seconds between two searches for kernels that have ended and sandboxes that are idle."
    ).tag(config=True)
    reap_interval = Float(
        20, help="Seconds between two searches for containers whose owner has died; 0: only at the start."
    ).tag(config=True)
    dead_kernel_grace = Float(
        20,
        help="Seconds between the death of a kernel and the end of its sandbox, to let the kernel restart.",
    ).tag(config=True)
    adoption_grace = Float(
        30,
        help="Seconds for which a sandbox of an ended server waits for a kernel of its notebook, before it ends.",
    ).tag(config=True)
    close_timeout = Float(5, help="Maximum seconds for ending all sandboxes when the server stops.").tag(
        config=True
    )
    max_download_bytes = Integer(
        256 * 1024 * 1024, help="Maximum size, in bytes, of a sandbox's file that is downloaded over REST."
    ).tag(config=True)
    max_prepared = Integer(
        2, help="Maximum number of prepared sandboxes of a kernel. They count for `max_sandboxes`."
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
        self._prepared: PreparedSandboxes[ManagedSandbox] = PreparedSandboxes(
            self._start_prepared,
            lambda managed: self.end(managed, "It was prepared and is not needed."),
            lambda managed: managed.sandbox,
        )
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._watcher = Housekeeping(self)
        self._closing = False
        self.live_kernels: Callable[..., Collection[str]] = lambda **_: ()
        """Function that returns the kernels with a live run: see `RunRegistry.live_kernels`."""

    async def ready(self) -> None:
        """Wait until sandboxes of an earlier server are adopted, so that no client is refused too early."""
        if self._closing:
            return
        self._watcher.start(self._opener)
        await self._watcher.adopted(_ADOPTION_SECONDS)

    def connect(self, sandbox_id: str, send: Send, hang: Hang) -> RelayClient:
        """Connect a client to a running sandbox. Raises the errors of `running`."""
        managed, sandbox = self.get(sandbox_id), self.running(sandbox_id)

        def leave(code: int, reason: str) -> None:
            managed.clients.discard(client)
            hang(code, reason)

        client = RelayClient(
            sandbox.channel, dict(sandbox.executor), send, leave, lambda: self.note_activity(managed)
        )
        managed.clients.add(client)
        return client

    # -- look-ups -------------------------------------------------------------------------------------------

    def all(self) -> list[ManagedSandbox]:
        """Return all sandboxes, including prepared ones, oldest first."""
        return sorted(self._sandboxes.values(), key=lambda managed: managed.created)

    def in_use(self) -> list[ManagedSandbox]:
        """Return all sandboxes except the prepared ones, oldest first."""
        return [managed for managed in self.all() if not managed.prepared]

    def prepared(self, kernel_id: str) -> int:
        return self._prepared.count(kernel_id)

    def busy(self) -> list[ManagedSandbox]:
        return [managed for managed in self.all() if managed.requests]

    def idle(self, kernel_id: str = "") -> list[ManagedSandbox]:
        """Return the idle sandboxes of kernels that have no live run and are not `kernel_id`, longest idle first."""
        live = {kernel_id, *self.live_kernels()}
        free = [managed for managed in self.in_use() if managed.state != "starting" and not managed.requests]
        return sorted(
            (managed for managed in free if managed.kernel_id not in live),
            key=lambda managed: managed.idle_seconds,
            reverse=True,
        )

    def get(self, sandbox_id: str) -> ManagedSandbox:
        """Return the sandbox with this id. Raises UnknownSandboxError."""
        try:
            return self._sandboxes[sandbox_id]
        except KeyError:
            raise UnknownSandboxError(
                f"No sandbox {sandbox_id:.64} on this server (it may have been stopped, or removed when idle)."
            ) from None

    def has(self, sandbox_id: str) -> bool:
        return sandbox_id in self._sandboxes

    def running(self, sandbox_id: str, *, used: bool = True) -> ChannelSandbox:
        """Return the open sandbox with this id, and reset its idle timer if `used`.

        Raises:
            UnknownSandboxError: if no sandbox has this id.
            SandboxLostError: if the sandbox is lost, or still starting.
        """
        managed = self.get(sandbox_id)
        if managed.sandbox is None or managed.state != "running":
            raise SandboxLostError(f"The sandbox is not running ({managed.state}); try again, or reset it.")
        if used:
            self.note_activity(managed)
        return managed.sandbox

    async def notebook_of(self, kernel_id: str) -> str | None:
        """Return the notebook path of a kernel. Raises UnknownSandboxError if another server owns the kernel."""
        if not self.kernels.owns(kernel_id):
            raise UnknownSandboxError(
                f"No kernel {kernel_id:.64} on this server (it may have been restarted)."
            )
        return await self.kernels.notebook(kernel_id)

    async def find(self, kernel_id: str) -> ManagedSandbox | None:
        """Return the sandbox of a kernel, else the sandbox of an ended kernel of the same notebook, or None."""
        own = [managed for managed in self.in_use() if managed.fork_of is None]
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
        """Return the options and limits of this server."""
        return {
            "version": __version__,
            "policy": self.policy.to_json(),
            "sandboxes": len(self._sandboxes),
            "max_sandboxes": self.max_sandboxes,
            "cull_idle_timeout": self.cull_idle_timeout,
        }

    def note_activity(self, managed: ManagedSandbox) -> None:
        """Reset the idle timers of a sandbox and of this server. JupyterHub reads the timer of the server."""
        managed.touch()
        self._activity_times["llm_sandbox_nb"] = datetime.now(UTC)

    # -- starting and ending -------------------------------------------------------------------------------

    async def acquire(
        self, kernel_id: str, request: SandboxOptions, *, fresh: bool = False
    ) -> tuple[ManagedSandbox, bool]:
        """Return the kernel's sandbox, and True if it is new. Replace a lost sandbox; if `fresh`, replace any sandbox.

        Raises:
            UnknownSandboxError: if the kernel does not belong to this server.
            PolicyError: if the site does not allow the sandbox, or has reached its maximum.
            IsolationUnavailableError, ImageError, SandboxLostError: if the sandbox cannot be started.
        """
        await self.ready()
        notebook = await self.notebook_of(kernel_id)
        options = self.policy.resolve(request)
        async with self._locks[kernel_id]:
            managed = await self.find(kernel_id)
            if managed is not None and not fresh and managed.state != "lost":
                self.note_activity(managed)
                return managed, False
            if managed is not None:
                await self.end(managed, "It was replaced by a new one.")
            managed = await self._prepared.take(options, kernel_id)
            if managed is None:
                managed = ManagedSandbox(uuid.uuid4().hex, kernel_id, notebook, options)
                await self._start(managed)
            else:
                managed.claim()
                self.note_activity(managed)
            return managed, True

    async def prepare(self, kernel_id: str, request: SandboxOptions, count: int, seconds: float) -> int:
        """Start sandboxes in the background for the next calls of `acquire` with the same request.

        Args:
            kernel_id: the kernel that will need them.
            request: see `SandboxPolicy.resolve`.
            count: number of sandboxes, at most `max_prepared`; 0 ends the prepared ones.
            seconds: seconds after which an unused sandbox ends.

        Returns:
            Number of prepared sandboxes of the kernel, including those that are starting.

        Raises:
            UnknownSandboxError: if the kernel does not belong to this server.
            PolicyError: if the site does not allow the sandbox.
        """
        await self.ready()
        await self.notebook_of(kernel_id)
        options = self.policy.resolve(request)
        self._prepared.prepare(options, min(count, self.max_prepared), seconds, kernel_id)
        return self.prepared(kernel_id)

    async def fork(self, sandbox_id: str) -> ManagedSandbox:
        """Return a second, empty sandbox of the same kernel with the same settings.

        The second sandbox ends with its kernel, or if it is stopped or idle too long. Raises the errors of `acquire`.
        """
        managed = self.get(sandbox_id)
        options = replace(managed.options, isolation=self.running(sandbox_id).protection.isolation)
        fork_of = managed.fork_of or managed.id
        new = await self._prepared.take(options, managed.kernel_id, clone=True)
        if new is None:
            new = ManagedSandbox(uuid.uuid4().hex, managed.kernel_id, managed.notebook, options, fork_of)
            await self._start(new)
            return new
        new.claim(fork_of)
        try:
            await self._opener.mark_fork(new)
        except BaseException:
            await asyncio.shield(self.end(new, "It could not be made a fork."))
            raise
        self.note_activity(new)
        return new

    async def reset(self, sandbox_id: str) -> ManagedSandbox:
        """End a sandbox and start an empty one with the same id and settings. Raises the errors of `acquire`."""
        managed = self.get(sandbox_id)
        async with self._locks[managed.kernel_id]:
            self.get(sandbox_id)
            # A later server adopts a kernel's oldest sandbox, so no prepared one may be older than the new one.
            if managed.fork_of is None:
                self._prepared.prepare(managed.options, 0, 0, managed.kernel_id)
            await self.end(managed, "It was reset; the next use finds an empty one.")
            managed = ManagedSandbox(
                managed.id, managed.kernel_id, managed.notebook, managed.options, managed.fork_of
            )
            await self._start(managed)
        return managed

    async def restart(self, sandbox_id: str) -> ManagedSandbox:
        """End all processes of a sandbox. Its files stay. Raises the errors of `running`."""
        managed = self.get(sandbox_id)
        await restart_processes(self.running(sandbox_id))
        return managed

    async def _start_prepared(self, options: SandboxOptions, kernel_id: str) -> ManagedSandbox:
        notebook = await self.notebook_of(kernel_id)  # raises if the kernel has ended meanwhile
        managed = ManagedSandbox(uuid.uuid4().hex, kernel_id, notebook, options, prepared=True)
        try:
            await self._start(managed)
        except asyncio.CancelledError:
            await managed.end("It is not needed any more.")
            raise
        return managed

    async def stop(self, sandbox_id: str, reason: str) -> None:
        """End a sandbox for good. Raises UnknownSandboxError."""
        await self.end(self.get(sandbox_id), reason)

    async def stop_idle(self, kernel_id: str, most: int | None) -> list[ManagedSandbox]:
        """End at most `most` idle sandboxes of other kernels, longest idle first."""
        stopped: list[ManagedSandbox] = []
        while len(stopped) != most and (idle := self.idle(kernel_id)):
            stopped.append(idle[0])
            await self.end(
                idle[0], "It was idle, and was stopped to make room; the next use starts a new one."
            )
        return stopped

    async def end(self, managed: ManagedSandbox, reason: str) -> None:
        """End this sandbox unless a later sandbox has replaced it. The clients and the log get `reason`."""
        if self._sandboxes.get(managed.id) is not managed:
            return
        del self._sandboxes[managed.id]
        self.log.info("Ending sandbox %s of kernel %s. %s", managed.id, managed.kernel_id, reason)
        try:
            await managed.end(reason)
        except SandboxError as error:
            self.log.warning("Sandbox %s did not end cleanly: %s", managed.id, error)

    def adopt(self, managed: ManagedSandbox) -> None:
        """Register a sandbox that an earlier server left running."""
        self._sandboxes.setdefault(managed.id, managed)

    async def start(self) -> None:
        """Start the background work, unless `ready` has started it before."""
        self._watcher.start(self._opener)

    async def close(self) -> None:
        """End all sandboxes. A sandbox that takes longer than `close_timeout` ends when its lease expires."""
        self._closing = True
        await self._watcher.stop()
        ends = [self.end(managed, "The Jupyter server is stopping.") for managed in self.in_use()]
        ends.append(self._prepared.close())
        try:
            await asyncio.wait_for(asyncio.gather(*ends), self.close_timeout)
        except TimeoutError:
            self.log.warning("Not all sandboxes ended in time; they end within a minute.")
        self._opener.close()

    async def _start(self, managed: ManagedSandbox) -> None:
        if self._closing:
            raise SandboxLostError("The Jupyter server is stopping and starts no more sandboxes.")
        if 0 < self.max_sandboxes <= len(self._sandboxes) and not managed.prepared:
            await self._prepared.end_oldest()
        if 0 < self.max_sandboxes <= len(self._sandboxes):
            raise PolicyError(too_many_text(len(self._sandboxes), self.idle(managed.kernel_id)))
        self._sandboxes[managed.id] = managed
        try:
            await managed.start(self._opener.open(managed))
        except BaseException:
            self._sandboxes.pop(managed.id, None)
            raise
        self.note_activity(managed)
        self.log.info("Started sandbox %s for kernel %s.", managed.id, managed.kernel_id)


_MAX_NAMED_NOTEBOOKS = 5
"""Maximum number of notebooks named in an error."""


def too_many_text(count: int, idle: list[ManagedSandbox]) -> str:
    """Return the message of the error that is raised at the maximum number of sandboxes."""
    runs = f"This server runs {plural(count, 'sandbox', 'sandboxes')}, as many as its site allows."
    if not idle:
        return (
            f"{runs} All are in use: wait until a run ends, or stop one with `%sandbox stop` in its notebook."
        )
    names = [
        f"{_notebook_name(managed)} (for {format_duration(managed.idle_seconds)})"
        for managed in idle[:_MAX_NAMED_NOTEBOOKS]
    ]
    more = [f"{len(idle) - _MAX_NAMED_NOTEBOOKS} more"] if len(idle) > _MAX_NAMED_NOTEBOOKS else []
    return (
        f"{runs} Idle: {', '.join(names + more)}. To stop the one that is idle longest, and lose its files, execute "
        "`%sandbox stop --idle`, then run this cell again."
    )


def _notebook_name(managed: ManagedSandbox) -> str:
    """Return the path of a sandbox's notebook as one short line."""
    name = "".join(
        letter if letter.isprintable() else "�"
        for letter in managed.notebook or "a kernel without a notebook"
    )
    return name if len(name) <= 80 else f"…{name[-79:]}"


class Housekeeping:
    """Background work of a manager: adopting sandboxes, removing leftovers, and ending idle and ownerless sandboxes."""

    def __init__(self, manager: SandboxManager) -> None:
        self._manager = manager
        self._tasks: list[asyncio.Task[None]] = []
        self._adopted = asyncio.Event()
        self._adopted.set()

    def start(self, opener: Opener) -> None:
        """Start the background work. The server starts without waiting for the adoption of sandboxes."""
        if self._tasks:
            return
        self._adopted.clear()
        self._tasks = [asyncio.create_task(self._watch()), asyncio.create_task(self._adopt_and_reap(opener))]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        self._adopted.set()

    async def adopted(self, timeout: float) -> None:
        """Wait at most `timeout` seconds until sandboxes of an earlier server are adopted."""
        try:
            await asyncio.wait_for(self._adopted.wait(), timeout)
        except TimeoutError:
            self._manager.log.warning("The search for sandboxes to adopt is slow; continuing without them.")

    async def _adopt_and_reap(self, opener: Opener) -> None:
        log = self._manager.log
        try:
            for managed in await opener.adopt():
                log.info("Adopted sandbox %s of kernel %s.", managed.id, managed.kernel_id)
                self._manager.adopt(managed)
        except Exception:  # the server starts despite any failure of an engine
            log.exception("Adopting sandboxes of an ended server failed.")
        finally:
            self._adopted.set()
        while True:
            try:
                for name in await opener.reap():
                    log.info("Removed %s, whose owner has died.", name)
            except Exception:  # retried in the next turn of the loop
                log.exception("Reaping sandboxes without an owner failed.")
            if self._manager.reap_interval <= 0:
                return
            await asyncio.sleep(self._manager.reap_interval)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._manager.watch_interval)
            for managed in self._manager.all():
                try:
                    if reason := await why_end(self._manager, managed):
                        await self._manager.end(managed, reason)
                except Exception:  # a failure of one sandbox must not stop the check of the others
                    self._manager.log.exception("Looking after sandbox %s failed.", managed.id)


async def why_end(manager: SandboxManager, managed: ManagedSandbox) -> str | None:
    """Return the reason to end a sandbox now, as a sentence for its clients. Return None if there is no reason."""
    if managed.state == "lost":
        return "It died or stopped answering; the next use starts a new one."
    if reason := await _without_kernel(manager, managed):
        return reason
    # A live run counts as use of the sandbox, also while it waits for a person.
    if managed.kernel_id in manager.live_kernels(outside=False):
        managed.touch()
    idle, limit = managed.idle_seconds, manager.cull_idle_timeout
    if 0 < limit <= idle:
        return f"It was not used for {format_duration(idle)}; the next use starts a new one."
    return None


async def _without_kernel(manager: SandboxManager, managed: ManagedSandbox) -> str | None:
    kernels, now = manager.kernels, time.time()
    if not kernels.owns(managed.kernel_id):
        if managed.unclaimed_since is None:
            return "Its kernel was shut down."
        if managed.clients:
            managed.unclaimed_since = now
        if now - managed.unclaimed_since < manager.adoption_grace:
            return None
        return "Another server left it running, and no kernel of its notebook has asked for it."
    managed.notebook = await kernels.notebook(managed.kernel_id) or managed.notebook
    managed.unclaimed_since = None
    if await kernels.alive(managed.kernel_id):
        managed.kernel_dead_since = None
        return None
    managed.kernel_dead_since = managed.kernel_dead_since or now
    if now - managed.kernel_dead_since < manager.dead_kernel_grace:
        return None
    return "Its kernel has died."
