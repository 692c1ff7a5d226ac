"""What an existing run was to do, and its sandbox: as this process knows them, else as they were recorded."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from llm_sandbox_nb.agent.limits import RunLimits
from llm_sandbox_nb.agent.prompts import PromptConfig, load_prompts
from llm_sandbox_nb.agent.run_record import RunRecord
from llm_sandbox_nb.agent.run_spec import RunSpec
from llm_sandbox_nb.model.contract import Model, ModelSettings
from llm_sandbox_nb.sandbox.contract import DEFAULT_TIMEOUT
from llm_sandbox_nb.sandbox.isolations import ISOLATIONS

_T = TypeVar("_T", RunLimits, ModelSettings)


def recorded_spec(run: RunRecord, model: Model) -> RunSpec:
    """The specification in force on the branch of HEAD, for `model`. It names no inputs: the run's files hold them."""
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
        pause_rules=dataclasses.replace(spec.pause_rules, step=False),
        make_model=spec.make_model,
    )


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
    )


def _changed(value: _T, changed: Mapping[str, Any] | None) -> _T:
    return dataclasses.replace(value, **_known(type(value), changed))


def _known(kind: Any, values: Mapping[str, Any] | None) -> dict[str, Any]:
    """Without what another version recorded."""
    names = {field.name for field in dataclasses.fields(kind)}
    return {name: value for name, value in (values or {}).items() if name in names}


def sandbox_options(run: RunRecord, changed: Mapping[str, Any]) -> dict[str, Any]:
    """Options of `open_sandbox` for a sandbox like the run's, but for those in `changed` that are not None."""
    options = dict(run.context.options) or _recorded_options(run)
    return options | {name: value for name, value in changed.items() if value is not None}


def _recorded_options(run: RunRecord) -> dict[str, Any]:
    protection = run.trajectory.sandbox.protection if run.trajectory.sandbox else {}
    options = {name: protection[name] for name in ("isolation", "profile") if protection.get(name)}
    isolation = ISOLATIONS.get(options.get("isolation", ""))
    if isolation and protection.get("network") in isolation.networks:
        options["network"] = protection["network"]
    image = (protection.get("details") or {}).get("image")
    return options | ({"image": image} if image and isolation and isolation.takes_images else {})
