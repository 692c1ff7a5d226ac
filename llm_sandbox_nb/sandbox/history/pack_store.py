"""The usual store of checkpoints. It has an SQLite index, and files with content (packs) that never change.

A commit first completes the pack with the new content. Then one transaction of the index adds the checkpoint. So even
if the process is killed meanwhile, the history stays readable, and has every checkpoint whose commit has returned.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from llm_sandbox_nb.own_folder import NotOwnFileError, check_folder, is_file, open_file
from llm_sandbox_nb.sandbox.contract import Checkpoint
from llm_sandbox_nb.sandbox.errors import HistoryError, HistoryNotWrittenError
from llm_sandbox_nb.sandbox.history.checkpoint_store import CheckpointStore, ContentWriter
from llm_sandbox_nb.sandbox.history.index import (
    Index,
    IndexReader,
    exists,
    kept_entry,
    writable_index,
    write_copy,
)
from llm_sandbox_nb.sandbox.history.index_copy import INDEX
from llm_sandbox_nb.sandbox.history.manifest import Entry, Manifest, digests
from llm_sandbox_nb.sandbox.history.packs import PackFolder, PackReader, PackWriter, SharedPieces, storing
from llm_sandbox_nb.sandbox.limits import HISTORY_LIMIT
from llm_sandbox_nb.windows import try_lock, unlock_and_close

PACKS, LOCK = "packs", "lock"
_CACHED_MANIFESTS = 4
"""Maximum number of manifests in memory."""
_SHARE_AFTER_DROPPING = 0.9
"""Fraction of the limit. If the content exceeds the limit, old checkpoints are dropped until the content has at most
this fraction of the limit. The rest is room for new checkpoints."""


class PackStore(CheckpointStore):
    """See `CheckpointStore`. An existing index may be hostile, so only a copy of it is used."""

    def __init__(self, folder: Path, *, limit: int = HISTORY_LIMIT, readonly: bool = False) -> None:
        self.folder = folder
        self.limit = limit
        self._mutex = threading.RLock()
        self._shared = SharedPieces()
        self._manifests: OrderedDict[str, dict[str, Entry]] = OrderedDict()
        self._lock_fd = -1
        self._rows: IndexReader | None = None
        self._own_index: Index | None = None
        self._packs: PackFolder | None = None
        try:
            if readonly:
                if not self.holds(folder):
                    raise HistoryError(
                        f"There is no history in {folder}; give the folder of a run that kept one."
                    )
                self._rows = IndexReader(folder)
            else:
                folder.mkdir(parents=True, exist_ok=True)
                check_folder(folder)
                self._lock_fd = _lock_folder(folder)
                self._own_index = writable_index(folder)
            self._packs = PackFolder(folder.parent, f"{folder.name}/{PACKS}", make=not readonly)
            if self._own_index is not None:
                self._packs.remove_all_but(self._own_index.packs().keys())
        except BaseException as error:
            self._release()
            if isinstance(error, (NotOwnFileError, FileExistsError, FileNotFoundError, NotADirectoryError)):
                raise HistoryError(f"The history in {folder} cannot be used: {error}.") from error
            if not readonly:
                with storing(folder):
                    raise
            raise
        self._reader = PackReader(self._packs)

    @staticmethod
    def holds(folder: Path) -> bool:
        return is_file(folder.parent, f"{folder.name}/{INDEX}")

    @staticmethod
    def is_in_use(folder: Path) -> bool:
        try:
            unlock_and_close(_lock_folder(folder, make=False))
        except (FileNotFoundError, NotADirectoryError, PermissionError, NotOwnFileError):
            return False
        except (OSError, HistoryError):
            # The check has failed, e.g. because too many files are open. A history in use must not be removed.
            return True
        return False

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the store in this context. If SQLite fails, e.g. because the disk cannot be read, raise HistoryError."""
        with self._mutex:
            try:
                yield
            except sqlite3.Error as error:
                raise HistoryError(f"The history in {self.folder} cannot be used: {error}.") from error

    def close(self) -> None:
        with self._locked():
            self._reader.close()
            self._release()

    def _release(self) -> None:
        if self._rows is not None:
            self._rows.close()
        if self._own_index is not None:
            self._own_index.sql.close()
        if self._packs is not None:
            self._packs.close()
        if self._lock_fd >= 0:
            unlock_and_close(self._lock_fd)
            self._lock_fd = -1

    @property
    def _index(self) -> Index:
        """The current index. A read-only store has a copy of it. Callers must hold the lock."""
        return self._current_index(whole=True)

    @property
    def _overview(self) -> Index:
        """Like `_index`, but the copy of a read-only store may lack the rows of files, so it is made faster."""
        return self._current_index(whole=False)

    def _current_index(self, *, whole: bool) -> Index:
        if self._own_index is not None:
            return self._own_index
        assert self._rows is not None
        index, changed = self._rows.current(whole=whole)
        if changed:
            self._manifests.clear()
        return index

    @property
    def _pack_folder(self) -> PackFolder:
        assert self._packs is not None
        return self._packs

    # -- reading -------------------------------------------------------------------------------------------

    def checkpoints(self) -> list[Checkpoint]:
        with self._locked():
            return self._overview.checkpoints()

    def checkpoint(self, id: str) -> Checkpoint:
        with self._locked():
            return self._overview.checkpoint(id)

    def manifest(self, id: str) -> Manifest:
        with self._locked():
            self._index.number(id)
            if id not in self._manifests:
                self._remember(id, self._index.manifest(id))
            self._manifests.move_to_end(id)
            return self._manifests[id]

    def _remember(self, id: str, manifest: dict[str, Entry]) -> None:
        self._manifests[id] = manifest
        while len(self._manifests) > _CACHED_MANIFESTS:
            self._manifests.popitem(last=False)

    def shell(self, id: str) -> bytes | None:
        with self._locked():
            return self._overview.shell(id)

    def length(self, digest: bytes) -> int | None:
        with self._locked():
            place = self._index.place(digest)
        return place[2] if place else None

    def content(self, digest: bytes) -> bytes:
        return self._shared.get(digest, self._read_piece)

    def _read_piece(self, digest: bytes) -> bytes:
        with self._locked():
            for last in (False, True):
                place = self._index.place(digest)
                if place is None:
                    break
                # The pack is missing if a writer has just replaced it by a smaller pack. Then look for the piece again.
                with contextlib.suppress(FileNotFoundError):
                    return self._reader.read(digest, *place)
                if last:
                    raise HistoryError(f"The history in {self.folder} is damaged: {place[0]} is missing.")
        raise HistoryError("The content of this file was not kept.")

    def sharing(self) -> contextlib.AbstractContextManager[SharedPieces]:
        return self._shared

    @property
    def size(self) -> int:
        with self._locked():
            return sum(self._overview.packs().values())

    @property
    def dropped(self) -> int:
        with self._locked():
            return int(self._overview.sql.execute("SELECT count(*) FROM dropped").fetchone()[0])

    # -- writing -------------------------------------------------------------------------------------------

    def writer(self) -> PackWriter:
        return PackWriter(self._pack_folder)

    def commit(
        self,
        checkpoint: Checkpoint,
        changed: Mapping[str, Entry | None],
        shell: bytes | None,
        content: ContentWriter,
        pinned: Iterable[str] = (),
        manifest: dict[str, Entry] | None = None,
    ) -> None:
        assert isinstance(content, PackWriter)
        with self._locked():
            try:
                content.finish()
                with storing(self.folder):
                    self._index.add(checkpoint, changed, shell, content)
            except BaseException:
                content.discard()
                raise
            self._reader.written.add(content.name)
            if manifest is not None:
                self._remember(checkpoint.id, manifest)
            # When old checkpoints are dropped, content that is still in use is copied into new packs. If the disk is
            # too full for the copies, the history exceeds its limit until a later commit.
            with contextlib.suppress(HistoryNotWrittenError), storing(self.folder):
                gone, new = keep_within(
                    self._index, self._pack_folder, self._reader, self.limit, {*pinned, checkpoint.id}
                )
                self._reader.written.update(new)
                for name in gone:
                    self._reader.forget(name)

    # -- the image -----------------------------------------------------------------------------------------

    def image_entry(self, path: str) -> tuple[Entry | None, bool] | None:
        with self._locked():
            return self._index.image_entry(path)

    def image_names(self, folder: str) -> list[str]:
        with self._locked():
            return self._index.image_names(folder)

    def learn_image(self, entries: Mapping[str, tuple[Entry | None, bool]], content: ContentWriter) -> None:
        assert isinstance(content, PackWriter)
        with self._locked():
            try:
                content.finish()
                with storing(self.folder):
                    self._index.learn_image(entries, content)
            except BaseException:
                content.discard()
                raise
            self._reader.written.add(content.name)

    # -- copies --------------------------------------------------------------------------------------------

    def continue_in(self, folder: Path) -> None:
        """See `CheckpointStore.continue_in`. The copy shares the content by hard links."""
        with storing(folder), contextlib.ExitStack() as opened:
            if exists(folder, INDEX):
                raise HistoryError(f"{folder} holds a history already; give another folder.")
            folder.mkdir(parents=True, exist_ok=True)
            try:
                check_folder(folder)
                # The copy may take long. Without this lock, `stores.remove_stale` would then remove a temporary folder.
                opened.callback(unlock_and_close, _lock_folder(folder))
                packs = PackFolder(folder.parent, f"{folder.name}/{PACKS}", make=True)
            except NotOwnFileError as error:
                raise HistoryError(f"The history in {folder} cannot be used: {error}.") from error
            opened.callback(packs.close)
            with self._locked():
                index = self._index
                for name, size in index.packs().items():
                    self._pack_folder.share(name, packs, size)
                write_copy(folder, index)

    def continued_in(self, folder: Path) -> PackStore:
        self.continue_in(folder)
        store = PackStore(folder, limit=self.limit)
        with self._locked():
            store._manifests.update(self._manifests)
            store._reader.written.update(self._reader.written)
        store._shared = self._shared
        return store


def _lock_folder(folder: Path, *, make: bool = True) -> int:
    """Lock the folder against other writers. Return the descriptor of the locked file.

    Raises:
        HistoryError: if another process has locked the folder.
        FileNotFoundError, NotOwnFileError: if there is no lock file and `make` is False, or it is not a regular file.
    """
    flags = os.O_RDWR | os.O_CREAT if make else os.O_RDONLY
    descriptor = open_file(folder.parent, f"{folder.name}/{LOCK}", flags, 0o600)
    with contextlib.suppress(OSError):
        if try_lock(descriptor):
            return descriptor
    os.close(descriptor)
    raise HistoryError(
        f"The history in {folder} is in use by another sandbox; close that one, or give another folder."
    )


# -- the size limit: the oldest checkpoints are dropped first ----------------------------------------------------


def keep_within(
    index: Index, packs: PackFolder, reader: PackReader, limit: int, kept: Collection[str]
) -> tuple[list[str], list[str]]:
    """If all packs together have more than `limit` bytes, drop old checkpoints and remove their unused content.

    The oldest checkpoint is dropped first. Stop when the content still in use has at most `_SHARE_AFTER_DROPPING` of
    the limit, or when only the checkpoints with the ids `kept` are left.

    Returns:
        The names of the packs that were removed, and the names of the packs that replace them.
    """
    sizes = index.packs()
    if sum(sizes.values()) <= limit:
        return [], []
    old = [checkpoint.id for checkpoint in index.checkpoints() if checkpoint.id not in kept]
    new: list[PackWriter] = []
    try:
        with index.transaction():
            uses = _uses(index)
            stored = index.sql.execute("SELECT digest, size FROM objects")
            live = {digest: size for digest, size in stored if digest in uses}
            left = sum(live.values())
            while left > _SHARE_AFTER_DROPPING * limit and old:
                for digest in _drop(index, old.pop(0), uses):
                    left -= live.pop(digest, 0)
            gone = _repack(index, packs, reader, live, new)
    except BaseException:
        for writer in new:
            writer.discard()
        raise
    for name in gone:
        packs.remove(name)
    return gone, [writer.name for writer in new]


def _uses(index: Index) -> Counter[bytes]:
    """Return, by digest, the number of stored entries that use each piece of content."""
    rows = index.sql.execute(
        "SELECT entry FROM entries WHERE length(entry) UNION ALL SELECT entry FROM image WHERE length(entry)"
    )
    return Counter(digest for row in rows for digest in digests([kept_entry(row[0])]))


def _drop(index: Index, id: str, uses: Counter[bytes]) -> list[bytes]:
    """Drop a checkpoint. Copy its stored entries to its children, as far as they have no entry at the same path.

    Update `uses`, which is a result of `_uses`. Return the digests of pieces that no entry uses any more.
    """
    sql, number = index.sql, index.number(id)
    (parent,) = sql.execute("SELECT parent FROM checkpoints WHERE number = ?", (number,)).fetchone()
    children = [row[0] for row in sql.execute("SELECT number FROM checkpoints WHERE parent = ?", (number,))]
    # Each entry of this checkpoint vanishes here (-1), and appears in each child without an own entry at the path (+1).
    changes = sql.execute(
        "SELECT entry, (SELECT count(*) FROM checkpoints c WHERE c.parent = e.checkpoint AND NOT EXISTS"
        " (SELECT 1 FROM entries own WHERE own.checkpoint = c.number AND own.path = e.path)) - 1 AS change"
        " FROM entries e WHERE checkpoint = ? AND length(entry) AND change != 0",
        (number,),
    )
    unused = []
    for entry, change in changes:
        for digest in digests([kept_entry(entry)]):
            uses[digest] += change
            if not uses[digest]:
                unused.append(digest)
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
    return unused


def _repack(
    index: Index, packs: PackFolder, reader: PackReader, live: dict[bytes, int], new: list[PackWriter]
) -> list[str]:
    """Replace each pack that has unused content by a new pack without it. Return the names of the replaced packs.

    `live` has the digests of the pieces in use. Damaged pieces are left out. The writers of the new packs are added to
    `new`. Raises HistoryNotWrittenError.
    """
    gone = []
    for number, name, size in index.sql.execute("SELECT number, name, size FROM packs").fetchall():
        rows = index.sql.execute(
            "SELECT digest, offset, size, crc FROM objects WHERE pack = ?", (number,)
        ).fetchall()
        needed = [row for row in rows if row[0] in live]
        if sum(row[2] for row in needed) == size:
            continue
        writer = PackWriter(packs)
        new.append(writer)
        for digest, offset, length, check in sorted(needed, key=lambda row: row[1]):
            try:
                piece = reader.read(digest, name, offset, length, check)
            except (HistoryError, FileNotFoundError):
                continue
            writer.add(piece)
        writer.finish()
        index.sql.execute("DELETE FROM objects WHERE pack = ?", (number,))
        index.sql.execute("DELETE FROM packs WHERE number = ?", (number,))
        index.add_pack(writer)
        gone.append(name)
    return gone
