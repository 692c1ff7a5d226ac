"""What a hostile sandbox tells of its files: bounded, hashed, checked; and nothing of it touches this machine."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
from history_help import feed, file_row, folder_row, incoming, record
from hypothesis import given, settings
from hypothesis import strategies as st
from support import examples

from llm_sandbox_nb.sandbox.history.manifest import Entry
from llm_sandbox_nb.sandbox.history.packs import PackWriter
from llm_sandbox_nb.sandbox.history.snapshot import Snapshot, scanned_roots, snapshot_changes
from llm_sandbox_nb.sandbox.protocol.frames import Kind, ProtocolError

FINE = (
    record("E", [folder_row("/"), folder_row("/d")])
    + record("C", b"hi")
    + record("E", [file_row("/d/f", b"hi")])
)


def told(tmp_path: Path, stream: bytes, **options: Any) -> Snapshot:
    taker = incoming(tmp_path / "packs", **options)
    feed(taker, stream)
    return taker.parse()


def test_an_honest_stream(tmp_path: Path) -> None:
    found = told(tmp_path, FINE + record("G", ["/gone"]) + record("S", b"state"))
    assert found.entries.keys() == {"/", "/d", "/d/f"}
    assert (found.gone, found.shell) == (["/gone"], b"state")


@pytest.mark.parametrize(
    "path",
    [
        "relative", "", "//x", "/a/../../etc/passwd", "/a/./b", "/a//b", "/a/", "/nul\0", "/" + "x" * 256,
        "/x" * 3000, "/proc/self/mem", "/sys/kernel", "/dev/sda", "/\ud800", 5, None, ["/a"],
    ],
)  # fmt: skip
def test_paths_that_lead_elsewhere_are_refused(tmp_path: Path, path: Any) -> None:
    """The canary: an honest neighbour of the same shape is taken."""
    assert told(tmp_path, record("E", [folder_row("/fine")])).entries
    for stream in (record("E", [folder_row(path)]), record("G", [path])):
        with pytest.raises(ProtocolError):
            told(tmp_path, stream)
    hard_link = file_row("/fine")
    hard_link[9] = path
    if path is not None:
        with pytest.raises(ProtocolError):
            told(tmp_path, record("E", [hard_link]))


def test_the_largest_attributes_and_what_is_as_in_the_image(tmp_path: Path) -> None:
    for length, base, taken in ((2**16, 0, True), (2**16 + 1, 0, False), (20, 1, True), (20, 2, False)):
        attributes = {"user.a": "x" * (length - len('{"user.a": ""}'))}
        row = [*folder_row("/d")[:2], base, *folder_row("/d")[3:10], attributes]
        if taken:
            assert told(tmp_path, record("E", [row])).entries["/d"].base == bool(base)
            continue
        with pytest.raises(ProtocolError):
            told(tmp_path, record("E", [row]))


def test_shared_memory_is_no_device(tmp_path: Path) -> None:
    assert "/dev/shm/x" in told(tmp_path, record("E", [folder_row("/dev/shm/x")])).entries
    with pytest.raises(ProtocolError):
        told(tmp_path, record("E", [folder_row("/dev/shmx")]))


def test_below_one_folder_only(tmp_path: Path) -> None:
    assert told(tmp_path, record("E", [folder_row("/home/me/x")]), below="/home/me").entries
    for path in ("/home/me2", "/home", "/etc"):
        with pytest.raises(ProtocolError, match="outside its folder"):
            told(tmp_path, record("E", [folder_row(path)]), below="/home/me")


def bad_rows() -> list[list[Any]]:
    good, rows = file_row("/f", b"hi"), []
    for place, values in {
        1: ["x", "", None, 3, "ff"],
        2: [2, -1, None, "1"],
        3: [-1, 0o10000, 1.5, True, None],
        4: [-1, 2**32, None],
        5: [-1, 2**32, "0"],
        6: [2**64 * 10**9, None, 1.0],
        7: [-1, 1, 2**63, None],
        8: [
            "text",
            [[0, 2, "zz" * 32]],
            [[0, 2, "AB" * 32]],
            [[0, 2, "ab" * 31]],
            [[0, 0, "ab" * 32]],
            [[0, 2**20 + 1, "ab" * 32]],
            [[1, 2, "ab" * 32]],
            [[0, 1, "ab" * 32], [0, 1, "ab" * 32]],
            [[0, 2]],
            [0],
            {},
        ],
        10: [[], "x", {"user.a": 5}, {"user.a": "x" * 70_000}],
    }.items():
        for value in values:
            rows.append([*good[:place], value, *good[place + 1 :]])
    return [*rows, good[:10], [*good, 1], [], ["/f", "l", 0, 0, 0, 0, 0, 0, None, None, None]]


@pytest.mark.parametrize("row", bad_rows(), ids=lambda row: ascii(row)[:60])
def test_entries_that_make_no_sense_are_refused(tmp_path: Path, row: list[Any]) -> None:
    content = record("C", b"hi")
    assert told(tmp_path, content + record("E", [file_row("/f", b"hi")])).entries
    with pytest.raises(ProtocolError):
        told(tmp_path, content + record("E", [row]))


def test_a_claimed_digest_counts_only_when_its_content_is_here(tmp_path: Path) -> None:
    """It may not learn what another sandbox's file holds, nor make a checkpoint that cannot be read."""
    secret = b"what another sandbox has"
    with pytest.raises(ProtocolError, match="has not sent"):
        told(tmp_path, record("E", [file_row("/f", secret)]))
    told(tmp_path, record("C", secret) + record("E", [file_row("/f", secret)]))
    row = file_row("/f", secret)
    row[8] = [[0, 5, hashlib.sha256(secret).hexdigest()]]
    row[7] = 5
    with pytest.raises(ProtocolError, match="has not sent"):
        told(tmp_path, record("C", secret) + record("E", [row]))


@pytest.mark.parametrize(
    "stream",
    [
        b"\x43\xff\xff\xff\xff", record("C", b""), record("C", bytes(2**20 + 1)), record("X", b"what"),
        record("S", b"a") + record("S", b"b"), record("E", b"{}"), record("E", b"[" * 100_000),
        record("E", b"not json"), record("G", b"[1]"), record("E", [folder_row("/a")])[:-3], b"E",
    ],
    ids=range(11),
)  # fmt: skip
def test_streams_that_make_no_sense_are_refused(tmp_path: Path, stream: bytes) -> None:
    assert told(tmp_path, FINE).entries
    with pytest.raises(ProtocolError):
        told(tmp_path, stream)


def test_content_is_bounded_as_it_comes(tmp_path: Path) -> None:
    """Refused at the limit, not when the disk is full."""
    taker = incoming(tmp_path / "packs", limit=3 * 2**20)
    for number in range(3):
        feed(taker, record("C", os.urandom(2**20 - 1) + bytes([number])))
    with pytest.raises(ProtocolError, match="more content"):
        feed(taker, record("C", b"one more"))
    taker.content.discard()
    assert not list((tmp_path / "packs").iterdir())


def test_names_are_bounded_as_they_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm_sandbox_nb.sandbox.history.snapshot.MAX_ENTRIES_BYTES", 10_000)
    taker = incoming(tmp_path / "packs")
    for _ in range(90):
        feed(taker, record("G", ["/" + "x" * 100]))
    with pytest.raises(ProtocolError, match="more files"):
        feed(taker, record("G", ["/" + "x" * 100]) * 5)


def test_files_that_are_there_and_files_that_are_gone_count_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = record("E", [folder_row("/"), folder_row("/d")]) + record("G", ["/a", "/b"])
    monkeypatch.setattr("llm_sandbox_nb.sandbox.history.snapshot.MAX_ENTRIES", 4)
    assert len(told(tmp_path, stream).gone) == 2
    with pytest.raises(ProtocolError, match="more files than it may"):
        told(tmp_path, stream + record("G", ["/c"]))


def test_other_frames_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ProtocolError):
        incoming(tmp_path / "packs").take(Kind.STDERR, FINE)


def test_a_file_whose_folder_is_not_told_is_refused(tmp_path: Path) -> None:
    orphan = told(tmp_path, record("E", [folder_row("/"), folder_row("/a/b")]))
    with pytest.raises(ProtocolError, match="whose folder"):
        snapshot_changes({}, orphan, ["/"])
    assert snapshot_changes({}, orphan, ["/", "/a/b"])
    through_link = Snapshot(
        entries={"/": Entry("d"), "/l": Entry("l", target="/etc"), "/l/passwd": Entry("f", chunks=())}
    )
    with pytest.raises(ProtocolError, match="whose folder"):
        snapshot_changes({}, through_link, ["/"])


def test_gone_folders_take_what_is_in_them() -> None:
    before = {path: Entry("d") for path in ("/", "/a", "/a/b", "/a/b/c", "/ab")}
    assert snapshot_changes(before, Snapshot(gone=["/a"]), ["/"]) == dict.fromkeys(["/a", "/a/b", "/a/b/c"])
    became_file = Snapshot(entries={"/a": Entry("f", chunks=())})
    changed = snapshot_changes(before, became_file, ["/"])
    assert changed == {"/a": Entry("f", chunks=()), "/a/b": None, "/a/b/c": None}
    remade = Snapshot(gone=["/a"], entries={"/a": Entry("d")})
    assert snapshot_changes(before, remade, ["/"]) == dict.fromkeys(["/a/b", "/a/b/c"])
    assert snapshot_changes(before, Snapshot(gone=["/"]), ["/"]) == dict.fromkeys(before)
    lower = {path: Entry("d") for path in ("/a", "/a/b", "/a/b/d", "/a/c", "/a-b", "/b")}
    assert snapshot_changes(lower, Snapshot(gone=["/a/b", "/a"]), ["/"]).keys() == lower.keys() - {
        "/a-b",
        "/b",
    }


@pytest.mark.parametrize("roots", [None, "x", ["rel"], ["/proc/1"], ["/"] * 1001, [5]])
def test_roots_are_checked(roots: Any) -> None:
    with pytest.raises(ProtocolError):
        list(scanned_roots({"roots": roots}))


@given(st.binary(max_size=300), st.integers(0, len(FINE)))
@settings(max_examples=examples(100))
def test_any_garbage_is_refused_or_means_something(
    tmp_path_factory: pytest.TempPathFactory, noise: bytes, at: int
) -> None:
    """Garbage anywhere in a stream raises ProtocolError and nothing else; what is taken is all checked."""
    taker = incoming(tmp_path_factory.getbasetemp() / "noise")
    assert isinstance(taker.content, PackWriter)
    try:
        feed(taker, FINE[:at] + noise + FINE[at:])
        found = taker.parse()
        assert all(path.startswith("/") for path in found.entries)
    except ProtocolError:
        pass
    finally:
        taker.content.discard()
