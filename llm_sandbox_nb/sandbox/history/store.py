"""A history on disk: an SQLite index beside immutable packs of content.

The transaction of a checkpoint is its commit; its pack has its name before. So a process that is killed at any instant
leaves a history that loads, with every checkpoint that was acknowledged.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from llm_sandbox_nb.sandbox.contract import HISTORY_LIMIT, Checkpoint
from llm_sandbox_nb.sandbox.errors import HistoryError, OutputLimitExceededError
from llm_sandbox_nb.sandbox.history.index import Index
from llm_sandbox_nb.sandbox.history.manifest import Entry, apply_delta, digests
from llm_sandbox_nb.sandbox.history.packs import OPEN_PACK, PackReader, PackWriter, share, stray
from llm_sandbox_nb.windows import NOT_INHERITED, try_lock

INDEX, PACKS, LOCK = "index.sqlite", "packs", "lock"
_MANIFESTS = 4
"""Manifests kept in memory."""
_ROOM = 0.9
"""Part of the limit that is in use after dropping, so that not every checkpoint drops one."""


def is_history(folder: Path) -> bool:
    """Whether a folder holds a history."""
    index = folder / INDEX
    return index.is_file() and not index.is_symlink()


class HistoryStore:
    """All checkpoints in one folder. May be used from several threads; written by one process at a time.

    Raises:
        HistoryError: the folder is in use, or holds something else (or, with `readonly`, nothing).
    """

    def __init__(self, folder: Path, *, limit: int = HISTORY_LIMIT, readonly: bool = False) -> None:
        self.folder = folder
        self.limit = limit
        self._packs = folder / PACKS
        self._mutex = threading.RLock()
        self._manifests: OrderedDict[str, dict[str, Entry]] = OrderedDict()
        self._lock_fd = -1
        if readonly and not is_history(folder):
            raise HistoryError(f"There is no history in {folder}; give the folder of a run that kept one.")
        if not readonly:
            self._packs.mkdir(parents=True, exist_ok=True)
            self._lock_fd = _lock_folder(folder / LOCK)
        try:
            self._index = Index(folder / INDEX, readonly=readonly)
            if not readonly:
                self._clean()
        except BaseException:
            self._release()
            raise
        self._reader = PackReader(self._packs)

    def close(self) -> None:
        """Close the files."""
        with self._mutex:
            self._reader.close()
            self._index.sql.close()
            self._release()

    def _release(self) -> None:
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def _clean(self) -> None:
        """Remove packs that a killed process left incomplete or unused."""
        for path in stray(self._packs, set(self._index.packs())):
            path.unlink(missing_ok=True)

    # -- reading -------------------------------------------------------------------------------------------

    def checkpoints(self) -> list[Checkpoint]:
        """All checkpoints, oldest first."""
        with self._mutex:
            return self._index.checkpoints()

    def checkpoint(self, id: str) -> Checkpoint:
        """One. Raises HistoryError when there is none."""
        with self._mutex:
            return self._index.checkpoint(id)

    def manifest(self, id: str) -> Mapping[str, Entry]:
        """All entries at a checkpoint. Raises HistoryError when there is none."""
        with self._mutex:
            self._index.number(id)
            if id not in self._manifests:
                self._remember(id, self._index.manifest(id))
            self._manifests.move_to_end(id)
            return self._manifests[id]

    def _remember(self, id: str, manifest: dict[str, Entry]) -> None:
        self._manifests[id] = manifest
        while len(self._manifests) > _MANIFESTS:
            self._manifests.popitem(last=False)

    def shell(self, id: str) -> bytes | None:
        """The state of the shell at a checkpoint, opaque. Raises HistoryError when there is none."""
        with self._mutex:
            return self._index.shell(id)

    def length(self, digest: bytes) -> int | None:
        """Bytes of a piece of content; None when it is not kept."""
        with self._mutex:
            place = self._index.place(digest)
        return place[2] if place else None

    def content(self, digest: bytes) -> bytes:
        """A piece of content.

        Raises:
            HistoryError: it is not kept, or has changed on disk.
        """
        with self._mutex:
            for last in (False, True):
                place = self._index.place(digest)
                if place is None:
                    break
                with contextlib.suppress(
                    FileNotFoundError
                ):  # a reader's pack may be replaced by a smaller one
                    return self._reader.read(*place)
                if last:
                    raise HistoryError(f"The history in {self.folder} is damaged: {place[0]} is missing.")
        raise HistoryError("The content of this file was not kept.")

    def read(self, entry: Entry, limit: int) -> bytes:
        """The content of a file.

        Raises:
            HistoryError: it is not kept.
            OutputLimitExceededError: it has more than `limit` bytes.
        """
        if entry.chunks is None:
            raise HistoryError("The content of this file was not kept.")
        if entry.size > limit:
            raise OutputLimitExceededError(f"The file is larger than the limit of {limit} bytes.")
        data = bytearray(entry.size)
        for offset, length, digest in entry.chunks:
            data[offset : offset + length] = self.content(digest)
        return bytes(data)

    def write(self, entry: Entry, file: BinaryIO) -> None:
        """Write the content of a file into an empty one, holes as holes.

        Raises:
            HistoryError: it is not kept.
        """
        if entry.chunks is None:
            raise HistoryError("The content of this file was not kept.")
        for offset, _, digest in entry.chunks:
            file.seek(offset)
            file.write(self.content(digest))
        file.truncate(entry.size)

    @property
    def size(self) -> int:
        """Bytes of content on disk."""
        with self._mutex:
            return sum(self._index.packs().values())

    @property
    def dropped(self) -> int:
        """How many checkpoints were dropped to stay within the limit."""
        with self._mutex:
            return int(self._index.sql.execute("SELECT count(*) FROM dropped").fetchone()[0])

    # -- writing -------------------------------------------------------------------------------------------

    def writer(self) -> PackWriter:
        """A writer for the content of a new checkpoint."""
        return PackWriter(self._packs)

    def commit(
        self,
        checkpoint: Checkpoint,
        changed: Mapping[str, Entry | None],
        shell: bytes | None,
        content: PackWriter,
        pinned: Iterable[str] = (),
    ) -> None:
        """Keep a checkpoint; then drop the oldest while the limit is exceeded, but none of `pinned`.

        Raises:
            HistoryError: its parent is not there.
            OSError: the disk is full; nothing was kept.
        """
        with self._mutex:
            try:
                content.finish()
                with _disk_full_as_oserror():
                    self._index.add(checkpoint, changed, shell, content)
            except BaseException:
                content.discard()
                raise
            before = self._manifests.get(checkpoint.parent or "", None if checkpoint.parent else {})
            if before is not None:
                self._remember(checkpoint.id, apply_delta(before, changed))
            for name in keep_within(self._index, self._packs, self.limit, {*pinned, checkpoint.id}):
                self._reader.forget(name)

    # -- the image -----------------------------------------------------------------------------------------

    def image_entry(self, path: str) -> tuple[Entry | None, bool] | None:
        """What the image has at a path, and whether it is a listed folder; None when it was never read."""
        with self._mutex:
            return self._index.image_entry(path)

    def image_names(self, folder: str) -> list[str]:
        """What the image has in a folder that was listed."""
        with self._mutex:
            return self._index.image_names(folder)

    def learn_image(self, entries: Mapping[str, tuple[Entry | None, bool]], content: PackWriter) -> None:
        """Keep what the image has."""
        with self._mutex:
            content.finish()
            self._index.learn_image(entries, content)

    # -- copies --------------------------------------------------------------------------------------------

    def continue_in(self, folder: Path) -> None:
        """Make `folder` a history with all checkpoints of this one; content is shared by hard links.

        Raises:
            HistoryError: there is a history in it already.
            OSError: it cannot be written.
        """
        if is_history(folder):
            raise HistoryError(f"{folder} holds a history already; give another folder.")
        packs = folder / PACKS
        packs.mkdir(parents=True, exist_ok=True)
        partial = folder / f"{INDEX}.partial"
        with self._mutex:
            partial.unlink(missing_ok=True)
            copy = sqlite3.connect(partial)
            try:
                self._index.sql.backup(copy)
                names = [row[0] for row in copy.execute("SELECT name FROM packs")]
            finally:
                copy.close()
            for name in names:
                share(self._packs / name, packs / name)
            partial.rename(folder / INDEX)

    def continued_in(self, folder: Path) -> HistoryStore:
        """`continue_in`, and open the copy. Raises like `continue_in`."""
        self.continue_in(folder)
        store = HistoryStore(folder, limit=self.limit)
        with self._mutex:
            store._manifests.update(self._manifests)
        return store


@contextlib.contextmanager
def _disk_full_as_oserror() -> Iterator[None]:
    """Raise OSError when SQLite finds the disk full."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if "full" in str(error):
            raise OSError(28, "No space left on device") from error
        raise


def _lock_folder(path: Path) -> int:
    """Lock the folder against other writers."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | NOT_INHERITED, 0o600)
    with contextlib.suppress(OSError):
        if try_lock(descriptor):
            return descriptor
    os.close(descriptor)
    raise HistoryError(
        f"The history in {path.parent} is in use by another sandbox; close that one, or give another folder."
    )


def is_history_in_use(folder: Path) -> bool:
    """Whether a sandbox writes the history in `folder`."""
    try:
        os.close(_lock_folder(folder / LOCK))
    except FileNotFoundError:
        return False
    except HistoryError:
        return True
    return False


def remove_history(folder: Path) -> None:
    """Remove a history and its folder."""
    shutil.rmtree(folder, ignore_errors=True)


# -- the size limit: the oldest checkpoints are dropped first ----------------------------------------------------


def keep_within(index: Index, packs: Path, limit: int, kept: Collection[str]) -> list[str]:
    """Drop the oldest checkpoints, none of `kept`, until their content fits into `limit` bytes.

    Returns the packs that were removed.
    """
    sizes = index.packs()
    if sum(sizes.values()) <= limit:
        return []
    old = [one.id for one in index.checkpoints() if one.id not in kept]
    new: list[PackWriter] = []
    try:
        with index.transaction():
            live = _live(index)
            while sum(live.values()) > _ROOM * limit and old:
                _drop(index, old.pop(0))
                live = _live(index)
            gone = _repack(index, packs, live, new)
    except BaseException:
        for writer in new:
            writer.discard()
        raise
    for name in gone:
        (packs / name).unlink(missing_ok=True)
    return gone


def _live(index: Index) -> dict[bytes, int]:
    """Every piece of content that is still named, and its size."""
    rows = index.sql.execute(
        "SELECT entry FROM entries WHERE entry IS NOT NULL UNION ALL SELECT entry FROM image"
    )
    named = digests(Entry.decode(row[0]) for row in rows if row[0])
    sizes = index.sql.execute("SELECT digest, size FROM objects")
    return {digest: size for digest, size in sizes if digest in named}


def _drop(index: Index, id: str) -> None:
    """Drop a checkpoint; those after it take over what it had changed."""
    sql, number = index.sql, index.number(id)
    (parent,) = sql.execute("SELECT parent FROM checkpoints WHERE number = ?", (number,)).fetchone()
    children = [row[0] for row in sql.execute("SELECT number FROM checkpoints WHERE parent = ?", (number,))]
    for child in children:
        sql.execute(
            "INSERT OR IGNORE INTO entries SELECT ?, path, entry FROM entries WHERE checkpoint = ?",
            (child, number),
        )
        if parent is None:
            sql.execute("DELETE FROM entries WHERE checkpoint = ? AND entry IS NULL", (child,))
        sql.execute("UPDATE checkpoints SET parent = ? WHERE number = ?", (parent, child))
    sql.execute("DELETE FROM entries WHERE checkpoint = ?", (number,))
    sql.execute("DELETE FROM checkpoints WHERE number = ?", (number,))
    sql.execute("INSERT INTO dropped VALUES (?)", (id,))


def _repack(index: Index, packs: Path, live: dict[bytes, int], new: list[PackWriter]) -> list[str]:
    """Copy the live content of packs that hold more than that into new ones. Returns the names of the old."""
    gone = []
    for number, name, size in index.sql.execute("SELECT number, name, size FROM packs").fetchall():
        rows = index.sql.execute(
            "SELECT digest, offset, size FROM objects WHERE pack = ?", (number,)
        ).fetchall()
        needed = [row for row in rows if row[0] in live]
        if sum(row[2] for row in needed) == size:
            continue
        writer = PackWriter(packs)
        new.append(writer)
        descriptor = os.open(packs / name, OPEN_PACK)
        try:
            for _, offset, length in sorted(needed, key=lambda row: row[1]):
                writer.add(os.pread(descriptor, length, offset))
        finally:
            os.close(descriptor)
        writer.finish()
        index.sql.execute("DELETE FROM objects WHERE pack = ?", (number,))
        index.sql.execute("DELETE FROM packs WHERE number = ?", (number,))
        index.add_pack(writer)
        gone.append(name)
    return gone
