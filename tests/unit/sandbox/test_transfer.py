"""Uploads plan only what lies inside; downloads write only below their target, whatever the sandbox sends."""

from __future__ import annotations

import io
import os
import stat
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support import examples, run

from llm_sandbox_nb.sandbox import transfer
from llm_sandbox_nb.sandbox.errors import TransferError
from llm_sandbox_nb.sandbox.executor import tree_stream as inside
from llm_sandbox_nb.sandbox.protocol.frames import Kind, ProtocolError
from llm_sandbox_nb.sandbox.transfer import (
    CHUNK,
    CHUNK_SIZE,
    DIRECTORY,
    FILE,
    LINK,
    SAME,
    SKIPPED,
    THE_END,
    Spool,
    plan_upload,
    receive_tree,
    record,
    requested_file,
    tree_of,
)


def chunked(data, piece=1000):
    pieces = [data[start : start + piece] for start in range(0, len(data), piece)]
    return b"".join(CHUNK.pack(len(piece)) + piece for piece in pieces) + CHUNK.pack(0)


def file(path, data=b"content", mode=0o644):
    return record(FILE, path, mode) + chunked(data)


def receive(target, *records, limit=10**6, only=None, replace=True):
    source = io.BytesIO(b"".join(records) + record(THE_END, b""))
    return receive_tree(source, target, limit, only, replace=replace)


def everything(folder):
    """Content of files, and None for folders, by the bytes of their paths."""
    return {
        os.fsencode(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def test_files_whose_names_are_taken_are_replaced_or_left_out(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/a").write_text("of the user")
    records = [file(b"deep/a"), record(SAME, b"deep/b") + chunked(b"deep/a"), file(b"deep/c")]
    a, b = receive(tmp_path, *records, replace=False)
    assert a == "deep/a was left out: a file with this name is already there."
    assert "a file that was not sent" in b
    assert everything(tmp_path) == {b"deep": None, b"deep/a": b"of the user", b"deep/c": b"content"}
    assert receive(tmp_path, *records) == []
    assert everything(tmp_path)[b"deep/a"] == b"content"


NAMES = st.one_of(
    st.sampled_from(["a", "b", "a b", "é", "漢", "-n", "x" * 85]).map(os.fsencode),
    st.binary(min_size=1, max_size=5).filter(
        lambda name: not {47, 0} & set(name) and name not in (b".", b"..")
    ),
)
PATHS = st.lists(NAMES, min_size=1, max_size=4).map(b"/".join)
CONTENTS = st.binary(max_size=5) | st.integers(998, 2002).map(bytes)


@st.composite
def trees(draw):
    """Paths of files and folders, in an order that any sender may choose: content or None, and a mode."""
    tree = {}
    for path, data, mode in draw(
        st.lists(st.tuples(PATHS, st.none() | CONTENTS, st.integers(0, 0o7777)), max_size=8)
    ):
        above = [path[:at] for at in range(len(path)) if path[at : at + 1] == b"/"]
        taken = any(one.startswith(path + b"/") for one in tree) and data is not None
        if path not in tree and not taken and all(tree.get(one, (None,))[0] is None for one in above):
            tree[path] = data, mode
    return tree


def with_folders(files):
    above = {path[:at] for path in files for at in range(len(path)) if path[at : at + 1] == b"/"}
    return dict.fromkeys(above) | files


@settings(max_examples=examples(300))
@given(trees())
def test_a_tree_arrives(tmp_path_factory, tree):
    target = tmp_path_factory.mktemp("tree") / "new" / "target"
    entries = [
        record(DIRECTORY, path) if data is None else file(path, data, mode)
        for path, (data, mode) in tree.items()
    ]
    assert receive(target, *entries) == []
    assert everything(target) == with_folders({path: data for path, (data, _) in tree.items()})
    for path, (data, mode) in tree.items():
        if data is not None:
            found = stat.S_IMODE((target / os.fsdecode(path)).stat().st_mode)
            assert found == (0o755 if mode & 0o100 else 0o644)


def test_what_may_come_has_a_bound(monkeypatch):
    """So much content, and so much for names and headers."""
    monkeypatch.setattr(transfer, "MAX_OVERHEAD_BYTES", 100)
    with Spool(2048) as spool:
        spool.take(Kind.STDOUT, bytes(2048 + 2 + 100))
        assert len(spool.content().read()) == 2150
        for kind, data in ((Kind.STDOUT, b"x"), (Kind.STDERR, b"")):
            with pytest.raises(ProtocolError, match="more files than it may"):
                spool.take(kind, data)


LONG, DEEP = b"x" * 256, b"d/" * 100 + b"f"


@settings(max_examples=examples(300))
@given(
    st.lists(NAMES, max_size=3),
    st.sampled_from([b"", b".", b"..", b"a\0b", LONG, DEEP]),
    st.lists(NAMES, max_size=2),
)
@example([], b"/etc/canary", [])
@example([], b"..", [b"canary"])
def test_names_that_lead_elsewhere(tmp_path_factory, before, bad, after):
    base = tmp_path_factory.mktemp("names")
    path = b"/".join([*before, bad, *after])
    for number, entry in enumerate((file(path), record(DIRECTORY, path))):
        target = base / str(number) / "target"
        (told,) = receive(target, entry, file(b"after"))
        assert told.endswith(
            (" was left out: its path has an invalid name.", " was left out: it lies too deep.")
        )
        assert everything(target.parent) == {b"target": None, b"target/after": b"content"}


def test_the_longest_name_and_the_deepest_path_arrive(tmp_path):
    longest, deepest = LONG[1:], DEEP[2:]
    assert receive(tmp_path, file(longest), file(deepest)) == []
    assert {longest: b"content", deepest: b"content"}.items() <= everything(tmp_path).items()


@settings(max_examples=examples(300))
@given(trees(), st.integers(0, 10**6))
def test_a_stream_that_ends_early_is_none_and_leaves_whole_files_only(tmp_path_factory, tree, place):
    target = tmp_path_factory.mktemp("cut")
    files = {path: data for path, (data, _) in tree.items()}
    stream = b"".join(
        record(DIRECTORY, path) if data is None else file(path, data) for path, data in files.items()
    )
    stream += record(THE_END, b"")
    with pytest.raises(TransferError, match="invalid form: a tree of files ended too early"):
        receive_tree(io.BytesIO(stream[: place % len(stream)]), target, 10**6)
    assert everything(target).items() <= with_folders(files).items()


@pytest.mark.parametrize(
    "stream",
    [
        b"garbage" * 10,
        record(99, b"x") + record(THE_END, b""),
        record(FILE, b"f") + CHUNK.pack(2**32 - 1),
        record(FILE, b"f") + chunked(bytes(CHUNK_SIZE + 1), CHUNK_SIZE + 1) + record(THE_END, b""),
    ],
)
def test_streams_that_are_none(tmp_path, stream):
    with pytest.raises(TransferError, match="invalid form"):
        receive_tree(io.BytesIO(stream), tmp_path, 10**6)
    assert not list(tmp_path.iterdir())


def test_the_largest_piece_is_taken(tmp_path):
    assert receive(tmp_path, record(FILE, b"f") + chunked(bytes(CHUNK_SIZE), CHUNK_SIZE)) == []


@settings(max_examples=examples(300))
@given(st.lists(st.integers(0, 3).map(lambda part: 500 * part), max_size=6), st.integers(0, 2001))
def test_the_limit_of_bytes(tmp_path_factory, sizes, limit):
    """Files are taken as long as they fit; what comes after one that did not fit is left out too."""
    target = tmp_path_factory.mktemp("limit")
    told = receive(target, *[file(b"%d" % at, bytes(size)) for at, size in enumerate(sizes)], limit=limit)
    fitting = [at for at in range(len(sizes)) if sum(sizes[: at + 1]) <= limit]
    assert everything(target) == {b"%d" % at: bytes(sizes[at]) for at in fitting}
    assert told == [
        f"{at} was left out: there is no room for it within the limit."
        for at in range(len(fitting), len(sizes))
    ]


def test_links_that_are_there_are_not_followed(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "canary").write_bytes(b"alive")
    target = tmp_path / "target"
    target.mkdir()
    (target / "folder").symlink_to(outside)
    (target / "file").symlink_to(outside / "canary")
    (target / "dangling").symlink_to(outside / "made")
    told = receive(
        target,
        file(b"folder/canary"),
        file(b"folder/new"),
        record(DIRECTORY, b"folder/sub"),
        file(b"file"),
        file(b"dangling"),
        file(b"ok"),
    )
    assert len(told) == 5
    assert everything(outside) == {b"canary": b"alive"}
    assert (target / "ok").read_bytes() == b"content"
    assert (target / "file").is_symlink()


def test_the_target_itself_may_be_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert receive(tmp_path / "link", file(b"f")) == []
    assert (tmp_path / "real/f").read_bytes() == b"content"


def test_what_is_in_the_way(tmp_path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "file").write_bytes(b"old")
    told = receive(
        tmp_path,
        file(b"folder"),
        file(b"fifo"),
        file(b"file/x"),
        record(DIRECTORY, b"file"),
        file(b"file", b"new"),
    )
    assert len(told) == 4
    assert (tmp_path / "file").read_bytes() == b"new"
    assert stat.S_ISFIFO((tmp_path / "fifo").lstat().st_mode)


def test_hard_linked_files_are_replaced_not_written_through(tmp_path):
    (tmp_path / "canary").write_bytes(b"alive")
    (tmp_path / "target").mkdir()
    os.link(tmp_path / "canary", tmp_path / "target/f")
    receive(tmp_path / "target", file(b"f", b"new"))
    assert (tmp_path / "canary").read_bytes() == b"alive"


def disk_usage(folder):
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*"))


def test_a_small_limit_makes_few_files_and_folders(tmp_path):
    """402 KB of records made 198,000 folders of 774 MB with a limit of 1,024 bytes."""
    deep = [record(DIRECTORY, b"%d/" % number + b"/".join([b"d"] * 98)) for number in range(300)]
    told = receive(tmp_path / "folders", *deep, file(b"after"), limit=1024)
    assert len(list((tmp_path / "folders").rglob("*"))) <= 1000
    assert disk_usage(tmp_path / "folders") <= 1000 * 8192
    assert b"0/d" in everything(tmp_path / "folders")
    assert told[-1] == "after was left out: there is no room for more files and folders within the limit."
    told = receive(tmp_path / "files", *[file(b"%d" % number, b"") for number in range(3000)], limit=1024)
    assert len(list((tmp_path / "files").iterdir())) == 1000
    assert len(told) == 1001
    assert told[-1] == "1000 more entries were left out."


def test_entries_without_an_end_do_not_take_hours(tmp_path, monkeypatch):
    """A stream of one deep folder again and again took two hours for each gigabyte."""
    deep = record(DIRECTORY, b"/".join([b"d"] * 98))
    told = receive(tmp_path / "same", *[deep] * 1000, file(b"after"), limit=1024)
    assert told[-1] == "after was left out: there is no room for more files and folders within the limit."
    monkeypatch.setattr(transfer, "MAX_RECORDS", 3)
    told = receive(
        tmp_path / "skipped", file(b"a"), *[record(SKIPPED, b"x") + chunked(b"why")] * 3, file(b"b")
    )
    assert told == ["x was left out: why.", "x was left out: why.", "All further entries were left out."]


def test_a_damaged_git_file_is_uploaded(tmp_path):
    (tmp_path / ".git").write_bytes(b"gitdir: a\0b\n")
    plan = transfer.plan_upload(tmp_path)
    assert plan.names() == [".git"]
    assert "names a repository that is not in the upload" in plan.left_out[0]


def test_a_usual_limit_takes_a_usual_tree(tmp_path):
    assert receive(tmp_path, *[file(b"%d/%d" % (n % 100, n)) for n in range(3000)], limit=10**8) == []
    assert len(list(tmp_path.rglob("*"))) == 3100


@pytest.mark.parametrize(
    ("source", "kind", "only"),
    [
        ("a.txt", None, b"a.txt"), ("output/a.txt", None, b"a.txt"), ("a.txt", "file", b"a.txt"),
        ("Makefile", "file", b"Makefile"), ("é\udce9.png", None, "é".encode() + b"\xe9.png"),
        ("Makefile", None, None), (".hidden", None, None), ("v1.2/", None, None), ("v1.2", "folder", None),
        ("output", None, None), ("output/..", None, None), (".", None, None),
    ],
)  # fmt: skip
def test_what_a_download_may_be_called(source, kind, only):
    assert requested_file(source, kind) == only


@pytest.mark.parametrize(
    "records",
    [
        [file(b"victim.png")],
        [file(b"sub/.bashrc")],
        [file(b"a.txt"), file(b"victim.png")],
        [file(b"a.txt"), record(SKIPPED, b"x") + chunked(b"why")],
        [file(b"a.txt"), file(b"a.txt", b"again")],
        [file(b"./a.txt")],
        [record(DIRECTORY, b"a.txt")],
        [record(DIRECTORY, b"sub")],
        [record(SKIPPED, b"victim.png") + chunked(b"why")],
        [],
    ],
)
def test_only_the_file_that_was_asked_for(tmp_path, records):
    (tmp_path / "a.txt").write_bytes(b"mine")
    with pytest.raises(TransferError, match=r"something other than the file a\.txt; nothing was written"):
        receive(tmp_path, *records, only=b"a.txt")
    assert everything(tmp_path) == {b"a.txt": b"mine"}
    assert receive(tmp_path, file(b"a.txt"), only=b"a.txt") == []
    told = receive(tmp_path, record(SKIPPED, b"a.txt") + chunked(b"it is odd"), only=b"a.txt")
    assert (told, everything(tmp_path)) == (["a.txt was left out: it is odd."], {b"a.txt": b"content"})


def test_what_the_sandbox_left_out_is_told_safely(tmp_path):
    reason = CHUNK.pack(9) + b"it is odd" + CHUNK.pack(0)
    rude = CHUNK.pack(8) + b"\x1b[2J\nbad" + CHUNK.pack(0)
    told = receive(tmp_path, record(SKIPPED, b"x") + reason, record(SKIPPED, b"\x1b[31m\n\xff") + rude)
    assert told[0] == "x was left out: it is odd."
    assert told[1].isprintable()
    assert "\x1b" not in told[1]
    many = receive(tmp_path, *[record(SKIPPED, b"x") + reason] * 3000)
    assert len(many) == 1001
    assert many[-1] == "2000 more entries were left out."


def test_a_long_reason_is_not_kept_in_memory(tmp_path):
    sent = record(SKIPPED, b"x") + chunked(b"a" * 32 * 2**20, CHUNK_SIZE)
    source = io.BytesIO(sent + record(THE_END, b""))
    tracemalloc.start()
    try:
        told = receive_tree(source, tmp_path, 2**30)
        assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
    finally:
        tracemalloc.stop()
    assert told == [f"x was left out: {'a' * 200}."]


@settings(max_examples=examples(150))
@given(
    st.lists(
        st.tuples(
            st.sampled_from([FILE, DIRECTORY, SKIPPED]),
            st.lists(
                st.binary(min_size=1, max_size=9) | st.sampled_from([b"..", b"link", b"a"]),
                min_size=1,
                max_size=4,
            ),
        ),
        max_size=8,
    )
)
def test_nothing_ever_lands_outside(tmp_path_factory, entries):
    base = tmp_path_factory.mktemp("receive")
    (base / "outside").mkdir()
    (base / "outside/canary").write_bytes(b"alive")
    target = base / "target"
    target.mkdir()
    (target / "link").symlink_to(base / "outside")
    stream = b"".join(
        record(kind, b"/".join(names)) + (b"" if kind == DIRECTORY else chunked(b"data"))
        for kind, names in entries
    )
    receive(target, stream)
    assert everything(base / "outside") == {b"canary": b"alive"}
    assert sorted(path.name for path in base.iterdir()) == ["outside", "target"]
    assert not [path for path in target.rglob("*") if path.is_symlink() and path.name != "link"]


async def gathered(plan):
    return b"".join([piece async for piece in tree_of(plan)])


def uploaded(source):
    return run(gathered(plan_upload(source)))


def unpacked(stream, target, monkeypatch):
    reader = inside.TreeReader()
    reader.buffer = stream
    monkeypatch.setattr(inside, "TreeReader", lambda: reader)
    assert inside.unpack({"path": str(target)}) == {}
    assert reader.buffer == b""


def packed(source, limit, monkeypatch):
    written = []
    monkeypatch.setattr(inside, "write_all", lambda fd, data: written.append(data))
    assert inside.pack({"path": str(source), "limit": limit}) == {}
    return io.BytesIO(b"".join(written))


def grow(folder, tree):
    folder.mkdir()
    for path, (data, mode) in tree.items():
        here = folder / os.fsdecode(path)
        (here if data is None else here.parent).mkdir(parents=True, exist_ok=True)
        if data is not None:
            here.write_bytes(data)
            here.chmod(mode | 0o400)


@settings(max_examples=examples(200))
@given(trees(), st.data())
def test_a_tree_travels_in_and_out(tmp_path_factory, tree, data):
    """A link arrives as a link, and does not come back."""
    base = tmp_path_factory.mktemp("travel")
    grow(base / "source", tree)
    expected = everything(base / "source")
    files = [path for path, content in expected.items() if content is not None]
    if files:
        linked = data.draw(st.sampled_from(files))
        (base / "source/the link").symlink_to(os.fsdecode(linked))
    stream = uploaded(base / "source")
    with pytest.MonkeyPatch.context() as patched:
        unpacked(stream, base / "inside", patched)
        told = receive_tree(packed(base / "inside", 10**6, patched), base / "back", 10**6)
    assert told == (["the link was left out: it is a link."] if files else [])
    if files:
        assert (base / "inside/the link").readlink() == Path(os.fsdecode(linked))
        (base / "inside/the link").unlink()
    for arrived in ("inside", "back"):
        assert everything(base / arrived) == expected
        for path in files:
            modes = [
                (base / folder / os.fsdecode(path)).stat().st_mode & 0o100 for folder in ("source", arrived)
            ]
            assert modes[0] == modes[1]


def test_the_executor_leaves_out_links_devices_and_what_has_no_room(tmp_path, monkeypatch):
    grow(tmp_path / "source", {b"a": (b"x" * 10, 0), b"b": (b"y" * 11, 0), b"c": (b"z" * 10, 0)})
    (tmp_path / "source/d").symlink_to("a")
    os.mkfifo(tmp_path / "source/e")
    told = receive_tree(packed(tmp_path / "source", 20, monkeypatch), tmp_path / "target", 10**6)
    assert told == [
        "b was left out: there is no room for it within the limit.",
        "d was left out: it is a link.",
        "e was left out: it is not a regular file.",
    ]
    assert everything(tmp_path / "target") == {b"a": b"x" * 10, b"c": b"z" * 10}


def test_a_large_file_and_a_linked_folder_are_planned(tmp_path, monkeypatch):
    grow(tmp_path / "source", {b"deep/er/f": (b"x" * 700_000, 0), b"run me": (b"#!", 0o700)})
    (tmp_path / "source/folder").symlink_to("deep")
    unpacked(uploaded(tmp_path / "source"), tmp_path / "target", monkeypatch)
    assert (tmp_path / "target/deep/er/f").read_bytes() == b"x" * 700_000
    assert (tmp_path / "target/folder").readlink() == Path("deep")
    assert plan_upload(tmp_path / "source/run me").names() == ["run me"]
    (tmp_path / "data.csv").symlink_to("source/run me")
    assert plan_upload(tmp_path / "data.csv").names() == ["data.csv"]


def test_no_link_is_taken_from_a_sandbox(tmp_path):
    stream = record(LINK, b"l") + chunked(b"/etc/passwd") + record(THE_END, b"")
    with pytest.raises(TransferError, match="contains an entry of an unknown kind"):
        receive_tree(io.BytesIO(stream), tmp_path / "target", 10**6)
    assert everything(tmp_path / "target") == {}


def same(path, first):
    return record(SAME, path) + chunked(first)


def test_a_hard_link_travels_once_and_counts_once(tmp_path, monkeypatch):
    grow(tmp_path / "source", {b"a": (b"x" * 900, 0), b"d/e": (b"y" * 50, 0)})
    for name in ("b", "d/c"):
        (tmp_path / "source" / name).hardlink_to(tmp_path / "source/a")
    assert receive_tree(packed(tmp_path / "source", 1000, monkeypatch), tmp_path / "target", 1000) == []
    assert everything(tmp_path / "target") == everything(tmp_path / "source")
    inodes = {(tmp_path / "target" / name).stat().st_ino for name in ("a", "b", "d/c")}
    assert len(inodes) == 1
    monkeypatch.undo()
    unpacked(uploaded(tmp_path / "source"), tmp_path / "inside", monkeypatch)
    assert (tmp_path / "inside/a").stat().st_nlink == 3


def test_the_names_of_hard_links_have_a_bound(tmp_path, monkeypatch):
    """Each link names a file again, so that few short names could make a long stream."""
    grow(tmp_path / "source", {b"a" * 200: (b"x", 0)})
    for number in range(100):
        (tmp_path / "source" / f"b{number}").hardlink_to(tmp_path / "source" / ("a" * 200))
    monkeypatch.setattr(inside, "MAX_NAMES_BYTES", 2000)
    stream = packed(tmp_path / "source", 1000, monkeypatch)
    assert len(stream.getvalue()) < 3000
    assert receive_tree(stream, tmp_path / "target", 1000)[-1].endswith(
        "there are more files than one transfer allows."
    )


@pytest.mark.parametrize(
    "first", [b"mine", b"../secret", b"/etc/passwd", b"sub/mine", b"l", b"", b"b", b"x" * 100_000]
)
def test_a_hard_link_is_never_one_to_a_file_that_was_there(tmp_path, first):
    target = tmp_path / "target"
    (target / "sub").mkdir(parents=True)
    for path in (target / "mine", target / "sub/mine", tmp_path / "secret"):
        path.write_text("precious")
    (target / "l").symlink_to("mine")
    told = receive(target, file(b"a"), same(b"b", first), same(b"c", b"a"))
    assert told == ["b was left out: it is a second name of a file that was not sent."]
    assert not (target / "b").exists()
    assert (target / "c").read_bytes() == b"content"
    assert (target / "mine").stat().st_nlink == (target / "sub/mine").stat().st_nlink == 1


def test_a_hard_link_replaces_no_link_and_no_folder_and_may_come_twice(tmp_path):
    target = tmp_path / "target"
    (target / "folder").mkdir(parents=True)
    (target / "l").symlink_to("elsewhere")
    (target / "old").write_text("old")
    told = receive(
        target, file(b"a"), same(b"l", b"a"), same(b"folder", b"a"), same(b"../up", b"a"), same(b"b", b"a"),
        same(b"b", b"a"), same(b"a", b"b"), same(b"old", b"a"),
    )  # fmt: skip
    assert told == [
        "l was left out: a link is in its place.",
        "folder was left out: something other than a file is in its place.",
        "../up was left out: its path has an invalid name.",
    ]
    assert sorted(path.name for path in target.iterdir()) == ["a", "b", "folder", "l", "old"]
    assert (target / "old").read_bytes() == b"content"
    assert (target / "a").stat().st_nlink == 3


def test_a_hard_link_to_a_file_that_was_replaced_meanwhile_is_left_out(tmp_path, monkeypatch):
    target = tmp_path / "target"
    target.mkdir()
    (target / "mine").write_text("precious")
    link = os.link

    def replaced(source, place, **how):
        (target / "mine").rename(target / "a")
        link(source, place, **how)

    monkeypatch.setattr(os, "link", replaced)
    told = receive(target, file(b"a"), same(b"b", b"a"))
    assert told == ["b was left out: the file that it names was replaced meanwhile."]
    assert [path.name for path in target.iterdir()] == ["a"]
    assert (target / "a").stat().st_nlink == 1


def test_a_file_that_became_a_pipe_after_it_was_planned_does_not_hold_up(tmp_path):
    (tmp_path / "source").mkdir()
    (tmp_path / "source/f").write_text("x")
    plan = plan_upload(tmp_path / "source")
    (tmp_path / "source/f").unlink()
    os.mkfifo(tmp_path / "source/f")
    with pytest.raises(TransferError, match="is not a file any more"):
        run(gathered(plan))
    (tmp_path / "source/f").unlink()
    with pytest.raises(TransferError, match="No such file"):
        run(gathered(plan))
