"""Differences between two checkpoints in a form that people read: paths, texts, and descriptions of other changes."""

from __future__ import annotations

import dataclasses
import os
import stat
from collections.abc import Collection
from typing import Literal

from llm_sandbox_nb.sandbox.contract import Changes, FileChange, FileEntry
from llm_sandbox_nb.sandbox.errors import HistoryError
from llm_sandbox_nb.sandbox.history.checkpoint_store import CheckpointStore
from llm_sandbox_nb.sandbox.history.manifest import (
    FILE,
    FOLDER,
    LINK,
    Entry,
    Manifest,
    delta,
    parent,
    parents,
)

MAX_TEXT_BYTES = 256 * 1024
"""Maximum bytes of a file whose text is part of a comparison."""
MAX_TEXTS_BYTES = 16 * 1024 * 1024
MAX_FILES = 2000
_KIND_NAMES = {FILE: "file", FOLDER: "folder", LINK: "link"}
Kind = Literal["added", "modified", "deleted"]


def compare(store: CheckpointStore, before: Manifest, after: Manifest) -> Changes:
    """Return the differences between two manifests, with at most `MAX_FILES` paths.

    A folder is listed if it was added or deleted, or if its rights or owner have changed. Call `ImageFiles.expand` for
    both manifests first. Otherwise the result may list unchanged files of the image as new.
    """
    differing = sorted(differing_paths(before, after), key=os.fsencode)
    room = MAX_TEXTS_BYTES
    found = []
    for path in differing[:MAX_FILES]:
        change = _change(store, path, before.get(path), after.get(path), room)
        room -= len(change.before or b"") + len(change.after or b"")
        found.append(change)
    incomplete = ""
    if len(differing) > MAX_FILES:
        incomplete = f"{len(differing) - MAX_FILES} more paths differ."
    return Changes(tuple(found), incomplete)


def differing_paths(before: Manifest, after: Manifest, changed: Collection[str] | None = None) -> list[str]:
    """Return the paths whose difference matters to a person. A changed time of a folder does not.

    Args:
        changed: the paths in the result of `delta(before, after)`, if the caller knows them.
    """
    if changed is None:
        changed = delta(before, after)
    image_folders = {
        parent(path)
        for path in changed
        for manifest in (before, after)
        if (entry := manifest.get(path)) is not None and entry.base
    }
    return [path for path in changed if _differs(before, after, path, path in image_folders)]


def differing_contents(before: Manifest, after: Manifest) -> list[str]:
    """Return `differing_paths` without the files of which only the modification time differs."""
    return [
        path for path in differing_paths(before, after) if not _touched(before.get(path), after.get(path))
    ]


def _touched(old: Entry | None, new: Entry | None) -> bool:
    """Return True if only the modification time differs. Return False if the content is not known."""
    if old is None or new is None or (new.type == FILE and new.chunks is None):
        return False
    return dataclasses.replace(old, mtime_ns=new.mtime_ns) == new


def _differs(before: Manifest, after: Manifest, path: str, in_image: bool) -> bool:
    old, new = before.get(path), after.get(path)
    if old is not None and new is not None:
        if old.type == new.type == FOLDER:
            return (old.mode, old.uid, old.gid) != (new.mode, new.uid, new.gid)
        return not old.alike(new)
    known, other = (old, after) if new is None else (new, before)
    # Only one manifest lists this path. If its entry comes from the image, and the other manifest has a folder above it
    # that is as in the image, then the other manifest has the same entry without listing it.
    as_image = known is not None and (known.base or (known.type == FOLDER and in_image))
    return not (as_image and in_base_folder(other, path))


def in_base_folder(manifest: Manifest, path: str) -> bool:
    """Return True if the nearest listed folder above a path is as in the image, with everything below it."""
    for folder in parents(path):
        entry = manifest.get(folder)
        if entry is not None:
            return entry.base
    return False


def _change(store: CheckpointStore, path: str, old: Entry | None, new: Entry | None, room: int) -> FileChange:
    kind: Kind = "added" if old is None else "deleted" if new is None else "modified"
    shown = new or old
    assert shown
    texts = [_text(store, entry, room) for entry in (old, new)]
    if kind == "modified" and None in texts:
        texts = [None, None]
    return FileChange(path, kind, shown.size, texts[0], texts[1], _detail(old, new))


def _text(store: CheckpointStore, entry: Entry | None, room: int) -> bytes | None:
    """Return the content of a text file with at most `room` bytes. None for a larger file or any other entry."""
    if entry is None or entry.type != FILE or entry.chunks is None or entry.size > min(MAX_TEXT_BYTES, room):
        return None
    try:
        data = store.read(entry, MAX_TEXT_BYTES)
    except (HistoryError, OSError):
        return None
    return None if b"\0" in data else data


def _detail(old: Entry | None, new: Entry | None) -> str:
    """Describe all differences between two entries except the content. Empty if there are none."""
    if old is None or new is None:
        entry = new or old
        return "" if entry is None or entry.type == FILE else _described(entry)
    if old.type != new.type:
        return f"{_described(old)} became {_described(new)}"
    facts = []
    if old.type == LINK and not (old.base or new.base) and old.target != new.target:
        facts.append(f"leads to {new.target!r}, led to {old.target!r}")
    if old.mode != new.mode:
        facts.append(f"mode {old.mode:o} became {new.mode:o}")
    if (old.uid, old.gid) != (new.uid, new.gid):
        facts.append(f"owner {old.uid}:{old.gid} became {new.uid}:{new.gid}")
    if not (old.base or new.base) and old.xattrs != new.xattrs:
        facts.append("its extended attributes differ")
    return "; ".join(facts)


def _described(entry: Entry) -> str:
    if entry.type == LINK and not entry.base:
        return f"a link to {entry.target!r}"
    return f"a {_KIND_NAMES.get(entry.type, 'special file')}"


def listing(manifest: Manifest, path: str, depth: int, limit: int) -> list[FileEntry]:
    """Return the entries below a path of a checkpoint, in the form of the result of `Sandbox.list_files`.

    Raises:
        FileNotFoundError: if the path did not exist.
        HistoryError: if the path was in a folder of the image, whose files the history does not hold.
    """
    here = manifest.get(path)
    if here is None and path != "/":
        if in_base_folder(manifest, path):
            raise HistoryError(
                f"{path} was as in the image, which the history does not hold; list it in a new sandbox."
            )
        raise FileNotFoundError(2, "No such file or directory", path)
    if here is not None and here.type != FOLDER:
        return [_file_entry(path, here)]
    start = path.rstrip("/") + "/"
    found = [
        _file_entry(name, entry)
        for name, entry in manifest.items()
        if name.startswith(start) and name != "/" and name.count("/", len(start)) < depth
    ]
    return sorted(found, key=lambda entry: entry.path)[:limit]


def _file_entry(path: str, entry: Entry) -> FileEntry:
    kinds: dict[str, Literal["file", "directory", "link"]] = {FILE: "file", FOLDER: "directory", LINK: "link"}
    return FileEntry(
        path, kinds.get(entry.type, "other"), entry.size, stat.S_IMODE(entry.mode), entry.mtime_ns / 1e9
    )
