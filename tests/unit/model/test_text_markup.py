"""Thinking and calls that are left in the text: found when they are there, and only then."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_sandbox_nb.agent.tools.toolbox import TOOLS
from llm_sandbox_nb.model.stream import Assembly, Piece, ThinkingSplitter, split_lone_end

SCHEMAS = TOOLS.schemas()
LS = '{"name": "execute_bash", "arguments": {"command": "ls"}}'


def split(text: str, size: int = 1) -> tuple[str, str]:
    splitter, said, thought = ThinkingSplitter(), "", ""
    for start in range(0, len(text), size):
        more, thinking = splitter.add(text[start : start + size])
        said, thought = said + more, thought + thinking
    more, thinking = splitter.rest()
    return said + more, thought + thinking


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>a</think>b", ("b", "a")),
        ("\n <think>\na < b </thin </think>b", ("b", "\na < b </thin ")),
        ("[THINK]a[/THINK]b", ("b", "a")),
        ("<think>a</think><think>b</think>c", ("c", "ab")),
        ("<think>never closed </thi", ("", "never closed </thi")),
        ("<thin", ("<thin", "")),
        ("<thinly veiled", ("<thinly veiled", "")),
        ("no <think>thinking</think> here", ("no <think>thinking</think> here", "")),
        ("<b>a</b>", ("<b>a</b>", "")),
        ("<think></think>a <think>b</think>", ("a <think>b</think>", "")),
        ("", ("", "")),
    ],
)
def test_thinking_is_what_stands_first_in_its_tags(text: str, expected: tuple[str, str]) -> None:
    assert [split(text, size) for size in (1, 2, 3, 7, 100)] == [expected] * 5


def test_very_many_thoughts_in_one_piece_are_split() -> None:
    said, thought = split("<think>a</think>" * 900 + "b", 10**6)
    assert (said, thought) == ("b", "a" * 900)
    said, thought = split("<think>a</think>" * 60_000 + "b", 10**6)
    assert (said[-1], thought[:3]) == ("b", "aaa")


@given(st.text("<think>/[THINK] a\n", max_size=40), st.integers(1, 9))
def test_pieces_of_any_size_are_split_alike(text: str, size: int) -> None:
    assert split(text, size) == split(text, 1000)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("thought\n</think>\n\nsaid", ("\nsaid", "thought\n")),
        ("thought</think>\nsaid", ("said", "thought")),
        ("thought\n</think>said", ("said", "thought\n")),
        ("only thought</think>", ("", "only thought")),
        ("the tag </think> ends it", ("the tag </think> ends it", "")),
        ("It writes\n<think>\na\n</think>\nfirst.", ("It writes\n<think>\na\n</think>\nfirst.", "")),
        ("said", ("said", "")),
    ],
)
def test_an_end_without_a_beginning(text: str, expected: tuple[str, str]) -> None:
    assert split_lone_end(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "A call looks like `<tool_call>" + LS + "</tool_call>`.",
        '<tool_call>{"name": "get_weather", "arguments": {}}</tool_call>',
        f"<tool_call>{LS}</tool_call><tool_call>" + LS.replace("execute_bash", "other") + "</tool_call>",
        '<tool_call>{"name": "execute_bash", "arguments": {"command": "rm -r',
        '<tool_call>{"name": "execute_bash", "arguments": "ls"}</tool_call>',
        "<tool_call>\n<function=execute_bash>\n<parameter=command>\nrm -r /tmp/",
        "<tool_call>\n<function=execute_bash>\n<parameter=command>\nrm -r /tmp/x\n</parameter>\n",
        "<tool_call>execute_bash\n<arg_key>command</arg_key>\n<arg_value>ls</arg_value>",
        "<tool_call></tool_call>",
        "<tool_call>{</tool_call>",
        "<tool_call>[]</tool_call>",
        "[TOOL_CALLS]",
        "[TOOL_CALLS][1]",
        "Use <function=execute_bash> for this.",
        "[" * 50_000,
        "<tool_call>" + "[" * 50_000,
    ],
    ids=lambda text: text[:40],
)
def test_what_is_no_whole_call_of_these_tools_stays_text(text: str) -> None:
    assembly = Assembly(text=text)
    assembly.read_written_calls(SCHEMAS)
    assert (assembly.text, assembly.calls(), assembly.written, assembly.raw_text) == (text, (), False, None)


def test_values_without_quotes_get_the_types_of_the_schema() -> None:
    text = (
        "I look.\n<tool_call>\n<function=str_replace_editor>\n<parameter=command>\nview\n</parameter>\n"
        "<parameter=path>\n/a\n</parameter>\n<parameter=view_range>\n[1, 5]\n</parameter>\n"
        "<parameter=file_text>\n12\n\n</parameter>\n<parameter=insert_line>\nten\n</parameter>\n"
        "</function>\n</tool_call>\n"
    )
    assembly = Assembly(text=text)
    assembly.read_written_calls(SCHEMAS)
    (call,) = assembly.calls()
    assert (assembly.text, assembly.raw_text, call.name) == ("I look.", text, "str_replace_editor")
    assert json.loads(call.arguments) == {
        "command": "view", "path": "/a", "view_range": [1, 5], "file_text": "12\n", "insert_line": "ten",
    }  # fmt: skip


def test_a_call_at_the_end_of_a_thought_that_never_ended_is_made() -> None:
    assembly = Assembly(reasoning=f"I look.\n<tool_call>{LS}</tool_call>")
    assembly.read_written_calls(SCHEMAS)
    assert (assembly.text, assembly.reasoning) == ("", "I look.")
    assert [call.name for call in assembly.calls()] == ["execute_bash"]


def streamed(text: str, size: int) -> tuple[str, str, bool]:
    """What a listener gets of a reply in pieces, what of it only at the end, and whether there is a call."""
    assembly, live = Assembly(), ""
    for start in range(0, len(text), size):
        live += assembly.add(Piece(text=text[start : start + size]))[0]
    live += assembly.close()[0]
    assembly.read_written_calls(SCHEMAS)
    return live, assembly.late_text(), assembly.written


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"I look.\n<tool_call>{LS}</tool_call>", ("I look.\n", "", True)),
        ('I look.\n[TOOL_CALLS]execute_bash[ARGS]{"command": "ls"}', ("I look.\n", "", True)),
        ("Use <tool_call> for a call.", ("Use ", "<tool_call> for a call.", False)),
        ("if a < b: [x] functions <tool", ("if a < b: [x] functions <tool", "", False)),
    ],
)
def test_a_mark_is_not_shown_while_it_may_be_a_call_and_is_shown_when_it_is_none(
    text: str, shown: tuple[str, str, bool]
) -> None:
    assert [streamed(text, size) for size in (1, 2, 5, 1000)] == [shown] * 4
