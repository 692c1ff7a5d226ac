"""What a run is to do, checked, and the sandbox that it is to get."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Any

from llm_sandbox_nb.agent.folders import public_settings, versions
from llm_sandbox_nb.agent.halting import Halting
from llm_sandbox_nb.agent.inputs import Inputs
from llm_sandbox_nb.agent.limits import RunLimits
from llm_sandbox_nb.agent.model import Model, ModelSettings
from llm_sandbox_nb.agent.origin import Origin
from llm_sandbox_nb.agent.prompts import PromptConfig
from llm_sandbox_nb.agent.retry import RetryPolicy
from llm_sandbox_nb.agent.schemas import TOOLS
from llm_sandbox_nb.agent.settings_change import MakeModel, unknown_model
from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.trajectory import events as ev


@dataclass(frozen=True)
class Job:
    """What is to be done, checked."""

    task: str
    model: Model
    prompts: PromptConfig
    inputs: Inputs
    limits: RunLimits
    settings: ModelSettings
    retries: RetryPolicy
    command_timeout: float
    halting: Halting = field(default_factory=Halting)
    make_model: MakeModel = unknown_model
    """Makes a model that the run changes to."""
    origin: Origin | None = None
    """The files to begin with."""
    given: Mapping[str, str] = field(default_factory=dict)
    """Observations of calls that are not to be executed, by their ids: when a record is played again."""
    replies: int | None = None
    """How many replies are asked for at most, then."""
    came_from: Mapping[str, str] = field(default_factory=dict)
    """For the record: which run it is played from, or has its files from."""

    def start_event(self, run_id: str) -> ev.RunStarted:
        """The first event of the journal."""
        settings: dict[str, Any] = {
            "sampling": dataclasses.asdict(self.settings),
            "limits": dataclasses.asdict(self.limits),
            "command_timeout": self.command_timeout,
            "prompts": dataclasses.asdict(self.prompts),
        }
        settings |= self.came_from
        if self.halting.any:
            settings["halts"] = self.halting.as_json()
        return ev.RunStarted(
            run_id=run_id,
            task=self.task,
            model=self.model.name,
            scripted=self.model.scripted,
            settings=public_settings(settings),
            tools=TOOLS,
            inputs=self.inputs.names(),
            versions=versions(),
        )


@dataclass(frozen=True)
class Opening:
    """The sandbox to come. `root` is its working directory when that is known before it is there."""

    sandbox: Sandbox | Awaitable[Sandbox]
    owned: bool
    root: str | None
    options: Mapping[str, Any] = field(default_factory=dict)
    """How it is opened, when it is known."""
