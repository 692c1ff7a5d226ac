"""Manifests: what is at each path of a checkpoint, and what differs between two."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

FILE, FOLDER, LINK, FIFO, CHAR, BLOCK = "f", "d", "l", "p", "c", "b"
TYPES = frozenset((FILE, FOLDER, LINK, FIFO, CHAR, BLOCK))

_LINKS_MOST = 40


class Chunk(NamedTuple):
    """A piece of a file's content; what no chunk covers is a hole."""

    offset: int
    length: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Entry:
    """What is at a path: type, rights, times and content, as `executor/README.md` describes it.

    A `base` entry is as in the image: a file or link with its content, a folder with all that is below it. Only its
    metadata is known.
    """

    type: str
    mode: int = 0
    uid: int = 0
    gid: int = 0
    mtime_ns: int = 0
    size: int = 0
    target: str = ""
    """Where a link leads."""
    chunks: tuple[Chunk, ...] | None = None
    """A file's content; None when it was not kept."""
    group: str = ""
    """The first name of a file that has several; empty for others."""
    device: tuple[int, int] = (0, 0)
    xattrs: str = ""
    """Extended attributes as canonical JSON; empty when there are none."""
    base: bool = False

    @property
    def open_folder(self) -> bool:
        """Whether it is a folder whose content the manifest names."""
        return self.type == FOLDER and not self.base

    def alike(self, other: Entry) -> bool:
        """Whether both are the same as far as is known: of an entry of the image only metadata is known."""
        if self.base or other.base:
            return self._metadata() == other._metadata()
        return self == other

    def _metadata(self) -> tuple[object, ...]:
        size = self.size if self.type == FILE else 0
        return self.type, self.mode, self.uid, self.gid, self.mtime_ns, size

    def row(self, path: str) -> list[object]:
        """As it travels to the executor."""
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
        """As it is kept in the index."""
        return json.dumps(self.row("")[1:], separators=(",", ":")).encode("ascii")

    @classmethod
    def decode(cls, data: bytes) -> Entry:
        """What `encode` made."""
        return cls.of_row(*json.loads(data))

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
        """From the fields of a row after its path, which were checked."""
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
"""All entries of a checkpoint by path. Below a base folder, and only there, what is not named is as in the image."""


def delta(before: Manifest, after: Manifest) -> dict[str, Entry | None]:
    """What turns `before` into `after`; None for what is gone."""
    changed: dict[str, Entry | None] = {
        path: entry
        for path, entry in after.items()
        if (old := before.get(path)) is not entry and old != entry
    }
    changed.update(dict.fromkeys(before.keys() - after.keys()))
    return changed


def apply_delta(before: Manifest, changed: Mapping[str, Entry | None]) -> dict[str, Entry]:
    """The reverse of `delta`."""
    after = dict(before)
    for path, entry in changed.items():
        if entry is None:
            after.pop(path, None)
        else:
            after[path] = entry
    return after


def own_files(manifest: Manifest, others: Iterable[tuple[Manifest, Manifest]]) -> dict[str, Entry]:
    """The manifest as it would be if others had changed nothing.

    Args:
        others: pairs of manifests, oldest first, between which only others changed files. What has changed again
            since is left as it is.
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
    """The folder that a path is in; the root is in itself."""
    return path.rpartition("/")[0] or "/"


def parents(path: str) -> Iterator[str]:
    """The folders above a path, the nearest first."""
    while path != "/":
        path = parent(path)
        yield path


def digests(entries: Iterable[Entry]) -> set[bytes]:
    """Every piece of content that entries name."""
    return {chunk.digest for entry in entries for chunk in entry.chunks or ()}


def moved(manifest: Manifest, below: str) -> Manifest:
    """The manifest of a single folder, moved to another folder, `below`."""
    if below == "/" or not manifest or below in manifest:
        return manifest
    root = min(manifest, key=len)

    def move(path: str) -> str:
        return below + path[len(root) :] if path else ""

    return {move(path): replace(entry, group=move(entry.group)) for path, entry in manifest.items()}


def resolve(manifest: Manifest, path: str) -> str:
    """The path that an absolute path leads to through links. Links in folders of the image are unknown.

    Raises:
        FileNotFoundError: it leads nowhere.
        NotADirectoryError: a part of it is no folder.
        OSError: links lead in a circle.
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
                return posixpath.normpath(posixpath.join(here, *reversed(todo)))
            if above.type != "d":
                raise NotADirectoryError(20, "Not a directory", path)
            raise FileNotFoundError(2, "No such file or directory", path)
        if entry is not None and entry.type == LINK and not entry.base:
            links += 1
            if links > _LINKS_MOST:
                raise OSError(40, "Too many levels of symbolic links", path)
            here = "/" if entry.target.startswith("/") else posixpath.dirname(here)
            todo += [part for part in reversed(entry.target.split("/")) if part not in ("", ".")]
    if here not in manifest:
        raise FileNotFoundError(2, "No such file or directory", path)
    return here
