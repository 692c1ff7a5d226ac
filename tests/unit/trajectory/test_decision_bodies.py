"""Decisions as JSON: each body gives one decision or one sentence."""

from __future__ import annotations

from typing import Any

import pytest

from llm_sandbox_nb.trajectory.decisions import (
    ACTIONS,
    MAX_ARGUMENTS_CHARACTERS,
    MAX_TEXT_CHARACTERS,
    parse_decision,
)

COMPLETE: list[dict[str, Any]] = [
    {"action": "pause"},
    {"action": "resume", "call_id": "c1"},
    {"action": "step"},
    {"action": "say", "text": "x" * MAX_TEXT_CHARACTERS},
    {"action": "stop"},
    {"action": "edit", "arguments": {}, "tool": "submit", "call_id": "c1"},
    {"action": "edit", "changes": {"command": "ls"}},
    {"action": "skip"},
    {"action": "observe", "text": "x"},
    {"action": "change", "limits": {"time": None}, "breakpoints": []},
    {"action": "rewind", "step": 0, "what": "files", "others": True},
    {"action": "undo", "others": True},
    {"action": "fork", "step": 3},
]


@pytest.mark.parametrize("body", COMPLETE)
def test_a_body_gives_the_decision_that_gives_the_body(body: dict[str, Any]) -> None:
    assert parse_decision(body).model_dump(exclude_none=True) == body
    assert parse_decision({**body, "tool": body.get("tool")} if body["action"] == "edit" else body)


def test_every_action_has_a_body() -> None:
    assert {body["action"] for body in COMPLETE} == set(ACTIONS)


def test_null_counts_as_left_out() -> None:
    assert parse_decision({"action": "resume", "call_id": None, "text": None}).model_dump() == {
        "action": "resume",
        "call_id": None,
    }


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({}, "'action' must be one of pause, "),
        ({"action": ["edit"]}, "'action' must be one of"),
        ({"action": "edit"}, "'edit' needs 'arguments'."),
        (
            {"action": "edit", "arguments": "ls"},
            "'arguments' must be an object of at most 4000000 characters.",
        ),
        (
            {"action": "edit", "arguments": {"command": "x" * MAX_ARGUMENTS_CHARACTERS}},
            "'arguments' must be an object",
        ),
        ({"action": "skip", "text": 7}, "'text' must be a text of at most 100000 characters."),
        ({"action": "say", "text": "x" * (MAX_TEXT_CHARACTERS + 1)}, "'text' must be a text"),
        ({"action": "say", "text": ""}, "'say' needs 'text'."),
        ({"action": "step", "call_id": ""}, "'call_id' must be a name of at most 256 characters."),
        ({"action": "pause", "text": "x"}, "'pause' has no field 'text'."),
        ({"action": "step", "model": "x"}, "'step' has no field 'model': it has call_id."),
        (
            {"action": "change"},
            "'change' needs at least one of: model, settings, limits, breakpoints, approve, allow, allow_once.",
        ),
        ({"action": "change", "breakpoints": [1]}, "texts only"),
        ({"action": "change", "approve": "maybe"}, "'approve' must be one of ask, edits, auto."),
        ({"action": "rewind"}, "'rewind' needs 'step'."),
        ({"action": "rewind", "step": True}, "'step' must be the number of a step"),
        ({"action": "rewind", "step": 1, "what": "all"}, "'what' must be one of both, files, conversation."),
        ({"action": "undo", "others": "maybe"}, "'others' must be true or false."),
        (
            {"action": "fork", "step": -1},
            "'step' must be the number of a step, or 0 for the time before the first step.",
        ),
    ],
)
def test_a_problem_is_one_sentence(body: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        parse_decision(body)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)
