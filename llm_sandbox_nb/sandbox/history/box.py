"""The part of the sandbox contract that is about history, the same for every sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import posixpath
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from llm_sandbox_nb.sandbox.contract import Changes, FileEntry, Protection, Sandbox
from llm_sandbox_nb.sandbox.errors import SandboxError
from llm_sandbox_nb.sandbox.history.compare import compare, listing
from llm_sandbox_nb.sandbox.history.entry import FILE, FOLDER, Entry
from llm_sandbox_nb.sandbox.history.image import Image
from llm_sandbox_nb.sandbox.history.keeper import Beginning, HistoryKeeper
from llm_sandbox_nb.sandbox.history.link import Link
from llm_sandbox_nb.sandbox.history.restoring import restore
from llm_sandbox_nb.sandbox.history.types import History, Restored
from llm_sandbox_nb.sandbox.history.walk import resolve

READ_CAP = 1024**3
"""Bytes that `read_file` takes when its caller sets no limit; hostile files are endless."""
_SCOPES = {
    "docker": "It covers every file in the container, but not running processes.",
    "bubblewrap": "It covers every folder that can be written in the sandbox, but not running processes.",
    "process": "It covers the working directory only, and no running processes: the rest of what commands can "
    "change here is your own machine's.",
}
_T = TypeVar("_T")

logger = logging.getLogger(__name__)


def new_keeper(protection: Protection, root: str) -> HistoryKeeper:
    """The history of a sandbox to come."""
    isolation = protection.isolation
    return HistoryKeeper(_SCOPES[isolation], root if isolation == "process" else "/")


class KeptSandbox(Sandbox):
    """A sandbox with a history. The rest says how it is reached, and how another like it is started."""

    keeper: HistoryKeeper

    @abstractmethod
    async def reach(self) -> Link:
        """A living connection to the executor. Raises SandboxLostError."""

    @abstractmethod
    async def sibling(self) -> KeptSandbox:
        """A new sandbox of the same options. Raises SandboxError when there can be none."""

    @abstractmethod
    async def again(self, use: Callable[[Link], Awaitable[_T]]) -> _T:
        """Do something that may be done twice; once more when the connection breaks meanwhile."""

    @property
    def history(self) -> History:
        """See `Sandbox.history`."""
        return self.keeper

    async def keep_history(
        self, folder: Path | str, *, continue_from: Path | str | None = None, limit: int | None = None
    ) -> None:
        """See `Sandbox.keep_history`."""
        source = None if continue_from is None else Path(continue_from)
        await self.keeper.keep(Path(folder), source, limit)

    async def checkpoint(self) -> str:
        """See `Sandbox.checkpoint`."""
        return await self.again(self.keeper.take)

    async def changes(self, a: str | None = None, b: str | None = None) -> Changes:
        """See `Sandbox.changes`."""
        if a is None and b is None:
            return await self.changes_now()
        for id in (a, b):
            if id is not None:
                self.keeper.checkpoint(id)
        now = await self.checkpoint() if a is None or b is None else ""
        store = self.keeper.needed(a or now)
        before, after = self.keeper.manifest(a or now), self.keeper.manifest(b or now)
        async with _Pristine(self) as pristine:
            image = Image(store, pristine.reach)
            try:
                before = await image.expand(before, after, content=False)
                after = await image.expand(after, before, content=False)
            except SandboxError:
                logger.info("what the image has is not known", exc_info=True)  # then it counts as new
        return await asyncio.to_thread(compare, store, before, after)

    async def restore(self, checkpoint: str) -> Restored:
        """See `Sandbox.restore`."""
        async with _Pristine(self) as pristine:
            return await restore(self.keeper, self.reach, checkpoint, pristine.reach)

    async def fork(self, checkpoint: str, *, history: Path | str | None = None) -> KeptSandbox:
        """See `Sandbox.fork`."""
        store = self.keeper.needed(checkpoint)
        store.checkpoint(checkpoint)
        folder = None if history is None else Path(history)
        # What another history has is read while the sandbox starts.
        beginning = asyncio.ensure_future(asyncio.to_thread(Beginning.of, store, folder))
        new: KeptSandbox | None = None
        try:
            new = await self.sibling()
            new.keeper.begin_with(await asyncio.shield(beginning))
            restored = await restore(new.keeper, new.reach, checkpoint, new.reach)
            if restored.problems:
                raise SandboxError(f"The fork could not be made: {restored.problems[0]}")
        except BaseException:
            await asyncio.shield(_undo(new, beginning))
            raise
        return new

    async def read_file(self, path: str, *, limit: int | None = None, at: str | None = None) -> bytes:
        """See `Sandbox.read_file`; without a `limit`, 1 GiB is one."""
        cap = READ_CAP if limit is None else limit
        if at is None:
            return await self.read_file_now(path, cap)
        manifest = self.keeper.manifest(at)
        place = resolve(manifest, self._absolute(path))
        entry = manifest.get(place) or Entry(FILE, base=True)
        if entry.base and entry.type != FOLDER:
            entry = await self._image_file(place)
        if entry.type == FOLDER:
            raise IsADirectoryError(21, "Is a directory", path)
        if entry.type != FILE:
            raise PermissionError(1, "Operation not permitted", path)
        return await asyncio.to_thread(self.keeper.needed(at).read, entry, cap)

    async def _image_file(self, path: str) -> Entry:
        """What the image has at a path, with its content."""
        async with _Pristine(self) as pristine:
            store = self.keeper.store
            assert store
            return await Image(store, pristine.reach).entry(path)

    async def list_files(
        self, path: str, *, depth: int = 1, limit: int = 10_000, at: str | None = None
    ) -> list[FileEntry]:
        """See `Sandbox.list_files`."""
        if at is None:
            return await self.list_files_now(path, depth=depth, limit=limit)
        manifest = self.keeper.manifest(at)
        place = resolve(manifest, self._absolute(path))
        entry = manifest.get(place)
        if entry is not None and (entry.type != FOLDER or not entry.base):
            return await asyncio.to_thread(listing, manifest, place, depth, limit)
        async with _Pristine(self) as pristine:
            return await (await pristine.reach()).list_files(place, depth=depth, limit=limit)

    def _absolute(self, path: str) -> str:
        return posixpath.normpath(posixpath.join(self.directories.root, path))

    @abstractmethod
    async def changes_now(self) -> Changes:
        """`changes` without checkpoints."""

    @abstractmethod
    async def read_file_now(self, path: str, limit: int) -> bytes:
        """`read_file` of the file as it is now."""

    @abstractmethod
    async def list_files_now(self, path: str, *, depth: int, limit: int) -> list[FileEntry]:
        """`list_files` as they are now."""


async def _undo(new: KeptSandbox | None, beginning: Awaitable[Beginning]) -> None:
    """Of a fork that could not be made nothing stays."""
    if new is not None:
        await new.close()
    with contextlib.suppress(SandboxError, OSError):
        await asyncio.to_thread((await beginning).discard)


class _Pristine:
    """A sandbox in which nothing was done, started when it is first needed, ended at the end."""

    def __init__(self, box: KeptSandbox) -> None:
        self._box = box
        self._started: KeptSandbox | None = None

    async def reach(self) -> Link:
        """It."""
        if self._started is None:
            try:
                self._started = await self._box.sibling()
            except SandboxError as error:
                raise SandboxError(
                    f"Files of the image are needed, and a second sandbox to take them from cannot be had: {error}"
                ) from error
        return await self._started.reach()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._started is not None:
            await asyncio.shield(self._started.close())
