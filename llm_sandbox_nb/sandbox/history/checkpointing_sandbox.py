"""The base class of all sandboxes of this package, with checkpoints, restores, forks and comparisons of files."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import posixpath
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from llm_sandbox_nb.sandbox.contract import Changes, FileEntry, Restored, Sandbox
from llm_sandbox_nb.sandbox.errors import SandboxError
from llm_sandbox_nb.sandbox.history.diff import compare, listing
from llm_sandbox_nb.sandbox.history.image_files import ImageFiles
from llm_sandbox_nb.sandbox.history.manifest import FILE, FOLDER, LINK, MAX_LINKS, Entry, resolve
from llm_sandbox_nb.sandbox.history.restore import restore
from llm_sandbox_nb.sandbox.history.sandbox_history import HistoryCopy, SandboxHistory
from llm_sandbox_nb.sandbox.protocol.channel import ExecutorConnection

MAX_READ_BYTES = 1024**3
"""Default limit of `read_file` in bytes. There must be a limit, because a hostile file may be endless."""
_T = TypeVar("_T")

logger = logging.getLogger(__name__)


class CheckpointingSandbox(Sandbox):
    """Sandbox with a history. Subclasses connect to the executor, and start clones.

    A clone is a new sandbox with the same options, so its files are those of the image.
    """

    history: SandboxHistory

    @abstractmethod
    async def connect(self) -> ExecutorConnection:
        """Return a living connection to the executor. Raises SandboxLostError."""

    @abstractmethod
    async def clone(self) -> CheckpointingSandbox:
        """Start a new sandbox with the same options. Raises SandboxError if that fails."""

    @abstractmethod
    async def retrying(self, use: Callable[[ExecutorConnection], Awaitable[_T]]) -> _T:
        """Call `use` with a connection, and return its result. If the connection breaks, reconnect and repeat the call.

        So a second call of `use` must do no harm.
        """

    async def keep_history(
        self, folder: Path | str, *, continue_from: Path | str | None = None, limit: int | None = None
    ) -> None:
        source = None if continue_from is None else Path(continue_from)
        await self.history.keep(Path(folder), source, limit)

    async def checkpoint(self, *, keep: Collection[str] = ()) -> str:
        return await self.retrying(lambda connection: self.history.take(connection, keep))

    async def changes(self, a: str | None = None, b: str | None = None) -> Changes:
        if a is None and b is None:
            return await self.changes_now()
        for id in (a, b):
            if id is not None:
                self.history.checkpoint(id)
        now = await self.checkpoint(keep=[a or b or ""]) if a is None or b is None else ""
        store = self.history.store_with(a or now)
        before, after = self.history.manifest(a or now), self.history.manifest(b or now)
        async with _LazyClone(self) as clone:
            image = ImageFiles(store, clone.connect)
            try:
                before = await image.expand(before, after, content=False)
                after = await image.expand(after, before, content=False)
            except SandboxError:
                # In this case, `compare` lists unchanged files of the image as new.
                logger.info("the files of the image cannot be read", exc_info=True)
        return await asyncio.to_thread(compare, store, before, after)

    async def restore(self, checkpoint: str) -> Restored:
        async with _LazyClone(self) as clone:
            return await restore(self.history, self.connect, checkpoint, clone.connect)

    async def fork(self, checkpoint: str, *, history: Path | str | None = None) -> CheckpointingSandbox:
        store = self.history.store_with(checkpoint)
        store.checkpoint(checkpoint)
        folder = None if history is None else Path(history)
        # The history is copied while the sandbox starts.
        copy = asyncio.ensure_future(asyncio.to_thread(HistoryCopy.of, store, folder))
        new: CheckpointingSandbox | None = None
        with store.sharing():
            try:
                new = await self.clone()
                new.history.continue_with(await asyncio.shield(copy))
                restored = await restore(new.history, new.connect, checkpoint, new.connect)
                if restored.problems:
                    raise SandboxError(f"The fork could not be made: {restored.problems[0]}")
            except BaseException:
                await asyncio.shield(_undo_fork(new, copy))
                raise
        return new

    async def read_file(self, path: str, *, limit: int | None = None, at: str | None = None) -> bytes:
        """See `Sandbox.read_file`; the default `limit` is 1 GiB."""
        cap = MAX_READ_BYTES if limit is None else limit
        if at is None:
            return await self.read_file_now(path, cap)
        async with _LazyClone(self) as clone:
            resolved, entry = await self._entry_at(at, path, clone)
            if entry.base and entry.type == FILE:
                entry = await ImageFiles(self.history.store_with(at), clone.connect).entry(resolved)
        if entry.type == FOLDER:
            raise IsADirectoryError(21, "Is a directory", path)
        if entry.type != FILE:
            raise PermissionError(1, "Operation not permitted", path)
        return await asyncio.to_thread(self.history.store_with(at).read, entry, cap)

    async def list_files(
        self, path: str, *, depth: int = 1, limit: int = 10_000, at: str | None = None
    ) -> list[FileEntry]:
        if at is None:
            return await self.list_files_now(path, depth=depth, limit=limit)
        async with _LazyClone(self) as clone:
            resolved, entry = await self._entry_at(at, path, clone)
            manifest = self.history.manifest(at)
            if resolved in manifest and (entry.type != FOLDER or not entry.base):
                return await asyncio.to_thread(listing, manifest, resolved, depth, limit)
            return await (await clone.connect()).list_files(resolved, depth=depth, limit=limit)

    async def _entry_at(self, at: str, path: str, clone: _LazyClone) -> tuple[str, Entry]:
        """Return the path to which `path` leads at a checkpoint, and the entry there. Links are followed.

        An unchanged entry of the image may lack its content.
        """
        manifest, images = self.history.manifest(at), ImageFiles(self.history.store_with(at), clone.connect)
        where = self._absolute(path)
        for _ in range(MAX_LINKS):
            resolved, names = resolve(manifest, where)
            entry = manifest.get(resolved)
            if entry is None or (entry.base and entry.type == LINK):
                entry = await images.entry(resolved)
            if entry.type != LINK:
                return resolved, entry
            where = posixpath.normpath(posixpath.join(posixpath.dirname(resolved), entry.target, *names))
        raise OSError(40, "Too many levels of symbolic links", path)

    def _absolute(self, path: str) -> str:
        return posixpath.normpath(posixpath.join(self.directories.root, path))

    @abstractmethod
    async def changes_now(self) -> Changes:
        """See `Sandbox.changes` without arguments."""

    @abstractmethod
    async def read_file_now(self, path: str, limit: int) -> bytes:
        """Return the present content of a file. `limit` is in bytes."""

    @abstractmethod
    async def list_files_now(self, path: str, *, depth: int, limit: int) -> list[FileEntry]:
        """See `Sandbox.list_files`; list the present files."""


async def _undo_fork(new: CheckpointingSandbox | None, copy: Awaitable[HistoryCopy]) -> None:
    """Remove everything that a failed fork has made."""
    if new is not None:
        await new.close()
    with contextlib.suppress(SandboxError, OSError):
        await asyncio.to_thread((await copy).undo)


class _LazyClone:
    """Context with a clone, from which files of the image can be read. The first `connect` starts the clone."""

    def __init__(self, box: CheckpointingSandbox) -> None:
        self._box = box
        self._started: CheckpointingSandbox | None = None

    async def connect(self) -> ExecutorConnection:
        """Return a connection to the clone. Raises SandboxError."""
        if self._started is None:
            try:
                self._started = await self._box.clone()
            except SandboxError as error:
                raise SandboxError(
                    f"Files of the image are needed, but a second sandbox to read them from cannot be started: {error}"
                ) from error
        return await self._started.connect()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._started is not None:
            await asyncio.shield(self._started.close())
