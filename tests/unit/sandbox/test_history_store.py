"""The store of a history: what was acknowledged stays, within its size, and shared without a second copy."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from history_help import ROOT, file_entry, files_at, keep
from hypothesis import given, settings
from hypothesis import strategies as st
from support import examples

from llm_sandbox_nb.sandbox.errors import HistoryError, OutputLimitExceededError
from llm_sandbox_nb.sandbox.history.checkpointing import SandboxHistory
from llm_sandbox_nb.sandbox.history.manifest import Entry
from llm_sandbox_nb.sandbox.history.packs import PackReader
from llm_sandbox_nb.sandbox.history.store import HistoryStore


def test_a_second_writer_is_refused_and_a_reader_is_not(tmp_path: Path) -> None:
    store = HistoryStore(tmp_path)
    keep(store, "a", {"/x": b"one"})
    with pytest.raises(HistoryError, match="in use by another sandbox"):
        HistoryStore(tmp_path)
    reader = HistoryStore(tmp_path, readonly=True)
    keep(store, "b", {"/x": b"two"}, "a")
    assert files_at(reader, "b") == {"/x": b"two"}
    reader.close()
    store.close()


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match="There is no history in"):
        HistoryStore(tmp_path / "none", readonly=True)
    assert not (tmp_path / "none").exists()
    store = HistoryStore(tmp_path / "h")
    with pytest.raises(HistoryError, match="no checkpoint 'zzz'"):
        store.manifest("zzz")
    keep(store, "a", {"/x": b"x" * 50})
    with pytest.raises(OutputLimitExceededError, match="10 bytes"):
        store.read(store.manifest("a")["/x"], 10)
    store.close()
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "index.sqlite").write_text("this is no database, but long enough to look at" * 40)
    with pytest.raises(HistoryError, match="not the index of a history"):
        HistoryStore(tmp_path / "bad")


def test_damage_is_found(tmp_path: Path) -> None:
    store = HistoryStore(tmp_path)
    keep(store, "a", {"/x": b"precious"})
    (pack,) = (tmp_path / "packs").iterdir()
    pack.write_bytes(b"forged!!")
    with pytest.raises(HistoryError, match="has changed on disk"):
        files_at(store, "a")
    pack.unlink()
    store.close()
    store = HistoryStore(tmp_path)
    with pytest.raises(HistoryError, match="is missing"):
        files_at(store, "a")
    store.close()


def test_the_oldest_go_first_and_it_is_told(tmp_path: Path) -> None:
    store = HistoryStore(tmp_path, limit=100_000)
    parent = None
    contents = [os.urandom(20_000) for _ in range(12)]
    for number, data in enumerate(contents):
        keep(store, f"c{number}", {"/kept": b"from the first", "/x": data}, parent)
        parent = f"c{number}"
    left = [one.id for one in store.checkpoints()]
    assert store.size <= 100_000
    assert sum(path.stat().st_size for path in (tmp_path / "packs").iterdir()) == store.size
    assert left == [f"c{number}" for number in range(12 - len(left), 12)]
    assert 3 <= len(left) <= 5
    assert store.dropped == 12 - len(left)
    for id in left:
        assert files_at(store, id) == {"/kept": b"from the first", "/x": contents[int(id[1:])]}
    with pytest.raises(HistoryError, match="was dropped to keep the history within its size limit"):
        store.manifest("c0")
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
    history.store = cast(HistoryStore, SimpleNamespace(dropped=dropped))
    assert history.notice.startswith(said)
    assert bool(history.notice) == bool(dropped)


def test_a_pinned_checkpoint_is_not_dropped(tmp_path: Path) -> None:
    store = HistoryStore(tmp_path, limit=100_000)
    first = os.urandom(20_000)
    keep(store, "target", {"/x": first})
    parent = "target"
    for number in range(8):
        keep(store, f"c{number}", {"/x": os.urandom(20_000)}, parent, pinned=["target"])
        parent = f"c{number}"
    assert files_at(store, "target") == {"/x": first}
    assert store.dropped > 2
    store.close()


def test_another_history_goes_on_without_a_second_copy(tmp_path: Path) -> None:
    store = HistoryStore(tmp_path / "one")
    data = os.urandom(50_000)
    keep(store, "a", {"/x": data})
    store.continue_in(tmp_path / "two")
    (pack,) = (tmp_path / "one" / "packs").iterdir()
    assert (tmp_path / "two" / "packs" / pack.name).stat().st_ino == pack.stat().st_ino
    other = HistoryStore(tmp_path / "two")
    keep(other, "b", {"/x": data, "/y": b"only here"}, "a")
    assert files_at(other, "a") == {"/x": data}
    assert [one.id for one in store.checkpoints()] == ["a"]
    store.close()
    for path in sorted((tmp_path / "one").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    assert files_at(other, "b") == {"/x": data, "/y": b"only here"}
    with pytest.raises(HistoryError, match="holds a history already"):
        other.continue_in(tmp_path / "two")
    other.close()


names = st.sampled_from(["/a", "/b", "/dir/c", "/ünï", "/new\nline", "/\udcff"])
contents = st.binary(max_size=3000)
moves = st.lists(
    st.tuples(st.integers(0, 30), st.dictionaries(names, st.one_of(st.none(), contents), max_size=4)),
    max_size=14,
)


@given(moves, st.sampled_from([4_000, 20_000, 2**30]))
@settings(max_examples=examples(30))
def test_any_tree_of_checkpoints_is_what_it_was(moves: list, limit: int) -> None:
    """Against dictionaries: branches from anywhere, with a limit that drops, and opened again at the end."""
    with tempfile.TemporaryDirectory() as folder:
        store = HistoryStore(Path(folder), limit=limit)
        model: dict[str, dict[str, bytes]] = {}
        parents: dict[str, str | None] = {}
        for number, (where, changes) in enumerate(moves):
            known = [one.id for one in store.checkpoints()]
            parent = known[where % len(known)] if known and where < 28 else None
            files = dict(model[parent]) if parent else {}
            for path, data in changes.items():
                files.pop(path, None) if data is None else files.__setitem__(path, data)
            model[f"c{number}"], parents[f"c{number}"] = files, parent
            keep(store, f"c{number}", files, parent)
        for _ in range(2):
            left = [one.id for one in store.checkpoints()]
            assert left == sorted(left, key=lambda id: int(id[1:]))
            assert store.dropped + len(left) == len(moves)
            for id in left:
                assert files_at(store, id) == model[id]
                assert store.manifest(id).keys() == {"/", *model[id]}
                assert store.shell(id) == id.encode()
                assert store.checkpoint(id).parent == parents[id]
            if limit == 2**30:
                assert not store.dropped
                data = [data for files in model.values() for data in files.values()]
                pieces = {one[at : at + 1024] for one in data for at in range(0, len(one), 1024)}
                assert store.size == sum(map(len, pieces)), "each piece of content is kept once"
            store.close()
            store = HistoryStore(Path(folder), limit=limit)
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
    store = HistoryStore(tmp_path / "first")
    keep(store, "a", {"/x": b"one", "/y": b"two"})
    copies = [store.continued_in(tmp_path / f"copy{number}") for number in range(3)]
    reads: list[bytes] = []
    read = PackReader.read

    def noted(self: PackReader, digest: bytes, *place: Any) -> bytes:
        reads.append(digest)
        return read(self, digest, *place)

    monkeypatch.setattr(PackReader, "read", noted)

    def counted(*stores: HistoryStore) -> int:
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
