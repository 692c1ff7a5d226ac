"""Prepared sandboxes: new sandboxes that wait for a notebook cell, so that the cell need not wait for a start.

No command has run in a prepared sandbox. The process that holds a notebook's sandbox (the kernel or the Jupyter server)
also holds the notebook's prepared sandboxes, in an object of `PreparedSandboxes`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar

from llm_sandbox_nb.sandbox.cgroups import memory_left
from llm_sandbox_nb.sandbox.client import ChannelSandbox
from llm_sandbox_nb.sandbox.errors import SandboxError
from llm_sandbox_nb.sandbox.isolations import isolates
from llm_sandbox_nb.sandbox.open import is_up_to_date
from llm_sandbox_nb.sandbox.options import SandboxOptions

MIN_FREE_BYTES = 512 * 1024 * 1024
"""Minimum bytes of free memory. If less is free, all prepared sandboxes end, because the user's work may need it."""
CHECK_INTERVAL = 10.0
"""Seconds between two checks. A check ends prepared sandboxes that have expired or died. If memory is scarce, a check
ends all prepared sandboxes."""
ANSWER_TIMEOUT = 2.0
"""Seconds in which a prepared sandbox must answer before it is used. A longer wait is useless, because the start of a
new sandbox takes little more time."""
REPEAT_SECONDS = 1.0
"""Seconds between the moment when a fork takes a prepared sandbox and the start of the next one. The delay leaves the
processors to the fork."""
_VARIABLES = ("TZ", "DOCKER_HOST", "DOCKER_CONTEXT")
"""Environment variables of this process that affect the start of a sandbox."""

T = TypeVar("T")
logger = logging.getLogger(__name__)


@dataclass(eq=False)
class _Entry(Generic[T]):
    owner: str
    options: SandboxOptions
    surroundings: object
    expires: float
    """Time of expiry on the clock of the event loop."""
    start: asyncio.Task[T]

    def fits(self, owner: str, options: SandboxOptions, *, clone: bool = False) -> bool:
        if clone and self.options.isolation in (None, "auto"):
            options = replace(options, isolation=self.options.isolation)
        return (owner, options, _surroundings(options)) == (self.owner, self.options, self.surroundings)


class PreparedSandboxes(Generic[T]):
    """Sandboxes that wait for their first use. All methods run in one event loop, and `close` ends the sandboxes.

    Args:
        start: function that starts a sandbox for an owner.
        end: function that ends a started sandbox.
        box: function that returns the sandbox in a result of `start`, or None if the sandbox has ended.
    """

    def __init__(
        self,
        start: Callable[[SandboxOptions, str], Awaitable[T]],
        end: Callable[[T], Awaitable[object]],
        box: Callable[[T], ChannelSandbox | None],
    ) -> None:
        self._start, self._end, self._box = start, end, box
        self._entries: list[_Entry[T]] = []
        self._refused: dict[str, SandboxOptions] = {}
        """For each owner, the options of a start that has failed. `prepare` does not try these options again until
        `take` is called, i.e. until the owner's next cell."""
        self._wanted: dict[str, tuple[SandboxOptions, int, float]] = {}
        """Arguments of the newest call of `prepare` for each owner."""
        self._one_start = asyncio.Lock()
        self._ending: set[asyncio.Task[None]] = set()
        self._watch: asyncio.Task[None] | None = None

    def count(self, owner: str = "") -> int:
        """Return the number of prepared sandboxes of an owner, including those that are starting."""
        return sum(entry.owner == owner and not self._has_ended(entry) for entry in self._entries)

    def prepare(self, options: SandboxOptions, count: int, seconds: float, owner: str = "") -> None:
        """Start sandboxes in the background until the owner has `count` prepared sandboxes with these options.

        The owner's other prepared sandboxes end. A failed start is only logged, because the next cell then starts a
        sandbox itself, and reports the error.

        Args:
            options: options of the sandboxes. With some options, no sandbox is prepared; see `why_not_prepared`.
            count: number of sandboxes.
            seconds: seconds after which an unused sandbox ends.
            owner: owner of the sandboxes, e.g. the id of a kernel.
        """
        fitting = [e for e in self._entries if e.fits(owner, options) and not self._has_ended(e)]
        refused = "The newest start has failed." if self._refused.get(owner) == options else ""
        if reason := why_not_prepared(options) or refused:
            logger.debug("No sandbox is prepared: %s", reason)
            count = 0
        for entry in [entry for entry in self._entries if entry.owner == owner]:
            if entry not in fitting[:count]:
                self._drop(entry)
        self._wanted[owner] = options, count, seconds
        for _ in range(count - len(fitting)):
            if _is_memory_low():
                break
            start = asyncio.create_task(self._start_one(options, owner))
            expires = start.get_loop().time() + seconds
            self._entries.append(_Entry(owner, options, _surroundings(options), expires, start))
        if self._entries and self._watch is None:
            self._watch = asyncio.create_task(self._check_regularly())

    async def take(self, options: SandboxOptions, owner: str = "", *, clone: bool = False) -> T | None:
        """Return the oldest prepared sandbox with these options, or None if no prepared sandbox can be used.

        The sandbox then belongs to the caller. If its start is still in progress, this call waits for the start. The
        owner's prepared sandboxes with other options end, because the next cells probably need the new options too.

        `clone` is True if a fork needs a second sandbox like a running sandbox. `options` must then name the isolation
        of the running sandbox, and not `auto`. Prepared sandboxes with other options do not end. The next sandbox is
        prepared after `REPEAT_SECONDS`. Otherwise it would be prepared after the next cell, but forks also happen
        between cells.
        """
        self._refused.pop(owner, None)
        for entry in [entry for entry in self._entries if entry.owner == owner]:
            if entry not in self._entries:  # taken by another caller meanwhile
                continue
            if not entry.fits(owner, options, clone=clone):
                if not clone:
                    self._drop(entry)
                continue
            self._entries.remove(entry)
            try:
                prepared = await entry.start
                if await self._is_usable(prepared, options, clone=clone):
                    if clone:
                        entry.start.get_loop().call_later(REPEAT_SECONDS, self._repeat, owner)
                    return prepared
            except Exception as error:  # noqa: BLE001 - whatever failed, an ordinary start follows
                logger.info("A prepared sandbox cannot be used: %s", error)
            except BaseException:
                self._end_later(entry)
                raise
            self._end_later(entry)
        return None

    async def end_oldest(self) -> None:
        """End the oldest prepared sandbox of all owners, to make room for a sandbox that is needed now."""
        for entry in self._entries:
            if not self._has_ended(entry):
                # unlike `await`, `asyncio.wait` does not cancel the task if this coroutine is cancelled
                await asyncio.wait({self._drop(entry)})
                return

    async def close(self) -> None:
        """End all prepared sandboxes, and wait until they have ended."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()
        self._wanted.clear()
        for entry in [*self._entries]:
            self._drop(entry)
        if tasks := {*self._ending, *([watch] if watch else [])}:
            await asyncio.wait(tasks)

    async def _start_one(self, options: SandboxOptions, owner: str) -> T:
        async with self._one_start:  # one at a time, because the user may be working on this machine
            try:
                return await self._start(options, owner)
            except (SandboxError, OSError, ValueError) as error:
                logger.info("No sandbox could be prepared: %s", error)
                self._refused[owner] = options
                raise

    def _repeat(self, owner: str) -> None:
        if wanted := self._wanted.get(owner):
            self.prepare(*wanted, owner)

    async def _is_usable(self, prepared: T, options: SandboxOptions, *, clone: bool) -> bool:
        box = self._box(prepared)
        if box is None or box.lost or (clone and box.protection.isolation != options.isolation):
            return False
        async with asyncio.timeout(ANSWER_TIMEOUT):
            _, up_to_date = await asyncio.gather(
                box.list_files(box.directories.root, depth=1, limit=1), is_up_to_date(box, options)
            )
            return up_to_date

    def _drop(self, entry: _Entry[T]) -> asyncio.Task[None]:
        self._entries.remove(entry)
        return self._end_later(entry)

    def _end_later(self, entry: _Entry[T]) -> asyncio.Task[None]:
        task = asyncio.create_task(self._end_entry(entry))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        return task

    async def _end_entry(self, entry: _Entry[T]) -> None:
        entry.start.cancel()
        await asyncio.wait({entry.start})
        if entry.start.cancelled() or entry.start.exception():
            return
        try:
            await self._end(entry.start.result())
        except (SandboxError, OSError) as error:
            logger.warning("A prepared sandbox did not end cleanly: %s", error)

    async def _check_regularly(self) -> None:
        while self._entries:
            await asyncio.sleep(CHECK_INTERVAL)
            low, now = _is_memory_low(), asyncio.get_running_loop().time()
            for entry in [*self._entries]:
                if low or now >= entry.expires or self._has_ended(entry):
                    self._drop(entry)
        self._watch = None

    def _has_ended(self, entry: _Entry[T]) -> bool:
        if not entry.start.done():
            return False
        if entry.start.cancelled() or entry.start.exception():
            return True
        box = self._box(entry.start.result())
        return box is None or box.lost is not None


def why_not_prepared(options: SandboxOptions) -> str:
    """Return a sentence: the reason why no sandbox with these options is prepared. Empty if one can be prepared."""
    if not isolates(options.isolation or "auto"):
        return f"The isolation {options.isolation!r} has no engine whose start takes time."
    if options.secrets:
        return "Secrets are read when a sandbox starts, and may change until a cell needs the sandbox."
    return ""


def available_memory() -> int | None:
    """Return the bytes of memory that this process can still use. None if the system does not report memory."""
    limits = [memory_left()]
    with contextlib.suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                limits.append(int(line.split()[1]) * 1024)
    return min((limit for limit in limits if limit is not None), default=None)


def _is_memory_low() -> bool:
    free = available_memory()
    return free is not None and free < MIN_FREE_BYTES


def _surroundings(options: SandboxOptions) -> object:
    """Return all facts that affect a start, except the options: the version of the CA bundle, and `_VARIABLES`."""
    bundle = None
    if options.ca_bundle is not None:
        with contextlib.suppress(OSError):
            found = options.ca_bundle.stat()
            bundle = found.st_mtime_ns, found.st_size, found.st_ino
    return bundle, [os.environ.get(name) for name in _VARIABLES]
