"""What the model sends, checked: bad calls come back as one short sentence that says what to do."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import examples

from llm_sandbox_nb.agent.tools.arguments import ArgumentsError, parse_arguments
from llm_sandbox_nb.agent.tools.toolbox import TOOLS

INSERT = {"command": "insert", "path": "/a", "new_str": "x"}
VIEW = {"command": "view", "path": "/a"}


def refused(tool: str, raw: str) -> ArgumentsError:
    with pytest.raises(ArgumentsError) as caught:
        TOOLS.check(tool, parse_arguments(raw))
    message = str(caught.value)
    assert len(message) < 400
    assert "\n" not in message
    return caught.value


def test_schemas_are_what_providers_take() -> None:
    tools = TOOLS.schemas()
    names = [tool["function"]["name"] for tool in tools]
    assert names == ["execute_bash", "str_replace_editor", "submit"]
    for tool in tools:
        assert set(tool) == {"type", "function"}
        parameters = tool["function"]["parameters"]
        assert parameters["type"] == "object"
        assert set(parameters["required"]) <= set(parameters["properties"])
    json.dumps(tools)


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ('{"command": "ls"', "not valid JSON"),
        ('{"command": "ls', "(Unterminated string starting at character 13; the text ends with"),
        ("[" * 100_000, "not valid JSON"),
        ('["ls"]', "JSON object, not the list"),
        ('"ls"', "JSON object, not the text"),
        ("true", "JSON object, not true or false"),
        ("17", "JSON object, not the number 17"),
    ],
)
def test_what_is_not_a_json_object(raw: str, says: str) -> None:
    error = refused("execute_bash", raw)
    assert says in str(error)
    assert error.kind == "malformed_json"


@pytest.mark.parametrize(
    ("tool", "arguments", "says"),
    [
        ("execute_bash", {}, "needs `command`, but it has no arguments"),
        ("execute_bash", {"cmd": "ls"}, "needs `command`, but it has cmd"),
        ("execute_bash", {"command": None}, "needs `command`"),
        ("execute_bash", {"command": ["ls", "-la"]}, "`command` has to be text, not the list"),
        ("execute_bash", {"command": 3}, "`command` has to be text, not the number 3"),
        ("execute_bash", {"command": "ls", "timeout": "ten"}, "`timeout` has to be a number, not the text"),
        ("execute_bash", {"command": "ls", "timeout": float("nan")}, "a number, not the number nan"),
        ("execute_bash", {"command": "ls", "timeout": 10**400}, "a number, not the number 1000"),
        ("execute_bash", {"command": "ls", "timeout": True}, "has to be a number, not true or false"),
        ("str_replace_editor", {"command": "view"}, "needs `path`"),
        ("str_replace_editor", {"command": "undo", "path": "/a"}, "one of view, create, str_replace, insert"),
        ("str_replace_editor", {"command": "create", "path": "/a"}, "needs `file_text`"),
        ("str_replace_editor", {"command": "str_replace", "path": "/a"}, "needs `old_str`"),
        ("str_replace_editor", {"command": "insert", "path": "/a"}, "needs `insert_line` and `new_str`"),
        ("str_replace_editor", INSERT | {"insert_line": "first"}, "whole number"),
        ("str_replace_editor", INSERT | {"insert_line": 1.5}, "whole number"),
        ("str_replace_editor", VIEW | {"view_range": "1 to 2"}, "list of whole numbers"),
        ("str_replace_editor", VIEW | {"view_range": [1, "b"]}, "list of whole numbers"),
        ("str_replace_editor", {"command": "view", "path": {"a": 1}}, "`path` has to be text, not an object"),
    ],
)  # fmt: skip
def test_wrong_arguments(tool: str, arguments: dict[str, Any], says: str) -> None:
    error = refused(tool, json.dumps(arguments))
    assert says in str(error)
    assert error.kind == "bad_arguments"


def test_unknown_tools_are_told_the_known_ones() -> None:
    error = refused("python", "{}")
    assert "execute_bash, str_replace_editor, submit" in str(error)
    assert error.kind == "unknown_tool"
    refused("x" * 100_000, "{}")


def test_null_counts_as_left_out_and_others_are_ignored() -> None:
    raw = '{"command": "view", "path": "/a", "view_range": null, "file_text": null, "security_risk": "LOW"}'
    assert TOOLS.check("str_replace_editor", parse_arguments(raw)) == {"command": "view", "path": "/a"}
    assert TOOLS.check("submit", parse_arguments('{"answer": "extra"}')) == {}


def test_lone_surrogates_are_replaced() -> None:
    assert parse_arguments('{"command": "echo \\ud800 \\ud83d\\ude00"}') == {"command": "echo \ufffd 😀"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(
    ["command", "path", "timeout", "insert_line", "new_str", "view_range", "old_str", "file_text"]
)


@settings(max_examples=examples(500))
@given(
    st.sampled_from(["execute_bash", "str_replace_editor", "submit", "other"]),
    st.text(max_size=30)
    | st.text(alphabet="{}[]\"',:\\ \nabTrue1", max_size=40)
    | st.dictionaries(KEYS, JSON | st.sampled_from(["view", "insert"]), max_size=5).map(json.dumps),
)
def test_anything_at_all_is_taken_or_refused_in_a_sentence(tool: str, raw: str) -> None:
    try:
        arguments = TOOLS.check(tool, parse_arguments(raw))
    except ArgumentsError as error:
        assert "\n" not in str(error)  # noqa: PT017
        assert len(str(error)) < 500  # noqa: PT017
    else:
        json.dumps(arguments).encode()
