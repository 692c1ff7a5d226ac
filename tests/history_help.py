"""Histories made by hand: entries, stores with checkpoints, and what an executor would say."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from llm_sandbox_nb.sandbox.contract import Checkpoint
from llm_sandbox_nb.sandbox.history.manifest import FILE, FOLDER, Chunk, Entry, delta
from llm_sandbox_nb.sandbox.history.pack_store import PackStore
from llm_sandbox_nb.sandbox.history.packs import PackFolder, PackWriter
from llm_sandbox_nb.sandbox.history.snapshot import HEAD, SnapshotReader
from llm_sandbox_nb.sandbox.protocol.frames import MAX_PAYLOAD, Kind

ROOT = {"/": Entry(FOLDER, 0o755)}


def file_entry(data: bytes, mtime_ns: int = 1, piece: int = 1024) -> Entry:
    """An entry of a file, in pieces of `piece` bytes."""
    chunks = tuple(
        Chunk(at, len(data[at : at + piece]), hashlib.sha256(data[at : at + piece]).digest())
        for at in range(0, len(data), piece)
    )
    return Entry(FILE, 0o644, mtime_ns=mtime_ns, size=len(data), chunks=chunks)


def keep(
    store: PackStore,
    id: str,
    files: Mapping[str, bytes],
    parent: str | None = None,
    extra: Mapping[str, Entry] | None = None,
    pinned: Iterable[str] = (),
) -> None:
    writer = store.writer()
    manifest = dict(ROOT)
    for path, data in files.items():
        manifest[path] = file_entry(data)
        for at in range(0, len(data), 1024):
            writer.add(data[at : at + 1024], known=store.length)
    manifest |= extra or {}
    before = store.manifest(parent) if parent is not None else {}
    checkpoint = Checkpoint(id, parent, time.time(), size=writer.size)
    store.commit(checkpoint, delta(before, manifest), id.encode(), writer, pinned)


def files_at(store: PackStore, id: str) -> dict[str, bytes]:
    return {
        path: store.read(entry, 2**30) for path, entry in store.manifest(id).items() if entry.type == FILE
    }


def record(kind: str, value: object) -> bytes:
    data = value if isinstance(value, bytes) else json.dumps(value).encode("ascii")
    return HEAD.pack(ord(kind), len(data)) + data


def folder_row(path: str) -> list[object]:
    return [path, "d", 0, 0o755, 0, 0, 1, 0, None, None, None]


def file_row(path: str, *pieces: bytes, size: int | None = None) -> list[object]:
    at, detail = 0, []
    for piece in pieces:
        detail.append([at, len(piece), hashlib.sha256(piece).hexdigest()])
        at += len(piece)
    return [path, "f", 0, 0o644, 0, 0, 1, at if size is None else size, detail, None, None]


def feed(incoming: SnapshotReader, stream: bytes) -> None:
    for at in range(0, len(stream), MAX_PAYLOAD):
        incoming.take(Kind.STDOUT, stream[at : at + MAX_PAYLOAD])


def incoming(folder: Path, limit: int = 2**24, below: str = "/") -> SnapshotReader:
    """Takes a stream; nothing is known of before."""
    folder.mkdir(exist_ok=True)
    return SnapshotReader(PackWriter(PackFolder(folder.parent, folder.name)), lambda _: None, limit, below)


def sorted_paths(paths: Iterable[str]) -> list[str]:
    return sorted(paths, key=os.fsencode)
