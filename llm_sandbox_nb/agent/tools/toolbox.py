"""Tools of the model. A new tool of this package needs a file in this folder and an entry in `TOOLS`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from llm_sandbox_nb.agent.errors import InputError
from llm_sandbox_nb.agent.run_options import DEFAULT_OPTIONS, RunOptions
from llm_sandbox_nb.agent.tools.arguments import ArgumentsError, quoted
from llm_sandbox_nb.agent.tools.execute_bash import ExecuteBash
from llm_sandbox_nb.agent.tools.own_tool import OwnTool
from llm_sandbox_nb.agent.tools.str_replace_editor import StrReplaceEditor
from llm_sandbox_nb.agent.tools.tool import CallView, Outcome, Tool, ToolContext


class Submit(Tool):
    """Tool that ends the run."""

    name = "submit"
    description = (
        "End the task. Call it when the task is done and all results are saved; nothing can be done after it."
    )
    view = CallView(hide_observation=True)
    only_edits = True
    last_observation = "Submitted."

    def properties(self, options: RunOptions) -> dict[str, dict[str, Any]]:
        return {}

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> Outcome:
        return Outcome(self.last_observation)


class Toolbox(Mapping[str, Tool]):
    """Tools of a run, by name. A toolbox is immutable, so that dataclasses can have a toolbox as a default."""

    __hash__ = object.__hash__

    def __init__(self, tools: Iterable[Tool]) -> None:
        self._tools = {tool.name: tool for tool in tools}

    def __getitem__(self, name: str) -> Tool:
        return self._tools[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tools)

    def __len__(self) -> int:
        return len(self._tools)

    def schemas(self, options: RunOptions = DEFAULT_OPTIONS) -> list[dict[str, Any]]:
        """Return the schemas of the tools for requests of a run with these options."""
        return [tool.schema(options) for tool in self.values()]

    def check(self, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments that `tool` knows, converted to their types. Null and unknown arguments are ignored.

        Raises:
            ArgumentsError: if the tool is unknown, or an argument is missing or has a wrong type.
        """
        if tool not in self:
            raise ArgumentsError(
                f"There is no tool {quoted(tool)}: the tools are {', '.join(self)}.", "unknown_tool"
            )
        return self[tool].check(arguments)


TOOLS: Final = Toolbox((ExecuteBash(), StrReplaceEditor(), Submit()))
"""Tools of every run."""
ARGUMENTS: Final[dict[str, dict[str, Any]]] = {
    name: schema for tool in TOOLS.values() for name, schema in tool.properties(DEFAULT_OPTIONS).items()
}
"""Schemas of all arguments of `TOOLS`, by name."""


def with_own_tools(functions: Iterable[Callable[..., Any]]) -> Toolbox:
    """Make a toolbox with the tools of every run and with the user's functions.

    Raises:
        InputError: if a function cannot be a tool, or two tools have the same name.
    """
    given: Any = functions
    if not callable(given) and (isinstance(given, str) or not isinstance(given, Iterable)):
        raise InputError(f"tools are your functions, as in tools=[lookup], not {given!r:.80}.")
    tools: dict[str, Tool] = dict(TOOLS)
    for function in [functions] if callable(functions) else functions:
        tool = OwnTool(function)
        if tool.name in tools:
            raise InputError(f"There is a tool {tool.name} already: give your function another name.")
        tools[tool.name] = tool
    return Toolbox(tools.values())


def ends_run(tool: str) -> bool:
    """Return True if a call of this tool ends the run. User-defined tools never end the run."""
    return tool in TOOLS and bool(TOOLS[tool].last_observation)


def only_edits(tool: str) -> bool:
    """Return True if calls of this tool run no command. For a user-defined tool, return False."""
    return tool in TOOLS and TOOLS[tool].only_edits


def call_view(tool: str) -> CallView:
    """Return the display of a tool's calls. Tools of users and of other programs have the default display."""
    return TOOLS[tool].view if tool in TOOLS else CallView()
