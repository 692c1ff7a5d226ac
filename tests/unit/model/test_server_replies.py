"""Replies of servers are rewritten the same however they are cut, and whatever stands in them."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import examples
from variant_replies import FIRST, USAGE, changed, completion, dumped, finish, framed

from llm_sandbox_nb.model.contract import ModelError
from llm_sandbox_nb.model.server_replies import ReplyRewriter, ServerHabits


class Pieces(httpx.AsyncByteStream):
    def __init__(self, data: bytes, size: int) -> None:
        self.data, self.size = data, size

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self.data), self.size):
            yield self.data[start : start + self.size]


def rewritten(data: bytes, rewriter: ReplyRewriter, size: int = 10_000) -> bytes:
    async def body() -> bytes:
        response = httpx.Response(200, stream=Pieces(data, size), request=httpx.Request("POST", "http://a"))
        await rewriter(response)
        return await response.aread()

    return asyncio.run(body())


def told(data: bytes) -> tuple[str, str, str, str | None, Any]:
    """Text, reasoning, arguments, finish_reason and usage of a rewritten reply."""
    text = reasoning = arguments = ""
    end, usage = None, None
    for line in data.decode().split("\n"):
        if line.startswith("data: {"):
            one = json.loads(line.removeprefix("data: "))
            usage = one.get("usage") or usage
            for choice in one["choices"]:
                delta = choice["delta"]
                text += delta.get("content", "")
                reasoning += delta.get("reasoning_content", "")
                arguments += "".join(call["function"]["arguments"] for call in delta.get("tool_calls", ()))
                end = choice["finish_reason"] or end
    return text, reasoning, arguments, end, usage


WHOLE = (FIRST.text, FIRST.reasoning, json.dumps(FIRST.calls[0][1]), "tool_calls")


@pytest.mark.parametrize(
    "data",
    [framed()(FIRST, 0), framed("data: {}\r\n\r\n".format)(FIRST, 0), framed("{}\n".format)(FIRST, 0),
     dumped(completion(FIRST, 0), indent=1).encode()],
    ids=["events", "CR LF", "lines", "whole"],
)  # fmt: skip
def test_a_reply_is_the_same_however_it_is_cut(data: bytes) -> None:
    for size in (1, 2, 3, 7, 64, 10_000):
        rewriter = ReplyRewriter(ServerHabits())
        found = rewritten(data, rewriter, size)
        assert told(found)[:4] == WHOLE
        assert told(found)[4].items() >= USAGE.items()
        assert found.endswith(b"data: [DONE]\n\n")
        assert rewriter.ended


@given(st.integers(0, len(framed()(FIRST, 0))))
@settings(max_examples=examples(200))
def test_a_stream_that_is_cut_never_looks_whole(place: int) -> None:
    data = framed()(FIRST, 0)
    rewriter = ReplyRewriter(ServerHabits())
    found = rewritten(data[:place], rewriter)
    mark = b'"finish_reason": "tool_calls"}]}'
    if place < data.index(mark) + len(mark):
        assert not rewriter.ended
        assert b"[DONE]" not in found


def test_a_json_text_that_is_cut_never_looks_whole() -> None:
    data = dumped(completion(FIRST, 0)).encode()
    habits = ServerHabits()
    for place in range(0, len(data) - 1, 7):
        rewriter = ReplyRewriter(habits)
        rewritten(data[:place], rewriter)
        assert not rewriter.ended


def test_one_reply_without_an_end_is_a_cut_and_two_are_a_habit() -> None:
    silent, habits = finish(None, end="")(FIRST, 0), ServerHabits()
    ends, cuts = [], []
    for data in (silent, silent, silent, framed()(FIRST, 0), silent, silent):
        rewriter = ReplyRewriter(habits)
        rewritten(data, rewriter)
        ends.append(rewriter.ended)
        cuts.append(rewriter.cut)
    assert ends == [False, True, True, True, False, True]
    assert cuts == [False, True, True, False, False, True]


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
        await ReplyRewriter(ServerHabits())(response)
        async for _ in response.aiter_raw():
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
        rewriter = ReplyRewriter(habits)
        rewritten(data, rewriter)
        assert not rewriter.ended
    assert habits.silent_ends == 0


def test_an_error_after_the_beginning_is_told_and_nothing_after_it_counts() -> None:
    error = {"message": "CUDA error", "code": 500}
    broken = changed(lambda chunks: [*chunks[:5], {"error": error}])(FIRST, 0)
    rewriter = ReplyRewriter(ServerHabits())
    assert json.dumps({"error": error}).encode() in rewritten(broken, rewriter)
    assert not rewriter.ended


def test_failures_are_left_as_they_are() -> None:
    async def body() -> httpx.Response:
        response = httpx.Response(500, text="<html>data: {}")
        await rewriter(response)
        return response

    rewriter = ReplyRewriter(ServerHabits())
    assert asyncio.run(body()).text == "<html>data: {}"
    assert not rewriter.used


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
def test_whatever_a_server_sends_is_rewritten_to_what_openai_sends(
    objects: list[dict[str, Any]], whole: bool
) -> None:
    chunks = [{"choices": [{"message" if whole else "delta": one}]} for one in objects] + objects
    data = "".join(f"data: {json.dumps(one)}\n\n" for one in chunks).encode()
    for line in rewritten(data, ReplyRewriter(ServerHabits())).decode().split("\n"):
        if not line.startswith("data: {"):
            continue
        one = json.loads(line.removeprefix("data: "))
        if "error" in one:
            continue
        assert set(one) <= {"id", "object", "created", "model", "choices", "usage"}
        for choice in one["choices"]:
            assert set(choice) == {"index", "delta", "finish_reason"}
            assert set(choice["delta"]) <= {"content", "reasoning_content", "tool_calls"}
            assert isinstance(choice["delta"].get("content", ""), str)
            for call in choice["delta"].get("tool_calls", ()):
                assert isinstance(call["function"]["arguments"], str)
                assert isinstance(call["function"]["name"], str | None)
                assert isinstance(call["index"], int)


def test_a_request_for_no_stream_gets_one_message() -> None:
    data = dumped(completion(FIRST, 0)).encode()
    found = json.loads(rewritten(data, ReplyRewriter(ServerHabits(), stream=False)))
    choice = found["choices"][0]
    assert (found["object"], choice["finish_reason"]) == ("chat.completion", "tool_calls")
    assert (choice["message"]["content"], choice["message"]["reasoning_content"]) == WHOLE[:2]
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == WHOLE[2]
