"""One sandbox as the server keeps it: whose it is, how it stands, and who is connected to it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any, Literal, Protocol

from llm_sandbox_nb.sandbox.client import ChannelSandbox
from llm_sandbox_nb.sandbox.contract import Protection
from llm_sandbox_nb.sandbox.errors import SandboxLostError
from llm_sandbox_nb.sandbox.options import SandboxOptions

State = Literal["starting", "running", "lost"]


class ConnectedClient(Protocol):
    """A connection to a sandbox, as its sandbox knows it."""

    @property
    def requests(self) -> int:
        """How many requests of this client are pending."""
        ...

    def dismiss(self, reason: str) -> None:
        """End the connection because the sandbox has ended; `reason` is one sentence."""
        ...


class ManagedSandbox:
    """A sandbox with its owner. Its id outlives resets; `sandbox` is set once it runs."""

    def __init__(
        self,
        sandbox_id: str,
        kernel_id: str,
        notebook: str | None,
        options: SandboxOptions,
        fork_of: str | None = None,
    ) -> None:
        self.id = sandbox_id
        self.fork_of = fork_of
        """The sandbox that this is a fork of; such a one is never taken for the notebook's own."""
        self.kernel_id = kernel_id
        self.notebook = notebook
        self.options = options
        self.created = time.time()
        self.last_activity = self.created
        self.clients: set[ConnectedClient] = set()
        self.sandbox: ChannelSandbox | None = None
        self.kernel_dead_since: float | None = None
        self.unclaimed_since: float | None = None
        """When it was adopted from a server that has ended, until one of this server's kernels takes it."""
        self._starting: asyncio.Task[ChannelSandbox] | None = None

    @property
    def state(self) -> State:
        """How it stands now."""
        if self.sandbox is None:
            return "starting"
        return "lost" if self.sandbox.lost else "running"

    @property
    def requests(self) -> int:
        """How many requests of its clients are pending."""
        return sum(client.requests for client in self.clients)

    @property
    def idle_seconds(self) -> float:
        """For how long nobody has asked anything of it; zero while a request is pending."""
        if self.requests or self.sandbox is None:
            self.touch()
        return time.time() - self.last_activity

    def touch(self) -> None:
        """Note that it was used just now."""
        self.last_activity = time.time()

    async def start(self, opening: Coroutine[Any, Any, ChannelSandbox]) -> None:
        """Start it; `end` from elsewhere stops the start.

        Raises:
            SandboxLostError: it was ended before it was there.
            SandboxError: whatever `opening` raises.
        """
        self._starting = asyncio.create_task(opening)
        await asyncio.wait({self._starting})
        if self._starting.cancelled():
            raise SandboxLostError("The sandbox was stopped while it was starting; try again.")
        self.sandbox = self._starting.result()
        self.touch()

    async def end(self, reason: str) -> None:
        """Dismiss its clients and end it, or its start. Raises SandboxError when it cannot be ended."""
        for client in list(self.clients):
            client.dismiss(reason)
        self.clients.clear()
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
            await asyncio.wait({self._starting})
        sandbox, self.sandbox = self.sandbox, None
        if sandbox is None and self._starting is not None and not _failed(self._starting):
            sandbox = self._starting.result()
        if sandbox is not None:
            await sandbox.close()

    def to_json(self) -> dict[str, Any]:
        """What a client sees of it, as plain JSON values."""
        box = self.sandbox
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
            "protection": _protection(box.protection) if box else None,
        }


def _failed(task: asyncio.Task[ChannelSandbox]) -> bool:
    return task.cancelled() or task.exception() is not None


def _protection(protection: Protection) -> dict[str, Any]:
    return asdict(replace(protection, details=dict(protection.details)))


def _iso(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds")
