"""Interface of the model's tools. All other modules use tools through this interface."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llm_sandbox_nb.agent.run_options import DEFAULT_OPTIONS, RunOptions
from llm_sandbox_nb.agent.tools.arguments import check_required, known_arguments
from llm_sandbox_nb.sandbox.contract import CommandResult, OutputCallback, Sandbox


@dataclass(frozen=True)
class Outcome:
    """Result of a call, with the observation for the model and data for the record."""

    observation: str
    error: str | None = None
    """Short name of the problem with the call. None if there was no problem."""
    result: CommandResult | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    """Structured result that an outside agent reads."""
    raw: bytes = b""
    """The JSON result that an MCP server sent. The record stores this result."""


@dataclass(frozen=True)
class ToolContext:
    """Sandbox, options of the run, and limits with which a call is executed."""

    box: Sandbox
    options: RunOptions
    time_left: float | None = None
    """Seconds until the time limit of the run. None if the run has no time limit."""
    on_output: OutputCallback | None = None
    output_dir: str = ""
    """Output folder of the run in the sandbox. If empty, the sandbox's default output folder is used."""


@dataclass(frozen=True)
class Approval:
    """Reason why a person has to approve a call."""

    text: str
    """Text for the person."""
    refusal: str
    """Observation for the model if no person can approve the call."""
    changed: bool = False
    """True if the tool has changed, so that an earlier approval of all calls does not cover this call."""


@dataclass(frozen=True)
class CallView:
    """Display of a tool's calls for a person. Texts in the fields are names of arguments."""

    command: str = ""
    """Argument that is shown as a command line instead of all arguments."""
    headline: tuple[str, ...] = ()
    """Arguments that are shown next to the tool's name."""
    in_diff: tuple[str, ...] = ()
    """Arguments that are hidden if the call changed a file, because the diff shows them."""
    hide_observation: bool = False
    """True if an observation without an error is hidden, for example because the call's output is shown already."""


class Tool(ABC):
    """Tool that the model can call."""

    name: str
    description: str
    required: Sequence[str] = ()
    view: CallView = CallView()
    in_sandbox: bool = True
    """True if calls are executed only in the sandbox, so that an interrupt of the sandbox ends a call."""
    outside: bool = False
    """True if calls act outside the sandbox, so that a rewind does not undo them."""
    only_edits: bool = False
    """True if calls run no command, so that `approve="edits"` executes them without a question."""
    last_observation: str = ""
    """Observation for a call that ends the run. Empty for tools that do not end the run."""

    @abstractmethod
    def properties(self, options: RunOptions) -> dict[str, dict[str, Any]]:
        """Return the JSON schemas of the arguments by their names, for a run with these options."""

    @abstractmethod
    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> Outcome:
        """Execute a call. `arguments` are the arguments that `check` has returned.

        Raises:
            SandboxLostError: if the sandbox died.
        """

    async def approval(self) -> Approval | None:
        """Return the reason why the next call needs an approval even without a pause rule. None without a reason."""
        return None

    def parameters(self, options: RunOptions) -> dict[str, Any]:
        """Return the JSON schema of an object with all arguments."""
        return {
            "type": "object",
            "properties": self.properties(options),
            "required": list(self.required),
        }

    def schema(self, options: RunOptions) -> dict[str, Any]:
        """Return the tool in the form that requests to a provider need."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters(options),
        }
        return {"type": "function", "function": function}

    def required_with(self, arguments: Mapping[str, Any]) -> Sequence[str]:
        """Return the names of the arguments that a call with these arguments requires."""
        return self.required

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments that the tool knows, converted to their types. Null and unknown arguments are ignored.

        Raises:
            ArgumentsError: if an argument is missing or has a wrong type.
        """
        known = known_arguments(self.properties(DEFAULT_OPTIONS), arguments)
        check_required(self.name, self.required_with(known), known, arguments)
        return known
