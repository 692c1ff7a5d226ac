"""The store of checkpoints, which consists of an SQLite index and immutable packs of content.

First the pack is completed, then a transaction of the index adds the checkpoint. So if the process is killed at any
instant, the history stays readable and has every acknowledged checkpoint.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import BinaryIO

from llm_sandbox_nb.own_folder import NotOwnFileError, check_folder, is_file, open_file
from llm_sandbox_nb.sandbox.contract import HISTORY_LIMIT, Checkpoint
from llm_sandbox_nb.sandbox.errors import HistoryError, HistoryNotWrittenError, OutputLimitExceededError
from llm_sandbox_nb.sandbox.history.index import Index, IndexReader, kept_entry, writable_index, write_copy
from llm_sandbox_nb.sandbox.history.index_copy import INDEX
from llm_sandbox_nb.sandbox.history.manifest import Chunk, Entry, Manifest, digests
from llm_sandbox_nb.sandbox.history.packs import PackFolder, PackReader, PackWriter, SharedPieces, storing
from llm_sandbox_nb.windows import try_lock

PACKS, LOCK = "packs", "lock"
_CACHED_MANIFESTS = 4
"""Maximum number of manifests in memory."""
_SHARE_AFTER_DROPPING = 0.9
"""Maximum share of the limit in use after old checkpoints were dropped. So not every new checkpoint drops another."""


class PackStore:
    """Checkpoints in one folder: manifests, states of the shell, and pieces of content by their digests. It promises:

    - Order: `checkpoints` lists checkpoints as they were committed. A checkpoint comes after its parent.
    - Crash safety: if the process is killed at any instant, the folder can be opened again. It then has every
      checkpoint whose `commit` has returned, and no checkpoint without its content.
    - Concurrency: several threads may use a store. Only one process at a time may write, and others may read
      meanwhile. A reader sees each checkpoint after its `commit`.
    - Distrust: the folder may come from a stranger. So links are not followed, content that does not match its
      digest is damaged, and the index is copied before it is used.
    - Errors: each method raises HistoryError if a checkpoint or a piece of content is missing, dropped or damaged, and
      each method that writes raises HistoryNotWrittenError if this machine cannot write. A failed call stores nothing.

    Callers do not modify what a store returns.
    """

    def __init__(self, folder: Path, *, limit: int = HISTORY_LIMIT, readonly: bool = False) -> None:
        """Open the store in `folder`. Make the folder and the store if they are missing and `readonly` is False.

        Raises:
            HistoryError: if the folder is in use or holds other files, or if it holds no store and `readonly` is True.
        """
        self.folder = folder
        self.limit = limit
        """Maximum bytes of content. Callers may change it; the next `commit` obeys."""
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
        """Return True if a folder holds a store. Links are not followed."""
        return is_file(folder.parent, f"{folder.name}/{INDEX}")

    @staticmethod
    def is_in_use(folder: Path) -> bool:
        """Return True if a process has the store in `folder` open for writing."""
        try:
            os.close(_lock_folder(folder, make=False))
        except OSError:
            return False
        except HistoryError:
            return True
        return False

    def close(self) -> None:
        """Release the folder. A second call does nothing."""
        with self._mutex:
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
            os.close(self._lock_fd)
            self._lock_fd = -1

    @property
    def _index(self) -> Index:
        """The current index, which for a reader is a copy of the writer's index. Callers hold the lock."""
        return self._current_index(whole=True)

    @property
    def _overview(self) -> Index:
        """The current index. A reader's copy may have only the checkpoints and packs. Callers hold the lock."""
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
        """Return all checkpoints, oldest first."""
        with self._mutex:
            return self._overview.checkpoints()

    def checkpoint(self, id: str) -> Checkpoint:
        with self._mutex:
            return self._overview.checkpoint(id)

    def manifest(self, id: str) -> Manifest:
        """Return all entries at a checkpoint."""
        with self._mutex:
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
        """Return the opaque state of the shell at a checkpoint. None if the state was not stored."""
        with self._mutex:
            return self._overview.shell(id)

    def length(self, digest: bytes) -> int | None:
        """Return the number of bytes of a piece of content. None if the piece is not stored."""
        with self._mutex:
            place = self._index.place(digest)
        return place[2] if place else None

    def read(self, entry: Entry, limit: int) -> bytes:
        """Return the content of a file. Raises OutputLimitExceededError if it has more than `limit` bytes."""
        if entry.chunks is None:
            raise HistoryError("The content of this file was not kept.")
        if entry.size > limit:
            raise OutputLimitExceededError(f"The file is larger than the limit of {limit} bytes.")
        data = bytearray(entry.size)
        for chunk in entry.chunks:
            data[chunk.offset : chunk.offset + chunk.length] = self.piece(chunk)
        return bytes(data)

    def write(self, entry: Entry, file: BinaryIO) -> None:
        """Write the content of a file, with its holes, into an empty file."""
        if entry.chunks is None:
            raise HistoryError("The content of this file was not kept.")
        for chunk in entry.chunks:
            file.seek(chunk.offset)
            file.write(self.piece(chunk))
        file.truncate(entry.size)

    def piece(self, chunk: Chunk) -> bytes:
        """Return a piece of a file, whose length is checked."""
        data = self.content(chunk.digest)
        if len(data) != chunk.length:
            raise HistoryError(
                f"The history in {self.folder} is damaged: a piece of a file has another length."
            )
        return data

    def content(self, digest: bytes) -> bytes:
        """Return a piece of content."""
        return self._shared.get(digest, self._read_piece)

    def _read_piece(self, digest: bytes) -> bytes:
        with self._mutex:
            for last in (False, True):
                place = self._index.place(digest)
                if place is None:
                    break
                with contextlib.suppress(
                    FileNotFoundError
                ):  # a writer may have replaced the pack by a smaller pack, so look for the piece once more
                    return self._reader.read(digest, *place)
                if last:
                    raise HistoryError(f"The history in {self.folder} is damaged: {place[0]} is missing.")
        raise HistoryError("The content of this file was not kept.")

    def sharing(self) -> contextlib.AbstractContextManager[SharedPieces]:
        """Return a context in which the forks of this history share pieces of content in memory."""
        return self._shared

    @property
    def size(self) -> int:
        """Bytes of stored content. Each piece counts once."""
        with self._mutex:
            return sum(self._overview.packs().values())

    @property
    def dropped(self) -> int:
        """Number of checkpoints that were dropped to stay within the limit."""
        with self._mutex:
            return int(self._overview.sql.execute("SELECT count(*) FROM dropped").fetchone()[0])

    # -- writing -------------------------------------------------------------------------------------------

    def writer(self) -> PackWriter:
        """Return a writer for the content of a new checkpoint, for `commit` or `learn_image`, or to be discarded."""
        return PackWriter(self._pack_folder)

    def commit(
        self,
        checkpoint: Checkpoint,
        changed: Mapping[str, Entry | None],
        shell: bytes | None,
        content: PackWriter,
        pinned: Iterable[str] = (),
        manifest: dict[str, Entry] | None = None,
    ) -> None:
        """Store a checkpoint. Then drop the oldest other checkpoints, except `pinned`, while the limit is exceeded.

        Checkpoints that follow a dropped one stay complete; their parent becomes the parent of the dropped one.

        Args:
            changed: the differences from the entries of the checkpoint's parent, as from `manifest.delta`.
            manifest: all entries, which may be kept in memory and must not be modified any more.
        """
        with self._mutex:
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
            # To drop checkpoints, content in use is copied into new packs. On a full disk, this fails, and the history
            # exceeds its limit until a later commit.
            with contextlib.suppress(HistoryNotWrittenError), storing(self.folder):
                gone, new = keep_within(
                    self._index, self._pack_folder, self._reader, self.limit, {*pinned, checkpoint.id}
                )
                self._reader.written.update(new)
                for name in gone:
                    self._reader.forget(name)

    # -- the image -----------------------------------------------------------------------------------------

    def image_entry(self, path: str) -> tuple[Entry | None, bool] | None:
        """Return what `learn_image` stored at a path. None if nothing was stored."""
        with self._mutex:
            return self._index.image_entry(path)

    def image_names(self, folder: str) -> list[str]:
        """Return the stored paths directly in a folder, in any order, without those where the image has nothing."""
        with self._mutex:
            return self._index.image_names(folder)

    def learn_image(self, entries: Mapping[str, tuple[Entry | None, bool]], content: PackWriter) -> None:
        """Store entries of the image and their content.

        Each path has its entry, or None if the image has nothing there, and True if it is a folder whose names are all
        stored. A later entry replaces an earlier one, but the True stays.
        """
        with self._mutex:
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
        """Make a copy of this store in `folder`, which shares the content by hard links.

        Each store stays complete if the other one is changed or removed. If the process is killed meanwhile, `holds` is
        False for `folder`, and a second call succeeds. Raises HistoryError if the folder holds a history already.
        """
        if self.holds(folder):
            raise HistoryError(f"{folder} holds a history already; give another folder.")
        with storing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            try:
                check_folder(folder)
                packs = PackFolder(folder.parent, f"{folder.name}/{PACKS}", make=True)
            except NotOwnFileError as error:
                raise HistoryError(f"The history in {folder} cannot be used: {error}.") from error
            try:
                with self._mutex:
                    index = self._index
                    for name, size in index.packs().items():
                        self._pack_folder.share(name, packs, size)
                    write_copy(folder, index)
            finally:
                packs.close()

    def continued_in(self, folder: Path) -> PackStore:
        """Call `continue_in` and open the copy."""
        self.continue_in(folder)
        store = PackStore(folder, limit=self.limit)
        with self._mutex:
            store._manifests.update(self._manifests)
            store._reader.written.update(self._reader.written)
        store._shared = self._shared
        return store


def _lock_folder(folder: Path, *, make: bool = True) -> int:
    """Lock the folder against other writers. Raises HistoryError, FileNotFoundError, NotOwnFileError."""
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
    """Drop the oldest checkpoints if all packs together have more than `limit` bytes.

    Stop when the content that is still in use has at most `_SHARE_AFTER_DROPPING` of the limit, or when only the
    checkpoints with the ids `kept` are left.

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
            live = _live(index)
            while sum(live.values()) > _SHARE_AFTER_DROPPING * limit and old:
                _drop(index, old.pop(0))
                live = _live(index)
            gone = _repack(index, packs, reader, live, new)
    except BaseException:
        for writer in new:
            writer.discard()
        raise
    for name in gone:
        packs.remove(name)
    return gone, [writer.name for writer in new]


def _live(index: Index) -> dict[bytes, int]:
    """Return the size in bytes of each piece of content that an entry still uses, by digest."""
    rows = index.sql.execute(
        "SELECT entry FROM entries WHERE entry IS NOT NULL UNION ALL SELECT entry FROM image"
    )
    named = digests(kept_entry(row[0]) for row in rows if row[0])
    sizes = index.sql.execute("SELECT digest, size FROM objects")
    return {digest: size for digest, size in sizes if digest in named}


def _drop(index: Index, id: str) -> None:
    """Drop a checkpoint. Its changes become changes of the checkpoints whose parent it was."""
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


def _repack(
    index: Index, packs: PackFolder, reader: PackReader, live: dict[bytes, int], new: list[PackWriter]
) -> list[str]:
    """Replace each pack that has unused content by a new pack with only the used content. Return the old packs' names.

    Damaged pieces are left out.
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
            with contextlib.suppress(HistoryError, FileNotFoundError):
                writer.add(reader.read(digest, name, offset, length, check))
        writer.finish()
        index.sql.execute("DELETE FROM objects WHERE pack = ?", (number,))
        index.sql.execute("DELETE FROM packs WHERE number = ?", (number,))
        index.add_pack(writer)
        gone.append(name)
    return gone
