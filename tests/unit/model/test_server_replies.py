"""Replies of servers are read the same however they are cut, and whatever stands in them."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import examples
from variant_replies import FIRST, USAGE, completion, dumped, finish, framed

from llm_sandbox_nb.model.contract import ModelError
from llm_sandbox_nb.model.errors import ServerError, examine
from llm_sandbox_nb.model.server_habits import ServerHabits
from llm_sandbox_nb.model.server_replies import read_reply
from llm_sandbox_nb.model.stream import Assembly, Piece


class Pieces(httpx.AsyncByteStream):
    def __init__(self, data: bytes, size: int) -> None:
        self.data, self.size = data, size

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self.data), self.size):
            yield self.data[start : start + self.size]


def read(data: bytes, habits: ServerHabits | None = None, size: int = 10_000) -> list[Piece]:
    async def pieces() -> list[Piece]:
        response = httpx.Response(200, stream=Pieces(data, size), request=httpx.Request("POST", "http://a"))
        return [piece async for piece in read_reply(response, habits or ServerHabits())]

    return asyncio.run(pieces())


def ended(pieces: list[Piece]) -> bool:
    return bool(pieces) and pieces[-1].ended


def joined(pieces: list[Piece]) -> tuple[str, str, str, str | None]:
    calls = [call for piece in pieces for call in piece.calls]
    return (
        "".join(piece.text for piece in pieces),
        "".join(piece.reasoning for piece in pieces),
        "".join(call.arguments for call in calls),
        pieces[-1].finish_reason,
    )


WHOLE = (FIRST.text, FIRST.reasoning, json.dumps(FIRST.calls[0][1]), "tool_calls")


@pytest.mark.parametrize(
    "data",
    [framed()(FIRST, 0), framed("data: {}\r\n\r\n".format)(FIRST, 0), framed("{}\n".format)(FIRST, 0),
     dumped(completion(FIRST, 0), indent=1).encode()],
    ids=["events", "CR LF", "lines", "whole"],
)  # fmt: skip
def test_a_reply_is_the_same_however_it_is_cut(data: bytes) -> None:
    for size in (1, 2, 3, 7, 64, 10_000):
        pieces = read(data, size=size)
        assert joined(pieces) == WHOLE
        assert ended(pieces)
        usage = pieces[-1].usage
        assert usage is not None
        assert (usage.prompt_tokens, usage.completion_tokens) == (
            USAGE["prompt_tokens"],
            USAGE["completion_tokens"],
        )


@given(st.integers(0, len(framed()(FIRST, 0))))
@settings(max_examples=examples(200))
def test_a_stream_that_is_cut_never_looks_whole(place: int) -> None:
    data = framed()(FIRST, 0)
    mark = b'"finish_reason": "tool_calls"}]}'
    assert place >= data.index(mark) + len(mark) or not ended(read(data[:place]))


def test_a_json_text_that_is_cut_never_looks_whole() -> None:
    data = dumped(completion(FIRST, 0)).encode()
    habits = ServerHabits()
    assert not any(ended(read(data[:place], habits)) for place in range(0, len(data) - 1, 7))


def test_one_reply_without_an_end_is_a_cut_and_two_are_a_habit() -> None:
    silent, habits = finish(None, end="")(FIRST, 0), ServerHabits()
    replies = [read(data, habits) for data in (silent, silent, silent, framed()(FIRST, 0), silent, silent)]
    assert [ended(pieces) for pieces in replies] == [False, True, True, True, False, True]
    assert [pieces[-1].cut for pieces in replies] == [False, True, True, False, False, True]


def test_replies_that_end_at_the_same_time_are_no_habit() -> None:
    """As if a server ends that was writing them all."""
    silent, habits = finish(None, end="")(FIRST, 0), ServerHabits()

    async def read_together() -> list[list[Piece]]:
        everyone = asyncio.Barrier(3)

        class Body(Pieces):
            async def __aiter__(self) -> AsyncIterator[bytes]:
                async for piece in super().__aiter__():
                    yield piece
                await everyone.wait()

        async def one() -> list[Piece]:
            response = httpx.Response(
                200, stream=Body(silent, 999), request=httpx.Request("POST", "http://a")
            )
            return [piece async for piece in read_reply(response, habits)]

        return list(await asyncio.gather(*(one() for _ in range(3))))

    assert not any(map(ended, asyncio.run(read_together())))
    assert ended(read(silent, habits))


class Endless(httpx.AsyncByteStream):
    """The same piece again and again; counts how much of it was taken."""

    def __init__(self, piece: bytes) -> None:
        self.piece, self.taken = piece, 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while self.taken < 2**30:
            self.taken += len(self.piece)
            yield self.piece


@pytest.mark.parametrize(
    ("piece", "what", "most"),
    [
        (b"x" * 2**20, "a line of more than 32 MB", 34),
        (b'data: {"choices": [], "x": ' + b'"' + b"y" * 2**20, "a line of more than 32 MB", 34),
        (b'data: {"a": [1,\n' + b"data: 2" + b" " * 1000 + b",\n", "a line of more than 32 MB", 180),
        (b": nothing" * 2**17 + b"\n", "a reply of more than 256 MB", 260),
    ],
    ids=["no line", "one event", "one text on many lines", "comments"],
)
def test_a_reply_without_an_end_is_refused_before_it_fills_the_memory(
    piece: bytes, what: str, most: int
) -> None:
    stream = Endless(piece)

    async def body() -> None:
        response = httpx.Response(200, stream=stream, request=httpx.Request("POST", "http://a"))
        async for _ in read_reply(response, ServerHabits()):
            pass

    with pytest.raises(ModelError, match=what):
        asyncio.run(body())
    assert stream.taken < most * 2**20


def test_a_reply_with_nothing_in_it_is_no_habit() -> None:
    habits = ServerHabits()
    for data in (
        b"",
        b"\n\n",
        b": hello\n\n",
        b"data: \n\n",
        b"<p>",
        b"data: {}\n\n",
        b"data: 3\n\n",
        b'"a"',
    ):
        assert not ended(read(data, habits))
    assert habits.silent_ends == 0


@pytest.mark.parametrize("more", [{}, {"id": "call_0"}, {"index": 0}, {"id": ""}])
def test_each_call_of_a_whole_message_is_a_call(more: dict[str, Any]) -> None:
    calls = [
        {"type": "function", "function": {"name": name, "arguments": arguments}, **more}
        for name, arguments in (("submit", ""), ("ls", '{"d": '), ("cat", '{"f": 1}'))
    ]
    whole = {"choices": [{"message": {"role": "assistant", "content": "", "tool_calls": calls}}]}
    assembly = Assembly()
    for piece in read(json.dumps(whole).encode()):
        assembly.add(piece)
    found = assembly.calls()
    assert [(call.name, call.arguments) for call in found] == [
        ("submit", ""), ("ls", '{"d": '), ("cat", '{"f": 1}'),
    ]  # fmt: skip
    assert len({call.id for call in found}) == 3


@pytest.mark.parametrize(
    "body",
    [{"code": 11200, "message": "no licence", "sid": "x"}, {"detail": "no licence"}, {"error_msg": "no licence"},
     {"choices": None, "base_resp": {"status_code": 1004, "status_msg": "no licence"}}],
)  # fmt: skip
@pytest.mark.parametrize("form", ["{}", "event: error\ndata: {}\n\n", "data: {}\n\ndata: [DONE]\n\n"])
def test_a_sentence_in_place_of_a_reply_is_the_error(body: dict[str, Any], form: str) -> None:
    with pytest.raises(ServerError) as caught:
        read(form.replace("{}", json.dumps(body)).encode())
    assert examine(caught.value).detail == "no licence"


FIELDS = st.sampled_from(
    ["choices", "delta", "message", "content", "tool_calls", "function", "function_call", "name", "arguments", "index",
     "id", "finish_reason", "usage", "prompt_tokens", "completion_tokens", "error", "reasoning", "text", "type",
     "thinking", "object"]
)  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=4),
    max_leaves=12,
)


@given(st.lists(st.dictionaries(FIELDS, JSON, max_size=4), max_size=4), st.booleans())
@settings(max_examples=examples(500))
def test_whatever_a_server_sends_becomes_pieces_of_the_right_types(
    objects: list[dict[str, Any]], whole: bool
) -> None:
    chunks = [{"choices": [{"message" if whole else "delta": one}]} for one in objects] + objects
    data = "".join(f"data: {json.dumps(one)}\n\n" for one in chunks).encode()
    try:
        pieces = read(data)
    except ServerError:
        return
    for piece in pieces:
        assert isinstance(piece.text + piece.reasoning, str)
        for call in piece.calls:
            assert isinstance(call.id + call.name + call.arguments, str)
            assert isinstance(call.index, int)
