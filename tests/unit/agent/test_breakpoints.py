"""Breakpoint expressions: what they mean, and that they are never run as Python."""

from __future__ import annotations

import asyncio
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import run

from llm_sandbox_nb.agent.control.pause_rules import NAMES, Breakpoint, Moment, pause_rules
from llm_sandbox_nb.agent.errors import InputError

RM = Moment("call", 3, "execute_bash", "c", {"command": "rm -rf build"}, cost=0.5, tokens=900)
VIEW = Moment("call", 1, "str_replace_editor", "c", {"command": "view", "path": "/testbed/a.py"})
DONE = Moment(
    "observation", 3, "execute_bash", "c", {"command": "make"}, observation="Error 2", exit_code=2,
    changed=("/testbed/a.py", "/testbed/b.txt"), duration=1.5,
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "moment", "met"),
    [
        ("tool == 'execute_bash' and 'rm ' in command", RM, True),
        ("tool == 'execute_bash' and 'rm ' in command", VIEW, False),
        ("command.startswith('rm')", RM, True),
        ("not command.lower().endswith('BUILD'.lower())", RM, False),
        ("path.endswith('.py') or step > 2", VIEW, True),
        ("path.endswith('.py')", RM, False),
        ("cost > 0.4 and tokens >= 900", RM, True),
        ("cost > 0.4", VIEW, False),
        ("step in [1, 2]", VIEW, True),
        ("1 < step <= 3", RM, True),
        ("timeout is None", RM, True),
        ("len(command) > 5", RM, True),
        ("exit_code != 0", DONE, True),
        ("exit_code != 0", RM, False),
        ("exit_code > -1 and 'Error' in observation", DONE, True),
        ("'/testbed/b.txt' in changed", DONE, True),
        ("changed.endswith('.py')", DONE, True),
        ("len(changed) == 2 and duration > 1", DONE, True),
        ("tool == 'execute_bash'", DONE, False),
        ("command < 3", RM, False),
    ],
)
def test_what_an_expression_means(text: str, moment: Moment, met: bool) -> None:
    assert Breakpoint(text).met(moment) is met


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        ("tool ==", "cannot be read"),
        ("comand == 'ls'", "did you mean command"),
        ("__import__('os').system('touch /tmp/x')", "not allowed"),
        ("tool.__class__", "not allowed"),
        ("().__class__.__bases__", "not allowed"),
        ("[x for x in command]", "not allowed"),
        ("(lambda: 1)()", "not allowed"),
        ("tool := 'x'", "cannot be read"),
        ("command[0]", "not allowed"),
        ("9 ** 9 ** 9", "not allowed"),
        ("'a' * 10", "not allowed"),
        ("f'{tool}'", "not allowed"),
        ("len(command, 1)", "not allowed"),
        ("command.startswith('a', 'b')", "not allowed"),
        ("command.format(tool)", "not allowed"),
        ("open('/etc/passwd')", "not allowed"),
        ("len", "no name 'len'"),
        ("tool == b'x'", "not allowed"),
        ("\0", "cannot be read"),
        ("(" * 300 + ")" * 300, "cannot be read"),
        ("not " * 400 + "step", "too many parts"),
        ("'" + "a" * 3000 + "'", "too long"),
    ],
)
def test_anything_else_is_refused_in_one_sentence(text: str, why: str) -> None:
    with pytest.raises(InputError, match=why) as caught:
        Breakpoint(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


PIECES = [*NAMES, " and ", " in ", "'x'", "(", ")", ".", "==", "not ", "len", "1", ",", "[", "]", "__class__"]
EXPRESSIONS = st.text(max_size=60) | st.lists(st.sampled_from(PIECES), max_size=12).map("".join)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
)


@given(EXPRESSIONS)
def test_no_text_makes_it_do_anything_but_answer_or_refuse(text: str) -> None:
    try:
        found = Breakpoint(text)
    except InputError:
        return
    for moment in (RM, VIEW, DONE):
        assert found.met(moment) in (True, False)


@given(JSON)
def test_whatever_a_model_sends_is_only_compared(value: object) -> None:
    moment = Moment("call", 1, "execute_bash", "c", {"command": value, "path": value})
    for text in (
        "'rm' in command",
        "command < path",
        "command.startswith('a')",
        "len(path) > 2",
        "-1 in command",
    ):
        assert Breakpoint(text).met(moment) in (True, False)


def test_an_expression_without_results_is_looked_at_before_the_call() -> None:
    assert Breakpoint("'rm' in command").at == "call"
    assert Breakpoint("'rm' in command and exit_code").at == "observation"


def test_functions_are_asked_at_both_places_and_one_that_fails_halts() -> None:
    seen: list[str] = []

    def look(moment: Moment) -> bool:
        seen.append(moment.at)
        return moment.at == "observation"

    async def later(moment: Moment) -> bool:
        return moment.tool == "submit"

    def broken(moment: Moment) -> bool:
        raise KeyError("typo")

    rules = pause_rules(break_when=[look, later])
    assert run(rules.why(RM)) is None
    assert run(rules.why(DONE)) == ("breakpoint", "look")
    assert seen == ["call", "observation"]
    assert run(rules.why(Moment("call", 1, "submit"))) == ("breakpoint", "later")
    reason = run(pause_rules(break_when=broken).why(RM))
    assert reason is not None
    assert reason[1] == "broken failed: KeyError: 'typo'"


def test_a_slow_function_does_not_hold_up_the_loop() -> None:
    answer = threading.Event()

    async def go() -> tuple[str, str] | None:
        asked = asyncio.ensure_future(pause_rules(break_when=lambda moment: answer.wait()).why(RM))
        await asyncio.sleep(0)
        answer.set()  # by the loop, which a function in its thread would hold up for ever
        return await asked

    assert run(go()) == ("breakpoint", "<lambda>")


def test_who_has_to_approve_what() -> None:
    submit = Moment("call", 1, "submit")

    def asks(approve: str) -> list[bool]:
        rules = pause_rules(approve=approve)
        return [run(rules.why(moment)) is not None for moment in (RM, VIEW, submit, DONE)]

    assert asks("ask") == [True, True, True, False]
    assert asks("edits") == [True, False, False, False]
    assert asks("auto") == [False, False, False, False]
    assert run(pause_rules(approve="ask").why(RM, readable=False)) is None
    with pytest.raises(InputError, match="ask, edits, auto"):
        pause_rules(approve="yes")
    with pytest.raises(InputError, match="a function or several"):
        pause_rules(break_when=["x"])  # type: ignore[list-item]
