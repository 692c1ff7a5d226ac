"""What a `%%sandbox` cell asks for: its options, the settings behind them and its text, checked."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_sandbox_nb.agent.control.pause_rules import pause_rules
from llm_sandbox_nb.notebook import magic_options as given
from llm_sandbox_nb.notebook.errors import SandboxInputError, SandboxUsageError
from llm_sandbox_nb.notebook.inputs import collect_inputs
from llm_sandbox_nb.notebook.saved_runs import find_run, runs_folder
from llm_sandbox_nb.notebook.settings import SandboxSettings
from llm_sandbox_nb.sandbox.options import SandboxOptions

if TYPE_CHECKING:
    from llm_sandbox_nb.agent.context_window import ContextMode
    from llm_sandbox_nb.agent.limits import RunLimits
    from llm_sandbox_nb.agent.no_call import Nudges
    from llm_sandbox_nb.agent.original_prompts import WhosePrompts
    from llm_sandbox_nb.agent.text_mode import ToolCalls
    from llm_sandbox_nb.model.contract import ModelSettings
    from llm_sandbox_nb.runs.run import Run


@dataclass(frozen=True)
class PauseOptions:
    """When the run pauses, as `solve` takes it."""

    step: bool = False
    breakpoints: tuple[str, ...] = ()
    break_when: tuple[Callable[[Any], Any], ...] = ()
    approve: str = "auto"

    @property
    def always(self) -> str | None:
        """The option because of which the run pauses in any case; None without one."""
        if self.step:
            return "--step"
        return None if self.approve == "auto" else f"--approve {self.approve}"


@dataclass(frozen=True)
class CellTask:
    """The options and the text of a cell, checked."""

    task: str
    model: str
    sandbox: SandboxOptions
    fresh: bool
    limits: RunLimits
    sampling: ModelSettings
    model_wait: float
    command_timeout: float
    same_failures: int
    nudges: Nudges
    tool_calls: ToolCalls
    context: ContextMode
    inputs: dict[str, Path]
    prompt_config: str | None
    prompts: WhosePrompts
    api_base: str | None
    api_key: str | None
    on_pause: str | None
    pauses: PauseOptions
    files_of: tuple[Run, int] | None
    tools: tuple[Callable[..., Any], ...]
    doubts: tuple[Callable[..., Any], ...]
    check: str | Callable[..., Any] | None
    check_files: list[str]
    check_tries: int
    check_timeout: float


def cell_task(
    options: argparse.Namespace,
    text: str,
    settings: SandboxSettings,
    namespace: dict[str, Any],
    staging: Path,
) -> CellTask:
    """The task of a cell; variables among its inputs are written to `staging`.

    Raises:
        SandboxUsageError, SandboxInputError: something is wrong or missing; nothing was started.
    """
    if not text.strip():
        raise SandboxUsageError("The task is empty: write below the first line what the model should do.")
    model = options.model or settings.model
    if not model:
        raise SandboxUsageError(
            "No model is named: add -m, e.g. -m openai/gpt-5, or set model in llm-sandbox-nb.toml."
        )
    if options.out is not None:
        given.variable_name(options.out)
    return CellTask(
        task=given.fill_in(text, namespace) if options.vars else text,
        model=model,
        sandbox=sandbox_options(settings, options),
        fresh=options.fresh,
        limits=_limits(options, settings),
        sampling=_sampling(options, settings),
        model_wait=_given(options, settings, "model_wait"),
        command_timeout=_given(options, settings, "command_timeout"),
        same_failures=_given(options, settings, "same_failures"),
        nudges=_nudges(options, settings),
        tool_calls=_given(options, settings, "tool_calls"),
        context=_given(options, settings, "context"),
        inputs=collect_inputs(options.input, namespace, staging, settings.dataframe_format),
        prompt_config=options.prompt_config or settings.prompt_config or None,
        prompts=_given(options, settings, "prompts"),
        api_base=options.api_base or settings.api_base or None,
        api_key=settings.api_key(model, options.api_key_env),
        on_pause=options.on_pause,
        pauses=pause_options(options, namespace),
        files_of=original_files(options.from_files_of, runs_folder(settings, namespace), namespace),
        tools=tuple(_function("--tool", name, namespace) for name in options.tools),
        doubts=tuple(_function("--doubt", name, namespace) for name in options.doubts),
        check=_check(options.check or settings.check, namespace),
        check_files=options.check_files or ([] if options.check else list(settings.check_files)),
        check_tries=_given(options, settings, "check_tries"),
        check_timeout=_given(options, settings, "check_timeout"),
    )


def sandbox_options(settings: SandboxSettings, options: argparse.Namespace | None = None) -> SandboxOptions:
    """The sandbox asked for: by the cell, else by the settings.

    Raises:
        SandboxUsageError: there is no such isolation, profile, ...
    """
    names = ("isolation", "profile", "image", "network", "allow", "secret")
    asked: dict[str, Any] = {
        name: getattr(options, name, None) or getattr(settings, name) or None for name in names
    }
    allow, secrets = asked.pop("allow"), asked.pop("secret")
    if asked["network"] in (None, "allow"):  # the lists of the settings are for this network only
        asked |= {"allow": allow or (), "secrets": secrets or ()}
    elif getattr(options, "allow", None) or getattr(options, "secret", None):
        raise SandboxUsageError("--allow and --secret go with --network allow only.")
    try:
        wanted = SandboxOptions(
            limits=settings.limits(),
            ca_bundle=Path(settings.ca_bundle) if settings.ca_bundle else None,
            index_url=settings.index_url or None,
            proxy=settings.proxy or None,
            **asked,
        )
        wanted.check_files()
    except (ValueError, FileNotFoundError) as error:
        raise SandboxUsageError(str(error)) from error
    return wanted


def _limits(options: argparse.Namespace, settings: SandboxSettings) -> RunLimits:
    from llm_sandbox_nb.agent.limits import RunLimits

    try:
        return RunLimits(
            steps=_given(options, settings, "steps"),
            tokens=_given(options, settings, "tokens"),
            total_tokens=_given(options, settings, "total_tokens"),
            cost=_given(options, settings, "budget"),
            time=_given(options, settings, "time"),
        )
    except ValueError as error:
        raise SandboxUsageError(str(error)) from error


def _given(options: argparse.Namespace, settings: SandboxSettings, name: str) -> Any:
    """The value of an option of the cell, else of the setting with the same name."""
    text = getattr(options, name)
    return getattr(settings, name) if text is None else given.option_value(name, text)


def _nudges(options: argparse.Namespace, settings: SandboxSettings) -> Nudges:
    from llm_sandbox_nb.agent.no_call import USUAL_NUDGES

    found = settings.nudges if options.nudges is None else options.nudges
    return USUAL_NUDGES if found == "" else given.option_value("nudges", found)


def _sampling(options: argparse.Namespace, settings: SandboxSettings) -> ModelSettings:
    from llm_sandbox_nb.model.contract import ModelSettings

    same = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    named = {name: getattr(settings, name) for name in same}
    named |= {"max_tokens": settings.max_tokens_per_call, "extra_body": settings.extra_body}
    named["timeout"] = settings.model_timeout
    asked = {} if options.model_timeout is None else {"timeout": _given(options, settings, "model_timeout")}
    try:
        return ModelSettings(**(named | settings.model_settings | asked))
    except TypeError as error:
        known = ", ".join(field.name for field in dataclasses.fields(ModelSettings))
        raise SandboxUsageError(f"SandboxMagics.model_settings holds only: {known}.") from error


def pause_options(options: argparse.Namespace, namespace: Mapping[str, Any]) -> PauseOptions:
    """The options of a cell that pause the run.

    Raises:
        SandboxUsageError: an expression is no breakpoint, or there is no such function.
    """
    functions = tuple(_function("--break-when", name, namespace) for name in options.break_when)
    found = PauseOptions(options.step, tuple(options.breakpoints), functions, options.approve)
    try:
        pause_rules(found.step, found.breakpoints, found.break_when, found.approve)
    except ValueError as error:
        raise SandboxUsageError(f"--break: {error}") from error
    return found


def _function(option: str, name: str, namespace: Mapping[str, Any]) -> Callable[..., Any]:
    function = namespace.get(name)
    if not callable(function):
        what = "is not a function" if name in namespace else "is not defined"
        raise SandboxUsageError(f"{option} takes the name of your own function, and {name!r} {what}.")
    return function  # type: ignore[no-any-return]


def _check(text: str, namespace: Mapping[str, Any]) -> str | Callable[..., Any] | None:
    """The function of this name, else the command; None when nothing is checked."""
    function = namespace.get(text) if text.isidentifier() else None
    return function if callable(function) else text or None


def original_files(text: str | None, folder: Path, namespace: dict[str, Any]) -> tuple[Run, int] | None:
    """The run and step that `--from-files-of RUN[:STEP]` names.

    Raises:
        SandboxUsageError: the step is no number.
        SandboxInputError: there is no such run.
    """
    if not text:
        return None
    from llm_sandbox_nb.runs.run import Run

    name, colon, step = text.rpartition(":")
    if not colon or "/" in step:
        name, step = text, "0"
    if not step.isdecimal():
        raise SandboxUsageError(f"--from-files-of takes RUN or RUN:STEP, not {text!r}.")
    held = namespace.get(name)
    run = held if isinstance(held, Run) else find_run(name, folder)
    if not run.has_journal:
        raise SandboxInputError(f"{name} has no files of its own: name a run of %sandbox runs.")
    return run, int(step)
