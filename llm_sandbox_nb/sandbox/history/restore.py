"""Restores, which put a sandbox's files back to the state of a checkpoint.

A restore plans the changes that are needed (`Plan`), sends the plan to the executor as records (`RestoreBody`), and
then scans the files again.

The connection to the executor is slow for much content. So if a file can be put into the sandbox from outside, the
content is sent in such a file, called the pack of the restore. This takes half the time. The executor begins to write
files while the rest of the pack is still being transferred.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import struct
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from llm_sandbox_nb.formatting import plural
from llm_sandbox_nb.sandbox.contract import Restored
from llm_sandbox_nb.sandbox.errors import HistoryError, SandboxError, SandboxLostError
from llm_sandbox_nb.sandbox.history.checkpoint_store import CheckpointStore
from llm_sandbox_nb.sandbox.history.image_files import ImageFiles
from llm_sandbox_nb.sandbox.history.manifest import FILE, FOLDER, Chunk, Entry, parents
from llm_sandbox_nb.sandbox.history.sandbox_history import (
    SPARE_BYTES_OF_RESTORE,
    SandboxHistory,
    finish_anyway,
    printable_sentence,
)
from llm_sandbox_nb.sandbox.history.snapshot import HEAD
from llm_sandbox_nb.sandbox.protocol.answers import raise_error
from llm_sandbox_nb.sandbox.protocol.channel import Deliver, ExecutorConnection
from llm_sandbox_nb.sandbox.protocol.frames import Kind, ProtocolError

RESTORE_TIMEOUT = 600.0
_MAX_ROUNDS = 3
"""Maximum number of attempts. Later attempts are needed if processes change files during a restore."""
_MAX_PROBLEMS = 100
_MIN_PATCH_BYTES = 2 * 1024 * 1024
"""Minimum size of a file that is patched, i.e. of which only the changed pieces are written. Smaller files are written
as a whole."""
MIN_PACK_BYTES, MAX_PACK_BYTES = 2 * 1024 * 1024, 512 * 1024 * 1024
"""Minimum and maximum bytes of a pack on the sandbox's disk. A smaller pack would cost more time than it saves. A
larger pack would need too much disk space. In both cases, the content is sent through the connection."""
MAX_PACK_MEMORY_BYTES = 128 * 1024 * 1024
"""Maximum bytes of a pack in this machine's memory; see `ExecutorConnection.release_pack`."""
_READY = b"ready"
_BATCH = 512
"""Maximum number of entries or paths in one record."""
_PIECE_BYTES = 512 * 1024
_OFFSET, _RANGE, _PART = struct.Struct(">Q"), struct.Struct(">QQ"), struct.Struct(">QQQ")

logger = logging.getLogger(__name__)


async def restore(
    history: SandboxHistory,
    connect: Callable[[], Awaitable[ExecutorConnection]],
    id: str,
    connect_new: Callable[[], Awaitable[ExecutorConnection]],
) -> Restored:
    """Restore the checkpoint `id`; see `Sandbox.restore`.

    `connect` connects to the sandbox. `connect_new` connects to a new sandbox with the same image, and is called only
    if files of the image are needed.
    """
    async with history.lock:
        history.checkpoint(id)
        return await _Restore(history, connect, id, connect_new).run()


class _Restore:
    def __init__(
        self,
        history: SandboxHistory,
        connect: Callable[[], Awaitable[ExecutorConnection]],
        id: str,
        connect_new: Callable[[], Awaitable[ExecutorConnection]],
    ) -> None:
        self._history = history
        self._connect = connect
        self._id = id
        self._store = history.store_with(id)
        self._target = history.manifest(id)
        in_another_folder = self._target.keys() != self._store.manifest(id).keys()
        # Paths differ if the history is from another sandbox with another folder (isolation `process`). The state of
        # the shell then names the other folder, so the state cannot be restored.
        self._shell = None if in_another_folder else self._store.shell(id)
        self._image = ImageFiles(self._store, connect_new)
        self._packs = True
        self._problems: list[str] = []
        self._survivors = ""
        """Sentence about processes that the last attempt could not kill. Empty if it killed all."""
        self._shell_restored = False

    async def run(self) -> Restored:
        """Plan the changes, apply them and scan the files again, until the files are as at the checkpoint.

        Stop earlier if a path cannot be restored, or after `_MAX_ROUNDS` attempts.
        """
        began = time.monotonic()
        # Before and after the restore, the executor examines all files (`walk`). It does not rely on the kernel's
        # reports of changes, because a program may have changed a file without a report.
        safety = await self._history.take_locked(
            await self._connect(), {self._id}, spare=SPARE_BYTES_OF_RESTORE, walk=True
        )
        if not await asyncio.to_thread(share_a_top, self._history.entries, self._target):
            raise HistoryError(
                f"The checkpoint {self._id} is from another isolation, whose checkpoints cover other folders; open a "
                "sandbox with that isolation."
            )
        plan = await self._plan(self._history.entries)
        files = plan.paths
        for _ in range(_MAX_ROUNDS):
            try:
                await self._apply(plan)
            except SandboxLostError:
                await self._connect()  # raises SandboxLostError if no connection is possible any more
            plan = await self._scan_again(safety)
            if not plan.paths or self._problems:
                break
        else:
            self._problems.append(
                f"{plural(plan.paths, 'path differs', 'paths differ')} again: something still changes them, or "
                "the checkpoint is damaged."
            )
        survivors = [self._survivors] if self._survivors else []
        problems = tuple([*survivors, *self._problems][:_MAX_PROBLEMS])
        return Restored(self._id, safety, files, self._shell_restored, problems, time.monotonic() - began)

    async def _plan(self, found: Mapping[str, Entry]) -> Plan:
        target = await self._image.expand(self._target, found, content=True)
        current = await self._image.expand(found, target, content=False)
        return await asyncio.to_thread(plan_restore, current, target)

    async def _apply(self, plan: Plan) -> None:
        """Send the plan to the executor, and remember the state that the files then have."""
        history = self._history
        new = secrets.token_hex(8)
        connection = await self._connect()
        deliver = connection.deliver if self._packs else None
        handed = connection.release_pack is not None
        most = MAX_PACK_MEMORY_BYTES if handed else MAX_PACK_BYTES
        body = RestoreBody(plan, self._store, self._shell, deliver, f"{new}.pack", most)
        params = {
            "op": "restore",
            "id": new,
            "since": history.last_scan,
            "timeout": RESTORE_TIMEOUT,
            "pack": body.pack,
            "handed": handed,
        }
        history.last_scan = None
        try:
            outcome = await connection.request_files(params, body.take, RESTORE_TIMEOUT, body.pieces())
        finally:
            if connection.release_pack is not None:
                connection.release_pack()
        raise_error(outcome, "")
        history.last_scan, history.entries, history.shell = new, _after(history.entries, plan), self._shell
        self._packs = self._packs and outcome.get("pack") != "missing"
        if body.pack and not self._packs:
            return  # the pack did not arrive, so the next attempt sends all content through the connection
        self._survivors = printable_sentence(outcome.get("incomplete"))
        self._problems += [*plan.problems, *_failures(outcome)]
        shell_problem = outcome.get("shell")
        self._shell_restored = self._shell is not None and not shell_problem
        if isinstance(shell_problem, str) and shell_problem:
            self._problems.append(f"The shell was not fully restored: {printable(shell_problem)}.")

    async def _scan_again(self, safety: str) -> Plan:
        """Scan the files, and return a plan of the changes that are still needed.

        If there are any, store the present files as a checkpoint. The checkpoint `safety` must not be dropped then.
        """
        scan, found = await self._history.scan_locked(await self._connect(), spare=0, walk=True)
        try:
            plan = await self._plan(found)
        except BaseException:
            scan.content.discard()
            raise
        if plan.paths:
            pinned = {self._id, safety}
            await finish_anyway(asyncio.to_thread(scan.commit, found, pinned, changed=True))
        else:
            self._history.head = self._id
            scan.discard(found)
        return plan


def share_a_top(current: Mapping[str, Entry], target: Mapping[str, Entry]) -> bool:
    """Return True if the manifests have a top folder in common. No folder above a top folder has an entry."""
    return any(
        path in current and not any(up in manifest for manifest in (current, target) for up in parents(path))
        for path in target
    )


def _after(before: Mapping[str, Entry], plan: Plan) -> dict[str, Entry]:
    """Return the manifest after a plan was applied to files with the manifest `before`."""
    gone = set(plan.delete)
    kept = {
        path: entry
        for path, entry in before.items()
        if path not in gone and (not gone or not any(up in gone for up in parents(path)))
    }
    return kept | dict(plan.make) | dict(plan.touch)


def _failures(outcome: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each path that the executor could not restore."""
    failed = outcome.get("failed")
    rows = failed if isinstance(failed, list) else []
    return [
        f"{printable(row[0])} could not be restored: {printable(row[1])}."
        for row in rows[:_MAX_PROBLEMS]
        if isinstance(row, list) and len(row) == 2 and all(isinstance(text, str) for text in row)
    ]


# -- the plan ------------------------------------------------------------------------------------------------------


@dataclass
class Plan:
    """The changes that a restore makes. `problems` has a sentence for each path that cannot be restored."""

    delete: list[str] = field(default_factory=list)
    make: list[tuple[str, Entry]] = field(default_factory=list)
    """Entries to write, by path. A folder comes before its files, and the first name of a file before other names."""
    patch: dict[str, Entry] = field(default_factory=dict)
    """For files in `make` of which only some pieces must be written: the present entry, by path."""
    touch: list[tuple[str, Entry]] = field(default_factory=list)
    """Entries of which only the metadata must be set, by path."""
    problems: list[str] = field(default_factory=list)

    @property
    def paths(self) -> int:
        """Number of paths that change. A deleted folder counts as one path."""
        return len({*self.delete, *(path for path, _ in self.make), *(path for path, _ in self.touch)})

    def needed(self, path: str, entry: Entry) -> list[Chunk]:
        """Return the pieces of content that must be sent for an entry of `make`."""
        if not has_content(path, entry):
            return []
        here = self.patch.get(path)
        known = set(here.chunks or ()) if here else set()
        return [chunk for chunk in entry.chunks or () if chunk not in known]


def has_content(path: str, entry: Entry) -> bool:
    """Return True if content must be sent for the entry: it is a file with content, and `path` is its first name."""
    return entry.type == FILE and bool(entry.chunks) and entry.group in ("", path)


def plan_restore(current: Mapping[str, Entry], target: Mapping[str, Entry]) -> Plan:
    """Return the changes that turn `current` into `target`. Both must be results of `ImageFiles.expand`."""
    plan = Plan()
    _plan_deletes(plan, current, target)
    deleted = set(plan.delete)
    groups = _changed_groups(current, target)

    def is_deleted(path: str) -> bool:
        return bool(deleted) and (path in deleted or any(up in deleted for up in parents(path)))

    different = (
        path
        for path, entry in target.items()
        if entry != current.get(path) or entry.group in groups or is_deleted(path)
    )
    for path in sorted(different, key=os.fsencode):
        wanted, here = target[path], current.get(path)
        if is_deleted(path):
            here = None
        if wanted.group in groups:
            _plan_file(plan, path, replace(wanted, group=groups[wanted.group]), None)
        else:
            _plan_file(plan, path, wanted, here)
    return plan


def _plan_deletes(plan: Plan, current: Mapping[str, Entry], target: Mapping[str, Entry]) -> None:
    """Plan the paths to delete: paths that `target` lacks, and paths that are a folder in one manifest but not in both.

    A folder is deleted with everything below it, so the plan does not name the paths below it.
    """
    gone: set[str] = set()
    unwanted = (
        path
        for path, entry in current.items()
        if (wanted := target.get(path)) is None or (wanted.type == FOLDER) != (entry.type == FOLDER)
    )
    for path in sorted(unwanted, key=os.fsencode):
        if any(up in gone for up in parents(path)):
            continue
        gone.add(path)
        plan.delete.append(path)


def _changed_groups(current: Mapping[str, Entry], target: Mapping[str, Entry]) -> dict[str, str]:
    """Return the files with several names (hard links) in `target` that must be made again, with all their names.

    These are the files with a difference at one of their paths. The result has the first path in `target` of each such
    file, by the value of `Entry.group`.
    """
    members: dict[str, list[str]] = defaultdict(list)
    for path, entry in target.items():
        if entry.group:
            members[entry.group].append(path)
    return {
        group: min(paths, key=os.fsencode)
        for group, paths in members.items()
        if any(current.get(path) != target[path] for path in paths)
    }


def _plan_file(plan: Plan, path: str, wanted: Entry, here: Entry | None) -> None:
    if here is not None and wanted.base and here.base:
        return
    if here is not None and _same_content(wanted, here):
        plan.touch.append((path, wanted))
        return
    if wanted.base or (wanted.type == FILE and wanted.chunks is None):
        plan.problems.append(f"{printable(path)} stays as it is: its content was not kept.")
        return
    if here is not None and _can_patch(wanted, here):
        plan.patch[path] = here
    plan.make.append((path, wanted))


def _same_content(wanted: Entry, here: Entry) -> bool:
    """Return True if two entries are known to have the same content, so that the content need not be written."""
    if wanted.type != here.type or wanted.group != here.group:
        return False
    if wanted.type == FOLDER:
        return True
    content = (here.target, here.device, here.size, here.chunks)
    known = not (wanted.base or here.base) and (wanted.type != FILE or wanted.chunks is not None)
    return known and (wanted.target, wanted.device, wanted.size, wanted.chunks) == content


def _can_patch(wanted: Entry, here: Entry) -> bool:
    if (
        wanted.type != FILE
        or here.type != FILE
        or wanted.group
        or here.group
        or wanted.size < _MIN_PATCH_BYTES
    ):
        return False
    if here.chunks is None or wanted.chunks is None:
        return False
    return 2 * len({*wanted.chunks} & {*here.chunks}) >= len(wanted.chunks)


def printable(path: str) -> str:
    """Return a text from a sandbox, in which unprintable characters are replaced by escapes."""
    return path if path.isprintable() else ascii(path)


# -- records of a plan ---------------------------------------------------------------------------------------------


class RestoreBody:
    """Body of a request `restore`, which consists of the records of a plan.

    Args:
        plan: the plan.
        store: store with the content.
        shell: state of the shell to restore; None if the shell is not restored.
        deliver: function that puts a file into the sandbox from outside; None if that is impossible.
        name: file name of the pack.
        max_pack_bytes: maximum bytes of the pack. If it would be larger, no pack is used.
    """

    def __init__(
        self,
        plan: Plan,
        store: CheckpointStore,
        shell: bytes | None,
        deliver: Deliver | None = None,
        name: str = "",
        max_pack_bytes: int = MAX_PACK_BYTES,
    ) -> None:
        self._plan = plan
        self._store = store
        self._shell = shell
        self._pieces, size = _pack(plan) if deliver else ({}, 0)
        self._size = size
        self._deliver = deliver if MIN_PACK_BYTES <= size <= max_pack_bytes else None
        self._name = name
        self._ready = asyncio.Event()

    @property
    def pack(self) -> str | None:
        """Name of the pack. None if there is no pack, because all content is sent through the connection."""
        return self._name if self._deliver else None

    def take(self, kind: int, payload: bytes) -> None:
        """Read output of the executor. The only valid output is the message with which it asks for the pack.

        Raises:
            ProtocolError: if the executor sent something else.
        """
        if self._deliver is None or self._ready.is_set() or (kind, payload) != (Kind.STDOUT, _READY):
            raise ProtocolError("it sent output without a request")
        self._ready.set()

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body in pieces, and put the pack into the sandbox meanwhile. A thread prepares the next piece."""
        delivery: asyncio.Future[None] | None = None
        if self._deliver is not None:
            await self._ready.wait()
            delivery = asyncio.ensure_future(self._put_pack(self._deliver))
        places = {piece.digest: piece.offset for piece in self._pieces.values()} if delivery else {}
        records = _Records(self._plan, self._store, self._shell, places).all()
        ahead = asyncio.ensure_future(asyncio.to_thread(_piece, records))
        try:
            while piece := await ahead:
                ahead = asyncio.ensure_future(asyncio.to_thread(_piece, records))
                yield piece
            if delivery is not None:
                await delivery
                yield _record("A")
        finally:
            ahead.cancel()
            if delivery is not None:
                delivery.cancel()

    async def _put_pack(self, deliver: Deliver) -> None:
        content = (self._store.piece(piece) for piece in self._pieces.values())
        try:
            await deliver(self._name, self._size, content)
        except (SandboxError, OSError):
            logger.info("a pack cannot be put into the sandbox", exc_info=True)


def _pack(plan: Plan) -> tuple[dict[bytes, Chunk], int]:
    """Return the pieces of a pack by digest, each with its offset in the pack, and the size of the pack in bytes."""
    pieces: dict[bytes, Chunk] = {}
    size = 0
    for path, entry in plan.make:
        for chunk in plan.needed(path, entry):
            if chunk.digest not in pieces:
                pieces[chunk.digest] = Chunk(size, chunk.length, chunk.digest)
                size += chunk.length
    return pieces, size


class _Records:
    """Records of a restore plan: deletions, then contents, then metadata, and last the state of the shell.

    `places` has each piece's offset in the pack, by digest. It is empty without a pack.
    """

    def __init__(
        self, plan: Plan, store: CheckpointStore, shell: bytes | None, places: dict[bytes, int]
    ) -> None:
        self._plan = plan
        self._store = store
        self._shell = shell
        self._places = places
        self._waiting: list[list[object]] = []

    def all(self) -> Iterator[bytes]:
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
        for chunk in self._plan.needed(path, entry):
            if chunk.digest in self._places:
                yield _record("K", _PART.pack(chunk.offset, self._places[chunk.digest], chunk.length))
            else:
                yield _record("W", _OFFSET.pack(chunk.offset), self._store.piece(chunk))
        if here is not None:
            for start, end in _new_holes(entry, here):
                yield _record("H", _RANGE.pack(start, end - start))


def _new_holes(wanted: Entry, here: Entry) -> Iterator[tuple[int, int]]:
    """Yield start and end of each range of a file that has content in `here` and is a hole in `wanted`."""
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


_encode = json.JSONEncoder(separators=(",", ":")).encode
"""Function that encodes all rows. `json.dumps` with these separators would make a new encoder for each row."""


def _json(value: object) -> bytes:
    return _encode(value).encode("ascii")


def _record(kind: str, *parts: bytes) -> bytes:
    return b"".join((HEAD.pack(ord(kind), sum(map(len, parts))), *parts))


def _piece(records: Iterator[bytes]) -> bytes:
    found, size = [], 0
    for record in records:
        found.append(record)
        size += len(record)
        if size >= _PIECE_BYTES:
            break
    return b"".join(found)
