"""A second store of checkpoints, with the least a store needs: dictionaries in memory, and a mark in the folder."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from llm_sandbox_nb.own_folder import check_folder, is_file
from llm_sandbox_nb.sandbox.contract import Checkpoint
from llm_sandbox_nb.sandbox.errors import HistoryError
from llm_sandbox_nb.sandbox.history.checkpoint_store import CheckpointStore, ContentWriter
from llm_sandbox_nb.sandbox.history.manifest import Entry, Manifest, apply_delta, digests
from llm_sandbox_nb.sandbox.limits import HISTORY_LIMIT

MARK = "memory-store"


@dataclass
class Kept:
    """Content of one store, which a store on a disk has in its folder."""

    checkpoints: dict[str, Checkpoint] = field(default_factory=dict)
    manifests: dict[str, Manifest] = field(default_factory=dict)
    shells: dict[str, bytes | None] = field(default_factory=dict)
    pieces: dict[bytes, bytes] = field(default_factory=dict)
    image: dict[str, tuple[Entry | None, bool]] = field(default_factory=dict)
    dropped: set[str] = field(default_factory=set)


KEPT: dict[Path, Kept] = {}
WRITTEN: set[Path] = set()
"""Folders that are open for writing."""


class MemoryWriter:
    def __init__(self) -> None:
        self.pieces: dict[bytes, bytes] = {}

    @property
    def size(self) -> int:
        return sum(map(len, self.pieces.values()))

    def add(self, *parts: bytes | memoryview, known: Callable[[bytes], object] = lambda _: None) -> bytes:
        data = b"".join(parts)
        digest = hashlib.sha256(data).digest()
        if known(digest) is None:
            self.pieces[digest] = data
        return digest

    def length(self, digest: bytes) -> int | None:
        return len(self.pieces[digest]) if digest in self.pieces else None

    def discard(self) -> None:
        self.pieces.clear()


class MemoryStore(CheckpointStore):
    def __init__(self, folder: Path, *, limit: int = HISTORY_LIMIT, readonly: bool = False) -> None:
        self.folder, self.limit, self._readonly = folder, limit, readonly
        self._open = False
        if readonly and not self.holds(folder):
            raise HistoryError(f"There is no history in {folder}; give the folder of a run that kept one.")
        if not readonly:
            if folder in WRITTEN:
                raise HistoryError(f"The history in {folder} is in use by another sandbox.")
            folder.mkdir(parents=True, exist_ok=True)
            check_folder(folder)
            if not self.holds(folder):
                KEPT[folder] = Kept()
                (folder / MARK).touch()
            WRITTEN.add(folder)
            self._open = True
        self._kept = KEPT[folder]

    @staticmethod
    def holds(folder: Path) -> bool:
        return is_file(folder.parent, f"{folder.name}/{MARK}")

    @staticmethod
    def is_in_use(folder: Path) -> bool:
        return folder in WRITTEN

    def close(self) -> None:
        if self._open:
            self._open = False
            WRITTEN.remove(self.folder)

    def checkpoints(self) -> list[Checkpoint]:
        return list(self._kept.checkpoints.values())

    def checkpoint(self, id: str) -> Checkpoint:
        if id in self._kept.dropped:
            raise HistoryError(f"The checkpoint {id} was dropped to keep the history within its size limit.")
        if id not in self._kept.checkpoints:
            raise HistoryError(f"This history has no checkpoint {id!r}.")
        return self._kept.checkpoints[id]

    def manifest(self, id: str) -> Manifest:
        self.checkpoint(id)
        return dict(self._kept.manifests[id])

    def shell(self, id: str) -> bytes | None:
        self.checkpoint(id)
        return self._kept.shells[id]

    def length(self, digest: bytes) -> int | None:
        data = self._kept.pieces.get(digest)
        return None if data is None else len(data)

    def content(self, digest: bytes) -> bytes:
        if digest not in self._kept.pieces:
            raise HistoryError("The content of this file was not kept.")
        return self._kept.pieces[digest]

    @property
    def size(self) -> int:
        return sum(map(len, self._kept.pieces.values()))

    @property
    def dropped(self) -> int:
        return len(self._kept.dropped)

    def writer(self) -> MemoryWriter:
        return MemoryWriter()

    def commit(
        self,
        checkpoint: Checkpoint,
        changed: Mapping[str, Entry | None],
        shell: bytes | None,
        content: ContentWriter,
        pinned: Iterable[str] = (),
        manifest: dict[str, Entry] | None = None,
    ) -> None:
        assert isinstance(content, MemoryWriter)
        kept = self._kept
        before = {} if checkpoint.parent is None else self.manifest(checkpoint.parent)
        kept.pieces |= content.pieces
        kept.manifests[checkpoint.id] = apply_delta(before, changed)
        kept.shells[checkpoint.id] = shell
        kept.checkpoints[checkpoint.id] = checkpoint
        for id in [id for id in kept.checkpoints if id not in {*pinned, checkpoint.id}]:
            if self.size <= self.limit:
                break
            self._drop(id)

    def _drop(self, id: str) -> None:
        kept = self._kept
        gone = kept.checkpoints.pop(id)
        del kept.manifests[id], kept.shells[id]
        kept.dropped.add(id)
        for other in kept.checkpoints.values():
            if other.parent == id:
                kept.checkpoints[other.id] = replace(other, parent=gone.parent)
        manifests = [*kept.manifests.values(), {path: one for path, (one, _) in kept.image.items() if one}]
        used = set().union(*(digests(manifest.values()) for manifest in manifests))
        kept.pieces = {digest: data for digest, data in kept.pieces.items() if digest in used}

    def image_entry(self, path: str) -> tuple[Entry | None, bool] | None:
        return self._kept.image.get(path)

    def image_names(self, folder: str) -> list[str]:
        start = folder.rstrip("/") + "/"
        return [
            path
            for path, (entry, _) in self._kept.image.items()
            if entry is not None
            and path.startswith(start)
            and path != start
            and "/" not in path[len(start) :]
        ]

    def learn_image(self, entries: Mapping[str, tuple[Entry | None, bool]], content: ContentWriter) -> None:
        assert isinstance(content, MemoryWriter)
        self._kept.pieces |= content.pieces
        for path, (entry, listed) in entries.items():
            self._kept.image[path] = (entry, listed or self._kept.image.get(path, (None, False))[1])

    def continue_in(self, folder: Path) -> None:
        if self.holds(folder):
            raise HistoryError(f"{folder} holds a history already; give another folder.")
        folder.mkdir(parents=True, exist_ok=True)
        kept = self._kept
        KEPT[folder] = Kept(*(one.copy() for one in vars(kept).values()))
        (folder / MARK).touch()
