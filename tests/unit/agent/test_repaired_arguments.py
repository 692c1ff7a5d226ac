"""Arguments that models write wrong: repaired if that surely changes nothing, converted by the schema, else shown."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_sandbox_nb.agent.model_call import well_formed
from llm_sandbox_nb.agent.tools.arguments import ArgumentsError, parse_arguments
from llm_sandbox_nb.agent.tools.own_tool import OwnTool
from llm_sandbox_nb.agent.tools.toolbox import TOOLS
from llm_sandbox_nb.model.contract import Reply, ToolCall

REPAIRED: dict[str, tuple[str, dict[str, Any]]] = {
    "a line end in a string": ('{"command": "echo a\necho b"}', {"command": "echo a\necho b"}),
    "an escape of the shell": (r'{"command": "echo \$HOME"}', {"command": r"echo \$HOME"}),
    "an escape of a regular expression": (r'{"command": "grep \d+ a"}', {"command": r"grep \d+ a"}),
    "a comma too many": ('{"command": "ls",}', {"command": "ls"}),
    "a comma too many, and line ends": (
        '{"command": "cat <<E\n  a\n\n    b\nE\n", }',
        {"command": "cat <<E\n  a\n\n    b\nE\n"},
    ),
    "a fence": ('```json\n{"command": "ls"}\n```', {"command": "ls"}),
    "single quotes": ("{'command': 'ls -la'}", {"command": "ls -la"}),
    "single quotes around double ones": ("{'command': 'echo \"hi\"'}", {"command": 'echo "hi"'}),
    "an escaped single quote": ("{'command': 'it\\'s'}", {"command": "it's"}),
    "words of Python": ('{"command": "ls", "x": True, "y": None}', {"command": "ls", "x": True, "y": None}),
    "names without quotes": ('{command: "ls", timeout: 30}', {"command": "ls", "timeout": 30}),
    "quotes inside": ('{"command": "echo "hi" > a"}', {"command": 'echo "hi" > a'}),
    "curly quotes": ("{\u201ccommand\u201d: \u201cls\u201d}", {"command": "ls"}),
    "a mark of the byte order": ('\ufeff{"command": "ls"}', {"command": "ls"}),
}
KEPT_BROKEN = {
    "cut in a string": '{"command": "rm -rf /tmp/a',
    "cut behind a brace of a string": '{"command": "rm -rf ${a}',
    "cut behind a quote": '{"command": "rm -rf /tmp/a"',
    "cut behind a comma": '{"command": "view", ',
    "a closing quote is missing": '{"command": "rm -rf /tmp/a}',
    "an apostrophe in single quotes": "{'command': 'it's'}",
    "text after it": '{"command": "ls"} and then',
    "two commas": '{"command": "ls",, "timeout": 3}',
    "backticks": '{"command": `ls`}',
    "no JSON": "ls -la",
}


@pytest.mark.parametrize("name", REPAIRED)
def test_what_is_surely_meant_is_repaired(name: str) -> None:
    raw, meant = REPAIRED[name]
    assert parse_arguments(raw) == meant


@pytest.mark.parametrize("name", KEPT_BROKEN)
def test_what_may_mean_another_command_is_not_executed(name: str) -> None:
    with pytest.raises(ArgumentsError) as caught:
        parse_arguments(KEPT_BROKEN[name])
    assert caught.value.kind == "malformed_json"


def test_the_sentence_shows_the_place_and_says_what_to_change() -> None:
    with pytest.raises(ArgumentsError) as caught:
        parse_arguments('{"path": "/a.py", "file_text": "def f():\n    """Doc."""\n    return 1", "x" "y"}')
    assert 'at character 47, after `, "file_text": "def f():\\n    "` and before' in str(caught.value)
    assert "for a quote inside a text" in str(caught.value)
    with pytest.raises(ArgumentsError, match=r"the text ends with .*does not come to its end"):
        parse_arguments('{"command": "ls')


@pytest.mark.parametrize("raw", ["", " ", "null", "[]", "{}", "\n{}\n", '"{}"'])
def test_no_arguments_are_written_in_several_ways(raw: str) -> None:
    assert parse_arguments(raw) == {}


def test_blanks_in_a_fence_take_no_longer() -> None:
    """A pattern with three parts that match them took minutes for a thousand."""
    with pytest.raises(ArgumentsError):
        parse_arguments("```" + " " * 200_000 + "x")
    assert parse_arguments("```json" + " " * 200_000 + '\n{"command": "ls"}\n```') == {"command": "ls"}


@given(st.dictionaries(st.text(max_size=8), st.text(max_size=40), max_size=3), st.data())
def test_no_cut_of_whole_json_is_repaired(meant: dict[str, str], data: st.DataObject) -> None:
    raw = json.dumps(meant, ensure_ascii=False)
    cut = raw[: data.draw(st.integers(1, len(raw) - 1))]
    try:
        found = parse_arguments(cut)
    except ArgumentsError:
        return
    assert found == {} or not cut.strip(), (cut, found)


@pytest.mark.parametrize(
    ("tool", "sent", "meant"),
    [
        ("execute_bash", {"command": "ls", "timeout": "30"}, {"command": "ls", "timeout": 30}),
        ("execute_bash", {"command": "ls", "timeout": "2.5"}, {"command": "ls", "timeout": 2.5}),
        (
            "str_replace_editor",
            {"command": "view", "path": "/a", "view_range": "[1, 5]"},
            {"command": "view", "path": "/a", "view_range": [1, 5]},
        ),
        (
            "str_replace_editor",
            {"command": "view", "path": "/a", "view_range": ["1", 5.0]},
            {"command": "view", "path": "/a", "view_range": [1, 5]},
        ),
        (
            "str_replace_editor",
            {"command": "insert", "path": "/a", "insert_line": "3", "new_str": "b"},
            {"command": "insert", "path": "/a", "insert_line": 3, "new_str": "b"},
        ),
    ],
)
def test_values_are_converted_by_the_schema(tool: str, sent: dict[str, Any], meant: dict[str, Any]) -> None:
    assert TOOLS.check(tool, sent) == meant


def test_values_of_a_users_own_tool_are_converted_too() -> None:
    def look(number: int, exact: bool, names: list[str]) -> str:
        """Look."""
        return f"{number} {exact} {names}"

    checked = OwnTool(look).check({"number": "3", "exact": "true", "names": '["a", "1"]'})
    assert checked == {"number": 3, "exact": True, "names": ["a", "1"]}


def test_the_history_has_json_and_the_call_keeps_what_the_model_wrote() -> None:
    raw = '{"command": "echo a\necho b",}'
    call = {"id": "1", "type": "function", "function": {"name": "execute_bash", "arguments": raw}}
    message = {"role": "assistant", "content": "", "tool_calls": [call]}
    reply = well_formed(Reply(message, calls=(ToolCall("1", "execute_bash", raw),)))
    assert json.loads(reply.message["tool_calls"][0]["function"]["arguments"]) == {
        "command": "echo a\necho b"
    }
    assert reply.calls[0].arguments == raw
