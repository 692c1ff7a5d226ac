"""The index of a history in SQLite, one transaction for each change."""

from __future__ import annotations

import os
import sqlite3
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from llm_sandbox_nb.sandbox.contract import Checkpoint
from llm_sandbox_nb.sandbox.errors import HistoryError
from llm_sandbox_nb.sandbox.history.manifest import Entry
from llm_sandbox_nb.sandbox.history.packs import PackWriter

VERSION = "1"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta(key TEXT PRIMARY KEY, value TEXT);
CREATE TABLE IF NOT EXISTS checkpoints(
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL, parent INTEGER, time REAL NOT NULL,
    files INTEGER NOT NULL, size INTEGER NOT NULL, duration REAL NOT NULL, incomplete TEXT NOT NULL, shell BLOB
);
CREATE INDEX IF NOT EXISTS children ON checkpoints(parent);
CREATE TABLE IF NOT EXISTS entries(
    checkpoint INTEGER NOT NULL, path BLOB NOT NULL, entry BLOB, PRIMARY KEY(checkpoint, path)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS packs(number INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, size INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS objects(
    digest BLOB PRIMARY KEY, pack INTEGER NOT NULL, offset INTEGER NOT NULL, size INTEGER NOT NULL,
    crc INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS dropped(id TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS image(path BLOB PRIMARY KEY, entry BLOB, listed INTEGER NOT NULL);
"""
_COLUMNS = "c.id, p.id, c.time, c.files, c.size, c.duration, c.incomplete"
_FROM = "FROM checkpoints c LEFT JOIN checkpoints p ON p.number = c.parent"


class Index:
    """The tables. Used under the store's lock, from any thread."""

    def __init__(self, path: Path, *, readonly: bool = False) -> None:
        try:
            self.sql = _connect(path, readonly)
            if not readonly:
                self.sql.execute("PRAGMA journal_mode=WAL")
                self.sql.execute("PRAGMA synchronous=NORMAL")
                self.sql.executescript(_SCHEMA)
            row = self.sql.execute("SELECT value FROM meta WHERE key = 'version'").fetchone()
            if row is None and not readonly:
                self.sql.execute("INSERT OR IGNORE INTO meta VALUES ('version', ?)", (VERSION,))
            elif row is None or row[0] != VERSION:
                raise HistoryError("This history was written by another version; give an empty folder.")
        except sqlite3.Error as error:
            raise HistoryError(
                f"{path} is not the index of a history ({error}); give another folder."
            ) from error

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All or none of the changes in it."""
        self.sql.execute("BEGIN IMMEDIATE")
        try:
            yield self.sql
        except BaseException:
            self.sql.execute("ROLLBACK")
            raise
        self.sql.execute("COMMIT")

    # -- checkpoints ---------------------------------------------------------------------------------------

    def checkpoints(self) -> list[Checkpoint]:
        """All checkpoints, oldest first."""
        rows = self.sql.execute(f"SELECT {_COLUMNS} {_FROM} ORDER BY c.number").fetchall()
        return [Checkpoint(*row) for row in rows]

    def checkpoint(self, id: str) -> Checkpoint:
        """One.

        Raises:
            HistoryError: there is none.
        """
        row = self.sql.execute(f"SELECT {_COLUMNS} {_FROM} WHERE c.id = ?", (id,)).fetchone()
        if row is None:
            self.number(id)
        return Checkpoint(*row)

    def number(self, id: str) -> int:
        """The number of a checkpoint.

        Raises:
            HistoryError: there is none.
        """
        row = self.sql.execute("SELECT number FROM checkpoints WHERE id = ?", (id,)).fetchone()
        if row:
            return int(row[0])
        if self.sql.execute("SELECT 1 FROM dropped WHERE id = ?", (id,)).fetchone():
            raise HistoryError(
                f"The checkpoint {id} was dropped to keep the history within its size limit; choose a later one, "
                "and give the next run a larger limit."
            )
        raise HistoryError(
            f"This history has no checkpoint {id!r}; `history.checkpoints` lists those it has."
        )

    def shell(self, id: str) -> bytes | None:
        """The state of the shell at a checkpoint, if it was saved."""
        row = self.sql.execute(
            "SELECT shell FROM checkpoints WHERE number = ?", (self.number(id),)
        ).fetchone()
        return zlib.decompress(row[0]) if row[0] is not None else None

    def manifest(self, id: str) -> dict[str, Entry]:
        """All entries at a checkpoint: its own, then its parent's that it does not replace, and so on."""
        rows = self.sql.execute(
            "WITH RECURSIVE line(number, parent, age) AS ("
            " SELECT number, parent, 0 FROM checkpoints WHERE number = ?"
            " UNION ALL SELECT c.number, c.parent, age + 1 FROM checkpoints c JOIN line ON c.number = line.parent)"
            " SELECT path, entry FROM line JOIN entries ON checkpoint = number ORDER BY age DESC",
            (self.number(id),),
        )
        found: dict[bytes, bytes | None] = dict(rows)
        return {os.fsdecode(path): Entry.decode(entry) for path, entry in found.items() if entry is not None}

    def add(
        self,
        checkpoint: Checkpoint,
        changed: Mapping[str, Entry | None],
        shell: bytes | None,
        content: PackWriter,
    ) -> None:
        """Add a checkpoint, with the pack that holds its content."""
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
        """Add a pack and what is in it; it replaces other places of the same content. Inside a transaction."""
        if not content.places:
            return
        pack = self.sql.execute(
            "INSERT INTO packs(name, size) VALUES (?, ?)", (content.name, content.size)
        ).lastrowid
        rows = ((digest, pack, *place) for digest, place in content.places.items())
        self.sql.executemany("INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?)", rows)

    # -- content -------------------------------------------------------------------------------------------

    def place(self, digest: bytes) -> tuple[str, int, int, int] | None:
        """Pack, offset, length and CRC-32 of a piece of content."""
        row = self.sql.execute(
            "SELECT name, offset, o.size, crc FROM objects o JOIN packs ON number = pack WHERE digest = ?",
            (digest,),
        ).fetchone()
        return None if row is None else (row[0], row[1], row[2], row[3])

    def packs(self) -> dict[str, int]:
        """All packs and their sizes."""
        return dict(self.sql.execute("SELECT name, size FROM packs").fetchall())

    # -- the image -----------------------------------------------------------------------------------------

    def image_entry(self, path: str) -> tuple[Entry | None, bool] | None:
        """What the image has at a path (None: nothing), and whether it is a folder whose names are known.

        None when it was never read.
        """
        row = self.sql.execute(
            "SELECT entry, listed FROM image WHERE path = ?", (os.fsencode(path),)
        ).fetchone()
        return (Entry.decode(row[0]) if row[0] is not None else None, bool(row[1])) if row else None

    def image_names(self, folder: str) -> list[str]:
        """Paths of what the image has directly in a folder, as far as it was read."""
        start = os.fsencode(folder).rstrip(b"/") + b"/"
        rows = self.sql.execute(
            "SELECT path FROM image WHERE path > ? AND path < ? AND instr(substr(path, ?), X'2F') = 0"
            " AND entry IS NOT NULL",
            (start, start[:-1] + b"0", len(start) + 1),
        )
        return [os.fsdecode(row[0]) for row in rows]

    def learn_image(self, entries: Mapping[str, tuple[Entry | None, bool]], content: PackWriter) -> None:
        """Keep what the image has at paths, with the content of its files."""
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


def _connect(path: Path, readonly: bool) -> sqlite3.Connection:
    """A connection. A reader writes nothing, but in a writable folder SQLite sees what is being written."""
    writable = os.access(path.parent, os.W_OK)
    mode = "mode=rwc" if not readonly else "mode=rw" if writable else "immutable=1"
    where = f"file:{quote(str(path))}?{mode}"
    sql = sqlite3.connect(where, uri=True, isolation_level=None, check_same_thread=False, timeout=20.0)
    if readonly:
        sql.execute("PRAGMA query_only=1")
    return sql


def _rows(
    number: int | None, changed: Mapping[str, Entry | None]
) -> Iterator[tuple[int | None, bytes, bytes | None]]:
    for path, entry in changed.items():
        yield number, os.fsencode(path), None if entry is None else entry.encode()
