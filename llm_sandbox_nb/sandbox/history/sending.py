"""The body of a restore: the records of a plan, made as they are sent.

Where a file can be put into the sandbox from outside, much content goes there in one such file, the pack: passing it
through the connection, record by record, takes twice the time.
"""

from __future__ import annotations

import asyncio
import json
import logging
import struct
from collections.abc import AsyncIterator, Iterator

from llm_sandbox_nb.sandbox.errors import SandboxError
from llm_sandbox_nb.sandbox.frames import Kind, ProtocolError
from llm_sandbox_nb.sandbox.history.entry import Chunk, Entry
from llm_sandbox_nb.sandbox.history.incoming import HEAD
from llm_sandbox_nb.sandbox.history.link import Deliver
from llm_sandbox_nb.sandbox.history.plan import Plan, has_content
from llm_sandbox_nb.sandbox.history.store import HistoryStore

PACK_FROM, PACK_MOST = 2 * 1024 * 1024, 512 * 1024 * 1024
"""Bytes of content for which a pack is made: for less it takes longer, for more it takes too much of the disk."""
_READY = b"ready"
_BATCH = 512
"""Entries in one record."""
_PIECE = 512 * 1024
_OFFSET, _RANGE, _PART = struct.Struct(">Q"), struct.Struct(">QQ"), struct.Struct(">QQQ")

logger = logging.getLogger(__name__)


class RestoreBody:
    """What is sent for one restore.

    Args:
        shell: the state of the shell to bring back.
        deliver: how a file gets into the sandbox from outside, where it can.
        name: the pack's.
    """

    def __init__(
        self,
        plan: Plan,
        store: HistoryStore,
        shell: bytes | None,
        deliver: Deliver | None = None,
        name: str = "",
    ) -> None:
        self._plan = plan
        self._store = store
        self._shell = shell
        self._pieces, size = _pack(plan) if deliver else ({}, 0)
        self._size = size
        self._deliver = deliver if PACK_FROM <= size <= PACK_MOST else None
        self._name = name
        self._ready = asyncio.Event()

    @property
    def pack(self) -> str | None:
        """The name of the pack to come; None when all goes through the connection."""
        return self._name if self._deliver else None

    def take(self, kind: int, payload: bytes) -> None:
        """What the executor says before its answer: that the pack may come.

        Raises:
            ProtocolError: it was not asked.
        """
        if self._deliver is None or self._ready.is_set() or (kind, payload) != (Kind.STDOUT, _READY):
            raise ProtocolError("it sent output that nobody asked for")
        self._ready.set()

    async def pieces(self) -> AsyncIterator[bytes]:
        """All records; with a pack not before it is in its place. Content is read ahead, in a thread."""
        places = self._pieces if self._deliver and await self._delivered(self._deliver) else {}
        records = _Records(self._plan, self._store, self._shell, places).all()
        ahead = asyncio.ensure_future(asyncio.to_thread(_piece, records))
        try:
            while piece := await ahead:
                ahead = asyncio.ensure_future(asyncio.to_thread(_piece, records))
                yield piece
        finally:
            ahead.cancel()

    async def _delivered(self, deliver: Deliver) -> bool:
        await self._ready.wait()
        content = (self._store.content(digest) for digest in self._pieces)
        try:
            await deliver(self._name, self._size, content)
        except (SandboxError, OSError):
            logger.info(
                "a pack cannot be put into the sandbox; all goes through the connection", exc_info=True
            )
            return False
        return True


def _pack(plan: Plan) -> tuple[dict[bytes, int], int]:
    """Where each piece of content is in a pack with all of them, and the size of that."""
    places: dict[bytes, int] = {}
    size = 0
    for path, entry in plan.make:
        for chunk in plan.needed(path, entry):
            if chunk.digest not in places:
                places[chunk.digest] = size
                size += chunk.length
    return places, size


class _Records:
    """The records of a plan, in their order. `places` of content: see `_pack`."""

    def __init__(
        self, plan: Plan, store: HistoryStore, shell: bytes | None, places: dict[bytes, int]
    ) -> None:
        self._plan = plan
        self._store = store
        self._shell = shell
        self._places = places
        self._waiting: list[list[object]] = []

    def all(self) -> Iterator[bytes]:
        """All of them."""
        plan = self._plan
        for start in range(0, len(plan.delete), _BATCH):
            yield _record("D", _json(plan.delete[start : start + _BATCH]))
        for path, entry in plan.make:
            if has_content(path, entry):
                yield from self._flush("E")
                yield from self._content(path, entry)
            else:
                yield from self._add("E", path, entry)
        yield from self._flush("E")
        for path, entry in plan.touch:
            yield from self._add("M", path, entry)
        yield from self._flush("M")
        if self._shell is not None:
            yield _record("S", self._shell)

    def _add(self, kind: str, path: str, entry: Entry) -> Iterator[bytes]:
        self._waiting.append(entry.row(path))
        if len(self._waiting) >= _BATCH or (entry.chunks and len(entry.chunks) > _BATCH):
            yield from self._flush(kind)

    def _flush(self, kind: str) -> Iterator[bytes]:
        if self._waiting:
            rows, self._waiting = self._waiting, []
            yield _record(kind, _json(rows))

    def _content(self, path: str, entry: Entry) -> Iterator[bytes]:
        here = self._plan.patch.get(path)
        yield _record("F" if here is None else "P", _json(entry.row(path)))
        for offset, length, digest in self._plan.needed(path, entry):
            if digest in self._places:
                yield _record("K", _PART.pack(offset, self._places[digest], length))
            else:
                yield _record("W", _OFFSET.pack(offset), self._store.content(digest))
        if here is not None:
            for start, end in _new_holes(entry, here):
                yield _record("H", _RANGE.pack(start, end - start))


def _new_holes(wanted: Entry, here: Entry) -> Iterator[tuple[int, int]]:
    """Parts that are holes and were content."""
    filled = [(chunk.offset, chunk.offset + chunk.length) for chunk in here.chunks or ()]
    for start, end in _holes(wanted.chunks or (), wanted.size):
        for first, last in filled:
            if max(start, first) < min(end, last):
                yield max(start, first), min(end, last)


def _holes(chunks: tuple[Chunk, ...], size: int) -> Iterator[tuple[int, int]]:
    at = 0
    for offset, length, _ in chunks:
        if offset > at:
            yield at, offset
        at = offset + length
    if at < size:
        yield at, size


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def _record(kind: str, *parts: bytes) -> bytes:
    return b"".join((HEAD.pack(ord(kind), sum(map(len, parts))), *parts))


def _piece(records: Iterator[bytes]) -> bytes:
    found, size = [], 0
    for record in records:
        found.append(record)
        size += len(record)
        if size >= _PIECE:
            break
    return b"".join(found)
