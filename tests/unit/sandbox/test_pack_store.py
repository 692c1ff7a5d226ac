"""Promises of `PackStore` alone: damage is found, and content is shared on disk and between forks. The rest is in
test_checkpoint_store.py.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from history_help import ROOT, file_entry, files_at, keep

from llm_sandbox_nb.sandbox.errors import HistoryError, HistoryNotWrittenError
from llm_sandbox_nb.sandbox.history import index_copy, pack_store, stores
from llm_sandbox_nb.sandbox.history.checkpoint_store import CheckpointStore
from llm_sandbox_nb.sandbox.history.index import kept_entry
from llm_sandbox_nb.sandbox.history.manifest import Entry
from llm_sandbox_nb.sandbox.history.pack_store import PackStore
from llm_sandbox_nb.sandbox.history.packs import PackFolder, PackReader
from llm_sandbox_nb.sandbox.history.sandbox_history import SandboxHistory


def test_another_database_is_no_history(tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "index.sqlite").write_text("this is no database, but long enough to look at" * 40)
    with pytest.raises(HistoryError, match="not the index of a history"):
        PackStore(tmp_path / "bad")


def test_a_reader_may_begin_while_many_files_are_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PackStore(tmp_path)
    keep(store, "a", {"/x": b"one"})
    files, trust = {f"/{number:0200}": b"" for number in range(3_000)}, index_copy._trust_nothing

    def just_in_time(sql: Any, *, attached: int) -> None:
        trust(sql, attached=attached)
        if attached and len(store.checkpoints()) == 1:
            keep(store, "b", files, "a")

    monkeypatch.setattr(index_copy, "_trust_nothing", just_in_time)
    with stores.reading_history(tmp_path) as reader:
        assert len(files_at(reader, "b")) == len(files)
    store.close()


def test_packs_have_the_content_that_is_used_and_no_more(tmp_path: Path) -> None:
    store = PackStore(tmp_path, limit=100_000)
    for number in range(12):
        keep(store, f"c{number}", {"/x": os.urandom(20_000)}, f"c{number - 1}" if number else None)
    assert store.dropped
    assert sum(path.stat().st_size for path in (tmp_path / "packs").iterdir()) == store.size
    store.close()


class FailingOpen:
    """`os.open` that fails at its call with a given number, as while too many files are open."""

    def __init__(self, fatal: int) -> None:
        self.calls, self._fatal, self._open = 0, fatal, os.open

    def __call__(self, *args: Any, **options: Any) -> int:
        self.calls += 1
        if self.calls == self._fatal:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return self._open(*args, **options)

    @property
    def failed(self) -> bool:
        return self.calls >= self._fatal


def test_no_history_is_lost_when_a_file_cannot_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every file that is opened is tried. An index that only seems to be missing is not replaced by an empty one."""
    with contextlib.closing(PackStore(tmp_path / "h")) as store:
        keep(store, "a", {"/x": b"one"})
    for fatal in itertools.count(1):
        with monkeypatch.context() as patched, contextlib.suppress(HistoryError):
            patched.setattr(os, "open", opening := FailingOpen(fatal))
            PackStore(tmp_path / "h").close()
        with stores.reading_history(tmp_path / "h") as reader:
            assert files_at(reader, "a") == {"/x": b"one"}, fatal
        if not opening.failed:
            break
    assert fatal > 5


def test_a_history_in_use_is_not_stale_when_its_lock_cannot_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.closing(PackStore(tmp_path / "h")):
        for fatal in (1, 2, 3, 4):
            monkeypatch.setattr(os, "open", opening := FailingOpen(fatal))
            assert stores.is_history_in_use(tmp_path / "h")
            monkeypatch.undo()
        assert not opening.failed


def test_a_failure_of_sqlite_is_a_sentence_about_the_history(tmp_path: Path) -> None:
    with contextlib.closing(PackStore(tmp_path)) as store:
        keep(store, "a", {"/x": b"one"})
        store._index.sql.execute("DROP TABLE objects")
        for use in (lambda: store.length(b"?"), lambda: keep(store, "b", {"/x": b"two"}, "a")):
            with pytest.raises(HistoryError, match=r"no such table: objects"):
                use()


@pytest.mark.parametrize("fails", ["create", "finish"])
def test_content_that_cannot_be_moved_to_a_new_pack_stays_in_the_old_one(
    fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PackStore(tmp_path, limit=100_000)
    kept, packs = {"/kept": os.urandom(10_000)}, tmp_path / "packs"
    for number in range(2):
        keep(store, f"c{number}", {**kept, "/x": os.urandom(40_000)}, f"c{number - 1}" if number else None)
    change, names = getattr(PackFolder, fails), set[str]()

    def only_the_first(self: PackFolder, name: str) -> Any:
        names.add(name)
        if len(names) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return change(self, name)

    monkeypatch.setattr(PackFolder, fails, only_the_first)
    keep(store, "c2", {**kept, "/x": os.urandom(40_000)}, "c1")
    assert len(names) > 1
    assert [files_at(store, one.id)["/kept"] for one in store.checkpoints()] == [kept["/kept"]] * 3
    assert {path.name for path in packs.iterdir()} == {*store._index.packs()}
    monkeypatch.undo()
    keep(store, "c3", kept, "c2")
    assert store.dropped
    assert files_at(store, "c3") == kept
    store.close()


def test_to_drop_many_checkpoints_each_entry_is_read_twice_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PackStore(tmp_path)
    files, big = {f"/small{number}": bytes([number]) for number in range(50)}, os.urandom(20_000)
    for number in range(20):
        keep(store, f"c{number}", files | {"/x": os.urandom(1000)}, f"c{number - 1}" if number else None)
    reads: list[bytes] = []
    monkeypatch.setattr(pack_store, "kept_entry", lambda row: reads.append(row) or kept_entry(row))
    store.limit = len(big) + 2000
    keep(store, "last", files | {"/x": big}, "c19")
    assert store.dropped > 15
    assert len(reads) <= 2 * (len(ROOT) + len(files) + 21)
    assert files_at(store, "last") == files | {"/x": big}
    store.close()


@pytest.mark.parametrize(
    ("dropped", "said"),
    [
        (0, ""),
        (1, "The oldest checkpoint was dropped to keep the history within 4.0 GB; the steps before"),
        (2, "The 2 oldest checkpoints were dropped to keep the history within 4.0 GB; the steps before"),
    ],
)
def test_a_person_reads_how_many_were_dropped(dropped: int, said: str) -> None:
    history = SandboxHistory("all files")
    assert history.notice == ""
    history.store = cast(CheckpointStore, SimpleNamespace(dropped=dropped))
    assert history.notice.startswith(said)
    assert bool(history.notice) == bool(dropped)


def test_damage_is_found(tmp_path: Path) -> None:
    store = PackStore(tmp_path)
    keep(store, "a", {"/x": b"precious"})
    (pack,) = (tmp_path / "packs").iterdir()
    pack.write_bytes(b"forged!!")
    with pytest.raises(HistoryError, match="has changed on disk"):
        files_at(store, "a")
    pack.unlink()
    store.close()
    store = PackStore(tmp_path)
    with pytest.raises(HistoryError, match="is missing"):
        files_at(store, "a")
    store.close()


def test_another_history_goes_on_without_a_second_copy(tmp_path: Path) -> None:
    store = PackStore(tmp_path / "one")
    data = os.urandom(50_000)
    keep(store, "a", {"/x": data})
    store.continue_in(tmp_path / "two")
    (pack,) = (tmp_path / "one" / "packs").iterdir()
    assert (tmp_path / "two" / "packs" / pack.name).stat().st_ino == pack.stat().st_ino
    store.close()


@pytest.fixture
def no_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy is on another filesystem, so its content is copied."""

    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refused)


@pytest.mark.usefixtures("no_links")
def test_a_copy_that_failed_half_way_is_completed_by_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PackStore(tmp_path / "one")
    keep(store, "a", {"/x": b"precious"})

    def full(self: PackFolder, name: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(PackFolder, "finish", full)
        with pytest.raises(HistoryNotWrittenError, match="No space left"):
            store.continue_in(tmp_path / "two")
    other = store.continued_in(tmp_path / "two")
    assert files_at(other, "a") == {"/x": b"precious"}
    other.close()
    store.close()


@pytest.mark.usefixtures("no_links")
def test_a_temporary_copy_that_takes_minutes_is_not_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    store, folder = PackStore(tmp_path / "one"), stores.temporary_folder()
    keep(store, "a", {"/x": b"precious"})
    share = PackFolder.share

    def slow(self: PackFolder, name: str, other: PackFolder, size: int) -> None:
        os.utime(folder, (0, 0))
        stores.remove_stale()
        share(self, name, other, size)

    monkeypatch.setattr(PackFolder, "share", slow)
    other = store.continued_in(folder)
    assert files_at(other, "a") == {"/x": b"precious"}
    other.close()
    os.utime(folder, (0, 0))
    stores.remove_stale()
    assert not folder.exists()
    store.close()


def test_entries_survive_the_index() -> None:
    entries = [
        file_entry(os.urandom(5000)),
        Entry("l", 0o777, 1, 2, -5, target="../ü\udcff\n"),
        Entry("c", 0o600, device=(1, 3)),
        Entry("d", 0o1777, base=True),
        Entry("f", 0o644, size=7, chunks=None, group="/first"),
        Entry("f", 0o644, chunks=(), xattrs='{"user.x":"YQ=="}'),
        Entry("p"),
    ]
    assert [Entry.of_row(*json.loads(entry.encode())) for entry in entries] == entries
    assert ROOT["/"] == Entry.of_row(*json.loads(ROOT["/"].encode()))


def test_forks_at_once_read_each_piece_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork alone keeps nothing in memory; the last of several forks frees everything."""
    store = PackStore(tmp_path / "first")
    keep(store, "a", {"/x": b"one", "/y": b"two"})
    copies = [store.continued_in(tmp_path / f"copy{number}") for number in range(3)]
    reads: list[bytes] = []
    read = PackReader.read

    def noted(self: PackReader, digest: bytes, *place: Any) -> bytes:
        reads.append(digest)
        return read(self, digest, *place)

    monkeypatch.setattr(PackReader, "read", noted)

    def counted(*stores: PackStore) -> int:
        reads.clear()
        with contextlib.ExitStack() as using:
            for one in stores:
                using.enter_context(one.sharing())
            for one in stores:
                assert files_at(one, "a") == {"/x": b"one", "/y": b"two"}
        return len(reads)

    assert counted(copies[0]) == 2
    assert counted(*copies) == 2
    assert counted(copies[0]) == counted(copies[0]) == 2
    for one in (*copies, store):
        one.close()
