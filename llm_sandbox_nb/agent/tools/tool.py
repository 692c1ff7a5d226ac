"""Interface of a tool of the model, through which all other modules use tools."""

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
    """Result of a call: the observation for the model, and data for the record."""

    observation: str
    error: str | None = None
    """Short name of the problem with the call."""
    result: CommandResult | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    """Result for a caller that is a program."""
    raw: bytes = b""
    """Result as received from a server, as JSON, for the record."""


@dataclass(frozen=True)
class ToolContext:
    """Sandbox, options of the run, and limits for the execution of a call."""

    box: Sandbox
    options: RunOptions
    time_left: float | None = None
    """Remaining seconds of the run; None without a limit."""
    on_output: OutputCallback | None = None
    output_dir: str = ""
    """Output folder of the run in the sandbox; empty for the sandbox's own."""


@dataclass(frozen=True)
class Approval:
    """Reason why a person has to approve a call."""

    text: str
    """Sentences for the person."""
    refusal: str
    """Observation if no person can approve."""
    changed: bool = False
    """True if the tool has changed, so that an earlier approval of all calls does not cover this call."""


@dataclass(frozen=True)
class CallView:
    """Display of a tool's calls for a person. The values are names of arguments."""

    command: str = ""
    """Argument to show as a command line, in place of all arguments."""
    headline: tuple[str, ...] = ()
    """Arguments to show next to the tool's name."""
    in_diff: tuple[str, ...] = ()
    """Arguments to hide if the call changed a file: the diff shows them."""
    hide_observation: bool = False
    """True to hide observations without an error, for example because the output is shown already."""


class Tool(ABC):
    """Tool of the model."""

    name: str
    description: str
    required: Sequence[str] = ()
    view: CallView = CallView()
    in_sandbox: bool = True
    """True if calls execute only in the sandbox, so that an interrupt of the sandbox ends a call."""
    outside: bool = False
    """True if calls act outside the sandbox, where a rewind does not undo them."""
    only_edits: bool = False
    """True if calls run no command, so that `approve="edits"` executes them without a question."""
    last_observation: str = ""
    """Observation of a call that ends the run; empty for tools that do not end the run."""

    @abstractmethod
    def properties(self, options: RunOptions) -> dict[str, dict[str, Any]]:
        """Return the JSON schema of each argument, for a run with these options."""

    @abstractmethod
    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> Outcome:
        """Execute a call whose arguments were checked.

        Raises:
            SandboxLostError: if the sandbox died.
        """

    async def approval(self) -> Approval | None:
        """Return the reason why the next call needs approval regardless of the pause rules; None without a reason."""
        return None

    def parameters(self, options: RunOptions) -> dict[str, Any]:
        """Return the JSON schema of all arguments."""
        return {
            "type": "object",
            "properties": self.properties(options),
            "required": list(self.required),
        }

    def schema(self, options: RunOptions) -> dict[str, Any]:
        """Return the tool in the form of a request to a provider."""
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
        """Return the arguments that the tool knows. Null and unknown arguments are ignored.

        Raises:
            ArgumentsError: if an argument is missing or has a wrong type.
        """
        known = known_arguments(self.properties(DEFAULT_OPTIONS), arguments)
        check_required(self.name, self.required_with(known), known, arguments)
        return known
