"""What an existing run was to do, and its sandbox: as this process knows them, else as they were recorded."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from llm_sandbox_nb.agent.context_window import CONTEXT_MODES
from llm_sandbox_nb.agent.errors import InputError
from llm_sandbox_nb.agent.limits import RunLimits
from llm_sandbox_nb.agent.prompts import PromptConfig, load_prompts
from llm_sandbox_nb.agent.run_record import RunRecord
from llm_sandbox_nb.agent.run_spec import RunSpec
from llm_sandbox_nb.agent.tools.own_tool import RecordedTool, missing_tools
from llm_sandbox_nb.agent.tools.toolbox import TOOLS, Toolbox, with_own_tools
from llm_sandbox_nb.model.contract import Model, ModelSettings
from llm_sandbox_nb.sandbox.contract import DEFAULT_TIMEOUT
from llm_sandbox_nb.sandbox.isolations import ISOLATION_VARIABLE, ISOLATIONS, isolates

_T = TypeVar("_T", RunLimits, ModelSettings)


def recorded_spec(run: RunRecord, model: Model, tools: Iterable[Callable[..., Any]] | None = None) -> RunSpec:
    """The specification in force on the branch of HEAD, for `model`. It names no inputs: the run's files hold them.

    Args:
        tools: the run's own tools; None: as this process knows them.

    Raises:
        InputError: they are not those that the run had.
    """
    spec = run.context.spec or _from_journal(run, model)
    limits, settings = spec.limits, spec.settings
    for change in run.trajectory.changed:
        limits, settings = _changed(limits, change.limits), _changed(settings, change.settings)
    return RunSpec(
        task=run.task,
        model=model,
        prompts=spec.prompts,
        limits=limits,
        settings=settings,
        retries=spec.retries,
        command_timeout=spec.command_timeout,
        context=spec.context,
        toolbox=_same_tools(run, tools),
        pause_rules=dataclasses.replace(spec.pause_rules, step=False),
        make_model=spec.make_model,
    )


def recorded_toolbox(run: RunRecord) -> Toolbox:
    """The tools of the run; those of its own that this process does not know can be read and not executed."""
    if run.context.spec is not None:
        return run.context.spec.toolbox
    recorded = run.trajectory.start.tools if run.trajectory.start else []
    described = [schema.get("function") for schema in recorded]
    own = [RecordedTool(one) for one in described if isinstance(one, dict) and one.get("name") not in TOOLS]
    return Toolbox([*TOOLS.values(), *own])


def _same_tools(run: RunRecord, given: Iterable[Callable[..., Any]] | None) -> Toolbox:
    """The tools to continue with. Raises InputError when they are not those that the run had."""
    had = recorded_toolbox(run)
    toolbox = had if given is None else with_own_tools(given)
    executable = {name for name, tool in toolbox.items() if not isinstance(tool, RecordedTool)}
    if missing := [name for name in had if name not in executable]:
        raise InputError(missing_tools(missing))
    if new := [name for name in toolbox if name not in had]:
        raise InputError(
            f"This run had no tool {new[0]}: start the task again with solve(..., tools=[{new[0]}])."
        )
    return toolbox


def _from_journal(run: RunRecord, model: Model) -> RunSpec:
    recorded = run.trajectory.start.settings if run.trajectory.start else {}
    prompts = recorded.get("prompts")
    complete = isinstance(prompts, dict) and isinstance(prompts.get("system_prompt"), str)
    return RunSpec(
        task=run.task,
        model=model,
        prompts=PromptConfig(**_known(PromptConfig, prompts)) if complete else load_prompts(None),
        limits=_changed(RunLimits(), recorded.get("limits")),
        settings=_changed(ModelSettings(), recorded.get("sampling")),
        command_timeout=float(recorded.get("command_timeout") or DEFAULT_TIMEOUT),
        context=recorded["context"] if recorded.get("context") in CONTEXT_MODES else "mask",
    )


def _changed(value: _T, changed: Mapping[str, Any] | None) -> _T:
    return dataclasses.replace(value, **_known(type(value), changed))


def _known(kind: Any, values: Mapping[str, Any] | None) -> dict[str, Any]:
    """Without what another version recorded."""
    names = {field.name for field in dataclasses.fields(kind)}
    return {name: value for name, value in (values or {}).items() if name in names}


def sandbox_options(run: RunRecord, changed: Mapping[str, Any]) -> dict[str, Any]:
    """Options of `open_sandbox` for a sandbox like the run's, but for those in `changed` that are not None.

    Raises:
        InputError: only the record asks for a sandbox that isolates nothing; whoever made it may be anybody.
    """
    named = {name: value for name, value in changed.items() if value is not None}
    if run.context.options:
        return {**run.context.options, **named}
    options = _recorded_options(run)
    settings = (run.context.isolation_setting, os.environ.get(ISOLATION_VARIABLE))
    received = run.context.spec is None and all(map(isolates, settings))
    if received and "isolation" not in named and not isolates(options.get("isolation")):
        raise InputError(
            "This run was recorded without isolation, so its commands would run on this machine: name another "
            'isolation, as in isolation="docker", or isolation="process" if you trust them.'
        )
    return options | named


def _recorded_options(run: RunRecord) -> dict[str, Any]:
    protection = run.trajectory.sandbox.protection if run.trajectory.sandbox else {}
    options = {name: protection[name] for name in ("isolation", "profile") if protection.get(name)}
    isolation = ISOLATIONS.get(options.get("isolation", ""))
    if isolation and protection.get("network") in isolation.networks:
        options["network"] = protection["network"]
    image = (protection.get("details") or {}).get("image")
    return options | ({"image": image} if image and isolation and isolation.takes_images else {})
