"""Pool of sandboxes for many tasks. A sandbox is opened once, and reset to its first checkpoint between two tasks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from llm_sandbox_nb.agent.run_record import disown_files
from llm_sandbox_nb.sandbox.client import ChannelSandbox
from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.sandbox.errors import SandboxError
from llm_sandbox_nb.sandbox.fresh_state import FreshState, why_not_renewable
from llm_sandbox_nb.sandbox.leftover_folders import make_owned_folder, remove_left_folders

logger = logging.getLogger(__name__)
_PREFIX = "llm-sandbox-nb-pool-"
_LOCK = "lock"
OpenSandbox = Callable[[], Awaitable[Sandbox]]


@dataclass(eq=False)
class _Place:
    """Sandbox with a fresh state, to which the sandbox is reset. Without a fresh state, a sandbox is used only once."""

    box: Sandbox
    kind: Hashable
    fresh: FreshState | None = None


@dataclass
class SandboxPool:
    """Pool of sandboxes for consecutive tasks. `async with` closes the sandboxes.

    After a task, the pool resets the sandbox to its fresh state. If `FreshState` finds no difference from this state,
    another task can use the sandbox. Otherwise, the pool closes the sandbox.

    Args:
        size: maximum number of tasks that have a sandbox at the same time. None stands for no limit.
        folder: folder for the checkpoints of the sandboxes. The caller removes this folder. If None, the pool makes a
            folder, and removes it at the end.
        reuse: False if each task gets a new sandbox.
    """

    size: int | None = None
    folder: Path | None = None
    reuse: bool = True
    opened: int = 0
    """Number of sandboxes that were opened."""
    reused: int = 0
    """Number of times that a used sandbox was used for another task."""
    not_reused: Counter[str] = field(default_factory=Counter)
    """Number of sandboxes that could not be used again, by reason."""
    _idle: list[_Place] = field(default_factory=list)
    _all: list[_Place] = field(default_factory=list)
    _leased: int = 0
    _most_leased: int = 0
    """Largest number of simultaneous tasks so far, which is also the maximum number of open sandboxes."""
    _lock: int | None = None

    def __post_init__(self) -> None:
        self._room = contextlib.nullcontext() if self.size is None else asyncio.Semaphore(self.size)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await asyncio.gather(*(self._close(place) for place in list(self._all)))
        finally:
            if self._lock is not None and self.folder is not None:
                shutil.rmtree(self.folder, ignore_errors=True)
                os.close(self._lock)
                self.folder = self._lock = None

    @asynccontextmanager
    async def lease(self, open: OpenSandbox, kind: Hashable = None) -> AsyncIterator[Sandbox]:
        """Lease a sandbox for one task.

        Args:
            open: function that opens a new sandbox if no idle sandbox has this `kind`.
            kind: key of sandboxes that are opened in the same way. Only a sandbox with this key is reused.

        Raises:
            SandboxError: if no sandbox can be opened.
        """
        async with self._room:
            self._leased += 1
            self._most_leased = max(self._most_leased, self._leased)
            try:
                place = await self._take(open, kind)
                try:
                    yield place.box
                except BaseException:
                    await self._close(place)  # the state of the sandbox is unknown, so it is not used again
                    raise
                await self._put_back(place)
            finally:
                self._leased -= 1

    async def _take(self, open: OpenSandbox, kind: Hashable) -> _Place:
        for place in reversed(self._idle):
            if place.kind == kind:
                self._idle.remove(place)
                self.reused += 1
                return place
        if self._idle and len(self._all) >= self._most_leased:
            await self._close(self._idle[0])  # the least recently used sandbox
        return await self._new(open, kind)

    async def _new(self, open: OpenSandbox, kind: Hashable) -> _Place:
        place = _Place(await open(), kind)
        self.opened += 1
        self._all.append(place)
        if not self.reuse:
            return place
        if reason := why_not_renewable(place.box):
            logger.info("A sandbox will serve one task only: %s", reason)
            self.not_reused[reason] += 1
            return place
        assert isinstance(place.box, ChannelSandbox)
        try:
            if self.folder is None:
                remove_left_folders(_PREFIX, _LOCK)
                self.folder, self._lock = make_owned_folder(_PREFIX, _LOCK)
            place.fresh = await FreshState.of(place.box, self.folder / str(self.opened))
        except BaseException:
            await self._close(place)
            raise
        return place

    async def _put_back(self, place: _Place) -> None:
        """Reset a sandbox to its fresh state. Only the record of the task keeps the task's checkpoints."""
        if place.fresh is None:
            await self._close(place)
            return
        assert isinstance(place.box, ChannelSandbox)
        try:
            problem = await place.fresh.put_back(place.box)
        except (SandboxError, OSError) as error:
            problem = str(error)
        except BaseException:
            await self._close(place)
            raise
        if problem:
            logger.info("A sandbox is not used again: %s", problem)
            self.not_reused[problem] += 1
            await self._close(place)
            return
        disown_files(place.box)
        place.box.renewals += 1
        self._idle.append(place)

    async def _close(self, place: _Place) -> None:
        if place in self._all:
            self._all.remove(place)
        if place in self._idle:
            self._idle.remove(place)
        try:
            await place.box.close()
        except (SandboxError, OSError) as error:
            logger.warning("Closing the sandbox %s failed: %s", place.box.id, error)
        if place.fresh is not None:
            await asyncio.to_thread(shutil.rmtree, place.fresh.history, ignore_errors=True)
