"""Frames survive the wire, and damage is noticed."""

from __future__ import annotations

import asyncio
import struct
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import run

from llm_sandbox_nb.sandbox import transfer as tree
from llm_sandbox_nb.sandbox.executor import files
from llm_sandbox_nb.sandbox.executor import frames as executor_frames
from llm_sandbox_nb.sandbox.executor import tree_stream as trees
from llm_sandbox_nb.sandbox.executor.frames import HostPipe
from llm_sandbox_nb.sandbox.protocol import frames
from llm_sandbox_nb.sandbox.protocol.frames import (
    HEADER,
    MAX_PAYLOAD,
    Frame,
    Kind,
    ProtocolError,
    StreamTransport,
    body_frames,
    decode,
    json_frame,
    pack,
    unpack,
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


@given(st.lists(FRAMES, max_size=6), st.binary(max_size=HEADER.size - 1), st.data())
def test_a_stream_in_pieces(sent, rest, data):
    """A frame that is cut off is its end."""
    last = FRAMES.filter(lambda frame: frame.payload).map(lambda frame: frame.encode()[:-1])
    wire = b"".join(frame.encode() for frame in sent) + data.draw(st.just(rest) | last)
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


def found_inside(wire):
    pipe = HostPipe.__new__(HostPipe)
    pipe.incoming = bytearray(wire)
    return (Frame(*taken) for taken in iter(pipe.next_frame, None))


@given(st.binary(max_size=400), FRAMES)
def test_a_new_owner_finds_its_frame_after_anything(noise, frame):
    """As after an adoption: the end of somebody's talk, zeros longer than any frame, then ours."""
    wire = noise + bytes(MAX_PAYLOAD + HEADER.size) + frame.encode()

    async def test():
        reader = asyncio.StreamReader()
        reader.feed_data(wire)
        reader.feed_eof()
        found = StreamTransport(reader, None)
        assert await found.find_frame(frame.__eq__) == frame
        assert await found.read_frame() is None

    run(test())
    assert [*found_inside(wire)][-1] == frame


@given(st.lists(FRAMES, min_size=1, max_size=6), st.integers(0, 2000))
def test_messages_hold_whole_frames(sent, place):
    """As they travel over a WebSocket; one that is cut in a frame is refused."""
    message = b"".join(pack(frame.encode() for frame in sent))
    assert [*unpack(message)] == sent
    ends = [0, *accumulate(len(frame.encode()) for frame in sent)]
    place %= len(message)
    if place in ends[1:]:
        assert [*unpack(message[:place])] == sent[: ends.index(place)]
    else:
        with pytest.raises(ProtocolError):
            [*unpack(message[:place])]


def test_messages_are_as_large_as_may_be():
    frame = Frame(Kind.STDOUT, 1, bytes(MAX_PAYLOAD)).encode()
    messages = [*pack([frame] * 9)]
    assert [len(message) // len(frame) for message in messages] == [4, 4, 1]
    assert len([*unpack(messages[0])]) == 4
    for bad in (messages[0] + Frame(Kind.PING).encode(), None, "text"):
        with pytest.raises(ProtocolError, match="holds no frames"):
            [*unpack(bad)]


def test_limits():
    longest = Frame(Kind.DATA, 1, bytes(MAX_PAYLOAD))
    assert decode(longest.encode()[: HEADER.size], longest.payload) == longest
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


def test_header_is_what_is_documented():
    wire = Frame(Kind.STDOUT, 5, b"abc").encode()
    assert wire[:2] == b"LS"
    assert struct.unpack(">BII", wire[2:11]) == (4, 5, 3)
