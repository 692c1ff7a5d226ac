"""A pack from which the executor writes files before all of its bytes have come."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import run, until

from llm_sandbox_nb.sandbox.bubblewrap.sandbox import HandedPacks
from llm_sandbox_nb.sandbox.executor import records
from llm_sandbox_nb.sandbox.executor.records import DELIVERED, PART, RECORD, RecordReader, RestorePack

MAKE = ord("E")


@pytest.fixture
def pack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RestorePack:
    monkeypatch.setattr(records, "TOP", os.fsencode(tmp_path))
    return RestorePack("pack", None)


def copied(pack: RestorePack, target: Path, part: bytes, *arrivals: bytes) -> list[bytes]:
    """Copy a part of a pack that grows by one of `arrivals` at each wait. Return the arrivals that were not needed."""
    left = list(arrivals)

    def is_whole() -> bool:
        if not left:
            return True
        with open(pack.path, "ab") as file:
            file.write(left.pop(0))
        return False

    with target.open("wb") as file:
        pack.copy(file.fileno(), part, is_whole)
    return left


def test_a_part_is_copied_as_soon_as_it_has_come(pack: RestorePack, tmp_path: Path) -> None:
    assert copied(pack, tmp_path / "first", PART.pack(0, 0, 6), b"abc", b"def", b"never") == [b"never"]
    assert (tmp_path / "first").read_bytes() == b"abcdef"
    assert copied(pack, tmp_path / "second", PART.pack(0, 4, 4), b"gh") == []
    assert (tmp_path / "second").read_bytes() == b"efgh"
    assert not pack.missed


def test_a_part_that_never_comes_is_missed(pack: RestorePack, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No data"):
        copied(pack, tmp_path / "file", PART.pack(0, 0, 6), b"abc")
    assert pack.missed


def test_a_link_is_not_taken_for_the_pack(pack: RestorePack, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "pack").symlink_to("secret")
    with pytest.raises(OSError, match="No data"):
        copied(pack, tmp_path / "file", PART.pack(0, 0, 6))


def test_removal_leaves_nothing_and_restores_the_top_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "TOP", os.fsencode(tmp_path))
    time = tmp_path.stat().st_mtime_ns - 5_000_000_000
    pack = RestorePack("pack", time)
    Path(os.fsdecode(pack.path)).write_bytes(b"abc")
    assert pack.read(3, 0) == b"abc"
    pack.remove()
    assert (list(tmp_path.iterdir()), tmp_path.stat().st_mtime_ns) == ([], time)


def test_records_that_are_read_while_waiting_keep_their_order() -> None:
    source, sink = os.pipe()
    reader = RecordReader(source)
    try:
        assert not reader.has_arrived(DELIVERED)
        sent = [(MAKE, b"1"), (MAKE, b"2"), (DELIVERED, b"")]
        for kind, payload in sent:
            os.write(sink, RECORD.pack(kind, len(payload)) + payload)
        assert reader.has_arrived(DELIVERED)
        assert [reader.record() for _ in sent] == sent
    finally:
        os.close(source)
        os.close(sink)


# -- a pack without a name, of which the executor receives a descriptor ------------------------------------------------


@pytest.fixture
def packs(monkeypatch: pytest.MonkeyPatch) -> Iterator[HandedPacks]:
    """The host's side; the executor's side has the other end of the socket."""
    outside, inside = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    monkeypatch.setattr(records, "HANDED", inside.fileno())
    with outside, inside:
        yield HandedPacks(outside)


def test_a_handed_pack_is_read_while_it_is_filled(packs: HandedPacks, tmp_path: Path) -> None:
    pack = RestorePack("pack", None, handed=True)
    read_first = threading.Event()

    def content() -> Iterator[bytes]:
        yield b"abc"
        until(lambda: pack.read(9, 0) == b"abc")
        read_first.set()
        yield b"def"

    run(packs.deliver("pack", 6, content()))
    assert read_first.is_set()
    assert copied(pack, tmp_path / "file", PART.pack(0, 0, 6)) == []
    assert (tmp_path / "file").read_bytes() == b"abcdef"
    pack.remove()


def test_the_pack_of_a_failed_restore_is_skipped(packs: HandedPacks) -> None:
    open_files = len([*Path("/proc/self/fd").iterdir()])
    run(packs.deliver("failed", 3, iter([b"old"])))
    run(packs.deliver("pack", 3, iter([b"new"])))
    pack = RestorePack("pack", None, handed=True)
    assert pack.read(3, 0) == b"new"
    packs.release()
    pack.remove()
    assert len([*Path("/proc/self/fd").iterdir()]) == open_files


def test_a_pack_that_was_never_handed_is_missed(packs: HandedPacks, tmp_path: Path) -> None:
    pack = RestorePack("pack", None, handed=True)
    with pytest.raises(OSError, match="No data"):
        copied(pack, tmp_path / "file", PART.pack(0, 0, 6))
    assert pack.missed


def test_an_executor_that_keeps_a_pack_keeps_no_memory(packs: HandedPacks) -> None:
    import fcntl

    run(packs.deliver("pack", 3, iter([b"abc"])))
    pack = RestorePack("pack", None, handed=True)
    assert pack.read(3, 0) == b"abc"
    with pytest.raises(PermissionError):
        fcntl.fcntl(pack.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    packs.release()
    assert os.fstat(pack.fd).st_blocks == 0
    pack.remove()
