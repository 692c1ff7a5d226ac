"""Manifests, which list all files of a checkpoint, and the differences between manifests.

A manifest has an entry for each path of a file, folder or link. The content of a file is a list of pieces (chunks),
each with a digest that names the piece in a store.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

FILE, FOLDER, LINK, FIFO, CHAR, BLOCK = "f", "d", "l", "p", "c", "b"
TYPES = frozenset((FILE, FOLDER, LINK, FIFO, CHAR, BLOCK))

MAX_LINKS = 40


class Chunk(NamedTuple):
    """Piece of a file's content: position and length in bytes, and SHA-256. Ranges without a chunk are holes."""

    offset: int
    length: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Entry:
    """Entry at a path: type, rights, modification time and content, as `executor/README.md` describes."""

    type: str
    mode: int = 0
    uid: int = 0
    gid: int = 0
    mtime_ns: int = 0
    size: int = 0
    target: str = ""
    """Target of a link."""
    chunks: tuple[Chunk, ...] | None = None
    """Content of a file. None if the content was not stored."""
    group: str = ""
    """Path of the first name, if the file has several names (hard links). Empty for other files."""
    device: tuple[int, int] = (0, 0)
    xattrs: str = ""
    """Extended attributes as canonical JSON. Empty if the entry has no attributes."""
    base: bool = False
    """True if the entry is as in the image: a file or link with unchanged content, or a folder in which everything is
    unchanged. A manifest then has only the metadata of the entry, and does not list the content of the folder."""

    @property
    def open_folder(self) -> bool:
        """True for a folder whose content the manifest lists."""
        return self.type == FOLDER and not self.base

    def alike(self, other: Entry) -> bool:
        """Return True if all fields are equal. If the content of one is unknown (`base`), compare only the metadata."""
        if self.base or other.base:
            return self._metadata() == other._metadata()
        return self == other

    def _metadata(self) -> tuple[object, ...]:
        size = self.size if self.type == FILE else 0
        return self.type, self.mode, self.uid, self.gid, self.mtime_ns, size

    def row(self, path: str) -> list[object]:
        """Return the entry at `path` as a row: a list of eleven JSON values, for the executor."""
        detail: object = None
        if self.type == FILE and self.chunks is not None:
            detail = [[at, size, digest.hex()] for at, size, digest in self.chunks]
        elif self.type == LINK:
            detail = self.target
        elif self.type in (CHAR, BLOCK):
            detail = list(self.device)
        xattrs = json.loads(self.xattrs) if self.xattrs else None
        facts = [self.mode, self.uid, self.gid, self.mtime_ns, self.size]
        return [path, self.type, int(self.base), *facts, detail, self.group or None, xattrs]

    def encode(self) -> bytes:
        """Return the row without the path, as JSON. The index stores these bytes."""
        return json.dumps(self.row("")[1:], separators=(",", ":")).encode("ascii")

    @classmethod
    def of_row(
        cls,
        kind: str,
        base: int,
        mode: int,
        uid: int,
        gid: int,
        mtime_ns: int,
        size: int,
        detail: object,
        link: str | None,
        xattrs: object,
    ) -> Entry:
        """Make an entry from the values of a row without the path. `is_entry` must have checked them."""
        entry = cls(kind, mode, uid, gid, mtime_ns, size, group=link or "", base=bool(base))
        if xattrs:
            entry = replace(entry, xattrs=json.dumps(xattrs, sort_keys=True, separators=(",", ":")))
        if isinstance(detail, str):
            return replace(entry, target=detail)
        if not isinstance(detail, list):
            return entry
        if kind == FILE:
            return replace(
                entry, chunks=tuple(Chunk(at, n, bytes.fromhex(digest)) for at, n, digest in detail)
            )
        return replace(entry, device=(detail[0], detail[1]))


Manifest = Mapping[str, Entry]
"""All entries of a checkpoint, by path. A folder with `base` is listed without its content."""


def delta(before: Manifest, after: Manifest) -> dict[str, Entry | None]:
    """Return the changes from `before` to `after`: for each path that differs, the new entry, or None if deleted."""
    changed: dict[str, Entry | None] = {
        path: entry
        for path, entry in after.items()
        if (old := before.get(path)) is not entry and old != entry
    }
    changed.update(dict.fromkeys(before.keys() - after.keys()))
    return changed


def apply_delta(before: Manifest, changed: Mapping[str, Entry | None]) -> dict[str, Entry]:
    """Return a copy of `before` with the changes `changed`, which is a result of `delta`."""
    after = dict(before)
    for path, entry in changed.items():
        if entry is None:
            after.pop(path, None)
        else:
            after[path] = entry
    return after


def own_files(manifest: Manifest, others: Iterable[tuple[Manifest, Manifest]]) -> dict[str, Entry]:
    """Return `manifest` without the changes that the pairs in `others` describe.

    Args:
        manifest: manifest after all changes.
        others: pairs of manifests before and after changes by other people or programs, the oldest pair first. If a
            path has changed again after its pair, its entry stays as in `manifest`.
    """
    own = dict(manifest)
    for before, after in reversed(list(others)):
        for path, entry in delta(before, after).items():
            if own.get(path) != entry:
                continue
            if path in before:
                own[path] = before[path]
            else:
                own.pop(path, None)
    return own


def parent(path: str) -> str:
    """Return the folder that contains a path. For the root, return the root."""
    return path.rpartition("/")[0] or "/"


def parents(path: str) -> Iterator[str]:
    """Yield the folders above a path, the nearest first."""
    while path != "/":
        path = parent(path)
        yield path


def digests(entries: Iterable[Entry]) -> set[bytes]:
    """Return the digests of all pieces of content that the entries have."""
    return {chunk.digest for entry in entries for chunk in entry.chunks or ()}


def moved(manifest: Manifest, below: str) -> Manifest:
    """Return `manifest` with all paths moved: the top folder, which contains all entries, becomes `below`.

    Return `manifest` unchanged if `below` is `/`, or if `manifest` already has the path `below`.
    """
    if below == "/" or not manifest or below in manifest:
        return manifest
    root = min(manifest, key=len)

    def move(path: str) -> str:
        return below + path[len(root) :] if path else ""

    return {move(path): replace(entry, group=move(entry.group)) for path, entry in manifest.items()}


def resolve(manifest: Manifest, path: str) -> tuple[str, list[str]]:
    """Return the path to which an absolute path leads, and the names that follow it. Usually no name follows.

    Follow links, except unchanged links of the image, because the manifest does not have their targets. If the path
    contains such a link, return the path of the link and the names after it.

    Raises:
        FileNotFoundError: if the path leads nowhere.
        NotADirectoryError: if a part of the path is not a folder.
        OSError: if links lead in a circle.
    """
    todo = [name for name in path.split("/") if name]
    todo.reverse()
    here, links = "/", 0
    while todo:
        name = todo.pop()
        above = manifest.get(here)
        if name == "..":
            here = posixpath.dirname(here)
            continue
        here = posixpath.join(here, name)
        entry = manifest.get(here)
        if entry is None and above is not None:
            if above.base and above.type == "d":
                return posixpath.normpath(posixpath.join(here, *reversed(todo))), []
            if above.type != "d":
                raise NotADirectoryError(20, "Not a directory", path)
            raise FileNotFoundError(2, "No such file or directory", path)
        if entry is not None and entry.type == LINK:
            if entry.base:
                return here, todo[::-1]
            links += 1
            if links > MAX_LINKS:
                raise OSError(40, "Too many levels of symbolic links", path)
            here = "/" if entry.target.startswith("/") else posixpath.dirname(here)
            todo += [part for part in reversed(entry.target.split("/")) if part not in ("", ".")]
    if here not in manifest:
        raise FileNotFoundError(2, "No such file or directory", path)
    return here, []
