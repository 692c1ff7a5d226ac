"""What a restore asks for makes exactly the files that were: played by a file system that is a dictionary."""

from __future__ import annotations

import asyncio
import json
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from history_help import file_entry, sorted_paths
from hypothesis import given, settings
from hypothesis import strategies as st
from support import examples

from llm_sandbox_nb.sandbox.contract import Checkpoint
from llm_sandbox_nb.sandbox.history import restore as sending
from llm_sandbox_nb.sandbox.history.manifest import FOLDER, Entry, Manifest
from llm_sandbox_nb.sandbox.history.pack_store import PackStore
from llm_sandbox_nb.sandbox.history.restore import Plan, RestoreBody, plan_restore, share_a_top
from llm_sandbox_nb.sandbox.history.snapshot import HEAD
from llm_sandbox_nb.sandbox.protocol.frames import Kind, ProtocolError

MIB = 2**20


class Player:
    """Does what `executor/README.md` says of each record."""

    def __init__(self, current: Manifest, contents: dict[str, bytes], pack: bytes = b"") -> None:
        self.entries = dict(current)
        self.contents = dict(contents)
        self.pack = pack
        self.open = ""

    def play(self, body: bytes) -> None:
        at = 0
        while at < len(body):
            kind, size = HEAD.unpack_from(body, at)
            at += HEAD.size + size
            data = body[at - size : at]
            assert size <= 2 * MIB
            getattr(self, f"do_{chr(kind)}")(data)

    def do_D(self, data: bytes) -> None:
        for path in json.loads(data):
            for one in list(self.entries):
                if one == path or one.startswith(f"{path}/"):
                    del self.entries[one]
                    self.contents.pop(one, None)

    def do_E(self, data: bytes) -> None:
        for path, *row in json.loads(data):
            entry = self.put(path, Entry.of_row(*row))
            if entry.group and entry.group != path:
                self.contents[path] = self.contents[entry.group]
            elif entry.type == "f":
                assert not entry.chunks
                self.contents[path] = bytes(entry.size)

    def do_M(self, data: bytes) -> None:
        for path, *row in json.loads(data):
            entry = Entry.of_row(*row)
            assert self.entries[path].type == entry.type
            self.entries[path] = entry

    def do_F(self, data: bytes) -> None:
        path, *row = json.loads(data)
        entry = self.put(path, Entry.of_row(*row))
        self.open, self.contents[path] = path, bytes(entry.size)

    def do_P(self, data: bytes) -> None:
        path, *row = json.loads(data)
        entry = Entry.of_row(*row)
        assert self.entries[path].type == "f"
        self.open, self.entries[path] = path, entry
        self.contents[path] = self.contents[path][: entry.size].ljust(entry.size, b"\0")

    def do_W(self, data: bytes) -> None:
        (offset,), old = struct.unpack_from(">Q", data), self.contents[self.open]
        self.contents[self.open] = old[:offset] + data[8:] + old[offset + len(data) - 8 :]

    def do_K(self, data: bytes) -> None:
        offset, place, size = struct.unpack(">QQQ", data)
        assert place + size <= len(self.pack)
        self.do_W(struct.pack(">Q", offset) + self.pack[place : place + size])

    def do_A(self, data: bytes) -> None:
        assert not data

    def do_H(self, data: bytes) -> None:
        (offset, size), old = struct.unpack(">QQ", data), self.contents[self.open]
        self.contents[self.open] = old[:offset] + bytes(size) + old[offset + size :]

    def put(self, path: str, entry: Entry) -> Entry:
        above = path.rpartition("/")[0] or "/"
        assert path == "/" or self.entries[above].type == "d", f"{path} before its folder"
        if entry.type != "d":
            assert not any(one.startswith(f"{path}/") for one in self.entries)
        self.entries[path] = entry
        self.contents.pop(path, None)
        return entry


def keep_all(store: PackStore, *contents: dict[str, bytes], piece: int = 1024) -> None:
    writer = store.writer()
    for files in contents:
        for data in files.values():
            for at in range(0, len(data), piece):
                writer.add(data[at : at + piece])
    store.commit(Checkpoint("all", None, 0.0), {}, None, writer)


def body_of(plan: Plan, store: PackStore, shell: bytes | None = None) -> bytes:
    async def whole() -> bytes:
        return b"".join([piece async for piece in RestoreBody(plan, store, shell).pieces()])

    return asyncio.run(whole())


def packed_body_of(plan: Plan, store: PackStore) -> tuple[bytes, bytes]:
    packs: list[bytes] = []

    async def deliver(name: str, size: int, content: Iterator[bytes]) -> None:
        packs.append(b"".join(content))
        assert (name, size) == ("p", len(packs[0]))

    async def whole() -> bytes:
        with mock.patch.object(sending, "MIN_PACK_BYTES", 0):
            body = RestoreBody(plan, store, None, deliver, "p")
        assert body.pack == "p"
        body.take(Kind.STDOUT, b"ready")
        return b"".join([piece async for piece in body.pieces()])

    return asyncio.run(whole()), packs[0]


names = st.sampled_from(["a", "b", "c", "ü", "\udcff"])
kinds = st.sampled_from(["f", "f", "f", "d", "d", "l", "p"])
nodes = st.tuples(st.lists(names, min_size=1, max_size=3), kinds, st.integers(0, 3), st.booleans())


def tree(moves: list) -> tuple[dict[str, Entry], dict[str, bytes]]:
    """A manifest and the contents of its files, some of which have several names."""
    entries, contents, last = {"/": Entry("d", 0o755)}, {}, ""
    for parts, kind, variant, linked in moves:
        path = "/" + "/".join(parts)
        above = [path[:at] for at in range(1, len(path)) if path[at] == "/"]
        if path in entries or any(one in entries and entries[one].type != "d" for one in above):
            continue
        for one in above:
            entries.setdefault(one, Entry("d", 0o755, mtime_ns=variant))
        if kind == "f" and linked and last:
            entries[path], contents[path] = entries[last], contents[last]
        elif kind == "f":
            contents[path] = bytes([variant]) * (700 * variant)
            entries[path] = file_entry(contents[path], mtime_ns=variant)
            last = path
        else:
            entries[path] = Entry(kind, 0o700 + variant, target="/x" * (variant + 1) if kind == "l" else "")
    return grouped(entries, contents), contents


def grouped(entries: dict[str, Entry], contents: dict[str, bytes]) -> dict[str, Entry]:
    """Files that share an entry are one file with several names, when it has content."""
    members: dict[int, list[str]] = {}
    for path, entry in entries.items():
        if path in contents:
            members.setdefault(id(entry), []).append(path)
    for paths in members.values():
        if len(paths) > 1:
            for path in paths:
                entries[path] = replace(entries[path], group=sorted_paths(paths)[0])
    return entries


@given(st.lists(nodes, max_size=14), st.lists(nodes, max_size=14))
@settings(max_examples=examples(80))
def test_any_files_become_any_others(now: list, then: list) -> None:
    """With the content in the stream, and in a pack."""
    (current, contents), (target, wanted) = tree(now), tree(then)
    plan = plan_restore(current, target)
    with tempfile.TemporaryDirectory() as folder:
        store = PackStore(Path(folder))
        keep_all(store, wanted)
        bodies = [(body_of(plan, store), b""), packed_body_of(plan, store)]
        store.close()
    assert not plan.problems
    pieces = {chunk.digest: chunk.length for _, entry in plan.make for chunk in entry.chunks or ()}
    assert len(bodies[1][1]) == sum(pieces.values())
    for body, pack in bodies:
        player = Player(current, contents, pack)
        player.play(body)
        assert (player.entries, player.contents) == (target, wanted)
        assert plan_restore(player.entries, target).paths == 0
    touched = {path for path, _ in plan.make} | {path for path, _ in plan.touch}
    assert not [path for path in touched if current.get(path) == target[path]]


def test_what_nobody_asked_for_is_no_word_about_the_pack(tmp_path: Path) -> None:
    async def test() -> None:
        store = PackStore(tmp_path)
        for deliver, said in ((None, b"ready"), (mock.AsyncMock(), b"other")):
            with mock.patch.object(sending, "MIN_PACK_BYTES", 0):
                body = RestoreBody(Plan(), store, None, deliver, "p")
            with pytest.raises(ProtocolError):
                body.take(Kind.STDOUT, said)
        body.take(Kind.STDOUT, b"ready")
        with pytest.raises(ProtocolError):
            body.take(Kind.STDOUT, b"ready")
        store.close()

    asyncio.run(test())


def test_records_are_sent_while_the_pack_is_delivered(tmp_path: Path) -> None:
    """The executor writes files while the rest of the pack is on its way."""
    contents = {"/a": b"a" * 700, "/b": b"b" * 700}
    store = PackStore(tmp_path)
    keep_all(store, contents)
    plan = plan_restore({}, {"/": Entry("d"), **{path: file_entry(data) for path, data in contents.items()}})

    async def test() -> list[bytes]:
        sent = asyncio.Event()

        async def deliver(name: str, size: int, content: Iterator[bytes]) -> None:
            await sent.wait()

        with mock.patch.object(sending, "MIN_PACK_BYTES", 0):
            body = RestoreBody(plan, store, None, deliver, "p")
        body.take(Kind.STDOUT, b"ready")
        received = []
        async with asyncio.timeout(60):
            async for piece in body.pieces():
                received.append(piece)
                sent.set()
        return received

    *records, end = asyncio.run(test())
    store.close()
    assert b"".join(records).count(b"K") >= len(contents)
    assert end == HEAD.pack(ord("A"), 0)


def test_only_what_differs_is_touched() -> None:
    current, _ = tree([(["a", "b"], "f", 1, False), (["a", "c"], "f", 2, False), (["b"], "d", 0, False)])
    target = dict(current)
    assert plan_restore(current, target).paths == 0
    target["/a/c"] = replace(target["/a/c"], mode=0o600)
    plan = plan_restore(current, target)
    assert ([path for path, _ in plan.touch], plan.make, plan.delete) == (["/a/c"], [], [])


def test_of_a_large_file_only_changed_pieces_are_sent(tmp_path: Path) -> None:
    old = b"".join(bytes([number]) * MIB for number in range(1, 6))
    new = old[:MIB] + b"\xff" * MIB + old[2 * MIB : 4 * MIB] + b"end"
    store = PackStore(tmp_path)
    keep_all(store, {"/f": new}, piece=MIB)
    current = {"/": Entry("d"), "/f": file_entry(old, piece=MIB)}
    wanted = file_entry(new, piece=MIB)
    holed = replace(wanted, chunks=tuple(chunk for chunk in wanted.chunks or () if chunk.offset != 2 * MIB))
    for target, content in ((wanted, new), (holed, new[: 2 * MIB] + bytes(MIB) + new[3 * MIB :])):
        plan = plan_restore(current, {"/": Entry("d"), "/f": target})
        body = body_of(plan, store)
        assert len(body) < 1.1 * MIB
        player = Player(current, {"/f": old})
        player.play(body)
        assert player.contents["/f"] == content
    store.close()


def test_content_that_was_not_kept_is_said_and_left() -> None:
    current = {"/": Entry("d"), "/f": file_entry(b"now")}
    plan = plan_restore(current, {"/": Entry("d"), "/f": Entry("f", 0o644, size=5)})
    assert plan.paths == 0
    assert plan.problems == ["/f stays as it is: its content was not kept."]


def test_the_shell_comes_last(tmp_path: Path) -> None:
    store = PackStore(tmp_path)
    assert body_of(Plan(), store, b"state") == HEAD.pack(ord("S"), 5) + b"state"
    assert body_of(Plan(), store) == b""
    store.close()


@pytest.mark.parametrize(
    ("current", "target", "shared"),
    [
        (["/", "/w", "/w/f"], ["/", "/w"], True),
        (["/w", "/w/f"], ["/w", "/w/g"], True),
        (["/etc", "/w", "/w/f"], ["/home", "/w"], True),
        (["/", "/w", "/w/f"], ["/w", "/w/f"], False),
        (["/w", "/w/f"], ["/", "/w", "/w/f"], False),
        (["/etc", "/w"], ["/tmp/w", "/tmp/w/f"], False),
    ],
)
def test_histories_of_one_isolation_share_a_top_folder(
    current: list[str], target: list[str], shared: bool
) -> None:
    assert share_a_top(*(dict.fromkeys(paths, Entry(FOLDER)) for paths in (current, target))) is shared
