"""Uploads plan only what lies inside; downloads write only below their target, whatever the sandbox sends."""

from __future__ import annotations

import io
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import examples, run

from llm_sandbox_nb.sandbox.errors import TransferError
from llm_sandbox_nb.sandbox.transfer import (
    CHUNK,
    DIRECTORY,
    FILE,
    SKIPPED,
    THE_END,
    plan_upload,
    receive_tree,
    record,
    requested_file,
    tree_of,
)


def chunked(data):
    pieces = [data[start : start + 1000] for start in range(0, len(data), 1000)]
    return b"".join(CHUNK.pack(len(piece)) + piece for piece in pieces) + CHUNK.pack(0)


def file(path, data=b"content", mode=0o644):
    return record(FILE, path, mode) + chunked(data)


def receive(target, *records, limit=10**6, only=None):
    return receive_tree(io.BytesIO(b"".join(records) + record(THE_END, b"")), target, limit, only)


def everything(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def test_a_tree_arrives(tmp_path):
    target = tmp_path / "new" / "target"
    told = receive(
        target, record(DIRECTORY, b"empty"), file("a b/é/漢".encode(), b"x" * 5000), file(b"p", mode=0o7777)
    )
    assert told == []
    assert everything(target) == {
        "empty": None,
        "a b": None,
        "a b/é": None,
        "a b/é/漢": b"x" * 5000,
        "p": b"content",
    }
    assert stat.S_IMODE((target / "p").stat().st_mode) == 0o755
    assert stat.S_IMODE((target / "a b/é/漢").stat().st_mode) == 0o644


@pytest.mark.parametrize(
    "path",
    [
        b"/etc/canary",
        b"../canary",
        b"a/../../canary",
        b"..",
        b".",
        b"",
        b"a//b",
        b"a/./b",
        b"a\0b",
        b"/",
        b"a/",
        b"x" * 256,
        b"d/" * 200 + b"f",
    ],
)
@pytest.mark.parametrize("kind", [FILE, DIRECTORY])
def test_names_that_lead_elsewhere(tmp_path, path, kind):
    target = tmp_path / "target"
    entry = file(path) if kind == FILE else record(DIRECTORY, path)
    told = receive(target, entry, file(b"after"))
    assert len(told) == 1
    assert "was left out" in told[0]
    assert everything(tmp_path) == {"target": None, "target/after": b"content"}


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
    assert everything(outside) == {"canary": b"alive"}
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


def test_the_limit_of_bytes(tmp_path):
    told = receive(tmp_path, file(b"a", b"x" * 600), file(b"b", b"y" * 600), file(b"c", b"z"), limit=1000)
    assert len(told) == 2
    assert everything(tmp_path) == {"a": b"x" * 600}


def disk_usage(folder):
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*"))


def test_a_small_limit_makes_few_files_and_folders(tmp_path):
    """402 KB of records made 198,000 folders of 774 MB with a limit of 1,024 bytes."""
    deep = [record(DIRECTORY, b"%d/" % number + b"/".join([b"d"] * 98)) for number in range(300)]
    told = receive(tmp_path / "folders", *deep, file(b"after"), limit=1024)
    assert len(list((tmp_path / "folders").rglob("*"))) <= 1000
    assert disk_usage(tmp_path / "folders") <= 1000 * 8192
    assert "0/d/" in str(everything(tmp_path / "folders"))
    assert told[-1] == "after was left out: there is no room for more files and folders within the limit."
    told = receive(tmp_path / "files", *[file(b"%d" % number, b"") for number in range(3000)], limit=1024)
    assert len(list((tmp_path / "files").iterdir())) == 1000
    assert len(told) == 1001
    assert told[-1] == "1000 more were left out."


def test_a_usual_limit_takes_a_usual_tree(tmp_path):
    assert receive(tmp_path, *[file(b"%d/%d" % (n % 100, n)) for n in range(3000)], limit=10**8) == []
    assert len(list(tmp_path.rglob("*"))) == 3100


@pytest.mark.parametrize(
    ("source", "kind", "only"),
    [
        ("a.txt", None, b"a.txt"),
        ("output/a.txt", None, b"a.txt"),
        ("a.txt", "file", b"a.txt"),
        ("Makefile", "file", b"Makefile"),
        ("é\udce9.png", None, "é".encode() + b"\xe9.png"),
        ("Makefile", None, None),
        (".hidden", None, None),
        ("v1.2/", None, None),
        ("v1.2", "folder", None),
        ("output", None, None),
        ("output/..", None, None),
        (".", None, None),
    ],
)
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
    with pytest.raises(TransferError, match=r"something else than the file a\.txt; nothing was written"):
        receive(tmp_path, *records, only=b"a.txt")
    assert everything(tmp_path) == {"a.txt": b"mine"}
    assert receive(tmp_path, file(b"a.txt"), only=b"a.txt") == []
    told = receive(tmp_path, record(SKIPPED, b"a.txt") + chunked(b"it is odd"), only=b"a.txt")
    assert (told, everything(tmp_path)) == (["a.txt was left out: it is odd."], {"a.txt": b"content"})


def test_what_the_sandbox_left_out_is_told_safely(tmp_path):
    reason = CHUNK.pack(9) + b"it is odd" + CHUNK.pack(0)
    rude = CHUNK.pack(8) + b"\x1b[2J\nbad" + CHUNK.pack(0)
    told = receive(tmp_path, record(SKIPPED, b"x") + reason, record(SKIPPED, b"\x1b[31m\n\xff") + rude)
    assert told[0] == "x was left out: it is odd."
    assert told[1].isprintable()
    assert "\x1b" not in told[1]
    many = receive(tmp_path, *[record(SKIPPED, b"x") + reason] * 3000)
    assert len(many) == 1001
    assert many[-1] == "2000 more were left out."


@pytest.mark.parametrize(
    "stream",
    [
        b"",
        b"F",
        b"garbage" * 10,
        record(99, b"x") + record(THE_END, b""),
        record(FILE, b"f") + CHUNK.pack(2**32 - 1),
        record(FILE, b"f") + CHUNK.pack(10) + b"short",
        record(FILE, b"f") + CHUNK.pack(4) + b"data",
        record(DIRECTORY, b"d"),
    ],
)
def test_streams_that_are_none(tmp_path, stream):
    with pytest.raises(TransferError, match="invalid form"):
        receive_tree(io.BytesIO(stream), tmp_path, 10**6)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


NAMES = st.binary(min_size=1, max_size=12)


@settings(max_examples=examples(150))
@given(
    st.lists(
        st.tuples(
            st.sampled_from([FILE, DIRECTORY, SKIPPED]),
            st.lists(NAMES | st.sampled_from([b"..", b"link", b"a"]), min_size=1, max_size=4),
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
    assert everything(base / "outside") == {"canary": b"alive"}
    assert sorted(path.name for path in base.iterdir()) == ["outside", "target"]
    assert not [path for path in target.rglob("*") if path.is_symlink() and path.name != "link"]


def uploaded(source):
    async def whole():
        return b"".join([piece async for piece in tree_of(plan_upload(source))])

    return run(whole())


def test_what_is_planned_arrives(tmp_path):
    source = tmp_path / "source"
    (source / "deep/er").mkdir(parents=True)
    (source / "deep/er/f").write_bytes(b"x" * 700_000)
    (source / "empty").mkdir()
    (source / "run me").write_bytes(b"#!")
    (source / "run me").chmod(0o700)
    (source / "link").symlink_to("deep/er/f")
    (source / "folder").symlink_to("deep")
    assert receive_tree(io.BytesIO(uploaded(source)), tmp_path / "target", 10**7) == []
    got = everything(tmp_path / "target")
    assert got["link"] == got["folder/er/f"] == got["deep/er/f"] == b"x" * 700_000
    assert got["empty"] is None
    assert os.access(tmp_path / "target/run me", os.X_OK)
    assert not (tmp_path / "target/link").is_symlink()
    one = plan_upload(source / "run me")
    assert [entry.name for entry in one] == [b"run me"]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda folder: (folder / "l").symlink_to("/etc/passwd"), "leads outside"),
        (lambda folder: (folder / "l").symlink_to(".."), "leads outside"),
        (lambda folder: (folder / "l").symlink_to("nowhere"), "nowhere"),
        (lambda folder: (folder / "l").symlink_to("l"), "nowhere"),
        (lambda folder: (folder / "l").symlink_to("."), "folder that it is in"),
        (
            lambda folder: (folder / "sub").mkdir() or (folder / "sub/l").symlink_to("../sub"),
            "folder that it is in",
        ),
        (lambda folder: os.mkfifo(folder / "l"), "neither"),
    ],
)
def test_what_may_not_be_uploaded(tmp_path, make, words):
    source = tmp_path / "source"
    source.mkdir()
    (tmp_path / "secret").write_text("secret")
    make(source)
    with pytest.raises(TransferError, match=words):
        plan_upload(source)


def test_a_missing_source(tmp_path):
    with pytest.raises(FileNotFoundError):
        plan_upload(Path(tmp_path / "missing"))
