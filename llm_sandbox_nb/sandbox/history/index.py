"""Index of a history: an SQLite database with the checkpoints, entries of files, and places of content in packs."""

from __future__ import annotations

import errno
import json
import os
import secrets
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from llm_sandbox_nb.own_folder import NotOwnFileError, open_file, unshare_file
from llm_sandbox_nb.sandbox.contract import Checkpoint
from llm_sandbox_nb.sandbox.errors import HistoryError
from llm_sandbox_nb.sandbox.history.entry_rows import is_entry, is_kept_path, path_problem
from llm_sandbox_nb.sandbox.history.index_copy import (
    INDEX,
    SCHEMA,
    VERSION,
    copy_rows,
    open_source,
    unpacked_shell,
)
from llm_sandbox_nb.sandbox.history.manifest import Entry
from llm_sandbox_nb.sandbox.history.packs import PARTIAL, PackWriter

_COLUMNS = "c.id, p.id, c.time, c.files, c.size, c.duration, c.incomplete"
_INVALID = "The history is damaged: its record of a file is invalid."
_FROM = "FROM checkpoints c LEFT JOIN checkpoints p ON p.number = c.parent"


class Index:
    """The tables of a history. Callers must hold the store's lock, in whatever thread they run."""

    def __init__(self, sql: sqlite3.Connection) -> None:
        self.sql = sql

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Commit all changes that are made in this context, or undo them all if there is an exception."""
        self.sql.execute("BEGIN IMMEDIATE")
        try:
            yield self.sql
            self.sql.execute("COMMIT")
        except BaseException:
            if self.sql.in_transaction:  # on a full disk, SQLite has already rolled back
                self.sql.execute("ROLLBACK")
            raise

    # -- checkpoints ---------------------------------------------------------------------------------------

    def checkpoints(self) -> list[Checkpoint]:
        """Return all checkpoints, oldest first."""
        rows = self.sql.execute(f"SELECT {_COLUMNS} {_FROM} ORDER BY c.number").fetchall()
        return [Checkpoint(*row) for row in rows]

    def checkpoint(self, id: str) -> Checkpoint:
        """Return a checkpoint. Raises HistoryError if there is no such checkpoint."""
        row = self.sql.execute(f"SELECT {_COLUMNS} {_FROM} WHERE c.id = ?", (id,)).fetchone()
        if row is None:
            self.number(id)
        return Checkpoint(*row)

    def number(self, id: str) -> int:
        """Return the number of a checkpoint. Raises HistoryError if there is no such checkpoint."""
        row = self.sql.execute("SELECT number FROM checkpoints WHERE id = ?", (id,)).fetchone()
        if row:
            return int(row[0])
        if self.sql.execute("SELECT 1 FROM dropped WHERE id = ?", (id,)).fetchone():
            raise HistoryError(
                f"The checkpoint {id} was dropped to keep the history within its size limit; choose a later one, "
                "and give the next run a larger limit."
            )
        raise HistoryError(
            f"This history has no checkpoint {id!r}; `history.checkpoints` lists all checkpoints."
        )

    def shell(self, id: str) -> bytes | None:
        """Return the state of the shell at a checkpoint. None if it was not saved."""
        row = self.sql.execute(
            "SELECT shell FROM checkpoints WHERE number = ?", (self.number(id),)
        ).fetchone()
        return unpacked_shell(row[0]) if row[0] is not None else None

    def manifest(self, id: str) -> dict[str, Entry]:
        """Return all entries of a checkpoint, by path.

        The index stores only entries that differ from the parent's. So for each path, this method takes the newest
        entry that is stored for the checkpoint or for one of its ancestors.
        """
        rows = self.sql.execute(
            "WITH RECURSIVE line(number, parent, age) AS ("
            " SELECT number, parent, 0 FROM checkpoints WHERE number = ?"
            " UNION ALL SELECT c.number, c.parent, age + 1 FROM checkpoints c JOIN line ON c.number = line.parent)"
            " SELECT path, entry FROM line JOIN entries ON checkpoint = number ORDER BY age DESC",
            (self.number(id),),
        )
        found: dict[bytes, bytes | None] = dict(rows)
        return {_kept_path(path): kept_entry(entry) for path, entry in found.items() if entry is not None}

    def add(
        self,
        checkpoint: Checkpoint,
        changed: Mapping[str, Entry | None],
        shell: bytes | None,
        content: PackWriter,
    ) -> None:
        """Add a checkpoint, and the complete pack that `content` has written. See `CheckpointStore.commit`."""
        with self.transaction() as sql:
            parent = None if checkpoint.parent is None else self.number(checkpoint.parent)
            number = sql.execute(
                "INSERT INTO checkpoints(id, parent, time, files, size, duration, incomplete, shell)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    checkpoint.id,
                    parent,
                    checkpoint.time,
                    checkpoint.files,
                    checkpoint.size,
                    checkpoint.duration,
                    checkpoint.incomplete,
                    None if shell is None else zlib.compress(shell),
                ),
            ).lastrowid
            sql.executemany("INSERT INTO entries VALUES (?, ?, ?)", _rows(number, changed))
            self.add_pack(content)

    def add_pack(self, content: PackWriter) -> None:
        """Add a pack. Call this in a transaction. Pieces that other packs have too will be read from this pack."""
        if not content.places:
            return
        pack = self.sql.execute(
            "INSERT INTO packs(name, size) VALUES (?, ?)", (content.name, content.size)
        ).lastrowid
        rows = ((digest, pack, *place) for digest, place in content.places.items())
        self.sql.executemany("INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?)", rows)

    # -- content -------------------------------------------------------------------------------------------

    def place(self, digest: bytes) -> tuple[str, int, int, int] | None:
        """Return a piece's place: name of the pack, offset, length, CRC-32. None if the piece is not stored."""
        row = self.sql.execute(
            "SELECT name, offset, o.size, crc FROM objects o JOIN packs ON number = pack WHERE digest = ?",
            (digest,),
        ).fetchone()
        return None if row is None else (row[0], row[1], row[2], row[3])

    def packs(self) -> dict[str, int]:
        """Return the size in bytes of each pack, by name."""
        return dict(self.sql.execute("SELECT name, size FROM packs").fetchall())

    # -- the image -----------------------------------------------------------------------------------------

    def image_entry(self, path: str) -> tuple[Entry | None, bool] | None:
        """Return the pair that `learn_image` has stored for a path. None if no pair was stored."""
        row = self.sql.execute(
            "SELECT entry, listed FROM image WHERE path = ?", (os.fsencode(path),)
        ).fetchone()
        return (kept_entry(row[0]) if row[0] is not None else None, bool(row[1])) if row else None

    def image_names(self, folder: str) -> list[str]:
        """Return the paths directly in `folder` for which an entry of the image is stored."""
        start = os.fsencode(folder).rstrip(b"/") + b"/"
        rows = self.sql.execute(
            "SELECT path FROM image WHERE path > ? AND path < ? AND instr(substr(path, ?), X'2F') = 0"
            " AND entry IS NOT NULL",
            (start, start[:-1] + b"0", len(start) + 1),
        )
        return [_kept_path(row[0]) for row in rows]

    def learn_image(self, entries: Mapping[str, tuple[Entry | None, bool]], content: PackWriter) -> None:
        """Store entries of the image, and the pack that `content` has written. See `CheckpointStore.learn_image`."""
        with self.transaction() as sql:
            sql.executemany(
                "INSERT INTO image VALUES (?, ?, ?) ON CONFLICT(path) DO UPDATE SET"
                " entry = excluded.entry, listed = max(listed, excluded.listed)",
                (
                    (os.fsencode(path), None if entry is None else entry.encode(), int(listed))
                    for path, (entry, listed) in entries.items()
                ),
            )
            self.add_pack(content)


def kept_entry(data: bytes) -> Entry:
    """Parse an entry from a row of an index, which may be hostile. Raises HistoryError if the entry is invalid."""
    try:
        row = json.loads(data)
    except (ValueError, RecursionError):
        row = None
    if not is_entry(row, kept=True) or (row[8] is not None and path_problem(row[8])):
        raise HistoryError(_INVALID)
    return Entry.of_row(*row)


def _kept_path(data: bytes) -> str:
    """Parse a path from a row of an index, which may be hostile. Raises HistoryError if the path is invalid."""
    if not is_kept_path(data):
        raise HistoryError(_INVALID)
    return os.fsdecode(data)


# -- databases -----------------------------------------------------------------------------------------------------


def writable_index(folder: Path) -> Index:
    """Open the index in `folder` for writing. If there is no index, make an empty one.

    An existing index may come from a stranger. So its rows are first checked and copied into a fresh database, which
    replaces it.

    Raises:
        HistoryError: if a file of the index is not a regular file, or a row of the index is invalid.
    """
    _check_names(folder)
    _finish_replacement(folder)
    if exists(folder, INDEX):
        for suffix in ("", "-wal", "-shm"):
            unshare_file(folder, f"{INDEX}{suffix}")
        _replace(folder, lambda target: copy_rows(folder, target))
    else:
        _replace(folder, lambda target: None)
    _finish_replacement(folder)
    sql = _connect(folder / INDEX)
    sql.execute("PRAGMA synchronous=NORMAL")
    return Index(sql)


def write_copy(folder: Path, index: Index) -> None:
    """Write a copy of `index` as the index of a new history in `folder`. Raises HistoryError."""
    _check_names(folder)
    _replace(folder, index.sql.backup)
    _finish_replacement(folder)


class IndexReader:
    """Reader of an index to which another process may write. It reads a copy, and makes a new copy after each change.

    The copy has the rows of files only if they are needed, so that a list of checkpoints does not wait for them.

    Raises:
        HistoryError: if the folder does not hold the index of a history.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._source = open_source(folder)
        self._seen: tuple[int, int] | None = None
        self._index: Index | None = None
        self._whole = False

    def current(self, *, whole: bool) -> tuple[Index, bool]:
        """Return a copy with the current rows, and True if rows have changed since the last call. Raises HistoryError.

        If `whole` is False, the copy may lack the rows of files: entries, places of content, and files of the image.
        """
        inode = self._inode()
        if self._seen is not None and self._seen[0] != inode:
            self._source.close()
            self._source = open_source(self._folder)
        try:
            seen = inode, int(self._source.execute("PRAGMA data_version").fetchone()[0])
        except sqlite3.Error as error:
            raise HistoryError(f"The index in {self._folder} cannot be read: {error}.") from error
        changed = self._seen != seen
        if self._index is not None and not changed and self._whole >= whole:
            return self._index, False
        # SQLite keeps a database without a name in memory, and parts of a large one in a file that only it can open.
        sql = _with_schema(
            sqlite3.connect("", uri=True, isolation_level=None, check_same_thread=False, timeout=20.0)
        )
        try:
            copy_rows(self._folder, sql, whole=whole)
        except BaseException:
            sql.close()
            raise
        self._close_copy()
        self._index, self._seen, self._whole = Index(sql), seen, whole
        return self._index, changed

    def close(self) -> None:
        self._close_copy()
        self._source.close()

    def _close_copy(self) -> None:
        if self._index is not None:
            self._index.sql.close()
            self._index = None

    def _inode(self) -> int:
        try:
            return (self._folder / INDEX).lstat().st_ino
        except FileNotFoundError as error:
            raise HistoryError(f"The history in {self._folder} is gone.") from error


_FRESH = f"{INDEX}.fresh"
"""Name of a complete new index, until it is renamed and so replaces the present index."""


def exists(folder: Path, name: str) -> bool:
    """Return True if `name` is a regular file below `folder`.

    Raises:
        OSError: if the check fails, for example because too many files are open. False would be wrong then: the caller
            would replace an existing index by an empty one.
    """
    try:
        os.close(open_file(folder, name))
    except (FileNotFoundError, NotADirectoryError, NotOwnFileError):
        return False
    return True


def _check_names(folder: Path) -> None:
    """Raise HistoryError if a file of the index exists but is not a regular file, for example a link or a folder."""
    for name in (INDEX, f"{INDEX}-wal", f"{INDEX}-shm", f"{INDEX}-journal", _FRESH):
        if os.path.lexists(folder / name) and not exists(folder, name):
            raise HistoryError(f"{folder / name} is not a regular file; give the folder of a history.")


def _replace(folder: Path, fill: Callable[[sqlite3.Connection], object]) -> None:
    """Make a new database, and call `fill` to fill it. Rename it to `_FRESH` only when it is complete.

    Call `_finish_replacement` afterwards, so that the new database replaces the present index.
    """
    name = f"{INDEX}.{secrets.token_hex(6)}{PARTIAL}"
    try:
        os.close(open_file(folder, name, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        sql = _with_schema(_connect(folder / name, journal="MEMORY"))
        try:
            fill(sql)
            sql.execute("PRAGMA main.journal_mode=WAL")  # not before, because filling a new file needs no log
        finally:
            sql.close()
        (folder / name).rename(folder / _FRESH)
    except sqlite3.OperationalError as error:
        raise OSError(errno.ENOSPC, f"The index of the history cannot be written ({error})") from error
    finally:
        for suffix in ("", "-wal", "-shm", "-journal"):
            (folder / f"{name}{suffix}").unlink(missing_ok=True)


def _finish_replacement(folder: Path) -> None:
    """Remove incomplete files of `_replace`. If the file `_FRESH` exists, replace the index by this file.

    Before the replacement, remove the journals of the old index. Otherwise SQLite would apply them to the new index.
    """
    for stale in folder.glob(f"{INDEX}.*{PARTIAL}*"):
        if not stale.is_dir() or stale.is_symlink():
            stale.unlink()
    if not exists(folder, _FRESH):
        return
    for suffix in ("-wal", "-shm", "-journal"):
        (folder / f"{INDEX}{suffix}").unlink(missing_ok=True)
    (folder / _FRESH).replace(folder / INDEX)


def _connect(path: Path, *, journal: str = "WAL") -> sqlite3.Connection:
    """Connect to a database that this package has made, so that it can be trusted."""
    where = f"file:{quote(str(path))}?mode=rw"
    sql = sqlite3.connect(where, uri=True, isolation_level=None, check_same_thread=False, timeout=20.0)
    sql.execute("PRAGMA trusted_schema=0")
    sql.execute(f"PRAGMA journal_mode={journal}")
    return sql


def _with_schema(sql: sqlite3.Connection) -> sqlite3.Connection:
    sql.executescript(SCHEMA)
    sql.execute("INSERT INTO meta VALUES ('version', ?)", (VERSION,))
    return sql


def _rows(
    number: int | None, changed: Mapping[str, Entry | None]
) -> Iterator[tuple[int | None, bytes, bytes | None]]:
    for path, entry in changed.items():
        yield number, os.fsencode(path), None if entry is None else entry.encode()
