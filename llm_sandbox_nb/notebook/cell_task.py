"""The task of a `%%sandbox` cell: the checked text and options of the cell, with the settings as defaults."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_sandbox_nb.agent.control.pause_rules import pause_rules
from llm_sandbox_nb.notebook import magic_line as given
from llm_sandbox_nb.notebook.errors import SandboxInputError, SandboxUsageError
from llm_sandbox_nb.notebook.inputs import collect_inputs
from llm_sandbox_nb.notebook.saved_runs import find_run, runs_folder
from llm_sandbox_nb.notebook.settings import SandboxSettings
from llm_sandbox_nb.options.table import NOTEBOOK_SETTINGS, SANDBOX_OPTIONS
from llm_sandbox_nb.options.values import fields_of, sure_to_pause
from llm_sandbox_nb.sandbox.network.secrets import read_secrets
from llm_sandbox_nb.sandbox.options import SandboxOptions

if TYPE_CHECKING:
    from llm_sandbox_nb.runs.run import Run

_OF_SOLVE = [option for option in NOTEBOOK_SETTINGS if option not in SANDBOX_OPTIONS]
"""Settings that become arguments of `solve`; `sandbox_options` reads the settings of the sandbox."""


@dataclass(frozen=True)
class CellTask:
    """The options and the text of a cell, checked."""

    task: str
    sandbox: SandboxOptions
    fresh: bool
    sure_to_pause: str | None
    """Option that makes the run pause in any case; None if the cell has no such option."""
    on_pause: str | None
    files_of: tuple[Run, int] | None
    arguments: dict[str, Any]
    """Further arguments of `solve`, by name."""


def cell_task(
    options: argparse.Namespace, text: str, settings: SandboxSettings, namespace: dict[str, Any]
) -> CellTask:
    """Return the task of a cell, from its options, its text, the settings and the user's variables in `namespace`.

    Raises:
        SandboxUsageError, SandboxInputError: if an option, the text or a variable is wrong or missing; nothing was
            started.
    """
    if not text.strip():
        raise SandboxUsageError("The task is empty: write below the first line what the model should do.")
    values = {setting.name: _given(options, settings, setting.name) for setting in _OF_SOLVE}
    model = values["model"]
    if not model:
        raise SandboxUsageError(
            "No model is named: add -m, e.g. -m openai/gpt-5, or set model in llm-sandbox-nb.toml."
        )
    if options.out is not None:
        options.out = given.variable_name(options.out)
    values["check"] = _check(values["check"] or "", namespace)
    values["check_files"] = options.check_files or ([] if options.check else list(settings.check_files))
    return CellTask(
        task=given.fill_in(text, namespace) if options.vars else text,
        sandbox=sandbox_options(settings, options),
        fresh=options.fresh,
        sure_to_pause=sure_to_pause(options.step, options.approve),
        on_pause=options.on_pause,
        files_of=original_files(options.from_files_of, runs_folder(settings, namespace), namespace),
        arguments=fields_of(values)
        | _models_and_limits(values, options, settings)
        | _pauses(options, namespace)
        | {
            "inputs": collect_inputs(options.input, namespace, settings.dataframe_format),
            "api_key": settings.api_key(model, options.api_key_env),
            "tools": [_function("--tool", name, namespace) for name in options.tools],
            "doubts": [_function("--doubt", name, namespace) for name in options.doubts],
        },
    )


def sandbox_options(settings: SandboxSettings, options: argparse.Namespace | None = None) -> SandboxOptions:
    """Return the options of the sandbox. Options of the cell win over settings; without `options`, only settings count.

    Raises:
        SandboxUsageError: if a name such as the isolation or the profile is unknown, or a secret has no value.
    """
    names = ("isolation", "profile", "image", "network", "allow", "secret")
    asked: dict[str, Any] = {
        name: getattr(options, name, None) or getattr(settings, name) or None for name in names
    }
    allow, secrets = asked.pop("allow"), asked.pop("secret")
    # The settings `allow` and `secret` count only for the network "allow"; for another network they are ignored.
    if asked["network"] in (None, "allow"):
        asked |= {"allow": allow or (), "secrets": secrets or ()}
    elif getattr(options, "allow", None) or getattr(options, "secret", None):
        raise SandboxUsageError("--allow and --secret need --network allow.")
    try:
        wanted = SandboxOptions(
            limits=settings.limits(),
            ca_bundle=Path(settings.ca_bundle) if settings.ca_bundle else None,
            index_url=settings.index_url or None,
            proxy=settings.proxy or None,
            **asked,
        )
        wanted.check_files()
        read_secrets(wanted.secrets)
    except (ValueError, FileNotFoundError) as error:
        raise SandboxUsageError(str(error)) from error
    return wanted


def _models_and_limits(
    values: dict[str, Any], options: argparse.Namespace, settings: SandboxSettings
) -> dict[str, Any]:
    from llm_sandbox_nb.agent.run_limits import RunLimits
    from llm_sandbox_nb.model.contract import ModelSettings
    from llm_sandbox_nb.model.retries import RetryPolicy

    sampling = fields_of(values, "settings") | settings.model_settings
    if options.model_timeout is not None:  # an option of the cell wins over `model_settings`
        sampling["timeout"] = values["model_timeout"]
    try:
        model_settings = ModelSettings(**sampling)
    except TypeError as error:
        known = ", ".join(field.name for field in dataclasses.fields(ModelSettings))
        raise SandboxUsageError(f"SandboxMagics.model_settings holds only: {known}.") from error
    try:
        limits = RunLimits(**fields_of(values, "limits"))
    except ValueError as error:
        raise SandboxUsageError(str(error)) from error
    return {
        "limits": limits,
        "settings": model_settings,
        "retries": RetryPolicy(**fields_of(values, "retries")),
    }


def _given(options: argparse.Namespace, settings: SandboxSettings, name: str) -> Any:
    """Return the value of the cell's option `name`.

    If the cell lacks the option, return the value of the setting, or None if the setting is empty.
    """
    text = getattr(options, name, None)
    value = None if text in (None, []) else given.option_value(name, text)
    if value in (None, ""):
        value = getattr(settings, name)
        if name == "nudges" and value != "":
            value = given.option_value(name, value)
    return None if value == "" else value


def _pauses(options: argparse.Namespace, namespace: Mapping[str, Any]) -> dict[str, Any]:
    functions = [_function("--break-when", name, namespace) for name in options.break_when]
    found = {"step": options.step, "breakpoints": options.breakpoints, "approve": options.approve}
    try:
        pause_rules(**found, break_when=functions)
    except ValueError as error:
        raise SandboxUsageError(f"--break: {error}") from error
    return found | {"break_when": functions}


def _function(option: str, name: str, namespace: Mapping[str, Any]) -> Callable[..., Any]:
    function = namespace.get(name)
    if not callable(function):
        what = "is not a function" if name in namespace else "is not defined"
        raise SandboxUsageError(f"{option} needs the name of your function, and {name!r} {what}.")
    return function  # type: ignore[no-any-return]


def _check(text: str, namespace: Mapping[str, Any]) -> str | Callable[..., Any] | None:
    """Return the user's function with the name `text`, or else `text` as a command. Return None for an empty text."""
    function = namespace.get(text) if text.isidentifier() else None
    return function if callable(function) else text or None


def original_files(text: str | None, folder: Path, namespace: dict[str, Any]) -> tuple[Run, int] | None:
    """Return the run and the step that `--from-files-of RUN[:STEP]` names, or None if `text` is empty.

    Without STEP, the step is 0: the files with which the run began.

    Raises:
        SandboxUsageError: if the step is not a number.
        SandboxInputError: if the run is missing, or is a view of a run at an earlier step.
    """
    if not text:
        return None
    from llm_sandbox_nb.runs.run import Run

    name, colon, step = text.rpartition(":")
    if not colon or "/" in step:
        name, step = text, "0"
    if not step.isdecimal():
        raise SandboxUsageError(f"--from-files-of must be RUN or RUN:STEP, not {text!r}.")
    held = namespace.get(name)
    run = held if isinstance(held, Run) else find_run(name, folder)
    if not run.has_journal:
        raise SandboxInputError(f"{name} has no files of its own: name a run that %sandbox runs lists.")
    return run, int(step)
