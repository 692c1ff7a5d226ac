"""What the image has where a manifest only says that it is as in the image: asked once, then kept."""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, Protocol

from llm_sandbox_nb.sandbox.contract import FileEntry
from llm_sandbox_nb.sandbox.errors import SandboxError
from llm_sandbox_nb.sandbox.frames import ProtocolError
from llm_sandbox_nb.sandbox.history.entry import FILE, FOLDER, Entry, Manifest, parent
from llm_sandbox_nb.sandbox.history.incoming import Incoming
from llm_sandbox_nb.sandbox.history.packs import PackWriter
from llm_sandbox_nb.sandbox.history.store import HistoryStore
from llm_sandbox_nb.sandbox.outcome import raise_error

DESCRIBE_TIMEOUT = 600.0
NAMES_MOST = 1_000_000


class Pristine(Protocol):
    """A sandbox in which nothing was done."""

    async def list_files(self, path: str, *, depth: int = 1, limit: int = 10_000) -> list[FileEntry]:
        """See `Sandbox.list_files`."""
        ...

    async def ask_files(
        self, params: Mapping[str, Any], sink: Callable[[int, bytes], None], timeout: float
    ) -> dict[str, Any]:
        """A request about the files."""
        ...


ENGINES_FILES = ("/etc/hosts", "/etc/hostname", "/etc/resolv.conf")
"""What an engine makes for each container: of no other sandbox can it be had."""


class Image:
    """What the image has. `pristine` gives a sandbox of it, when something must be asked."""

    def __init__(self, store: HistoryStore, pristine: Callable[[], Awaitable[Pristine]]) -> None:
        self._store = store
        self._pristine = pristine

    async def expand(self, manifest: Manifest, other: Manifest, *, content: bool) -> dict[str, Entry]:
        """The manifest with the entries of the image wherever `other` has something else.

        Afterwards the two can be told apart path by path: what is `base` in both is the same, what is `base` in
        one is not, and with `content` all that `other` lacks is named with its content.

        Raises:
            SandboxError: the image cannot be asked.
        """
        found = dict(manifest)
        for path in sorted(path for path, entry in other.items() if entry.open_folder):
            if not _open(manifest, path) and _in_image(manifest, path):
                await self._open_folder(path, found, other)
        if content:
            lacking = {path for path, entry in found.items() if entry.base and not _in_image(other, path)}
            files = [path for path in lacking if found[path].type != FOLDER]
            found |= _present(await self._entries(files))
            for path in lacking.difference(files):
                found |= await self._whole(path)
        return found

    async def learn_own(self, found: Manifest) -> None:
        """Note what is this sandbox's own among what counts as its image's, before anything changes it."""
        own = [path for path in ENGINES_FILES if path in found and found[path].base]
        if own:
            await self._learn(own, content=True)

    async def entry(self, path: str) -> Entry:
        """What the image has at a path, with its content.

        Raises:
            FileNotFoundError: nothing.
            SandboxError: the image cannot be asked.
        """
        found = (await self._entries([path]))[path]
        if found is None:
            raise FileNotFoundError(2, "No such file or directory", path)
        return found

    async def _open_folder(self, folder: str, found: dict[str, Entry], other: Manifest) -> None:
        """Name what the image has in a folder; all but what `other` says to be as in the image, as it is."""
        if folder not in found:
            return
        if found[folder].type != FOLDER:
            return
        names = await self._names(folder)
        same = {path for path in names if (entry := other.get(path)) is not None and entry.base}
        found.update((path, other[path]) for path in same)
        told = await self._entries([folder, *(path for path in names if path not in same)], content=False)
        found.update((path, replace(entry, base=path != folder)) for path, entry in _present(told).items())

    async def _whole(self, folder: str) -> dict[str, Entry]:
        """All that the image has from a folder on, with its content."""
        known = await asyncio.to_thread(self._tree, folder)
        if known is None:
            writer = self._store.writer()
            asked = await self._ask([folder], content=True, below=True, writer=writer)
            entries: dict[str, tuple[Entry | None, bool]] = {p: (e, True) for p, e in asked.items()}
            await asyncio.to_thread(self._store.learn_image, entries, writer)
            known = _present(asked)
        return known

    def _tree(self, folder: str) -> dict[str, Entry] | None:
        """The same as far as it was asked before; None when something was not."""
        found: dict[str, Entry] = {}
        todo = [folder]
        while todo:
            path = todo.pop()
            known = self._store.image_entry(path)
            if known is None or known[0] is None or _lacks(known[0]):
                return None
            found[path] = known[0]
            if known[0].type == FOLDER:
                if not known[1]:
                    return None
                todo += self._store.image_names(path)
        return found

    async def _names(self, folder: str) -> list[str]:
        known = await asyncio.to_thread(self._store.image_entry, folder)
        if known is None or not known[1]:
            box = await self._pristine()
            listed = await box.list_files(folder, limit=NAMES_MOST)
            names = [one.path for one in listed if parent(one.path) == folder]
            entries: dict[str, tuple[Entry | None, bool]] = {
                path: (entry, False) for path, entry in (await self._ask(names, content=False)).items()
            }
            here = (await self._ask([folder], content=False))[folder]
            entries[folder] = (here, True)
            await asyncio.to_thread(self._store.learn_image, entries, self._store.writer())
        return await asyncio.to_thread(self._store.image_names, folder)

    async def _entries(self, paths: Collection[str], *, content: bool = True) -> dict[str, Entry | None]:
        """What the image has at paths; with the content of files."""
        known = {path: await asyncio.to_thread(self._store.image_entry, path) for path in paths}
        missing = [path for path, told in known.items() if told is None or (content and _lacks(told[0]))]
        if missing:
            known |= await self._learn(missing, content=content)
        return {path: told[0] for path, told in known.items() if told is not None}

    async def _learn(self, paths: Collection[str], *, content: bool) -> dict[str, tuple[Entry | None, bool]]:
        """Ask about paths, and keep the answers."""
        writer = self._store.writer()
        asked = await self._ask(paths, content=content, writer=writer)
        entries: dict[str, tuple[Entry | None, bool]] = {
            path: (entry, False) for path, entry in asked.items()
        }
        await asyncio.to_thread(self._store.learn_image, entries, writer)
        return entries

    async def _ask(
        self,
        paths: Collection[str],
        *,
        content: bool,
        below: bool = False,
        writer: PackWriter | None = None,
    ) -> dict[str, Entry | None]:
        if not paths:
            return {}
        box = await self._pristine()
        incoming = Incoming(writer or self._store.writer(), self._store.length, self._store.limit)
        params = {
            "op": "describe",
            "paths": sorted(paths),
            "content": content,
            "below": below,
            "timeout": DESCRIBE_TIMEOUT,
        }
        answer = await box.ask_files(params, incoming.take, DESCRIBE_TIMEOUT)
        raise_error(answer, "")
        try:
            told = await asyncio.to_thread(incoming.told)
        except ProtocolError as error:
            raise SandboxError(f"The image cannot be asked about its files: {error}; try again.") from error
        return {**dict.fromkeys(paths), **told.entries}


def _open(manifest: Manifest, path: str) -> bool:
    entry = manifest.get(path)
    return entry is not None and entry.open_folder


def _in_image(manifest: Manifest, path: str) -> bool:
    """Whether a path is, or lies below, what is as in the image."""
    while path != "/":
        entry = manifest.get(path)
        if entry is not None:
            return entry.base
        path = posixpath.dirname(path)
    root = manifest.get("/")
    return root is not None and root.base


def _present(entries: Mapping[str, Entry | None]) -> dict[str, Entry]:
    return {path: entry for path, entry in entries.items() if entry is not None}


def _lacks(entry: Entry | None) -> bool:
    return entry is not None and entry.type == FILE and entry.chunks is None
