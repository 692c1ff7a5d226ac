"""The one sandbox of a notebook: kept between cells by the Jupyter server where it can, else by this kernel.

Everything here runs in the kernel's background event loop (`notebook/background.py`), never in two loops.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Literal, Protocol

from llm_sandbox_nb.sandbox.contract import Limits, Protection, Sandbox
from llm_sandbox_nb.sandbox.errors import SandboxError, SandboxLostError

if TYPE_CHECKING:
    from llm_sandbox_nb.notebook.publisher import RunPublisher

_OPEN_CHOICES = {"isolation": "auto"}
"""Values that leave the choice to whoever starts the sandbox, beside None."""


class SandboxMismatchError(SandboxError):
    """A cell asks for another kind of sandbox than the one that runs; says how to get it."""


@dataclass(frozen=True)
class SandboxOptions:
    """What a cell asks of its sandbox. None (and `auto`) leave the choice to whoever starts it."""

    isolation: str = "auto"
    profile: str | None = None
    image: str | None = None
    network: str | None = None
    limits: Limits | None = None
    ca_bundle: str | None = None
    """Path of a PEM file on this machine."""
    index_url: str | None = None
    proxy: str | None = None


@dataclass(frozen=True)
class SandboxStatus:
    """What `%sandbox status` shows. `sandbox_id` is None when none is running."""

    where: Literal["server", "kernel"]
    sandbox_id: str | None = None
    protection: Protection | None = None
    started: float | None = None
    """Seconds since the epoch."""
    details: dict[str, str] = field(default_factory=dict)
    """More lines for a person: server address, idle time, how many others there are..."""


class SandboxKeeper(Protocol):
    """Keeps the one sandbox of this notebook. One lives here, another speaks to the Jupyter server."""

    async def acquire(self, options: SandboxOptions, *, fresh: bool = False) -> Sandbox:
        """The running sandbox, or a new one when there is none, when it was lost, or when `fresh`.

        The caller does not close what it gets.

        Raises:
            SandboxMismatchError: one is running that is not what `options` ask for, and `fresh` was not said.
            IsolationUnavailableError, ImageError, PolicyError: no sandbox can be started as asked.
        """
        ...

    async def current(self) -> Sandbox | None:
        """The sandbox when one is running, without starting one."""
        ...

    async def status(self) -> SandboxStatus:
        """What runs now."""
        ...

    async def stop(self) -> bool:
        """End the sandbox and its files; says whether there was one."""
        ...

    async def close(self) -> None:
        """The kernel ends: a sandbox of its own is ended; a server's is let go of."""
        ...


_LOST = "The notebook's earlier sandbox died or stopped answering, with the files in it; a new one is empty."


class KernelSandboxes:
    """Keeps the sandbox in this kernel: nbclient, VS Code, papermill, a server without the extension."""

    def __init__(self) -> None:
        self._sandbox: Sandbox | None = None
        self._options = SandboxOptions()
        self._started = 0.0
        self.notice = ""
        """What a person should be told about the sandbox they get, once."""

    async def acquire(self, options: SandboxOptions, *, fresh: bool = False) -> Sandbox:
        """See `SandboxKeeper.acquire`."""
        if fresh:
            await self.stop()
        sandbox = await self.current()
        if sandbox is None:
            return await self._start(options)
        check_matches(options, started_with=self._options, protection=sandbox.protection)
        return sandbox

    async def current(self) -> Sandbox | None:
        """See `SandboxKeeper.current`. One that no longer answers is put away."""
        if self._sandbox is not None and not await _answers(self._sandbox):
            self.notice = _LOST
            await self.stop()
        return self._sandbox

    async def status(self) -> SandboxStatus:
        """See `SandboxKeeper.status`."""
        sandbox = await self.current()
        if sandbox is None:
            return SandboxStatus("kernel")
        return SandboxStatus("kernel", sandbox.id, sandbox.protection, self._started)

    async def stop(self) -> bool:
        """See `SandboxKeeper.stop`."""
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            await sandbox.close()
        return sandbox is not None

    async def close(self) -> None:
        """See `SandboxKeeper.close`."""
        await self.stop()

    async def _start(self, options: SandboxOptions) -> Sandbox:
        from llm_sandbox_nb.sandbox.opening import open_sandbox

        self._sandbox = await open_sandbox(
            options.isolation,
            profile=options.profile or "standard",
            image=options.image,
            network=options.network,
            limits=options.limits or Limits(),
            ca_bundle=options.ca_bundle,
            index_url=options.index_url,
            proxy=options.proxy,
        )
        self._options, self._started = options, time.time()
        return self._sandbox


Connect = Callable[[], Awaitable[SandboxKeeper | None]]
"""Finds the Jupyter server that owns this kernel; None when there is none or it lacks the extension."""


class NotebookSandboxes:
    """What the magics talk to. Decides once, at first use, who keeps the sandbox: server or kernel."""

    def __init__(self, connect: Connect | None = None) -> None:
        self._connect = connect
        self._keeper: SandboxKeeper | None = None

    async def keeper(self) -> SandboxKeeper:
        """The server's keeper when this kernel has such a server, else this kernel's own."""
        if self._keeper is None:
            found = await self._connect() if self._connect else None
            self._keeper = found or KernelSandboxes()
        return self._keeper

    async def publisher(self) -> RunPublisher | None:
        """Publishes a run at this kernel's server; None when there is no such server."""
        make = getattr(await self.keeper(), "publisher", None)
        return make() if make else None

    async def acquire(self, options: SandboxOptions, *, fresh: bool = False) -> Sandbox:
        """See `SandboxKeeper.acquire`."""
        return await (await self.keeper()).acquire(options, fresh=fresh)

    async def current(self) -> Sandbox | None:
        """See `SandboxKeeper.current`."""
        return await (await self.keeper()).current()

    async def status(self) -> SandboxStatus:
        """See `SandboxKeeper.status`."""
        return await (await self.keeper()).status()

    async def reset(self, options: SandboxOptions) -> Sandbox:
        """End the sandbox and start an empty one."""
        return await self.acquire(options, fresh=True)

    async def stop(self) -> bool:
        """See `SandboxKeeper.stop`."""
        return await (await self.keeper()).stop()

    def take_notice(self) -> str:
        """What happened to the sandbox that a person should be told, if anything; told once."""
        keeper = self._keeper
        if not isinstance(keeper, KernelSandboxes):
            return ""
        notice, keeper.notice = keeper.notice, ""
        return notice

    async def close(self) -> None:
        """See `SandboxKeeper.close`; nothing is looked for when nothing was used."""
        if self._keeper is not None:
            await self._keeper.close()


async def _answers(sandbox: Sandbox) -> bool:
    try:
        await sandbox.list_files(sandbox.directories.root, depth=1, limit=1)
    except SandboxLostError:
        return False
    except OSError:
        return True
    return True


def check_matches(wanted: SandboxOptions, *, started_with: SandboxOptions, protection: Protection) -> None:
    """Raise `SandboxMismatchError` when `wanted` asks for something that the running sandbox is not."""
    names = [
        one.name
        for one in fields(wanted)
        if getattr(wanted, one.name) not in _accepted(one.name, started_with, protection)
    ]
    if not names:
        return
    asked = ", ".join(f"{name}={getattr(wanted, name)}" for name in names)
    has = ", ".join(f"{name}={_in_force(name, protection) or getattr(started_with, name)}" for name in names)
    raise SandboxMismatchError(
        f"This notebook's sandbox runs with {has}, but the cell asks for {asked}: add --fresh to replace it "
        "by a new, empty one, or leave the option out to keep it."
    )


def _accepted(name: str, started_with: SandboxOptions, protection: Protection) -> tuple[object, ...]:
    return (None, _OPEN_CHOICES.get(name), getattr(started_with, name), _in_force(name, protection))


def _in_force(name: str, protection: Protection) -> str | None:
    if name in ("isolation", "profile", "network"):
        return str(getattr(protection, name))
    return protection.details.get(name)
