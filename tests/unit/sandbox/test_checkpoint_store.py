"""The promises of `CheckpointStore`, kept by each kind of store: the usual one, and a small one in memory."""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
from pathlib import Path

import pytest
from history_help import file_entry, files_at, keep
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_store import MemoryStore
from support import examples

from llm_sandbox_nb.sandbox.contract import Checkpoint
from llm_sandbox_nb.sandbox.errors import HistoryError, OutputLimitExceededError
from llm_sandbox_nb.sandbox.history import stores
from llm_sandbox_nb.sandbox.history.checkpoint_store import CheckpointStore
from llm_sandbox_nb.sandbox.history.manifest import FILE, Chunk, Entry

KINDS = [*stores.STORES, MemoryStore]
Kind = type[CheckpointStore]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


def test_a_second_writer_is_refused_and_a_reader_is_not(kind: Kind, tmp_path: Path) -> None:
    store = kind(tmp_path)
    keep(store, "a", {"/x": b"one"})
    with pytest.raises(HistoryError, match="in use by another sandbox"):
        kind(tmp_path)
    reader = kind(tmp_path, readonly=True)
    keep(store, "b", {"/x": b"two"}, "a")
    assert files_at(reader, "b") == {"/x": b"two"}
    reader.close()
    store.close()


def test_what_is_not_there_is_said(kind: Kind, tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match="There is no history in"):
        kind(tmp_path / "none", readonly=True)
    assert not (tmp_path / "none").exists()
    store = kind(tmp_path / "h")
    with pytest.raises(HistoryError, match="no checkpoint 'zzz'"):
        store.manifest("zzz")
    keep(store, "a", {"/x": b"x" * 50})
    with pytest.raises(OutputLimitExceededError, match="10 bytes"):
        store.read(store.manifest("a")["/x"], 10)
    store.close()


def test_the_oldest_go_first_and_it_is_told(kind: Kind, tmp_path: Path) -> None:
    store = kind(tmp_path, limit=100_000)
    parent = None
    contents = [os.urandom(20_000) for _ in range(12)]
    for number, data in enumerate(contents):
        keep(store, f"c{number}", {"/kept": b"from the first", "/x": data}, parent)
        parent = f"c{number}"
    left = [one.id for one in store.checkpoints()]
    assert store.size <= 100_000
    assert left == [f"c{number}" for number in range(12 - len(left), 12)]
    assert 3 <= len(left) <= 5
    assert store.dropped == 12 - len(left)
    for id in left:
        assert files_at(store, id) == {"/kept": b"from the first", "/x": contents[int(id[1:])]}
    with pytest.raises(HistoryError, match="was dropped to keep the history within its size limit"):
        store.manifest("c0")
    store.close()


def test_a_pinned_checkpoint_is_not_dropped(kind: Kind, tmp_path: Path) -> None:
    store = kind(tmp_path, limit=100_000)
    first = os.urandom(20_000)
    keep(store, "target", {"/x": first})
    parent = "target"
    for number in range(8):
        keep(store, f"c{number}", {"/x": os.urandom(20_000)}, parent, pinned=["target"])
        parent = f"c{number}"
    assert files_at(store, "target") == {"/x": first}
    assert store.dropped > 2
    store.close()


def test_a_copy_goes_on_alone(kind: Kind, tmp_path: Path) -> None:
    store = kind(tmp_path / "one")
    data = os.urandom(50_000)
    keep(store, "a", {"/x": data})
    other = store.continued_in(tmp_path / "two")
    keep(other, "b", {"/x": data, "/y": b"only here"}, "a")
    assert files_at(other, "a") == {"/x": data}
    assert [one.id for one in store.checkpoints()] == ["a"]
    keep(store, "c", {"/z": b"only there"}, "a")
    store.close()
    stores.remove_history(tmp_path / "one")
    assert [one.id for one in other.checkpoints()] == ["a", "b"]
    assert files_at(other, "b") == {"/x": data, "/y": b"only here"}
    with pytest.raises(HistoryError, match="holds a history already"):
        other.continue_in(tmp_path / "two")
    other.close()


def test_a_folder_tells_its_kind_and_its_use(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever kind makes new stores: a folder is opened by the kind that made it."""
    store = kind(tmp_path / "h")
    keep(store, "a", {"/x": b"one"})
    for order in (KINDS, KINDS[::-1]):
        monkeypatch.setattr(stores, "STORES", order)
        assert stores.is_history(tmp_path / "h")
        assert stores.is_history_in_use(tmp_path / "h")
        with stores.reading_history(tmp_path / "h") as reader:
            assert type(reader) is kind
            assert files_at(reader, "a") == {"/x": b"one"}
        assert not stores.is_history(tmp_path / "other")
        with pytest.raises(HistoryError, match="There is no history in"), stores.reading_history(tmp_path):
            pass
    store.close()
    assert not stores.is_history_in_use(tmp_path / "h")
    assert stores.is_history(tmp_path / "h")


def test_a_commit_without_its_parent_stores_nothing(kind: Kind, tmp_path: Path) -> None:
    store = kind(tmp_path / "h")
    writer = store.writer()
    digest = writer.add(b"some", b"thing")
    assert (digest, writer.size) == (hashlib.sha256(b"something").digest(), 9)
    assert (writer.length(digest), writer.length(b"?" * 32), store.length(digest)) == (9, None, None)
    with pytest.raises(HistoryError, match="no checkpoint 'nowhere'"):
        store.commit(Checkpoint("b", "nowhere", 1.0), {}, None, writer)
    assert store.checkpoints() == []
    assert (store.length(digest), store.size) == (None, 0)
    with pytest.raises(HistoryError, match="was not kept"):
        store.content(digest)
    store.writer().discard()
    store.close()
    store.close()


def test_a_file_is_written_with_its_holes(kind: Kind, tmp_path: Path) -> None:
    store = kind(tmp_path / "h")
    writer = store.writer()
    sparse = Entry(FILE, size=20, chunks=(Chunk(5, 3, writer.add(b"abc")),))
    short = Entry(FILE, size=9, chunks=(Chunk(0, 9, writer.add(b"abc")),))
    changed = {"/sparse": sparse, "/short": short, "/none": Entry(FILE, size=3, chunks=None)}
    store.commit(Checkpoint("a", None, 1.0), changed, None, writer)
    assert store.shell("a") is None
    with (tmp_path / "copy").open("wb") as file:
        store.write(sparse, file)
    assert (tmp_path / "copy").read_bytes() == store.read(sparse, 20) == b"\0" * 5 + b"abc" + b"\0" * 12
    with pytest.raises(HistoryError, match="another length"):
        store.read(short, 20)
    for use in (
        lambda: store.read(changed["/none"], 20),
        lambda: store.write(changed["/none"], io.BytesIO()),
    ):
        with pytest.raises(HistoryError, match="was not kept"):
            use()
    store.close()


def test_what_is_learnt_of_the_image_stays(kind: Kind, tmp_path: Path) -> None:
    store = kind(tmp_path / "h", limit=100)
    writer = store.writer()
    writer.add(b"in the image")
    learnt = {"/d": (Entry("d"), True), "/d/f": (file_entry(b"in the image"), False), "/d/no": (None, False)}
    store.learn_image({**learnt, "/d/f/x": (Entry("p"), False), "/e": (Entry("d"), False)}, writer)
    store.learn_image({"/d": (Entry("d", 0o700), False)}, store.writer())
    keep(store, "a", {"/x": b"1" * 90})
    keep(store, "b", {"/x": b"2" * 90}, "a")
    assert store.dropped == 1
    for _ in range(2):
        assert store.image_entry("/d") == (Entry("d", 0o700), True)
        assert store.image_entry("/d/no") == (None, False)
        assert store.image_entry("/d/other") is None
        assert (store.image_names("/d"), store.image_names("/e")) == (["/d/f"], [])
        assert sorted(store.image_names("/")) == ["/d", "/e"]
        (entry, _) = store.image_entry("/d/f") or (None, False)
        assert entry is not None
        assert store.read(entry, 100) == b"in the image"
        store.close()
        store = kind(tmp_path / "h", limit=100)
    store.close()


names = st.sampled_from(["/a", "/b", "/dir/c", "/ünï", "/new\nline", "/\udcff"])
contents = st.binary(max_size=3000)
moves = st.lists(
    st.tuples(st.integers(0, 30), st.dictionaries(names, st.one_of(st.none(), contents), max_size=4)),
    max_size=14,
)


@pytest.mark.parametrize("kind", KINDS)
@given(moves, st.sampled_from([4_000, 20_000, 2**30]))
@settings(max_examples=examples(30))
def test_any_tree_of_checkpoints_is_what_it_was(kind: Kind, moves: list, limit: int) -> None:
    """Against dictionaries: branches from anywhere, with a limit that drops, and opened again at the end."""
    with tempfile.TemporaryDirectory() as folder:
        store = kind(Path(folder), limit=limit)
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
                assert store.checkpoint(id).parent == (parents[id] if parents[id] in left else None)
            if limit == 2**30:
                assert not store.dropped
                data = [data for files in model.values() for data in files.values()]
                pieces = {one[at : at + 1024] for one in data for at in range(0, len(one), 1024)}
                assert store.size == sum(map(len, pieces)), "each piece of content is kept once"
            store.close()
            store = kind(Path(folder), limit=limit)
        store.close()
