"""Specification of a run, and the opening of its sandbox."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from llm_sandbox_nb.agent.checks import Check
from llm_sandbox_nb.agent.control.pause_rules import PauseRules
from llm_sandbox_nb.agent.control.settings_change import MakeModel, checked_changes, unknown_model
from llm_sandbox_nb.agent.errors import ControlError, InputError
from llm_sandbox_nb.agent.inputs import Inputs, StartingFiles
from llm_sandbox_nb.agent.mcp_client.servers import McpServers
from llm_sandbox_nb.agent.prompts import PromptConfig
from llm_sandbox_nb.agent.recorder import public_settings, versions
from llm_sandbox_nb.agent.run_limits import RunLimits
from llm_sandbox_nb.agent.run_options import RunOptions
from llm_sandbox_nb.agent.text_mode import load_text_form
from llm_sandbox_nb.agent.tools.toolbox import TOOLS, Toolbox
from llm_sandbox_nb.model.contract import Model, ModelSettings, ServedHere
from llm_sandbox_nb.model.retries import RetryPolicy
from llm_sandbox_nb.sandbox.contract import Directories, Sandbox
from llm_sandbox_nb.sandbox.isolations import has_own_root
from llm_sandbox_nb.sandbox.open import open_sandbox
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.doubts.rules import Rule

_T = TypeVar("_T", RunLimits, ModelSettings)
NO_DECIDER = (
    "Nobody could decide how to continue when the run pauses: give on_pause (a function, 'stop' or 'continue'), "
    "control or on_run, or step=False and approve='auto'."
)


@dataclass(frozen=True)
class RunSpec(RunOptions):
    """Specification of a run, with checked values."""

    task: str
    model: Model
    prompts: PromptConfig
    inputs: Inputs = field(default_factory=Inputs)
    starting_files: StartingFiles | None = None
    """Files of another run that the sandbox gets first."""
    limits: RunLimits = field(default_factory=RunLimits)
    settings: ModelSettings = field(default_factory=ModelSettings)
    retries: RetryPolicy = field(default_factory=RetryPolicy)
    toolbox: Toolbox = TOOLS
    """Tools that the model can call."""
    pause_rules: PauseRules = field(default_factory=PauseRules)
    make_model: MakeModel = unknown_model
    """Function that makes a model from its name. A change to another model needs this function."""
    given: Mapping[str, str] = field(default_factory=dict)
    """Observations for the calls that a replay does not execute, by call id."""
    replies: int | None = None
    """Maximum number of replies in a replay. None for other runs."""
    remind: bool = True
    """True if a model that submits without a saved file and without text is reminded once."""
    doubts: tuple[Rule, ...] = ()
    """User-defined rules for doubts."""
    check: Check | None = None
    """Check of the result after the model has submitted."""
    servers: McpServers | None = None
    """MCP servers whose tools the model can call."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """Settings that record the run's origin: the replayed run with its servers, or the run whose files are used."""
    isolation: str | None = None
    """Isolation of the sandbox. None if the isolation is not known before the sandbox is open."""

    def __post_init__(self) -> None:
        super().__post_init__()
        load_text_form(self.prompts.text_form)
        if wrong := [rule for rule in self.doubts if not callable(rule)]:
            raise InputError(f"doubts are functions of the record, not {wrong[0]!r:.80}.")
        if not isinstance(self.retries, RetryPolicy):
            raise InputError(f"retries is a RetryPolicy(...), not {self.retries!r:.80}.")

    def start_event(self, run_id: str) -> ev.RunStarted:
        """Return the first event of the journal."""
        settings: dict[str, Any] = {
            "sampling": dataclasses.asdict(self.settings),
            "limits": dataclasses.asdict(self.limits),
            "prompts": dataclasses.asdict(self.prompts),
            **self.provenance,
            **self.recorded(),
        }
        if self.isolation is not None:
            settings["isolation"] = self.isolation
        if self.servers is not None:
            settings["mcp"] = self.servers.as_json()
        if self.check is not None:
            settings["check"] = self.check.as_json()
        if isinstance(self.model, ServedHere) and (served_by := self.model.served_by()):
            settings["served_by"] = dict(served_by)
        if self.pause_rules.any:
            settings["halts"] = self.pause_rules.as_json()
        return ev.RunStarted(
            run_id=run_id,
            task=self.task,
            model=self.model.name,
            scripted=self.model.scripted,
            settings=public_settings(settings),
            tools=self.toolbox.schemas(self),
            inputs=self.inputs.names(),
            versions=versions(),
        )


@dataclass(frozen=True)
class SandboxOpening:
    """Sandbox that may not be open yet.

    `owned` is True if the run closes the sandbox. `root` is the working directory, or None if it is not known yet.
    """

    sandbox: Sandbox | Awaitable[Sandbox]
    owned: bool
    root: str | None
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of `open_sandbox`. Empty for a sandbox that the caller opened."""

    @classmethod
    def new(cls, options: Mapping[str, Any]) -> SandboxOpening:
        """Prepare a sandbox for one run with options of `open_sandbox`. Raise InputError if an option is invalid."""
        try:
            opening = open_sandbox(**options)
        except (ValueError, TypeError, FileNotFoundError) as error:
            raise InputError(str(error)) from error
        root = None if has_own_root(options.get("isolation")) else Directories().root
        return cls(opening, True, root, options)

    async def discard(self) -> None:
        """Close the sandbox of a run that does not begin, if the sandbox is open and belongs to the run."""
        if self.owned and isinstance(self.sandbox, Sandbox):
            await self.sandbox.close()


def with_given(usual: _T, given: _T | Mapping[str, Any] | None) -> _T:
    """Return the limits or settings `usual` with a caller's changes.

    `given` has the changed values by name, or replaces `usual` completely. If it is None, nothing changes.

    Raises:
        InputError: if `given` is invalid.
    """
    if given is None:
        return usual
    if isinstance(given, type(usual)):
        return given
    if not isinstance(given, Mapping):
        raise InputError(
            f"Give {type(usual).__name__}(...), or a mapping of names to values, not {given!r:.80}."
        )
    try:
        return dataclasses.replace(usual, **checked_changes(usual, given))
    except (ControlError, ValueError) as error:
        raise InputError(str(error)) from error


def require_decider(rules: PauseRules, *, decided: bool) -> None:
    """Raise InputError if the run will certainly pause and nobody can decide."""
    if rules.needs_person and not decided:
        raise InputError(NO_DECIDER)
