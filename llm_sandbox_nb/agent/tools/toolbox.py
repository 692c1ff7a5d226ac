"""The tools that the model has. A new tool is a file beside this one, and an entry here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from llm_sandbox_nb.agent.tools.arguments import ArgumentsError, quoted
from llm_sandbox_nb.agent.tools.execute_bash import ExecuteBash
from llm_sandbox_nb.agent.tools.str_replace_editor import StrReplaceEditor
from llm_sandbox_nb.agent.tools.submit import Submit
from llm_sandbox_nb.agent.tools.tool import CallView, Tool
from llm_sandbox_nb.sandbox.contract import DEFAULT_TIMEOUT

TOOLS: Final[dict[str, Tool]] = {tool.name: tool for tool in (ExecuteBash(), StrReplaceEditor(), Submit())}
ARGUMENTS: Final[dict[str, dict[str, Any]]] = {
    name: schema for tool in TOOLS.values() for name, schema in tool.properties(DEFAULT_TIMEOUT).items()
}
"""The arguments of all tools, by name, with their schemas."""


def tool_schemas(command_timeout: float = DEFAULT_TIMEOUT) -> list[dict[str, Any]]:
    """The tools as providers take them. `command_timeout` is the time-out in force, in seconds."""
    return [tool.schema(command_timeout) for tool in TOOLS.values()]


def check_arguments(tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that `tool` knows, of the right types; null counts as left out, others are ignored.

    Raises:
        ArgumentsError: the tool is unknown, an argument is missing or of a wrong type.
    """
    if tool not in TOOLS:
        raise ArgumentsError(
            f"There is no tool {quoted(tool)}: the tools are {', '.join(TOOLS)}.", "unknown_tool"
        )
    return TOOLS[tool].check(arguments)


def ends_run(tool: str) -> bool:
    """Whether a call of this tool ends the run."""
    return tool in TOOLS and bool(TOOLS[tool].last_observation)


def only_edits(tool: str) -> bool:
    """Whether a call of this tool runs no command."""
    return tool in TOOLS and TOOLS[tool].only_edits


def call_view(tool: str) -> CallView:
    """How calls of a tool are shown, which may be one of another program's record."""
    return TOOLS[tool].view if tool in TOOLS else CallView()
