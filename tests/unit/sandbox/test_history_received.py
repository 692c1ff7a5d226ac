"""What a history on disk may hold: the checks of its rows, and a reader that follows a writer."""

from __future__ import annotations

import os
import sqlite3
import zlib
from pathlib import Path

import pytest
from history_help import files_at, keep
from hypothesis import given
from hypothesis import strategies as st

from llm_sandbox_nb.sandbox.errors import HistoryError
from llm_sandbox_nb.sandbox.history.entry_rows import is_entry, is_kept_path, path_problem
from llm_sandbox_nb.sandbox.history.pack_store import PackStore
from llm_sandbox_nb.sandbox.history.packs import is_pack_name

parts = st.sampled_from(
    [
        b"a",
        b".",
        b"..",
        b"",
        b"...",
        b".a",
        b"x" * 255,
        b"x" * 256,
        b"\xff",
        b"a\0",
        b"\n",
        b"proc",
        b"dev",
        b"shm",
    ]
)


@given(st.lists(parts, max_size=6), st.sampled_from([b"/", b""]))
def test_a_path_in_an_index_is_judged_as_one_from_a_sandbox(names: list[bytes], start: bytes) -> None:
    path = start + b"/".join(names)
    assert is_kept_path(path) == (not path_problem(os.fsdecode(path)))


def test_a_path_has_a_longest_length() -> None:
    for path in (b"/" + b"a/" * 2046 + b"a", b"/" + b"a/" * 2047 + b"aa"):
        assert is_kept_path(path) == (not path_problem(os.fsdecode(path))) == (len(path) <= 4095)


def test_deep_attributes_are_none() -> None:
    """Python encodes no JSON that is deeper than its stack, though it may decode it."""
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    for attributes, valid in (({"user.a": "YQ=="}, True), ({"user.a": deep}, False), ({"user.a": 1}, False)):
        assert is_entry(["f", 0, 0o644, 0, 0, 0, 0, [], None, attributes]) is valid


@pytest.mark.parametrize(
    "name", ["x", f"../{'ab' * 12}.pack", "/etc/passwd", f"{'AB' * 12}.pack", f"{'ab' * 12}.pack\n", 3, None]
)
def test_a_pack_has_a_name_of_its_own(name: object) -> None:
    assert not is_pack_name(name)
    assert is_pack_name("ab" * 12 + ".pack")


def test_a_reader_sees_what_is_written_meanwhile_also_after_the_writer_opened_again(tmp_path: Path) -> None:
    store = PackStore(tmp_path / "h")
    keep(store, "a", {"/x": b"one"})
    reader = PackStore(tmp_path / "h", readonly=True)
    assert [one.id for one in reader.checkpoints()] == ["a"]
    store.close()
    store = PackStore(tmp_path / "h")
    assert [one.id for one in reader.checkpoints()] == ["a"]
    keep(store, "b", {"/x": b"two"}, "a")
    assert files_at(reader, "b") == {"/x": b"two"}
    store.close()
    assert files_at(reader, "a") == {"/x": b"one"}
    reader.close()
    again = PackStore(tmp_path / "h")
    assert [one.id for one in again.checkpoints()] == ["a", "b"]
    assert files_at(again, "b") == {"/x": b"two"}
    again.close()


def test_a_reader_that_was_open_takes_nothing_from_the_writer_when_it_closes(tmp_path: Path) -> None:
    """SQLite removes its log when the last connection closes: not that of a database that took the place."""
    store = PackStore(tmp_path / "h")
    keep(store, "a", {"/x": b"one"})
    reader = PackStore(tmp_path / "h", readonly=True)
    assert len(reader.checkpoints()) == 1
    store.close()
    store = PackStore(tmp_path / "h")
    keep(store, "b", {"/x": b"two"}, "a")
    reader.close()
    keep(store, "c", {"/x": b"three"}, "b")
    copy = sqlite3.connect(tmp_path / "h" / "index.sqlite")
    assert copy.execute("SELECT count(*) FROM checkpoints").fetchone() == (3,)
    copy.close()
    store.close()
    store = PackStore(tmp_path / "h")
    assert [one.id for one in store.checkpoints()] == ["a", "b", "c"]
    store.close()


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
def test_reading_an_index_writes_no_file_that_has_a_second_name_elsewhere(
    suffix: str, tmp_path: Path
) -> None:
    store = PackStore(tmp_path / "h")
    keep(store, "a", {"/x": b"one"})
    store.close()
    other, own = tmp_path / "other", tmp_path / "h" / f"index.sqlite{suffix}"
    if not own.exists():
        own.write_bytes(b"precious")
    os.link(own, other)
    before = other.read_bytes()
    store = PackStore(tmp_path / "h", readonly=True)
    assert files_at(store, "a") == {"/x": b"one"}
    assert other.read_bytes() == before
    store.close()
    assert other.read_bytes() == before


def test_content_of_another_process_is_checked_by_its_digest(tmp_path: Path) -> None:
    store = PackStore(tmp_path / "h")
    keep(store, "a", {"/x": b"precious"})
    store.close()
    (pack,) = (tmp_path / "h" / "packs").iterdir()
    pack.write_bytes(b"forged!!")
    sql = sqlite3.connect(tmp_path / "h" / "index.sqlite", isolation_level=None)
    sql.execute("UPDATE objects SET crc = ?", (zlib.crc32(b"forged!!"),))
    sql.close()
    store = PackStore(tmp_path / "h", readonly=True)
    with pytest.raises(HistoryError, match="has changed on disk"):
        files_at(store, "a")
    store.close()


def test_an_index_is_whole_or_not_replaced(tmp_path: Path) -> None:
    """A process that was killed between making a fresh index and putting it in its place."""
    store = PackStore(tmp_path / "h")
    keep(store, "a", {"/x": b"one"})
    store.close()
    index = tmp_path / "h" / "index.sqlite"
    fresh = index.with_name("index.sqlite.fresh")
    fresh.write_bytes(index.read_bytes())
    index.write_bytes(b"")
    index.with_name("index.sqlite-wal").write_bytes(b"of the index before")
    index.with_name("index.sqlite.1234.partial").write_bytes(b"half")
    store = PackStore(tmp_path / "h")
    assert files_at(store, "a") == {"/x": b"one"}
    store.close()
    assert sorted(path.name for path in (tmp_path / "h").iterdir()) == ["index.sqlite", "lock", "packs"]


ROWS = (
    "UPDATE entries SET checkpoint = 4711",
    "UPDATE entries SET checkpoint = 'one'",
    "UPDATE entries SET path = CAST(path AS TEXT)",
    "UPDATE entries SET path = 7 WHERE path = x'2f78'",
    "UPDATE entries SET path = CAST('/../x' AS BLOB) WHERE path = x'2f78'",
    "UPDATE entries SET path = CAST('x' AS BLOB) WHERE path = x'2f78'",
    "UPDATE entries SET path = CAST('/dev/zero' AS BLOB) WHERE path = x'2f78'",
    "UPDATE entries SET entry = CAST(entry AS TEXT)",
    "UPDATE entries SET entry = 3",
    "UPDATE entries SET entry = x'ff'",
    "UPDATE objects SET digest = substr(digest, 1, 31)",
    "UPDATE objects SET digest = hex(substr(digest, 1, 16))",
    "UPDATE objects SET pack = 4711",
    "UPDATE objects SET pack = 'one'",
    "UPDATE objects SET offset = -1",
    "UPDATE objects SET offset = offset + 1",
    "UPDATE objects SET offset = 'x'",
    "UPDATE objects SET offset = 9223372036854775807",
    "UPDATE objects SET size = 0",
    "UPDATE objects SET size = 0.5",
    "UPDATE objects SET size = 9223372036854775807",
    "UPDATE objects SET crc = 4294967296",
    "UPDATE objects SET crc = x'00'",
    "INSERT INTO image VALUES ('/text', NULL, 0)",
    "INSERT INTO image VALUES (x'2f61', 'text', 0)",
    "INSERT INTO image VALUES (x'2f61', NULL, 2)",
    "INSERT INTO image VALUES (x'2f61', NULL, 'x')",
)


@pytest.mark.parametrize("statement", ROWS)
def test_a_row_that_this_program_never_writes_is_refused(statement: str, tmp_path: Path) -> None:
    make_spoiled(tmp_path / "h", statement)
    for readonly in (True, False):
        with pytest.raises(HistoryError, match=r"not the index of a history|damaged"):
            read_all(tmp_path / "h", readonly=readonly)


def test_rows_that_this_program_writes_are_read(tmp_path: Path) -> None:
    """The canary of the test before."""
    make_spoiled(tmp_path / "h", "INSERT INTO image VALUES (x'2f61', NULL, 1)")
    for readonly in (True, False):
        assert read_all(tmp_path / "h", readonly=readonly) == {"/x": b"one"}


def test_whoever_lists_checkpoints_does_not_wait_for_their_files(tmp_path: Path) -> None:
    make_spoiled(tmp_path / "h", "UPDATE entries SET checkpoint = 4711")
    store = PackStore(tmp_path / "h", readonly=True)
    assert [one.id for one in store.checkpoints()] == ["a"]
    assert store.size == len(b"one")
    with pytest.raises(HistoryError, match="a row of entries is invalid"):
        store.manifest("a")
    assert [one.id for one in store.checkpoints()] == ["a"]
    store.close()


def make_spoiled(folder: Path, statement: str) -> None:
    """A history of one file, and a statement that a stranger executed on its index."""
    store = PackStore(folder)
    keep(store, "a", {"/x": b"one"})
    store.close()
    sql = sqlite3.connect(folder / "index.sqlite", isolation_level=None)
    assert sql.execute(statement).rowcount >= 1
    sql.close()


def read_all(folder: Path, *, readonly: bool) -> dict[str, bytes]:
    store = PackStore(folder, readonly=readonly)
    try:
        store.image_names("/")
        return files_at(store, "a")
    finally:
        store.close()
