"""What happens by itself: adoption at the start, the end of sandboxes nobody needs, reaping of orphans."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from llm_sandbox_nb.server.opener import Opener

if TYPE_CHECKING:
    from llm_sandbox_nb.server.managed import ManagedSandbox
    from llm_sandbox_nb.server.manager import SandboxManager


class Watcher:
    """The background work of one manager, as tasks of its event loop."""

    def __init__(self, manager: SandboxManager) -> None:
        self._manager = manager
        self._tasks: list[asyncio.Task[None]] = []
        self._adopted = asyncio.Event()
        self._adopted.set()

    def start(self, opener: Opener) -> None:
        """Begin. Adoption comes first, and does not hold up the start of the server."""
        if self._tasks:
            return
        self._adopted.clear()
        self._tasks = [asyncio.create_task(self._watch()), asyncio.create_task(self._adopt_and_reap(opener))]

    async def stop(self) -> None:
        """End the background work."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        self._adopted.set()

    async def adopted(self, timeout: float) -> None:
        """Wait until sandboxes of an ended server have been taken back, at most `timeout` seconds."""
        try:
            await asyncio.wait_for(self._adopted.wait(), timeout)
        except TimeoutError:
            self._manager.log.warning("Looking for sandboxes to adopt takes long; going on without.")

    async def _adopt_and_reap(self, opener: Opener) -> None:
        log = self._manager.log
        try:
            for managed in await opener.adopt():
                log.info("Adopted sandbox %s of kernel %s.", managed.id, managed.kernel_id)
                self._manager.adopt(managed)
        except Exception:  # whatever an engine does, the server starts
            log.exception("Adopting sandboxes of an ended server failed.")
        finally:
            self._adopted.set()
        while True:
            try:
                for name in await opener.reap():
                    log.info("Removed %s, whose owner has died.", name)
            except Exception:  # tried again at the next turn
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
                except Exception:  # one bad sandbox must not keep the others from being looked at
                    self._manager.log.exception("Looking after sandbox %s failed.", managed.id)


async def why_end(manager: SandboxManager, managed: ManagedSandbox) -> str | None:
    """Why a sandbox must end now, as a sentence for its clients, or None."""
    if managed.state == "lost":
        return "It died or stopped answering; the next use starts a new one."
    if reason := await _without_kernel(manager, managed):
        return reason
    idle, limit = managed.idle_seconds, manager.cull_idle_timeout
    if 0 < limit <= idle:
        return f"It was not used for {idle / 60:.0f} minutes; the next use starts a new one."
    return None


async def _without_kernel(manager: SandboxManager, managed: ManagedSandbox) -> str | None:
    kernels, now = manager.kernels, time.time()
    if not kernels.owns(managed.kernel_id):
        return _unclaimed(manager, managed, now)
    managed.notebook = await kernels.notebook(managed.kernel_id) or managed.notebook
    managed.unclaimed_since = None
    if await kernels.alive(managed.kernel_id):
        managed.kernel_dead_since = None
        return None
    managed.kernel_dead_since = managed.kernel_dead_since or now
    if now - managed.kernel_dead_since < manager.dead_kernel_grace:
        return None
    return "Its kernel has died."


def _unclaimed(manager: SandboxManager, managed: ManagedSandbox, now: float) -> str | None:
    if managed.unclaimed_since is None:
        return "Its kernel was shut down."
    if managed.clients:
        managed.unclaimed_since = now
    if now - managed.unclaimed_since < manager.adoption_grace:
        return None
    return "It was kept after the end of another server, and no kernel of its notebook came."
