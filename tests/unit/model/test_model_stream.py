"""A streamed reply is put together the same however it is cut into pieces."""

import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from llm_sandbox_nb.model.stream import Assembly, CallPiece, Piece
from llm_sandbox_nb.trajectory.events import Usage


def call(
    index: int | None, identity: str | None = None, name: str | None = None, arguments: str | None = ""
) -> Piece:
    return Piece(calls=[CallPiece(index, identity or "", name or "", arguments or "")])


def assemble(*chunks: Piece) -> Assembly:
    assembly = Assembly()
    for piece in chunks:
        assembly.add(piece)
    return assembly


def cut(text: str, places: list[int]) -> list[str]:
    bounds = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[start:end] for start, end in pairwise(bounds)]


CALLS = st.lists(
    st.tuples(
        st.text("abc", min_size=1, max_size=5), st.dictionaries(st.text(max_size=5), st.text(max_size=20))
    ),
    max_size=4,
)


@given(CALLS, st.text(), st.text(), st.lists(st.integers(0, 200), max_size=8))
def test_pieces_of_any_size(
    calls: list[tuple[str, dict[str, str]]], text: str, reasoning: str, places: list[int]
) -> None:
    chunks = [Piece(reasoning=part) for part in cut(reasoning, places)]
    chunks += [Piece(text=part) for part in cut(text, places)]
    for index, (name, arguments) in enumerate(calls):
        chunks.append(call(index, f"id{index}", name))
        chunks += [call(index, arguments=part) for part in cut(json.dumps(arguments), places)]
    assembly = assemble(*chunks)
    assembly.close()
    assert (assembly.text, assembly.reasoning) == (text.lstrip() if reasoning else text, reasoning)
    got = [(c.id, c.name, json.loads(c.arguments)) for c in assembly.calls()]
    assert got == [(f"id{i}", name, arguments) for i, (name, arguments) in enumerate(calls)]


def test_pieces_of_several_calls_may_be_mixed() -> None:
    assembly = assemble(
        call(0, "a", "x"), call(1, "b", "y"), call(0, arguments="{1"), call(1, arguments="{2")
    )
    assert [(c.id, c.arguments) for c in assembly.calls()] == [("a", "{1"), ("b", "{2")]


def test_pieces_without_an_index_belong_to_the_last_call() -> None:
    assembly = assemble(call(0, "a", "x", "{"), call(None, None, None, "}"))
    assert [c.arguments for c in assembly.calls()] == ["{}"]


def test_a_last_piece_that_repeats_the_name_is_no_call() -> None:
    pieces = [call(0, None, "x", part) for part in ('{"a"', ": 1}", "")]
    assert [(c.name, c.arguments) for c in assemble(*pieces).calls()] == [("x", '{"a": 1}')]
    more = [call(0, None, "x", part) for part in ("", '{"a": 2}')]
    assert [(c.name, c.arguments) for c in assemble(*pieces, *more).calls()] == [
        ("x", '{"a": 1}'), ("x", '{"a": 2}'),
    ]  # fmt: skip


def test_missing_and_repeated_ids_become_unique() -> None:
    assembly = assemble(
        call(0, "call_0", "x"), call(1, None, "y"), call(2, "same", "z"), call(3, "same", "w")
    )
    ids = [c.id for c in assembly.calls({"call_0"})]
    assert len({*ids, "call_0"}) == 5
    assert all(ids)
    assert ids[2] == "same"


def test_thinking_keeps_its_signatures() -> None:
    def thinking(**block: str) -> Piece:
        return Piece(thinking_blocks=[{"type": "thinking", **block}])

    redacted = {"type": "redacted_thinking", "data": "xyz"}
    assembly = assemble(
        thinking(thinking="I th"), thinking(thinking="ink."), thinking(thinking="I think.", signature="s1"),
        Piece(thinking_blocks=[redacted]), thinking(thinking="More."), thinking(thinking="", signature="s2"),
    )  # fmt: skip
    assert assembly.thinking_blocks == [
        {"type": "thinking", "thinking": "I think.", "signature": "s1"},
        redacted,
        {"type": "thinking", "thinking": "More.", "signature": "s2"},
    ]


def test_the_usage_of_the_last_piece_counts() -> None:
    usage = Usage(prompt_tokens=3)
    assert assemble(Piece(text="a", usage=Usage()), Piece(usage=usage)).usage is usage


def test_fields_of_the_server_are_joined_and_bounded() -> None:
    assembly = assemble(
        Piece(extra={"a": "x", "b": [1]}, calls=[CallPiece(0, "i", "n", "", {"s": {"t": "1"}})]),
        Piece(extra={"a": "y", "b": [2]}, calls=[CallPiece(0, "i", "", "", {"s": {"t": "2"}})]),
        Piece(extra={"c": "z" * 1_000_001, "d": None}),
    )
    assembly.calls()
    assert (assembly.message_extra, assembly.extra) == ({"a": "xy", "b": [1, 2]}, [{"s": {"t": "12"}}])


def test_calls_are_in_the_order_of_their_index() -> None:
    assembly = assemble(
        Piece(calls=[CallPiece(1, "b", "run", '{"n": ')]),
        Piece(calls=[CallPiece(0, "a", "run", '{"n": ')]),
        Piece(calls=[CallPiece(1, arguments="2}"), CallPiece(0, arguments="1}")]),
    )
    assert [(call.id, call.arguments) for call in assembly.calls()] == [("a", '{"n": 1}'), ("b", '{"n": 2}')]
