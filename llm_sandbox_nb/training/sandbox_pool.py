"""Sandboxes for rollouts: opened once, and reset by their checkpoint between two rollouts."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from llm_sandbox_nb.agent.run_record import disown_files
from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.sandbox.errors import SandboxError
from llm_sandbox_nb.sandbox.leftover_folders import make_owned_folder, remove_left_folders

logger = logging.getLogger(__name__)
_PREFIX = "llm-sandbox-nb-pool-"
_LOCK = "lock"
OpenSandbox = Callable[[], Awaitable[Sandbox]]


@dataclass
class _Place:
    """A sandbox with the checkpoint it is reset to; `history` holds that checkpoint and no other."""

    box: Sandbox
    history: Path
    fresh: str


@dataclass
class SandboxPool:
    """At most `size` sandboxes, opened when they are needed. `async with` closes them.

    A sandbox that died, or that could not be reset whole, is closed, and another takes its place.
    """

    open: OpenSandbox
    size: int
    folder: Path | None = None
    """Where the histories go, which its owner removes; without one, a folder of the pool's own."""
    opened: int = 0
    """How many were opened."""
    resets: int = 0
    """How often one was reset."""
    _idle: list[_Place] = field(default_factory=list)
    _all: list[_Place] = field(default_factory=list)
    _room: asyncio.Semaphore = field(init=False)
    _lock: int | None = None

    def __post_init__(self) -> None:
        self._room = asyncio.Semaphore(self.size)

    async def __aenter__(self) -> Self:
        if self.folder is None:
            remove_left_folders(_PREFIX, _LOCK)
            self.folder, self._lock = make_owned_folder(_PREFIX, _LOCK)
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
    async def lease(self) -> AsyncIterator[Sandbox]:
        """A sandbox with the files that it was opened with, for one rollout.

        Raises:
            SandboxError: none can be opened.
        """
        async with self._room:
            place = self._idle.pop() if self._idle else await self._new()
            try:
                yield place.box
            except BaseException:
                await self._close(place)  # whatever happened in it, the next rollout gets another
                raise
            await self._reset(place)

    async def _new(self) -> _Place:
        box = await self.open()
        self.opened += 1
        assert self.folder is not None
        history = self.folder / str(self.opened)
        try:
            await box.keep_history(history)
            place = _Place(box, history, await box.checkpoint())
        except BaseException:
            await box.close()
            raise
        self._all.append(place)
        return place

    async def _reset(self, place: _Place) -> None:
        """Make its files what they were, and let it forget the checkpoints of the rollout, which are in its record."""
        try:
            restored = await place.box.restore(place.fresh)
            await place.box.keep_history(place.history)
            disown_files(place.box)
        except (SandboxError, OSError) as error:
            logger.info("A sandbox could not be reset and is replaced: %s", error)
            await self._close(place)
            return
        self.resets += 1
        if restored.problems:
            logger.info("A sandbox could not be reset whole and is replaced: %s", restored.problems[0])
            await self._close(place)
            return
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
        shutil.rmtree(place.history, ignore_errors=True)
