"""Functions of the user's as tools: what the model reads of them, what they accept, and what they answer."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from agent_scripts import SUBMIT, raw, solved, turn
from memory_sandbox import MemorySandbox
from support import run
from virtual_time import run_in_virtual_time

from llm_sandbox_nb.agent.control.decisions import edited_call
from llm_sandbox_nb.agent.control.pause_rules import Breakpoint, Moment, pause_rules
from llm_sandbox_nb.agent.errors import ControlError, InputError
from llm_sandbox_nb.agent.run_options import RunOptions
from llm_sandbox_nb.agent.tools.arguments import ArgumentsError
from llm_sandbox_nb.agent.tools.own_tool import RecordedTool
from llm_sandbox_nb.agent.tools.tool import Outcome, ToolContext
from llm_sandbox_nb.agent.tools.toolbox import TOOLS, Toolbox, with_own_tools
from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.sandbox.errors import SandboxLostError


def lookup(
    word: Annotated[str, "the word, in lower case"],
    language: Literal["en", "de"] = "en",
    most: int | None = None,
) -> str:
    """Look up a word in the glossary."""
    return f"{word} {language} {most}"


async def count(folder: str, sandbox: Sandbox) -> dict[str, object]:
    """Count the files of a folder of the sandbox."""
    await asyncio.sleep(0)
    return {"folder": folder, "sandbox": sandbox.id, "day": date(2026, 1, 2)}


async def executed(function: Any, arguments: dict[str, Any], **context: Any) -> Outcome:
    tools = with_own_tools([function])
    name = function.__name__
    known = tools.check(name, arguments)
    box = MemorySandbox()
    return await tools[name].execute(known, ToolContext(box, **{"options": RunOptions(), **context}))


def called(function: Any, arguments: dict[str, Any], **context: Any) -> Outcome:
    return asyncio.run(executed(function, arguments, **context))


def test_the_model_reads_name_docstring_and_types() -> None:
    schema = with_own_tools([lookup]).schemas()[-1]
    assert schema["type"] == "function"
    function = schema["function"]
    assert (function["name"], function["description"]) == ("lookup", "Look up a word in the glossary.")
    parameters = function["parameters"]
    assert parameters["required"] == ["word"]
    assert parameters["properties"]["word"] == {"type": "string", "description": "the word, in lower case"}
    assert parameters["properties"]["language"]["enum"] == ["en", "de"]
    assert {"type": "integer"} in parameters["properties"]["most"]["anyOf"]
    json.dumps(schema)


def test_the_sandbox_is_given_and_not_asked_for() -> None:
    assert list(with_own_tools([count])["count"].properties(RunOptions())) == ["folder"]
    outcome = called(count, {"folder": "a", "sandbox": "mine"})
    assert json.loads(outcome.observation) == {
        "folder": "a",
        "sandbox": MemorySandbox().id,
        "day": "2026-01-02",
    }


def test_a_call_gets_typed_values_and_defaults() -> None:
    assert called(lookup, {"word": "map", "most": "3"}) == Outcome("map en 3")
    assert called(lookup, {"word": "map", "language": None, "unknown": 1}) == Outcome("map en None")


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({}, "lookup needs `word`, but it has no arguments"),
        ({"word": 5}, "`word`: Input should be a valid string"),
        ({"word": "a", "language": "fr"}, "`language`: Input should be 'en' or 'de'"),
        ({"word": "a", "most": "many" * 10_000}, "`most"),
    ],
)
def test_arguments_of_wrong_types_are_told_to_the_model(arguments: dict[str, Any], kind: str) -> None:
    with pytest.raises(ArgumentsError) as caught:
        with_own_tools([lookup]).check("lookup", arguments)
    assert str(caught.value).startswith(kind)
    assert str(caught.value).endswith("Nothing was done.")
    assert len(str(caught.value)) < 400


def test_what_a_function_raises_is_what_the_model_reads() -> None:
    def divide(by: int) -> str:
        """Divide."""
        return str(1 // by)

    outcome = called(divide, {"by": 0})
    assert outcome.error == "tool_failed"
    assert outcome.observation.startswith("Error: ZeroDivisionError: ")
    assert "Traceback" not in outcome.observation


@pytest.mark.parametrize("raised", [SystemExit(3), StopIteration("no more"), asyncio.CancelledError()])
def test_a_function_that_ends_its_thread_or_a_loop_ends_only_the_call(raised: BaseException) -> None:
    def end() -> None:
        """End."""
        raise raised

    async def end_here() -> None:
        """End."""
        raise raised

    for function in (end, end_here):
        outcome = called(function, {})
        assert outcome.error == "tool_failed"
        assert type(raised).__name__ in outcome.observation


def test_a_result_is_bounded_and_cleaned_like_a_command_s() -> None:
    def flood() -> str:
        """Say much."""
        return "\x1b[31mred\x07\n" + "x" * 1_000_000

    observation = called(flood, {}).observation
    assert len(observation) < 20_000
    assert "left out here" in observation
    assert observation.startswith("red\\x07\n")


def test_a_function_that_takes_too_long_is_given_up() -> None:
    never, over = asyncio.Event(), threading.Event()

    async def wait() -> None:
        """Wait."""
        await never.wait()

    def block() -> None:
        """Wait in a thread."""
        over.wait()

    async def given_up(function: Any) -> None:
        for limits, seconds in (({"time_left": 20}, 20), ({"time_left": 90}, 30)):
            outcome = await executed(function, {}, options=RunOptions(command_timeout=30), **limits)
            assert outcome == Outcome(f"Error: it took longer than {seconds} seconds", error="tool_failed")
        over.set()  # the end of a loop waits for its threads

    for function in (wait, block):
        over.clear()
        assert run_in_virtual_time(given_up(function))[1] == pytest.approx(50)


def test_its_own_time_out_is_not_ours() -> None:
    async def ask() -> None:
        """Ask a server."""
        raise TimeoutError("the server is silent")

    assert called(ask, {}).observation == "Error: TimeoutError: the server is silent"


def test_nothing_is_said_as_such() -> None:
    def quiet() -> str:
        """Say nothing."""
        return ""

    assert called(quiet, {}).observation == "(no output)"


def test_a_sandbox_that_died_ends_the_run_and_is_no_result() -> None:
    async def use(sandbox: Sandbox) -> None:
        """Use it."""
        raise SandboxLostError("It died.")

    with pytest.raises(SandboxLostError):
        called(use, {})


def no_docstring(word: str) -> str:
    return word


def no_type(word) -> str:  # type: ignore[no-untyped-def]
    """Say a word."""
    return str(word)


def many(*words: str) -> str:
    """Say words."""
    return " ".join(words)


def not_waiting(sandbox: Sandbox) -> str:
    """Use the sandbox without waiting."""
    return sandbox.id


def undefined(word: Nowhere) -> str:  # type: ignore[name-defined]  # noqa: F821
    """Say a word."""
    return str(word)


class Strange:
    """No type that JSON has."""


def strange(what: Strange) -> str:
    """Take what no model can write."""
    return str(what)


def submit() -> str:
    """Have a name that is taken."""
    return ""


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        ([no_docstring], "no_docstring has no docstring"),
        ([no_type], "The parameter word of no_type has no type"),
        ([many], "many has the parameter *words, and"),
        ([not_waiting], "write `async def`"),
        ([undefined], "A type of undefined cannot be read"),
        ([strange], "A model cannot write the arguments of strange"),
        ([submit], "There is a tool submit already"),
        ([lookup, lookup], "There is a tool lookup already"),
        ([lambda: "x"], "is a function with a name"),
        ([Strange], "is a function with a name"),
        (["lookup"], "is a function with a name"),
    ],
)
def test_what_cannot_be_a_tool_is_refused_in_one_sentence(tools: list[Any], said: str) -> None:
    with pytest.raises(InputError) as caught:
        with_own_tools(tools)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_one_function_needs_no_list() -> None:
    assert list(with_own_tools(lookup)) == [*TOOLS, "lookup"]  # type: ignore[arg-type]


def test_a_held_call_can_be_changed_to_what_the_tool_takes() -> None:
    tools = with_own_tools([lookup])
    assert edited_call(tools, "lookup", {"word": "a"}, None, {"most": 2}, None) == (
        "lookup",
        {"word": "a", "most": 2},
    )
    with pytest.raises(ControlError, match="has no argument 'color'"):
        edited_call(tools, "lookup", {"word": "a"}, None, {"color": "red"}, None)
    with pytest.raises(ControlError, match="There is no tool"):
        edited_call(TOOLS, "lookup", {"word": "a"}, None, {}, None)


def test_a_call_that_becomes_one_of_another_tool_needs_the_arguments_of_that_tool() -> None:
    """The other tool may need none of them, and then would run with its defaults instead of what was proposed."""

    def search(word: str = "", most: int = 3) -> str:
        """Search the glossary."""
        return f"{word} {most}"

    tools = with_own_tools([lookup, search])
    proposed = {"word": "a", "most": 2}
    with pytest.raises(ControlError) as caught:
        edited_call(tools, "lookup", proposed, None, {}, "search")
    assert str(caught.value) == (
        "The proposed arguments are those of lookup: give those of search, as in edit({...}, tool='search')."
    )
    assert edited_call(tools, "lookup", proposed, {}, {}, "search") == ("search", {})
    assert edited_call(tools, "lookup", proposed, None, {"word": "b"}, "search") == ("search", {"word": "b"})
    assert edited_call(tools, "lookup", proposed, None, {}, "submit") == ("submit", {})
    assert edited_call(tools, "lookup", proposed, None, {}, "lookup") == ("lookup", proposed)


def test_approving_edits_also_asks_before_an_own_tool() -> None:
    moment = Moment("call", 1, "lookup", arguments={"word": "a"})
    assert asyncio.run(pause_rules(approve="edits").why(moment)) == ("approval", "You approve every command.")
    assert Breakpoint("tool == 'lookup'").met(moment)


def test_a_recorded_tool_can_be_edited_and_not_executed() -> None:
    own = RecordedTool(with_own_tools([lookup]).schemas()[-1]["function"])
    tools = Toolbox([*TOOLS.values(), own])
    assert tools.schemas() == with_own_tools([lookup]).schemas()
    assert tools.check("lookup", {"word": "b", "other": 1}) == {"word": "b"}
    with pytest.raises(InputError, match=r"give the same functions again, as in tools=\[lookup\]"):
        asyncio.run(own.execute({"word": "b"}, ToolContext(MemorySandbox(), RunOptions())))


def test_a_run_does_not_wait_for_a_function_beyond_its_time(tmp_path: Path) -> None:
    """Neither the run nor its event loop: a function in a thread cannot be ended."""
    released = threading.Event()

    def slow() -> str:
        """Take long."""
        released.wait(600)
        return "late"

    began = time.monotonic()
    try:
        done = run(solved(tmp_path, turn(raw("slow", "{}")), SUBMIT, tools=[slow], limits={"time": 1.0}))
    finally:
        released.set()
    assert done.stop_reason == "time"
    assert time.monotonic() - began < 300


def test_no_time_is_left_for_a_call() -> None:
    assert RunOptions(command_timeout=30).call_seconds(0.0) == 0.0
    assert RunOptions(command_timeout=30).call_seconds(None) == 30
