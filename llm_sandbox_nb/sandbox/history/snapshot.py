"""Snapshots: what a sandbox reports of its files. It may be hostile: everything is bounded, checked and hashed here."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from llm_sandbox_nb.sandbox.history.manifest import BLOCK, CHAR, FILE, FOLDER, LINK, TYPES, Entry, parents
from llm_sandbox_nb.sandbox.history.packs import PackWriter
from llm_sandbox_nb.sandbox.protocol.frames import Kind, ProtocolError

HEAD = struct.Struct(">BI")
RECORD_MOST = 2 * 1024 * 1024
CHUNK_MOST = 1024 * 1024
NAMES_MOST = 512 * 1024 * 1024
"""Bytes of entries in one stream."""
ENTRIES_MOST = 2_000_000
XATTRS_MOST = 64 * 1024
_PATH_MOST, _NAME_MOST = 4095, 255
_NEVER = ("/proc", "/sys", "/dev")
_BUT = "/dev/shm"


@dataclass
class Snapshot:
    """What a sandbox reported: gone paths, entries, and the state of the shell."""

    gone: list[str] = field(default_factory=list)
    entries: dict[str, Entry] = field(default_factory=dict)
    shell: bytes | None = None


class SnapshotReader:
    """Reads the records of one stream.

    Args:
        content: takes the pieces of content.
        length: the size of a piece that is kept already, by digest; None for others.
        limit: bytes of content that the sandbox may send.
        below: the only folder whose files it may report.
    """

    def __init__(
        self, content: PackWriter, length: Callable[[bytes], int | None], limit: int, below: str = "/"
    ) -> None:
        self.content = content
        self._length = length
        self._left = limit
        self._names_left = NAMES_MOST
        self._below = below
        self._buffer = bytearray()
        self._names: list[tuple[int, bytes]] = []
        self._shell: bytes | None = None

    def take(self, kind: int, payload: bytes) -> None:
        """Read one frame.

        Raises:
            ProtocolError: its content is invalid.
            OSError: this machine's disk is full.
        """
        if kind != Kind.STDOUT:
            raise ProtocolError(f"its files came in a frame of kind {kind}")
        self._buffer += payload
        at = 0
        while len(self._buffer) - at >= HEAD.size:
            record, size = HEAD.unpack_from(self._buffer, at)
            if size > RECORD_MOST:
                raise ProtocolError(f"a record of its files claims {size} bytes")
            end = at + HEAD.size + size
            if len(self._buffer) < end:
                break
            self._record(record, bytes(self._buffer[at + HEAD.size : end]))
            at = end
        del self._buffer[:at]

    def _record(self, kind: int, data: bytes) -> None:
        if kind == ord("C"):
            self._left -= len(data)
            if not 0 < len(data) <= CHUNK_MOST or self._left < 0:
                raise ProtocolError("it sent more content of its files than it may")
            self.content.add(data, known=self._length)
        elif kind in b"EG":
            self._names_left -= len(data) + HEAD.size
            if self._names_left < 0:
                raise ProtocolError("it reports more files than it may")
            self._names.append((kind, data))
        elif kind == ord("S") and self._shell is None and len(data) <= CHUNK_MOST:
            self._shell = data
        else:
            raise ProtocolError(f"it reports its files with a record of kind {kind}")

    def parse(self) -> Snapshot:
        """Everything that came, checked. Call it in a thread: it may be much.

        Raises:
            ProtocolError: it is invalid.
        """
        if self._buffer:
            raise ProtocolError("its report of files ends in the middle of a record")
        snapshot = Snapshot(shell=self._shell)
        for kind, data in self._names:
            rows = _list(data)
            if kind == ord("G"):
                snapshot.gone += [self._path(path) for path in rows]
            else:
                snapshot.entries.update(self._entry(row) for row in rows)
            if len(snapshot.entries) + len(snapshot.gone) > ENTRIES_MOST:
                raise ProtocolError("it reports more files than it may")
        return snapshot

    def _path(self, path: object) -> str:
        """A path, if the sandbox may report it."""
        good = check_path(path)
        if self._below != "/" and good != self._below and not good.startswith(f"{self._below}/"):
            raise ProtocolError("it reports a file outside its folder")
        return good

    def _entry(self, row: object) -> tuple[str, Entry]:
        if not isinstance(row, list) or len(row) != 11:
            raise ProtocolError("it reports a file with invalid values")
        path = self._path(row[0])
        kind, base, mode, uid, gid, mtime_ns, size, detail, link, xattrs = row[1:]
        proper = (
            isinstance(kind, str)
            and kind in TYPES
            and base in (0, 1)
            and _is_number(mode, 0, 0o7777)
            and all(_is_number(one, 0, 2**32 - 1) for one in (uid, gid))
            and _is_number(mtime_ns, -(2**63), 2**63 - 1)
            and _is_number(size, 0, 2**62)
            and (link is None or (kind != FOLDER and self._path(link)))
            and _is_attributes(xattrs)
            and _is_detail(kind, bool(base), size, detail)
        )
        if not proper:
            raise ProtocolError("it reports a file with invalid values")
        if kind == FILE and detail:
            self._check_content(detail)
        return path, Entry.of_row(kind, base, mode, uid, gid, mtime_ns, size, detail, link, xattrs)

    def _check_content(self, detail: Iterable[Sequence[object]]) -> None:
        """Content must be kept already, or come in this stream."""
        for _, length, name in detail:
            digest = bytes.fromhex(str(name))
            place = self.content.places.get(digest)
            if (place[1] if place else self._length(digest)) != length:
                raise ProtocolError("it names content that it has not sent")


def check_path(path: object) -> str:
    """An absolute, normal path.

    Raises:
        ProtocolError: it is anything else.
    """
    if not isinstance(path, str) or not path.startswith("/") or "\0" in path:
        raise ProtocolError("it reports a file with an invalid path")
    try:
        data = os.fsencode(path)
    except UnicodeEncodeError as error:
        raise ProtocolError("it reports a file with an invalid path") from error
    if os.fsdecode(data) != path:
        raise ProtocolError("it reports a file with an invalid path")
    names = data.split(b"/")[1:] if path != "/" else []
    if len(data) > _PATH_MOST or any(name in (b"", b".", b"..") or len(name) > _NAME_MOST for name in names):
        raise ProtocolError("it reports a file with an invalid path")
    if (
        path.startswith(tuple(f"{folder}/" for folder in _NEVER))
        and f"{path}/".startswith(f"{_BUT}/") is False
    ):
        raise ProtocolError("it reports files of the kernel")
    return path


def _list(data: bytes) -> list[object]:
    try:
        rows = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("its report of files is not a JSON array") from error
    if not isinstance(rows, list):
        raise ProtocolError("its report of files is not a JSON array")
    return rows


def _is_number(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _is_detail(kind: str, base: bool, size: int, detail: object) -> bool:
    if base:
        return detail is None
    if detail is None:
        return kind not in (LINK, CHAR, BLOCK)
    if kind == FILE:
        return isinstance(detail, list) and _are_chunks(detail, size)
    if kind == LINK:
        return isinstance(detail, str) and 0 < len(detail) <= _PATH_MOST and _is_name(detail)
    if kind in (CHAR, BLOCK):
        return isinstance(detail, list) and len(detail) == 2 and all(_is_number(n, 0, 2**32) for n in detail)
    return False


def _is_name(text: str) -> bool:
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def _are_chunks(rows: list[object], size: int) -> bool:
    end = 0
    for row in rows:
        if not isinstance(row, list) or len(row) != 3:
            return False
        offset, length, digest = row
        if not _is_number(offset, end, size) or not _is_number(length, 1, CHUNK_MOST):
            return False
        if not isinstance(digest, str) or len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
            return False
        end = offset + length
    return end <= size


def _is_attributes(value: object) -> bool:
    if value is None:
        return True
    if not isinstance(value, dict) or len(json.dumps(value)) > XATTRS_MOST:
        return False
    return all(isinstance(one, str) for one in value.values())


def apply_snapshot(before: dict[str, Entry], snapshot: Snapshot, roots: Iterable[str]) -> dict[str, Entry]:
    """The manifest after a snapshot. `before` is used up.

    Raises:
        ProtocolError: a file is reported whose folder is not.
    """
    gone = set(snapshot.gone)
    folders = {path for path in gone if (entry := before.get(path)) is not None and entry.open_folder}
    folders |= {
        path
        for path, entry in snapshot.entries.items()
        if not entry.open_folder and (old := before.get(path)) is not None and old.open_folder
    }
    for path in gone:
        before.pop(path, None)
    if folders:
        before = {
            path: entry for path, entry in before.items() if not any(up in folders for up in parents(path))
        }
    before.update(snapshot.entries)
    _check_folders(before, snapshot.entries, frozenset(roots))
    return before


def _check_folders(manifest: dict[str, Entry], new: Iterable[str], roots: frozenset[str]) -> None:
    for path in new:
        if path in roots or path == "/":
            continue
        above = manifest.get(next(parents(path)))
        if above is None or not above.open_folder:
            raise ProtocolError("it reports a file whose folder it does not report")


def scanned_roots(outcome: Mapping[str, object]) -> Iterator[str]:
    """The folders that were scanned.

    Raises:
        ProtocolError: they are not a list of paths.
    """
    roots = outcome.get("roots")
    if not isinstance(roots, list) or len(roots) > 1000:
        raise ProtocolError("it does not say what it has scanned")
    for root in roots:
        yield check_path(root)
