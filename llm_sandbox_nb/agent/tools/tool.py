"""What a tool of the model declares: everything else in the package reads it from here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llm_sandbox_nb.agent.tools.arguments import check_required, known_arguments
from llm_sandbox_nb.sandbox.contract import CommandResult, OutputCallback, Sandbox


@dataclass(frozen=True)
class Outcome:
    """The result of a call: what the model reads, and the rest for the record."""

    observation: str
    error: str | None = None
    """Short name of what was wrong with the call."""
    result: CommandResult | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    """The result for a caller that is a program."""


@dataclass(frozen=True)
class ToolContext:
    """What a call is executed with."""

    box: Sandbox
    command_timeout: float
    """Seconds for a command that names no time-out."""
    time_left: float | None = None
    """Seconds that the run has left; None without a limit."""
    on_output: OutputCallback | None = None


@dataclass(frozen=True)
class CallView:
    """How a call of a tool is shown to a person. The names are arguments of the tool."""

    command: str = ""
    """Shown as a command line, instead of all arguments."""
    headline: tuple[str, ...] = ()
    """Shown beside the tool's name."""
    in_diff: tuple[str, ...] = ()
    """Not shown when the call changed a file: the diff shows them."""
    hide_observation: bool = False
    """Whether an observation without an error is left out: the output says it all, or there is nothing to say."""


class Tool(ABC):
    """One tool of the model."""

    name: str
    description: str
    required: Sequence[str] = ()
    view: CallView = CallView()
    in_sandbox: bool = True
    """Whether all that a call executes is in the sandbox, so that an interrupt of the sandbox ends the call."""
    only_edits: bool = False
    """Whether a call runs no command, so that `approve="edits"` executes it without asking."""
    last_observation: str = ""
    """The observation of a call that ends the run, for which no sandbox is needed; empty where a call does not."""

    @abstractmethod
    def properties(self, command_timeout: float) -> dict[str, dict[str, Any]]:
        """The JSON schema of each argument. `command_timeout` is the time-out in force, in seconds."""

    @abstractmethod
    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> Outcome:
        """Execute a call whose arguments were checked.

        Raises:
            SandboxLostError: the sandbox died.
        """

    def parameters(self, command_timeout: float) -> dict[str, Any]:
        """The JSON schema of all arguments."""
        return {
            "type": "object",
            "properties": self.properties(command_timeout),
            "required": list(self.required),
        }

    def schema(self, command_timeout: float) -> dict[str, Any]:
        """The tool as providers take it."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters(command_timeout),
        }
        return {"type": "function", "function": function}

    def required_with(self, arguments: Mapping[str, Any]) -> Sequence[str]:
        """Arguments that a call with these arguments needs."""
        return self.required

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments that the tool knows; null counts as left out, others are ignored.

        Raises:
            ArgumentsError: an argument is missing or of a wrong type.
        """
        known = known_arguments(self.properties(0), arguments)
        check_required(self.name, self.required_with(known), known, arguments)
        return known
