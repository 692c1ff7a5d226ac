"""Files of a run at a checkpoint, read from the run's history on disk and never from its sandbox."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from llm_sandbox_nb.sandbox.errors import HistoryError, OutputLimitExceededError
from llm_sandbox_nb.sandbox.history.diff import differing_contents
from llm_sandbox_nb.sandbox.history.manifest import FILE, FOLDER, LINK, Entry, parent, parents
from llm_sandbox_nb.sandbox.history.stores import is_history, open_store
from llm_sandbox_nb.trajectory.run_folder import HISTORY
from llm_sandbox_nb.trajectory.unified_diff import COMPARED_BYTES, unified

Json = dict[str, Any]
MAX_LISTED_ENTRIES = 2_000
"""Maximum number of folder entries, or of changes, in one answer."""
DIFF_CHARACTERS = 256 * 1024
_READER_THREADS = 2
"""Maximum number of threads that read histories. More threads would delay kernels and pages."""
_WORKPLACE = "/testbed"
_KINDS = {FILE: "file", FOLDER: "directory", LINK: "link"}
_AS_IN_IMAGE = "is as in the sandbox's image, so the history keeps no copy of it; read it in the sandbox."


class HistoryReader:
    """A history, open for reading in threads."""

    def __init__(self, folder: Path) -> None:
        """Open the history. Raises HistoryError if `folder` has none."""
        self._store = open_store(folder, readonly=True)

    def close(self) -> None:
        self._store.close()

    def checkpoints(self) -> list[Json]:
        """Return the kept checkpoints, oldest first."""
        return [
            {
                "id": checkpoint.id,
                "time": checkpoint.time,
                "files": checkpoint.files,
                "size": checkpoint.size,
                "incomplete": checkpoint.incomplete,
            }
            for checkpoint in self._store.checkpoints()
        ]

    def folder(self, checkpoint: str, path: str) -> Json:
        """Return the entries of a folder (by default the run's working directory), sorted by path.

        Raises:
            HistoryError: if the checkpoint is missing.
            FileNotFoundError, NotADirectoryError: if the path is missing, or not a folder.
        """
        manifest = self._store.manifest(checkpoint)
        place = _absolute(path) if path else _workplace(manifest)
        entry = self._entry(manifest, place)
        if entry.type != FOLDER:
            raise NotADirectoryError(f"{_shown(place)} was not a folder at this checkpoint.")
        found = self._children(manifest, place, entry)
        return {
            "path": _shown(place),
            "base": found is None,
            "total": len(found or ()),
            "files": [
                _described(name, entry) for name, entry in sorted((found or {}).items())[:MAX_LISTED_ENTRIES]
            ],
        }

    def read(self, checkpoint: str, path: str, limit: int) -> bytes:
        """Return a file's content.

        Raises:
            HistoryError: if the checkpoint is missing, or the content was not kept.
            FileNotFoundError, IsADirectoryError, PermissionError: if the path is missing, a folder, or a special file.
            OutputLimitExceededError: if the file has more than `limit` bytes.
        """
        place = _absolute(path)
        return self._content(place, self._entry(self._store.manifest(checkpoint), place), limit)

    def changes(self, before: str, after: str) -> Json:
        """Return the paths that differ between two checkpoints, sorted. Paths that differ only in times are left out.

        Raises:
            HistoryError: if a checkpoint is missing.
        """
        old, new = self._store.manifest(before), self._store.manifest(after)
        found = sorted(differing_contents(old, new))
        notes = {self._store.checkpoint(id).incomplete for id in (before, after)}
        return {
            "total": len(found),
            "incomplete": " ".join(sorted(filter(None, notes))),
            "changes": [
                {
                    "path": _shown(path),
                    "kind": "added" if path not in old else "modified" if path in new else "deleted",
                    "size": (new.get(path) or old[path]).size,
                }
                for path in found[:MAX_LISTED_ENTRIES]
            ],
        }

    def diff(self, before: str, after: str, path: str) -> Json:
        """Return a unified diff of a file. If there is no diff, `note` says why.

        Raises:
            HistoryError: if a checkpoint is missing, or the file's content was not kept.
            FileNotFoundError: if the file is in neither checkpoint.
        """
        place = _absolute(path)
        sides = [self._store.manifest(checkpoint).get(place) for checkpoint in (before, after)]
        if not any(sides):
            raise FileNotFoundError(f"There was no {_shown(place)} at either checkpoint.")
        if any(entry is not None and entry.type != FILE for entry in sides):
            return {"diff": None, "note": _metadata_change(*sides)}
        try:
            old, new = (
                b"" if entry is None else self._content(place, entry, COMPARED_BYTES) for entry in sides
            )
            texts = old.decode("utf-8"), new.decode("utf-8")
        except OutputLimitExceededError:
            return {"diff": None, "note": "too large for a diff"}
        except UnicodeDecodeError:
            return {"diff": None, "note": "binary"}
        if len(old) + len(new) > COMPARED_BYTES:
            return {"diff": None, "note": "too large for a diff"}
        if "\0" in texts[0] or "\0" in texts[1]:
            return {"diff": None, "note": "binary"}
        diff, note = unified(_shown(place).lstrip("/"), *texts, DIFF_CHARACTERS)
        return {"diff": diff, "note": note or (_metadata_change(*sides) if not diff else "")}

    def _entry(self, manifest: Mapping[str, Entry], place: str) -> Entry:
        entry = manifest.get(place)
        if entry is None and place != "/":
            above = next((manifest[folder] for folder in parents(place) if folder in manifest), None)
            if above is not None and above.base:
                known = self._store.image_entry(place)
                if known is None:
                    raise HistoryError(f"{_shown(place)} {_AS_IN_IMAGE}")
                entry = known[0]
        if entry is None and place == "/":
            entry = Entry(FOLDER)
        if entry is None:
            raise FileNotFoundError(f"There was no {_shown(place)} at this checkpoint.")
        return entry

    def _children(self, manifest: Mapping[str, Entry], place: str, entry: Entry) -> dict[str, Entry] | None:
        """Return the entries of a folder by path, or None.

        None means that the folder is as in the sandbox's image, and that the history does not list its entries.
        """
        if not entry.base:
            return {path: entry for path, entry in manifest.items() if path != "/" and parent(path) == place}
        known = self._store.image_entry(place)
        if known is None or not known[1]:
            return None
        children = {path: self._store.image_entry(path) for path in self._store.image_names(place)}
        return {
            path: entry[0] for path, entry in children.items() if entry is not None and entry[0] is not None
        }

    def _content(self, place: str, entry: Entry, limit: int) -> bytes:
        if entry.type == FOLDER:
            raise IsADirectoryError(f"{_shown(place)} was a folder at this checkpoint.")
        if entry.type != FILE:
            raise PermissionError(f"{_shown(place)} was not an ordinary file at this checkpoint.")
        if entry.base and entry.chunks is None:
            known = self._store.image_entry(place)
            if known is None or known[0] is None or known[0].chunks is None:
                raise HistoryError(f"{_shown(place)} {_AS_IN_IMAGE}")
            entry = known[0]
        return self._store.read(entry, limit)


class HistoryReaders:
    """Cache of open histories. The histories that were read last stay open."""

    def __init__(self, most: int = 4) -> None:
        self.turn = asyncio.Semaphore(_READER_THREADS)
        """Semaphore that limits concurrent reads. Acquire it in the server's event loop before a read."""
        self._most = most
        self._mutex = threading.Lock()
        self._open: OrderedDict[tuple[str, int], HistoryReader] = OrderedDict()
        self._in_use: dict[HistoryReader, int] = {}

    @contextmanager
    def reading(self, run_folder: Path) -> Iterator[HistoryReader]:
        """Yield the history of the run in this folder. Raises HistoryError if the run has none."""
        reader = self._take(run_folder / HISTORY)
        try:
            yield reader
        finally:
            with self._mutex:
                self._in_use[reader] -= 1
                if not self._in_use[reader]:
                    del self._in_use[reader]
                idle = [key for key, reader in self._open.items() if reader not in self._in_use]
                for key in idle[: max(0, len(self._open) - self._most)]:
                    self._open.pop(key).close()

    def close(self) -> None:
        with self._mutex:
            for reader in self._open.values():
                reader.close()
            self._open.clear()

    def _take(self, folder: Path) -> HistoryReader:
        if not is_history(folder):
            raise HistoryError(
                "This run keeps no history of its files, so files of earlier steps cannot be read."
            )
        key = str(folder), folder.stat().st_ino
        with self._mutex:
            reader = self._open.get(key) or HistoryReader(folder)
            self._open[key] = reader
            self._open.move_to_end(key)
            self._in_use[reader] = self._in_use.get(reader, 0) + 1
            return reader


def _metadata_change(before: Entry | None, after: Entry | None) -> str:
    """Describe in a few words the difference between two entries that have no text diff."""
    if before is None or after is None:
        one = before or after
        kind = _KINDS.get(one.type, "special file") if one else ""
        return f"a {kind}" + (f" to {_shown(one.target)}" if one and one.target else "")
    if before.type != after.type:
        return (
            f"a {_KINDS.get(before.type, 'special file')} became a {_KINDS.get(after.type, 'special file')}"
        )
    if before.target != after.target:
        return f"leads to {_shown(after.target)}; led to {_shown(before.target)} before"
    if before.mode != after.mode:
        return f"mode {before.mode & 0o7777:o} became {after.mode & 0o7777:o}"
    if (before.uid, before.gid) != (after.uid, after.gid):
        return f"owner {before.uid}:{before.gid} became {after.uid}:{after.gid}"
    return "the same content"


def _described(path: str, entry: Entry) -> Json:
    return {
        "path": _shown(path),
        "kind": _KINDS.get(entry.type, "other"),
        "size": entry.size,
        "mode": entry.mode,
        "mtime": entry.mtime_ns / 1e9,
        "base": entry.base,
        "target": _shown(entry.target) if entry.type == LINK else None,
    }


def _workplace(manifest: Mapping[str, Entry]) -> str:
    """Return the folder to show first: `/testbed`.

    If the manifest lacks `/testbed`, return the shortest path among the folders whose content the manifest lists.
    """
    if _WORKPLACE in manifest:
        return _WORKPLACE
    tops = [path for path, entry in manifest.items() if entry.open_folder and parent(path) not in manifest]
    return min(tops, key=len, default="/")


def _absolute(path: str) -> str:
    """Return an absolute path in the form that manifests use. Raises ValueError for an invalid path."""
    if not path.startswith("/") or "\0" in path or len(path) > 4096:
        raise ValueError("'path' must be an absolute path in the sandbox, such as /testbed/notes.txt.")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ValueError("'path' must not have '..' in it.")
    return "/" + "/".join(parts)


def _shown(path: str) -> str:
    from llm_sandbox_nb.trajectory.events import clean_text

    return str(clean_text(path))
