"""Files of the image. If a sandbox has not changed such a file, a manifest does not have its content.

If the content is needed, it is read from a new sandbox with the same image, and kept in the store.
"""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace

from llm_sandbox_nb.sandbox.errors import SandboxError
from llm_sandbox_nb.sandbox.history.checkpoint_store import CheckpointStore, ContentWriter
from llm_sandbox_nb.sandbox.history.manifest import FILE, FOLDER, Entry, Manifest, parent
from llm_sandbox_nb.sandbox.history.snapshot import SnapshotReader
from llm_sandbox_nb.sandbox.protocol.answers import raise_error
from llm_sandbox_nb.sandbox.protocol.channel import ExecutorConnection
from llm_sandbox_nb.sandbox.protocol.frames import ProtocolError

DESCRIBE_TIMEOUT = 600.0
MAX_NAMES = 1_000_000


ENGINE_FILES = ("/etc/hosts", "/etc/hostname", "/etc/resolv.conf")
"""Files that an engine writes for each container, so they differ between sandboxes of the same image."""


class ImageFiles:
    """Reader of an image's files. It reads a file from `store`, if possible.

    Otherwise it calls `connect` to connect to a new sandbox with the image, reads the file there, and stores it.
    """

    def __init__(self, store: CheckpointStore, connect: Callable[[], Awaitable[ExecutorConnection]]) -> None:
        self._store = store
        self._connect = connect

    async def expand(self, manifest: Manifest, other: Manifest, *, content: bool) -> dict[str, Entry]:
        """Return `manifest` in a form that can be compared with `other` path by path.

        In a manifest, a folder that is as in the image is a single entry, without its content. If `other` lists the
        content of this folder, because a part of it has changed there, the result lists the folder's content too. If
        both entries at a path then have `Entry.base`, they are equal. If only one of them has it, they differ.

        With `content`, the result also has the content of each entry that is as in the image in `manifest` but not in
        `other`.

        Raises:
            SandboxError: if the image cannot be read.
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
                found |= await self._subtree(path)
        return found

    async def learn_engine_files(self, found: Manifest) -> None:
        """Store those files that the engine wrote for this sandbox and that no command has changed.

        `found` is the manifest of the sandbox.
        """
        own = [path for path in ENGINE_FILES if path in found and found[path].base]
        if own:
            await self._learn(own, content=True)

    async def entry(self, path: str) -> Entry:
        """Return the entry at a path of the image. The entry of a file has its content.

        Raises:
            FileNotFoundError: if the image has nothing at this path.
            SandboxError: if the image cannot be read.
        """
        found = (await self._entries([path]))[path]
        if found is None:
            raise FileNotFoundError(2, "No such file or directory", path)
        return found

    async def _open_folder(self, folder: str, found: dict[str, Entry], other: Manifest) -> None:
        """Add the image's entries in a folder to `found`. Copy an entry from `other` if it is as in the image there."""
        if folder not in found or found[folder].type != FOLDER:
            return
        names = await self._names(folder)
        same = {path for path in names if (entry := other.get(path)) is not None and entry.base}
        found.update((path, other[path]) for path in same)
        read = await self._entries([folder, *(path for path in names if path not in same)], content=False)
        found.update((path, replace(entry, base=path != folder)) for path, entry in _present(read).items())

    async def _subtree(self, folder: str) -> dict[str, Entry]:
        """Return the image's entries of a folder and of everything below it, with the content of the files."""
        known = await asyncio.to_thread(self._known_subtree, folder)
        if known is None:
            writer = self._store.writer()
            found = await self._read([folder], content=True, below=True, writer=writer)
            entries: dict[str, tuple[Entry | None, bool]] = {p: (e, True) for p, e in found.items()}
            await asyncio.to_thread(self._store.learn_image, entries, writer)
            known = _present(found)
        return known

    def _known_subtree(self, folder: str) -> dict[str, Entry] | None:
        """Return the result of `_subtree` from the store. None if the store lacks a part of it."""
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
            connection = await self._connect()
            listed = await connection.list_files(folder, limit=MAX_NAMES)
            names = [entry.path for entry in listed if parent(entry.path) == folder]
            entries: dict[str, tuple[Entry | None, bool]] = {
                path: (entry, False) for path, entry in (await self._read(names, content=False)).items()
            }
            here = (await self._read([folder], content=False))[folder]
            entries[folder] = (here, True)
            await asyncio.to_thread(self._store.learn_image, entries, self._store.writer())
        return await asyncio.to_thread(self._store.image_names, folder)

    async def _entries(self, paths: Collection[str], *, content: bool = True) -> dict[str, Entry | None]:
        """Return the image's entry at each path, or None if there is none. Read only entries that the store lacks."""
        known = {path: await asyncio.to_thread(self._store.image_entry, path) for path in paths}
        missing = [path for path, row in known.items() if row is None or (content and _lacks(row[0]))]
        if missing:
            known |= await self._learn(missing, content=content)
        return {path: row[0] for path, row in known.items() if row is not None}

    async def _learn(self, paths: Collection[str], *, content: bool) -> dict[str, tuple[Entry | None, bool]]:
        """Read the entries at some paths of the image, and store them."""
        writer = self._store.writer()
        found = await self._read(paths, content=content, writer=writer)
        entries: dict[str, tuple[Entry | None, bool]] = {
            path: (entry, False) for path, entry in found.items()
        }
        await asyncio.to_thread(self._store.learn_image, entries, writer)
        return entries

    async def _read(
        self,
        paths: Collection[str],
        *,
        content: bool,
        below: bool = False,
        writer: ContentWriter | None = None,
    ) -> dict[str, Entry | None]:
        """Read the entries at some paths of the image. If that fails, discard the content that was written.

        With `below`, also read everything below the paths.
        """
        if not paths:
            return {}
        writer = writer or self._store.writer()
        reader = SnapshotReader(writer, self._store.length, self._store.limit)
        params = {
            "op": "describe",
            "paths": sorted(paths),
            "content": content,
            "below": below,
            "timeout": DESCRIBE_TIMEOUT,
        }
        try:
            connection = await self._connect()
            outcome = await connection.request_files(params, reader.take, DESCRIBE_TIMEOUT)
            raise_error(outcome, "")
            snapshot = await asyncio.to_thread(reader.parse)
        except ProtocolError as error:
            writer.discard()
            raise SandboxError(f"The files of the image cannot be read: {error}; try again.") from error
        except BaseException:
            writer.discard()
            raise
        return {**dict.fromkeys(paths), **snapshot.entries}


def _open(manifest: Manifest, path: str) -> bool:
    entry = manifest.get(path)
    return entry is not None and entry.open_folder


def _in_image(manifest: Manifest, path: str) -> bool:
    """Return True if a path is as in the image. If it is not listed, the nearest listed folder above it decides."""
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
