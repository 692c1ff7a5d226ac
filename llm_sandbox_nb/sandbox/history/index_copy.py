"""Copies of an index in a fresh database. An index may come from a stranger, so this package queries only copies.

The schema must be exactly `SCHEMA`, so that the database has no trigger, no view and no other table. Each row is
checked before it is copied. The size of the database's files limits the number of rows, and SQLite's number of steps.

Tables with a row for every file may be long, so SQLite checks and copies such a table in one statement. This statement
checks only the types and sizes of values. The paths and entries themselves are checked later, when they are read.

Every index is copied at each opening, even if this process has written it.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import re
import sqlite3
import stat
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from llm_sandbox_nb.errors import LLMSandboxError
from llm_sandbox_nb.sandbox.errors import HistoryError
from llm_sandbox_nb.sandbox.history.entry_rows import MAX_CHUNK_BYTES, is_number
from llm_sandbox_nb.sandbox.history.packs import is_pack_name

VERSION = "1"
SCHEMA = """
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
INDEX = "index.sqlite"
MAX_INDEX_BYTES = 2 * 1024**3
"""Maximum bytes of an index that this package reads."""
MAX_CHECKPOINTS = 100_000
_MAX_VALUE_BYTES = 64 * 1024**2
"""Maximum bytes of a value in a row. The longest values are entries of files with many pieces of content."""
_MAX_NUMBER = 2**53
_STEPS_PER_CHECK = 10_000
"""Number of steps of SQLite's virtual machine after which the number of steps is checked again."""
_STEPS_PER_BYTE = 8
"""Maximum steps for each byte of an index. This is enough, because a row of 40 bytes needs about a hundred steps."""
_ID_PATTERN = re.compile(r"[\w-]{1,64}")
_BATCH = 1000
Row = tuple[Any, ...]


class _InvalidRowError(LLMSandboxError):
    """Error for tables or rows that this package does not write. The message is the reason."""


def open_source(folder: Path) -> sqlite3.Connection:
    """Connect to the index in `folder`. Use the connection only to notice that another process has changed the index.

    Raises:
        HistoryError: if the file is not the index of a history.
    """
    _check_files(folder)
    try:
        sql = sqlite3.connect(
            _address(folder), uri=True, isolation_level=None, check_same_thread=False, timeout=20.0
        )
    except sqlite3.Error as error:
        raise _no_index(folder, str(error)) from error
    try:
        _trust_nothing(sql, attached=0)
        sql.execute("PRAGMA query_only=1")
    except sqlite3.Error as error:
        sql.close()
        raise _no_index(folder, str(error)) from error
    return sql


def copy_rows(folder: Path, target: sqlite3.Connection, *, whole: bool = True) -> None:
    """Copy the present rows of the index in `folder` into `target`, a database with the schema and without rows.

    If `whole` is False, copy only the short tables, which have checkpoints and packs but no files.

    Raises:
        HistoryError: if the file is not the index of a history, or has rows that this package does not write.
        OSError: if the disk of `target` is full.
    """
    _check_files(folder)
    steps = _max_checks(_size(folder))

    def count() -> bool:
        nonlocal steps
        steps -= 1
        return steps < 0

    try:
        _trust_nothing(target, attached=1)
        target.execute("ATTACH ? AS theirs", (_address(folder),))
        target.set_progress_handler(count, _STEPS_PER_CHECK)
        try:
            target.execute("BEGIN")
            if _same_schema(target):
                # The transaction has begun to read, so rows that another process adds from now on do not count. Rows
                # that it has added so far count, so their size must be known.
                room = _size(folder)
                steps = _max_checks(room)
                _Copy(target, room).all(whole=whole)
            target.execute("COMMIT")
        finally:
            target.set_progress_handler(None, 0)
            if target.in_transaction:
                target.execute("ROLLBACK")
            target.execute("DETACH theirs")
            target.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    except (sqlite3.Error, _InvalidRowError, UnicodeError, OverflowError) as error:
        if isinstance(error, sqlite3.OperationalError) and "full" in str(error):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
        raise _no_index(folder, str(error)) from error


def _max_checks(size: int) -> int:
    """Return how often SQLite's steps may be checked (see `_STEPS_PER_CHECK`) for an index of `size` bytes."""
    return _STEPS_PER_BYTE * size // _STEPS_PER_CHECK + 200


def _address(folder: Path) -> str:
    # If possible, the connection can write, because otherwise SQLite does not see changes by another process. When such
    # a connection is open or closed, SQLite writes into the database and the files next to it. That must not change a
    # file with a second name (a hard link), so such a database is opened as one that nobody changes.
    own = os.access(folder, os.W_OK) and all(info.st_nlink == 1 for info in _status(folder))
    mode = "mode=rw" if own else "immutable=1"
    return f"file:{quote(str(folder / INDEX))}?{mode}"


def _trust_nothing(sql: sqlite3.Connection, *, attached: int) -> None:
    """Forbid everything that a hostile database could make `sql` execute. Limit the number of attached databases."""
    if sys.version_info >= (3, 12):
        sql.setconfig(sqlite3.SQLITE_DBCONFIG_DEFENSIVE, True)
    for pragma in ("trusted_schema=0", "cell_size_check=1", "mmap_size=0"):
        sql.execute(f"PRAGMA {pragma}")
    sql.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE_BYTES)
    sql.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, attached)
    sql.text_factory = _text


def unpacked_shell(data: bytes) -> bytes:
    """Decompress the state of a shell. Raises HistoryError if the data is damaged."""
    machine = zlib.decompressobj()
    try:
        found = machine.decompress(data, MAX_CHUNK_BYTES + 1)
    except zlib.error as error:
        raise HistoryError("The state of the shell at this checkpoint is damaged.") from error
    if len(found) > MAX_CHUNK_BYTES or not machine.eof:
        raise HistoryError("The state of the shell at this checkpoint is damaged.")
    return found


def _no_index(folder: Path, why: str) -> HistoryError:
    why = "".join(letter if letter.isprintable() else " " for letter in why)[:200]
    return HistoryError(f"{folder / INDEX} is not the index of a history ({why}); give another folder.")


def _text(data: bytes) -> str:
    return data.decode("utf-8")


def _check_files(folder: Path) -> None:
    """Raise HistoryError unless SQLite would open only regular files and no journal, within `MAX_INDEX_BYTES`.

    A journal may name other files, which SQLite would remove.
    """
    for suffix in ("", "-wal", "-shm"):
        try:
            info = (folder / f"{INDEX}{suffix}").lstat()
        except FileNotFoundError:
            if not suffix:
                raise HistoryError(
                    f"There is no history in {folder}; give the folder of a run that kept one."
                ) from None
            continue
        if not stat.S_ISREG(info.st_mode):
            raise _no_index(folder, f"{INDEX}{suffix} is not a regular file")
    if os.path.lexists(folder / f"{INDEX}-journal"):
        raise _no_index(folder, "another program has not completed a change of it")
    if _size(folder) > MAX_INDEX_BYTES:
        raise _no_index(folder, f"it has more than {MAX_INDEX_BYTES} bytes")


def _size(folder: Path) -> int:
    return sum(info.st_size for info in _status(folder, ("", "-wal")))


def _status(folder: Path, suffixes: Iterable[str] = ("", "-wal", "-shm")) -> Iterator[os.stat_result]:
    """Yield the status of the index's files with these suffixes. Links are not followed. Missing files are left out."""
    for suffix in suffixes:
        with contextlib.suppress(FileNotFoundError):
            yield (folder / f"{INDEX}{suffix}").lstat()


def _schema(sql: sqlite3.Connection, database: str) -> set[Row]:
    rows = sql.execute(f"SELECT type, name, tbl_name, sql FROM {database}.sqlite_master LIMIT 100").fetchall()
    return {(*row[:3], None if row[3] is None else " ".join(str(row[3]).split())) for row in rows}


def _same_schema(sql: sqlite3.Connection) -> bool:
    """Return True if the attached database has the tables of `SCHEMA`. Return False if it has no tables.

    A process that was killed early leaves a database without tables.

    Raises:
        _InvalidRowError: if the tables differ from `SCHEMA`.
    """
    found = _schema(sql, "theirs")
    if found and found != _schema(sql, "main"):
        raise _InvalidRowError("its tables are different")
    return bool(found)


_VALID_ENTRY = "(entry IS NULL OR typeof(entry) = 'blob')"
_ENTRIES = f"""
SELECT checkpoint, path, entry FROM theirs.entries
WHERE typeof(checkpoint) = 'integer' AND checkpoint IN (SELECT number FROM main.checkpoints)
AND typeof(path) = 'blob' AND {_VALID_ENTRY}
"""
_OBJECTS = f"""
SELECT digest, pack, offset, o.size, crc FROM theirs.objects o CROSS JOIN main.packs p ON p.number = o.pack
WHERE typeof(digest) = 'blob' AND length(digest) = 32
AND typeof(pack) = 'integer' AND typeof(offset) = 'integer' AND typeof(o.size) = 'integer' AND typeof(crc) = 'integer'
AND o.size BETWEEN 1 AND {MAX_CHUNK_BYTES} AND offset BETWEEN 0 AND p.size - o.size AND crc BETWEEN 0 AND {2**32 - 1}
"""
_IMAGE = f"""
SELECT path, entry, listed FROM theirs.image
WHERE typeof(path) = 'blob' AND {_VALID_ENTRY} AND typeof(listed) = 'integer' AND listed IN (0, 1)
"""


class _Copy:
    """Copier of tables, which checks each row. All rows together may have at most `room` bytes."""

    def __init__(self, sql: sqlite3.Connection, room: int) -> None:
        self._sql, self._room = sql, room
        self._checkpoints: set[int] = set()
        self._names: set[str] = set()

    def all(self, *, whole: bool) -> None:
        """Copy the tables; see `copy_rows`. A table comes after the tables to which its rows refer."""
        versions = self._sql.execute("SELECT key, value FROM theirs.meta LIMIT 2").fetchall()
        if versions and versions != [("version", VERSION)]:
            raise _InvalidRowError("another version wrote it")
        self._copy("checkpoints", 9, self._is_checkpoint, "ORDER BY number")
        self._copy("packs", 3, self._is_pack)
        self._copy("dropped", 1, lambda row: _is_id(row[0]))
        if whole:
            self._copy_at_once("entries", _ENTRIES, "length(path) + ifnull(length(entry), 0)")
            self._copy_at_once("objects", _OBJECTS, "length(digest)")
            self._copy_at_once("image", _IMAGE, "length(path) + ifnull(length(entry), 0)")

    def _copy_at_once(self, table: str, proper: str, length: str) -> None:
        """Copy a table in one statement.

        In a hostile file, pages of the table may refer to each other in a circle, so that reading never ends. A sum
        over `length` takes steps for each row, so the limit on steps ends it. A mere count of rows counts as one step.

        Args:
            table: name of the table.
            proper: query that selects all valid rows.
            length: SQL expression for the number of bytes in a row.

        Raises:
            _InvalidRowError: if a row is invalid, or the rows have too many bytes.
        """
        count, size = self._sql.execute(
            f"SELECT count(*), ifnull(sum({length} + 1), 0) FROM theirs.{table}"
        ).fetchone()
        self._take_room(size)
        if self._sql.execute(f"INSERT INTO main.{table} {proper}").rowcount != count:
            raise _InvalidRowError(f"a row of {table} is invalid")

    def _copy(self, table: str, columns: int, check: Callable[[Row], bool], order: str = "") -> None:
        rows = self._sql.execute(f"SELECT * FROM theirs.{table} {order}")
        marks = ", ".join("?" * columns)
        while batch := rows.fetchmany(_BATCH):
            self._sql.executemany(
                f"INSERT INTO main.{table} VALUES ({marks})", self._checked(table, batch, check)
            )

    def _checked(self, table: str, rows: list[Row], check: Callable[[Row], bool]) -> Iterator[Row]:
        for row in rows:
            self._take_room(sum(len(value) for value in row if isinstance(value, (bytes, str))) + 1)
            if not check(row):
                raise _InvalidRowError(f"a row of {table} is invalid")
            yield row

    def _take_room(self, size: int) -> None:
        self._room -= size
        if self._room < 0:
            raise _InvalidRowError("it has more rows than its files have room for")

    def _is_checkpoint(self, row: Row) -> bool:
        number, id, parent, time, files, size, duration, incomplete, shell = row
        proper = (
            is_number(number, 1, _MAX_NUMBER)
            and _is_id(id)
            and (parent is None or parent in self._checkpoints)  # a parent is always an older checkpoint
            and all(isinstance(number, float) and math.isfinite(number) for number in (time, duration))
            and all(is_number(count, 0, _MAX_NUMBER) for count in (files, size))
            and isinstance(incomplete, str)
            and len(incomplete) <= 2000
            and (incomplete.isprintable() or not incomplete)
            and (shell is None or (isinstance(shell, bytes) and len(shell) <= 2 * MAX_CHUNK_BYTES))
        )
        self._checkpoints.add(number)
        return proper and len(self._checkpoints) <= MAX_CHECKPOINTS

    def _is_pack(self, row: Row) -> bool:
        number, name, size = row
        if not is_number(number, 1, _MAX_NUMBER) or not is_pack_name(name) or name in self._names:
            return False
        self._names.add(name)
        return is_number(size, 0, _MAX_NUMBER)


def _is_id(value: object) -> bool:
    return isinstance(value, str) and _ID_PATTERN.fullmatch(value) is not None
