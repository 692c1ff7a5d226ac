"""The sandbox of a notebook, owned by the Jupyter server if possible, else by this kernel.

All of this code runs in the kernel's background event loop (`notebook/event_loop.py`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from llm_sandbox_nb.formatting import plural
from llm_sandbox_nb.own_folder import expanded
from llm_sandbox_nb.sandbox.contract import Protection, Sandbox
from llm_sandbox_nb.sandbox.errors import SandboxError, SandboxLostError
from llm_sandbox_nb.sandbox.options import SandboxOptions

if TYPE_CHECKING:
    from llm_sandbox_nb.notebook.server_client.publisher import RunPublisher
    from llm_sandbox_nb.runs.outside_calls import OutsideCalls
    from llm_sandbox_nb.runs.run import Run
    from llm_sandbox_nb.sandbox.client import ChannelSandbox


class SandboxMismatchError(SandboxError):
    """Raised if a cell asks for another kind of sandbox than the running one. The message names the remedy."""


@dataclass(frozen=True)
class SandboxStatus:
    """Content of `%sandbox status`. `sandbox_id` is None if no sandbox runs."""

    where: Literal["server", "kernel"]
    sandbox_id: str | None = None
    protection: Protection | None = None
    started: float | None = None
    """Start time, in seconds since the epoch."""
    details: dict[str, str] = field(default_factory=dict)
    """Further lines to print, by label: server address, idle time, number of other sandboxes."""


class SandboxKeeper(Protocol):
    """Owner of this notebook's sandbox: this kernel, or a client of the Jupyter server."""

    async def acquire(self, options: SandboxOptions, *, fresh: bool = False) -> Sandbox:
        """Return the running sandbox. Start a new one if none runs, if the old one was lost, or if `fresh` is true.

        The caller does not close the sandbox.

        Raises:
            SandboxMismatchError: if the running sandbox differs from `options`, and `fresh` is false.
            IsolationUnavailableError, ImageError, PolicyError: if no such sandbox can be started.
        """
        ...

    async def current(self) -> Sandbox | None:
        """Return the running sandbox, or None if none runs."""
        ...

    async def status(self) -> SandboxStatus:
        """Return the current status."""
        ...

    async def prepare(self, options: SandboxOptions, count: int, seconds: float) -> None:
        """Start to prepare sandboxes; see `PreparedSandboxes.prepare`."""
        ...

    async def stop(self, *, prepared: bool = False) -> bool:
        """End the sandbox and delete its files; return True if a sandbox was running.

        Args:
            prepared: also end the prepared sandboxes.
        """
        ...

    async def close(self) -> None:
        """End this kernel's sandbox, or disconnect from the server's sandbox. Called when the kernel ends."""
        ...


_LOST_NOTICE = (
    "The notebook's earlier sandbox died or stopped answering. Its files are lost; the next one begins empty."
)


class KernelSandboxes:
    """A `SandboxKeeper` in this kernel: for nbclient, VS Code, papermill, and servers without the extension."""

    def __init__(self) -> None:
        from llm_sandbox_nb.sandbox.open import start_sandbox
        from llm_sandbox_nb.sandbox.prepared import PreparedSandboxes

        self._start = start_sandbox
        self._prepared: PreparedSandboxes[ChannelSandbox] = PreparedSandboxes(
            lambda options, _: start_sandbox(options), lambda box: box.close(), lambda box: box
        )
        self._sandbox: Sandbox | None = None
        self._acquiring = asyncio.Lock()
        self._options = SandboxOptions()
        self._started = 0.0
        self.notice = ""
        """A notice about the sandbox, printed once."""

    async def acquire(self, options: SandboxOptions, *, fresh: bool = False) -> Sandbox:
        async with self._acquiring:
            if fresh:
                await self.stop()
            sandbox = await self.current()
            if sandbox is None:
                options.check_files()
                self._sandbox = await self._open(options)
                self._options, self._started = options, time.time()
                return self._sandbox
            check_matches(options, started_with=self._options, protection=sandbox.protection)
            return sandbox

    async def _open(self, options: SandboxOptions, *, clone: bool = False) -> ChannelSandbox:
        """Return a prepared sandbox, or start one if none fits. The sandbox opens its clones in the same way."""
        sandbox = await self._prepared.take(options, clone=clone) or await self._start(options)
        options = replace(options, isolation=sandbox.protection.isolation)
        sandbox.start_clone = lambda: self._open(options, clone=True)
        return sandbox

    async def current(self) -> Sandbox | None:
        """See `SandboxKeeper.current`. A sandbox that no longer answers is closed."""
        if self._sandbox is not None and not await _answers(self._sandbox):
            self.notice = _LOST_NOTICE
            await self.stop()
        return self._sandbox

    async def status(self) -> SandboxStatus:
        sandbox = await self.current()
        if sandbox is None:
            return SandboxStatus("kernel")
        details = prepared_detail(self._prepared.count())
        return SandboxStatus("kernel", sandbox.id, sandbox.protection, self._started, details)

    async def prepare(self, options: SandboxOptions, count: int, seconds: float) -> None:
        self._prepared.prepare(options, count, seconds)

    async def stop(self, *, prepared: bool = False) -> bool:
        if prepared:
            await self._prepared.close()
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            await sandbox.close()
        return sandbox is not None

    async def close(self) -> None:
        await self.stop(prepared=True)


Connect = Callable[[], Awaitable[SandboxKeeper | None]]
"""Function that returns a keeper at this kernel's Jupyter server, or None if no server has the extension."""


class NotebookSandboxes:
    """A `SandboxKeeper` for the magics. Its first use decides whether the Jupyter server or this kernel owns sandboxes.

    After nothing but `prepare`, `reconsider` may change the decision.
    """

    def __init__(self, connect: Connect | None = None) -> None:
        self._connect = connect
        self._keeper: SandboxKeeper | None = None
        self._deciding = asyncio.Lock()
        self._used = False
        """True once the keeper was used for more than preparation; then the choice of server or kernel is final."""
        self._usual: SandboxOptions | None = None
        """Sandbox options of a cell without options, as given in the last call of `prepare`."""
        self._newest: SandboxOptions | None = None
        """Options of the newest sandbox that a cell has needed."""
        self._stopped = False
        """True after `stop(prepared=True)`: nothing is prepared until a cell needs a sandbox again."""

    async def keeper(self) -> SandboxKeeper:
        """Return a keeper at this kernel's Jupyter server if there is one, else a keeper in this kernel."""
        self._used = True
        return await self._decide()

    async def _decide(self) -> SandboxKeeper:
        async with self._deciding:
            if self._keeper is None:
                found = await self._connect() if self._connect else None
                self._keeper = found or KernelSandboxes()
            return self._keeper

    async def prepare(self, options: SandboxOptions, count: int, seconds: float) -> None:
        """Prepare sandboxes with the options of the newest sandbox that a cell needed.

        Use `options` instead if no cell has needed a sandbox, or if `options` differs from the previous call.

        Args:
            options: sandbox options of a cell without options.
            count: number of sandboxes; 0 ends the prepared ones.
            seconds: seconds after which an unused sandbox ends.
        """
        if self._stopped or (count == 0 and self._keeper is None):
            return
        if self._usual not in (None, options):
            self._newest = None
        self._usual = options
        await (await self._decide()).prepare(self._newest or options, count, seconds)

    async def reconsider(self) -> None:
        """Decide again between server and kernel, if the keeper was used only for preparation so far."""
        if self._keeper is not None and not self._used:
            keeper, self._keeper = self._keeper, None
            await keeper.stop(prepared=True)
            await keeper.close()

    async def publisher(self) -> RunPublisher | None:
        """Return a publisher of runs at this kernel's Jupyter server; None if there is no such server."""
        make = getattr(await self.keeper(), "publisher", None)
        return make() if make else None

    async def acquire(self, options: SandboxOptions, *, fresh: bool = False) -> Sandbox:
        self._stopped, self._newest = False, options
        return await (await self.keeper()).acquire(options, fresh=fresh)

    async def current(self) -> Sandbox | None:
        return await (await self.keeper()).current()

    async def status(self) -> SandboxStatus:
        return await (await self.keeper()).status()

    async def stop(self, *, prepared: bool = False) -> bool:
        self._stopped = prepared
        return await (await self.keeper()).stop(prepared=prepared)

    async def stop_idle(self) -> str | None:
        """End an idle sandbox of another notebook on the server, and return that notebook's name.

        Of several idle sandboxes, the one that has been idle longest is ended. Return None if no such sandbox is idle,
        or if this kernel keeps its own sandbox.
        """
        stop = getattr(await self.keeper(), "stop_idle", None)
        name: str | None = await stop() if stop else None
        return name

    def take_notice(self) -> str:
        """Return the notice about the sandbox, and forget the notice. The text is empty if there is none."""
        keeper = self._keeper
        if not isinstance(keeper, KernelSandboxes):
            return ""
        notice, keeper.notice = keeper.notice, ""
        return notice

    async def close(self) -> None:
        """See `SandboxKeeper.close`. Do nothing if no keeper was chosen."""
        if self._keeper is not None:
            await self._keeper.close()


def prepared_detail(count: int) -> dict[str, str]:
    """Return the line of `SandboxStatus.details` about prepared sandboxes."""
    return {"prepared for the next cells": plural(count, "sandbox", "sandboxes")} if count else {}


async def _answers(sandbox: Sandbox) -> bool:
    try:
        await sandbox.list_files(sandbox.directories.root, depth=1, limit=1)
    except SandboxLostError:
        return False
    except OSError:
        return True
    return True


def check_matches(wanted: SandboxOptions, *, started_with: SandboxOptions, protection: Protection) -> None:
    """Raise `SandboxMismatchError` if the running sandbox differs from `wanted`."""
    unmet = wanted.unmet_by(started_with, protection)
    if not unmet:
        return
    asked = ", ".join(f"{name}={value}" for name, (value, _) in unmet.items())
    has = ", ".join(f"{name}={value}" for name, (_, value) in unmet.items())
    raise SandboxMismatchError(
        f"This notebook's sandbox runs with {has}, but the cell asks for {asked}: add --fresh to replace it "
        "with a new, empty one, or leave the option out to keep it."
    )


class Forks:
    """Runs that were forked in this kernel."""

    def __init__(self) -> None:
        self._runs: dict[Path, Run] = {}

    def add(self, run: Run) -> None:
        self._runs[run.folder.resolve()] = run

    def at(self, path: Path) -> Run | None:
        """Return the fork in a folder. None if this kernel has no fork in this folder."""
        return self._runs.get(expanded(path).resolve())

    @property
    def open(self) -> list[Run]:
        return [run for run in self._runs.values() if run.context.living() is not None]

    async def close(self) -> None:
        """End the sandboxes of all forks. The folders of the runs are kept."""
        await asyncio.gather(*(_closed(run) for run in self.open), return_exceptions=True)

    def status_text(self) -> str:
        names = [run.folder.name for run in self.open]
        return "\n".join(
            f"A fork is open: {name}; %sandbox load {name} -o other shows it, other.close() ends it."
            for name in names
        )


class OpenSandbox:
    """The access of outside agents to the sandbox of this kernel."""

    def __init__(self) -> None:
        self._sandbox: Sandbox | None = None
        self._calls: OutsideCalls | None = None
        self.change_approval: Callable[[str], None] = lambda approve: None
        """Function that changes which calls wait for a person. Its argument is a value of `--approve`."""

    def keep(self, sandbox: Sandbox, calls: OutsideCalls, change_approval: Callable[[str], None]) -> None:
        """Let outside agents use `sandbox`."""
        self._sandbox, self._calls, self.change_approval = sandbox, calls, change_approval

    def live(self, sandbox: Sandbox) -> bool:
        """Return True if outside agents can use this sandbox now."""
        return self._sandbox is sandbox and self._calls is not None and not self._calls.ended

    async def close(self, source: str = "magic") -> bool:
        """End the access. Return True if outside agents could use a sandbox. Call this in the background loop.

        `source` is the recorded source of the decision.
        """
        calls, self._sandbox, self._calls = self._calls, None, None
        was_open = calls is not None and not calls.ended
        if calls is not None:
            await calls.close(source)
        return was_open


async def _closed(run: Run) -> None:
    """End the sandbox of a run in the event loop that owns the sandbox."""
    loop = run.context.loop
    if loop is None or loop is asyncio.get_running_loop():
        await run.context.close()
    elif loop.is_running():
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(run.context.close(), loop))
