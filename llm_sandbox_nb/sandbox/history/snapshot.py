"""Snapshots: reports in which a sandbox describes its files.

The sandbox may be hostile. So the size of a report is limited, its values are checked, and this process computes the
digests of its content itself. `executor/README.md` describes the records of a report.
"""

from __future__ import annotations

import json
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from llm_sandbox_nb.sandbox.history.checkpoint_store import ContentWriter
from llm_sandbox_nb.sandbox.history.entry_rows import MAX_CHUNK_BYTES, is_entry, path_problem
from llm_sandbox_nb.sandbox.history.manifest import FILE, Entry, Manifest, parents
from llm_sandbox_nb.sandbox.protocol.frames import Kind, ProtocolError

HEAD = struct.Struct(">BI")
MAX_RECORD_BYTES = 2 * 1024 * 1024
MAX_ENTRIES_BYTES = 512 * 1024 * 1024
"""Maximum bytes of entries and deleted paths in one report."""
MAX_ENTRIES = 2_000_000


@dataclass
class Snapshot:
    """Report of a sandbox: the deleted paths, the new and changed entries, and the state of the shell."""

    gone: list[str] = field(default_factory=list)
    entries: dict[str, Entry] = field(default_factory=dict)
    shell: bytes | None = None


class SnapshotReader:
    """Reader of one snapshot, which the sandbox sends as a stream of records.

    Args:
        content: writer for the pieces of content.
        length: function that is called with a digest. It returns the size of the stored piece, or None if there is no
            such piece.
        limit: maximum bytes of content that the sandbox may send.
        below: the only folder whose files the sandbox may report.
    """

    def __init__(
        self, content: ContentWriter, length: Callable[[bytes], int | None], limit: int, below: str = "/"
    ) -> None:
        self.content = content
        self._length = length
        self._left = limit
        self._names_left = MAX_ENTRIES_BYTES
        self._below = below
        self._head = b""
        self._parts: list[memoryview] = []
        """Parts of the incomplete record, as received. A piece of content is hashed and stored without joining its
        parts, which would take time."""
        self._missing = -1
        """Number of bytes that the incomplete record still lacks. -1 until the head of a record is complete."""
        self._names: list[tuple[int, bytes]] = []
        self._shell: bytes | None = None

    def take(self, kind: int, payload: bytes) -> None:
        """Read the payload of one frame, which may have any part of the stream of records.

        Raises:
            ProtocolError: if a record is invalid.
            HistoryNotWrittenError: if this machine's disk is full.
        """
        if kind != Kind.STDOUT:
            raise ProtocolError(f"its files came in a frame of kind {kind}")
        view = memoryview(payload)
        while view:
            if self._missing < 0:
                view = self._take_head(view)
                continue
            self._parts.append(view[: self._missing])
            view, self._missing = view[self._missing :], self._missing - len(self._parts[-1])
            if not self._missing:
                self._end_record()

    def _take_head(self, view: memoryview) -> memoryview:
        """Read the missing bytes of a record's head from `view`. Return the bytes after them."""
        rest = HEAD.size - len(self._head)
        self._head += view[:rest]
        if len(self._head) == HEAD.size:
            self._missing = HEAD.unpack(self._head)[1]
            if self._missing > MAX_RECORD_BYTES:
                raise ProtocolError(f"a record of its files claims {self._missing} bytes")
            if not self._missing:
                self._end_record()
        return view[rest:]

    def _end_record(self) -> None:
        kind, size = HEAD.unpack(self._head)
        parts, self._parts = self._parts, []
        self._head, self._missing = b"", -1
        if kind == ord("C"):
            self._left -= size
            if not 0 < size <= MAX_CHUNK_BYTES or self._left < 0:
                raise ProtocolError("it sent more content of its files than it may")
            self.content.add(*parts, known=self._length)
            return
        data = b"".join(parts)
        if kind in b"EG":
            self._names_left -= size + HEAD.size
            if self._names_left < 0:
                raise ProtocolError("it reports more files than it may")
            self._names.append((kind, data))
        elif kind == ord("S") and self._shell is None and size <= MAX_CHUNK_BYTES:
            self._shell = data
        else:
            raise ProtocolError(f"it reports its files with a record of kind {kind}")

    def parse(self) -> Snapshot:
        """Parse and check the whole report. Call this in a thread, because many entries take a long time.

        Raises:
            ProtocolError: if the report is invalid.
        """
        if self._head:
            raise ProtocolError("its report of files ends in the middle of a record")
        snapshot = Snapshot(shell=self._shell)
        for kind, data in self._names:
            rows = _list(data)
            if kind == ord("G"):
                snapshot.gone += [self._path(path) for path in rows]
            else:
                snapshot.entries.update(self._entry(row) for row in rows)
            if len(snapshot.entries) + len(snapshot.gone) > MAX_ENTRIES:
                raise ProtocolError("it reports more files than it may")
        return snapshot

    def _path(self, path: object) -> str:
        """Return `path` as a text. Raise ProtocolError if this sandbox must not report the path."""
        good = check_path(path)
        if self._below != "/" and good != self._below and not good.startswith(f"{self._below}/"):
            raise ProtocolError("it reports a file outside its folder")
        return good

    def _entry(self, row: object) -> tuple[str, Entry]:
        if not isinstance(row, list) or len(row) != 11:
            raise ProtocolError("it reports a file with invalid values")
        path = self._path(row[0])
        kind, base, mode, uid, gid, mtime_ns, size, detail, link, xattrs = row[1:]
        if not is_entry(row[1:]) or (link is not None and not self._path(link)):
            raise ProtocolError("it reports a file with invalid values")
        if kind == FILE and detail:
            self._check_content(detail)
        return path, Entry.of_row(kind, base, mode, uid, gid, mtime_ns, size, detail, link, xattrs)

    def _check_content(self, detail: Iterable[Sequence[object]]) -> None:
        """Raise ProtocolError if a piece of content is neither stored nor was sent in this report."""
        for _, length, name in detail:
            digest = bytes.fromhex(str(name))
            sent = self.content.length(digest)
            if (self._length(digest) if sent is None else sent) != length:
                raise ProtocolError("it names content that it has not sent")


def check_path(path: object) -> str:
    """Return `path` as a text. Raise ProtocolError if a sandbox must not report the path; see `path_problem`."""
    if problem := path_problem(path):
        raise ProtocolError(problem)
    return str(path)


def _list(data: bytes) -> list[object]:
    try:
        rows = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("its report of files is not a JSON array") from error
    if not isinstance(rows, list):
        raise ProtocolError("its report of files is not a JSON array")
    return rows


def snapshot_changes(before: Manifest, snapshot: Snapshot, roots: Iterable[str]) -> dict[str, Entry | None]:
    """Return the changes from the manifest `before` to a snapshot, in the form that `manifest.delta` returns.

    If a folder was deleted or its content is no longer listed, all entries below it in `before` count as deleted.
    `roots` are the folders that the sandbox has scanned.

    Raises:
        ProtocolError: if a file is reported without its folder.
    """
    gone = [path for path in snapshot.gone if path in before]
    folders = {path for path in gone if before[path].open_folder}
    folders |= {
        path
        for path, entry in snapshot.entries.items()
        if not entry.open_folder and (old := before.get(path)) is not None and old.open_folder
    }
    changed: dict[str, Entry | None] = dict.fromkeys(gone)
    if folders:
        changed.update(dict.fromkeys(_below(before, folders)))
    for path, entry in snapshot.entries.items():
        if before.get(path) == entry:
            changed.pop(path, None)
        else:
            changed[path] = entry
    _check_folders(before, changed, snapshot.entries, frozenset(roots))
    return changed


def _below(paths: Iterable[str], folders: Iterable[str]) -> list[str]:
    """Return those of `paths` that lie below one of `folders`."""
    tops: list[str] = []
    for start in sorted(f"{folder}/" if folder != "/" else folder for folder in folders):
        if not tops or not start.startswith(tops[-1]):
            tops.append(start)
    found = []
    for path in paths:
        at = bisect_right(tops, path)
        if at and path.startswith(tops[at - 1]) and path != "/":
            found.append(path)
    return found


def _check_folders(
    before: Manifest, changed: Mapping[str, Entry | None], new: Iterable[str], roots: frozenset[str]
) -> None:
    for path in new:
        if path in roots or path == "/":
            continue
        folder = next(parents(path))
        above = changed[folder] if folder in changed else before.get(folder)
        if above is None or not above.open_folder:
            raise ProtocolError("it reports a file whose folder it does not report")


def scanned_roots(outcome: Mapping[str, object]) -> Iterator[str]:
    """Yield the folders that the sandbox has scanned. `outcome` is its answer to a request `checkpoint`.

    Raises:
        ProtocolError: if the answer has no valid list of folders.
    """
    roots = outcome.get("roots")
    if not isinstance(roots, list) or len(roots) > 1000:
        raise ProtocolError("it does not report the folders that it scanned")
    for root in roots:
        yield check_path(root)
