"""The line of a call of an MCP server names the server and its place; the view's test has the same cases."""

from __future__ import annotations

from typing import Any

import pytest

from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.step_line import step_line
from llm_sandbox_nb.trajectory.trajectory import Call, Step

MCP: dict[str, Any] = {
    "time": {"command": "uvx", "inside": False, "tools": [{"name": "time__now"}]},
    "git": {"command": "git-server", "inside": True, "tools": [{"name": "git__status"}]},
    "web": {"url": "https://tracker.example.org/mcp", "tools": [{"name": "web__search"}]},
    "odd": None,
    "older": {"tools": "none"},
}


def chips(settings: dict[str, Any], *tools: str) -> list[str]:
    start = ev.RunStarted(run_id="r", task="t", model="m", settings=settings)
    step = Step(1)
    step.calls.extend(Call(f"call_{number}", tool, "{}", {}) for number, tool in enumerate(tools))
    return [chip.text for chip in step_line(step, "", start=start).chips]


@pytest.mark.parametrize(
    ("tool", "place"),
    [
        ("time__now", "server time on the host"),
        ("git__status", "server git in the sandbox"),
        ("web__search", "server web at tracker.example.org"),
    ],
)
def test_a_call_of_a_server_has_a_chip_with_its_place(tool: str, place: str) -> None:
    assert chips({"mcp": MCP}, tool) == chips({"mcp": MCP}, tool, tool) == [place]


@pytest.mark.parametrize(
    ("settings", "tool"),
    [
        ({"mcp": MCP, "replay_of": "x"}, "time__now"),
        ({"mcp": "text"}, "time__now"),
        ({}, "time__now"),
        ({"mcp": MCP}, "own_tool"),
        ({"mcp": MCP}, "execute_bash"),
    ],
)
def test_other_calls_and_replays_have_none(settings: dict[str, Any], tool: str) -> None:
    assert chips(settings, tool) == []


@pytest.mark.parametrize(
    ("model", "running", "words"),
    [
        ("openai/gpt-5", True, "The model is thinking"),
        ("outside agent (MCP)", True, "Waiting for a call"),
        ("outside agent (MCP), try", True, "Waiting for a call"),
        ("outside agent (MCP)", False, "No reply"),
    ],
)
def test_the_next_step_of_an_outside_agent_waits_for_a_call(model: str, running: bool, words: str) -> None:
    start = ev.RunStarted(run_id="r", task="t", model=model, settings={})
    assert step_line(Step(1), "", running=running, start=start).thought == words
