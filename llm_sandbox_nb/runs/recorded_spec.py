"""Specification and sandbox options of an existing run, as this process knows them, or else from the journal."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from llm_sandbox_nb.agent.checks import Check, check_key, recorded_check
from llm_sandbox_nb.agent.control.pause_rules import PauseRules, pause_rules
from llm_sandbox_nb.agent.errors import InputError
from llm_sandbox_nb.agent.inputs import Inputs
from llm_sandbox_nb.agent.mcp_client.definition import Definition
from llm_sandbox_nb.agent.mcp_client.servers import missing_servers
from llm_sandbox_nb.agent.prompts import PromptConfig, load_prompts
from llm_sandbox_nb.agent.run_limits import RunLimits
from llm_sandbox_nb.agent.run_options import valid_options
from llm_sandbox_nb.agent.run_record import RunRecord
from llm_sandbox_nb.agent.run_spec import RunSpec, with_given
from llm_sandbox_nb.agent.tools.execute_bash import BashInNewShell
from llm_sandbox_nb.agent.tools.own_tool import RecordedTool, missing_tools
from llm_sandbox_nb.agent.tools.tool import Tool
from llm_sandbox_nb.agent.tools.toolbox import TOOLS, Toolbox, with_own_tools
from llm_sandbox_nb.formats.llm_in_sandbox import NEW_SHELLS
from llm_sandbox_nb.model.contract import Model, ModelSettings
from llm_sandbox_nb.sandbox.isolations import (
    ISOLATION_VARIABLE,
    ISOLATIONS,
    PROFILES,
    default_network,
    isolates,
)
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.mcp_calls import recorded_servers

_ADDRESSES = re.compile(r"url|uri|base|host|endpoint|proxy|server", re.IGNORECASE)
_T = TypeVar("_T", RunLimits, ModelSettings)


def recorded_spec(
    run: RunRecord,
    model: Model,
    tools: Iterable[Callable[..., Any]] | None = None,
    mcp_tool: Callable[[Definition], Tool] | None = None,
) -> RunSpec:
    """Return the specification of a run with all changes up to HEAD, with `model`, and without inputs.

    Args:
        tools: the user-defined tools of the run. None stands for the tools that this process knows.
        mcp_tool: function that makes a tool of an MCP server from its recorded definition. None if no server is known.

    Raises:
        InputError: if the run had other tools, or the record has invalid values.
    """
    spec = run.context.spec or _from_journal(run, model)
    limits, settings, changed = spec.limits, spec.settings, dict[str, Any]()
    for change in run.trajectory.changed:
        changed |= change.settings
        limits, settings = _changed(limits, change.limits), _changed(settings, change.settings)
    if (calls := run.trajectory.tool_calls) is not None:
        changed["tool_calls"] = calls
    return dataclasses.replace(
        spec,
        task=run.task,
        model=model,
        inputs=Inputs(),
        starting_files=None,
        limits=limits,
        settings=settings,
        toolbox=_same_tools(run, tools, mcp_tool),
        check=_check(run, changed),
        pause_rules=dataclasses.replace(spec.pause_rules, step=_was_stepping(run)),
        provenance={},
        isolation=None,
        **valid_options(changed),
    )


def recorded_toolbox(run: RunRecord) -> Toolbox:
    """Return the tools of the run. Calls of user-defined tools that this process lacks cannot be executed."""
    if run.context.spec is not None:
        return run.context.spec.toolbox
    recorded = run.trajectory.start.tools if run.trajectory.start else []
    described = [schema.get("function") for schema in recorded]
    own = [
        RecordedTool(tool)
        for tool in described
        if isinstance(tool, dict) and str(tool.get("name")) not in TOOLS
    ]
    return _with_its_shell(run, Toolbox([*TOOLS.values(), *own]))


def recorded_shell(run: RunRecord) -> Mapping[str, str]:
    """Return the recorded setting that gives each command a new shell. Empty if the run has a persistent shell."""
    settings = run.trajectory.start.settings if run.trajectory.start else {}
    return NEW_SHELLS if NEW_SHELLS.items() <= settings.items() else {}


def _with_its_shell(run: RunRecord, toolbox: Toolbox) -> Toolbox:
    return Toolbox([*toolbox.values(), BashInNewShell()]) if recorded_shell(run) else toolbox


def recorded_definitions(run: RunRecord) -> dict[str, Definition]:
    """Return the definitions of the MCP tools that the run had at its beginning, by the names that the model uses."""
    start = run.trajectory.start
    described = [schema.get("function") for schema in (start.tools if start else [])]
    functions = {str(tool.get("name")): tool for tool in described if isinstance(tool, dict)}
    found = {}
    for server, values in recorded_servers(start).items():
        listed = values.get("tools")
        for pin in listed if isinstance(listed, list) else []:
            if not isinstance(pin, dict) or (function := functions.get(str(pin.get("name")))) is None:
                continue
            parameters = function.get("parameters")
            found[str(pin.get("name"))] = Definition(
                name=str(pin.get("name")),
                tool=str(pin.get("tool")),
                server=server,
                sha256=str(pin.get("sha256")),
                description=str(function.get("description", "")),
                parameters=parameters if isinstance(parameters, dict) else {},
            )
    return found


def _same_tools(
    run: RunRecord,
    given: Iterable[Callable[..., Any]] | None,
    mcp_tool: Callable[[Definition], Tool] | None,
) -> Toolbox:
    """Return the tools for the resumed run. Raises InputError if the run had other tools."""
    had, definitions = recorded_toolbox(run), recorded_definitions(run)
    if definitions and mcp_tool is None:
        raise InputError(missing_servers(definition.server for definition in definitions.values()))
    toolbox = had if given is None else _with_its_shell(run, with_own_tools(given))
    others = [tool for name, tool in toolbox.items() if name not in definitions]
    of_servers = [mcp_tool(definition) for definition in definitions.values()] if mcp_tool else []
    toolbox = Toolbox([*others, *of_servers])
    executable = {name for name, tool in toolbox.items() if type(tool) is not RecordedTool}
    if missing := [name for name in had if name not in executable]:
        raise InputError(missing_tools(missing))
    if new := [name for name in toolbox if name not in had]:
        raise InputError(
            f"This run had no tool {new[0]}: start the task again with solve(..., tools=[{new[0]}])."
        )
    return toolbox


def named_check(run: RunRecord, changed: Mapping[str, Any]) -> object:
    """Return the recorded check. `changed` has the settings that changed during the run."""
    start = run.trajectory.start
    return changed.get("check", start.settings.get("check") if start else None)


def _check(run: RunRecord, changed: Mapping[str, Any]) -> Check | None:
    named = named_check(run, changed)
    if (known := run.context.checks.get(check_key(named))) is not None:
        return known
    return recorded_check(named, run.folder) if run.has_journal else None


def _from_journal(run: RunRecord, model: Model) -> RunSpec:
    recorded = run.trajectory.start.settings if run.trajectory.start else {}
    prompts = recorded.get("prompts")
    known = _known(PromptConfig, prompts)
    complete = "system_prompt" in known and all(isinstance(text, str) for text in known.values())
    return RunSpec(
        task=run.task,
        model=model,
        prompts=PromptConfig(**known) if complete else load_prompts(None),
        limits=_changed(RunLimits(), recorded.get("limits")),
        settings=_changed(ModelSettings(), recorded.get("sampling")),
        pause_rules=_recorded_pause_rules(run),
        **valid_options(recorded),
    )


def _recorded_pauses(run: RunRecord) -> dict[str, Any]:
    """Return the pause rules in the record: the rules at the beginning, with the changes on the branch of HEAD."""
    start = run.trajectory.start
    recorded = [
        start.settings.get("halts") if start else None,
        *(one.halts for one in run.trajectory.changed),
    ]
    return {name: value for rules in recorded if isinstance(rules, Mapping) for name, value in rules.items()}


def _recorded_pause_rules(run: RunRecord) -> PauseRules:
    """Return the recorded breakpoints and approvals. Raises InputError if they are invalid."""
    recorded = _recorded_pauses(run)
    try:
        return pause_rules(
            breakpoints=recorded.get("breakpoints", ()), approve=recorded.get("approve", "auto")
        )
    except (TypeError, ValueError) as error:
        raise InputError(
            f"The record has invalid rules for pauses, so the run cannot resume: {error}"
        ) from None


def _was_stepping(run: RunRecord) -> bool:
    """Return True if the run was in the mode `stepping` at HEAD. The newest option or decision sets the mode."""
    stepping = False
    for event in run.trajectory.path:
        match event:
            case ev.Controlled(action="step" | "resume" as action):
                stepping = action == "step"
            case (
                ev.RunStarted(settings={"halts": {"step": value}}) | ev.SettingsChanged(halts={"step": value})
            ):
                stepping = value is True
    return stepping


def missing_pause_functions(run: RunRecord) -> list[str]:
    """Return the names of the `break_when` functions that the run had and this process does not know."""
    names = None if run.context.spec else _recorded_pauses(run).get("break_when")
    return [str(name)[:80] for name in names] if isinstance(names, list) else []


def _changed(value: _T, changed: Mapping[str, Any] | None) -> _T:
    """Apply recorded changes. Raises InputError if a value is invalid, because the record may come from anyone."""
    return with_given(value, _known(type(value), changed))


def _known(kind: Any, values: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the values of the fields that this version knows. A record of another version may have other fields."""
    names = {field.name for field in dataclasses.fields(kind)}
    given = values if isinstance(values, Mapping) else {}
    return {name: value for name, value in given.items() if name in names}


def sandbox_options(run: RunRecord, changed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of `open_sandbox` for a sandbox like the run's. Values in `changed` replace recorded options.

    Raises:
        InputError: if only the record asks for a sandbox without isolation, or for a network that is more open than the
            default. The record may come from anyone.
    """
    named = {name: value for name, value in changed.items() if value is not None}
    if run.context.options:
        return {**_without_lists(run.context.options, named), **named}
    options = _recorded_options(run)
    settings = (run.context.isolation_setting, os.environ.get(ISOLATION_VARIABLE))
    received = run.context.spec is None and all(map(isolates, settings))
    if received and "isolation" not in named and not isolates(options.get("isolation")):
        raise InputError(
            "This run was recorded without isolation, so its commands would run on this machine: name another "
            'isolation, as in isolation="docker", or isolation="process" if you trust the commands.'
        )
    found = options | named
    usual = default_network(found.get("isolation"), found.get("profile", PROFILES[0]))
    wider = options.get("network") == "open" and usual != "open"
    chosen = "network" in named or run.context.network_setting == "open"
    if run.context.spec is None and wider and not chosen:
        if usual == "public":
            return found | {"network": usual}
        raise InputError(
            "This run was recorded with an open network, which may reach what listens on this machine: name the "
            'network, as in network="none", or network="open" if you trust its commands.'
        )
    return found


def check_recorded_addresses(run: RunRecord, model: str | None, extra_body: object) -> None:
    """Check that no request goes to an address that only the record names.

    Args:
        model: name of the model, if the name comes from the record. Otherwise None.
        extra_body: addition to each request, if the addition comes from the record. Otherwise None.

    Raises:
        InputError: if the record is the only source of an address. The record may come from anyone.
    """
    if run.context.spec is not None:
        return
    if model is not None and "://" in model:
        raise InputError(
            f"Only the record, which may be from anyone, names the address of the model, {model!r:.80}: name the model "
            "yourself, as in result.resume(model='openai/gpt-5')."
        )
    if name := _address(extra_body):
        raise InputError(
            f"The record adds {name!r:.80} to each request, which may send the request elsewhere: name the addition "
            "yourself, as in result.resume(settings={'extra_body': {}})."
        )


def _address(value: object) -> str:
    """Return the name of a field, anywhere in a value, that may hold an address. Empty if there is no such field."""
    todo: list[tuple[str, object]] = [("", value)]
    while todo:
        name, part = todo.pop()
        if isinstance(part, Mapping):
            todo += [(str(key), inner) for key, inner in part.items()]
        elif isinstance(part, list | tuple):
            todo += [(name, inner) for inner in part]
        elif isinstance(part, str) and ("://" in part or _ADDRESSES.search(name)):
            return name
    return ""


def _without_lists(options: Mapping[str, Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Return `options`. If `named` has a network other than `allow`, leave out allowed hosts and secrets."""
    other = named.get("network", "allow") != "allow"
    return {name: value for name, value in options.items() if not (other and name in ("allow", "secrets"))}


def _recorded_options(run: RunRecord) -> dict[str, Any]:
    """Return the recorded options. Allowed hosts and secrets are not included, so they must be given again."""
    protection = run.trajectory.sandbox.protection if run.trajectory.sandbox else {}
    names = ("isolation", "profile")
    options = {name: protection[name] for name in names if isinstance(protection.get(name), str)}
    isolation = ISOLATIONS.get(options.get("isolation", ""))
    if isolation and protection.get("network") in isolation.networks:
        options["network"] = protection["network"]
    details = protection.get("details")
    image = details.get("image") if isinstance(details, Mapping) else None
    return options | (
        {"image": image} if image and isinstance(image, str) and isolation and isolation.takes_images else {}
    )
