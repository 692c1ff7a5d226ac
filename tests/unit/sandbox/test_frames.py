"""Frames survive the wire, and damage is noticed."""

from __future__ import annotations

import ast
import asyncio
import json
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import run

from llm_sandbox_nb.sandbox import transfer as tree
from llm_sandbox_nb.sandbox.bootstrap import executor_source
from llm_sandbox_nb.sandbox.executor import files
from llm_sandbox_nb.sandbox.executor import frames as executor_frames
from llm_sandbox_nb.sandbox.executor import tree_stream as trees
from llm_sandbox_nb.sandbox.executor.frames import HostPipe
from llm_sandbox_nb.sandbox.protocol import frames
from llm_sandbox_nb.sandbox.protocol.frames import (
    HEADER,
    MAX_PAYLOAD,
    Frame,
    FrameScanner,
    Kind,
    ProtocolError,
    StreamTransport,
    body_frames,
    decode,
    json_frame,
)

FRAMES = st.builds(Frame, st.integers(0, 255), st.integers(0, 2**32 - 1), st.binary(max_size=300))


@given(FRAMES)
def test_there_and_back(frame):
    data = frame.encode()
    assert decode(data[: HEADER.size], data[HEADER.size :]) == frame


@given(FRAMES, st.data())
def test_any_damaged_byte_is_noticed(frame, data):
    wire = bytearray(frame.encode())
    place = data.draw(st.integers(0, len(wire) - 1))
    wire[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ProtocolError):
        decode(bytes(wire[: HEADER.size]), bytes(wire[HEADER.size :]))


@given(st.lists(FRAMES, max_size=6), st.data())
def test_a_stream_in_pieces(sent, data):
    wire = b"".join(frame.encode() for frame in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=5)))
    pieces = [wire[a:b] for a, b in zip([0, *cuts], [*cuts, len(wire)], strict=True)]

    async def test():
        reader = asyncio.StreamReader()
        transport = StreamTransport(reader, None)
        for piece in pieces:
            reader.feed_data(piece)
        reader.feed_eof()
        assert [await transport.read_frame() for _ in sent] == sent
        assert await transport.read_frame() is None

    run(test())


@given(st.binary(max_size=400), FRAMES)
def test_a_new_owner_finds_its_frame_after_anything(noise, frame):
    """As after an adoption: the end of somebody's talk, zeros longer than any frame, then ours."""
    scanner = FrameScanner()
    scanner.feed(noise + bytes(MAX_PAYLOAD + HEADER.size) + frame.encode())
    found = []
    while (taken := scanner.take()) is not None:
        found.append(taken)
    assert found[-1] == frame
    assert scanner.rest == b""


@given(st.binary(max_size=400), FRAMES)
def test_the_executor_finds_it_too(noise, frame):
    box = HostPipe.__new__(HostPipe)
    box.incoming = bytearray(noise + bytes(MAX_PAYLOAD + HEADER.size) + frame.encode())
    found = []
    while (taken := box.next_frame()) is not None:
        found.append(Frame(*taken))
    assert found[-1] == frame


def test_limits():
    with pytest.raises(ValueError, match="at most"):
        Frame(Kind.DATA, 1, bytes(MAX_PAYLOAD + 1)).encode()
    data = bytes(range(256)) * 1000
    pieces = list(body_frames(7, data))
    assert b"".join(frame.payload for frame in pieces) == data
    assert {frame.request for frame in pieces} == {7}
    with pytest.raises(ProtocolError):
        Frame(Kind.RESPONSE, 1, b"[]").json()
    assert json_frame(Kind.PING, 0, {"a": "\udcff"}).json() == {"a": "\udcff"}


def test_both_sides_mean_the_same():
    for kind in Kind:
        assert getattr(executor_frames, kind.name) == kind
    theirs = (executor_frames.HEADER.format, executor_frames.MAGIC, executor_frames.MAX_PAYLOAD)
    assert theirs == (HEADER.format, frames.MAGIC, MAX_PAYLOAD)
    for name in ("DIRECTORY", "FILE", "SKIPPED", "THE_END"):
        assert getattr(trees, name) == getattr(tree, name)
    assert (trees.RECORD.format, trees.CHUNK.format) == (tree.RECORD.format, tree.CHUNK.format)
    assert files.CHUNK_SIZE == tree.CHUNK_SIZE


def sources():
    source = executor_source()
    size = int(source[:8])
    compiled = source[8 + size :]
    assert len(compiled) == 8 + int(compiled[:8])
    return json.loads(zlib.decompress(source[8 : 8 + size]))


def test_the_source_is_old_python():
    """It runs on whatever python3 an image has, from 3.8 on."""
    for name, text in sources().items():
        ast.parse(text, name, feature_version=(3, 8))


def test_the_source_needs_the_standard_library_only_and_little_of_it():
    """Start-up time is everybody's: `typing`, `re` or `subprocess` cost more than all of ours."""
    allowed = {"__future__", "binascii", "ctypes", "errno", "fcntl", "gc", "grp", "json", "os", "pwd"}
    allowed |= {"collections"}  # json has it already
    allowed |= {"select", "signal", "stat", "struct", "sys", "termios", "time", "zlib"}
    for name, text in sources().items():
        tree = ast.parse(text)
        # Files are hashed by the child that remembers them, which is started only when it is asked.
        # Only a sandbox with a network that is closed in part imports the last two.
        rare = {
            "executor.disk_watch": {"resource"},
            "executor.filesystem_scan": {"hashlib"},
            "executor.firewall": {"socket"},
            "executor.name_server": {"ipaddress", "socket"},
        }
        modules = allowed | rare.get(name, set())
        checking = [node for node in tree.body if isinstance(node, ast.If)]
        skipped = {id(inner) for node in checking for inner in ast.walk(node)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import) and id(node) not in skipped:
                assert {alias.name for alias in node.names} <= modules
            if isinstance(node, ast.ImportFrom) and id(node) not in skipped:
                assert node.level == 1 or node.module in modules


def test_truncated_stream_is_an_end():
    async def test():
        reader = asyncio.StreamReader()
        reader.feed_data(Frame(Kind.PONG, 0, b"abc").encode()[:-1])
        reader.feed_eof()
        assert await StreamTransport(reader, None).read_frame() is None

    run(test())


def test_header_is_what_is_documented():
    wire = Frame(Kind.STDOUT, 5, b"abc").encode()
    assert wire[:2] == b"LS"
    assert struct.unpack(">BII", wire[2:11]) == (4, 5, 3)
