"""`solve`: one task, from the words to the finished run, without any notebook."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from llm_sandbox_nb.agent.asking import OnPause, asker, checked_on_pause
from llm_sandbox_nb.agent.control import RunControl
from llm_sandbox_nb.agent.failures import ControlError, InputError
from llm_sandbox_nb.agent.folders import new_run_folder
from llm_sandbox_nb.agent.halting import Halting, Predicate, halting
from llm_sandbox_nb.agent.inputs import InputFiles, check_inputs
from llm_sandbox_nb.agent.job import Job, Opening
from llm_sandbox_nb.agent.limits import RunLimits
from llm_sandbox_nb.agent.model import Model, ModelSettings
from llm_sandbox_nb.agent.origin import origin_of
from llm_sandbox_nb.agent.prompts import PromptConfig, load_prompts
from llm_sandbox_nb.agent.recorder import Listener, Recorder
from llm_sandbox_nb.agent.retry import RetryPolicy
from llm_sandbox_nb.agent.run import Run
from llm_sandbox_nb.agent.settings_change import with_changes
from llm_sandbox_nb.agent.work import Work
from llm_sandbox_nb.sandbox.contract import DEFAULT_TIMEOUT, Directories, Sandbox
from llm_sandbox_nb.trajectory import events as ev

_T = TypeVar("_T", RunLimits, ModelSettings)
NOBODY = (
    "Nobody could decide when the run halts: give on_pause (a function, 'stop' or 'continue'), control or on_run, "
    "or leave step and approve out."
)


async def solve(
    task: str,
    *,
    model: str | Model,
    isolation: str = "auto",
    profile: str = "standard",
    image: str | None = None,
    network: str | None = None,
    sandbox_options: Mapping[str, Any] | None = None,
    sandbox: Sandbox | Awaitable[Sandbox] | None = None,
    inputs: InputFiles = None,
    files_of: Run | tuple[Run, int] | None = None,
    output_dir: str | Path = "sandbox-runs",
    name: str | None = None,
    prompt_config: str | Path | PromptConfig | None = None,
    limits: RunLimits | Mapping[str, Any] | None = None,
    settings: ModelSettings | Mapping[str, Any] | None = None,
    retries: RetryPolicy | None = None,
    command_timeout: float = DEFAULT_TIMEOUT,
    api_base: str | None = None,
    api_key: str | None = None,
    listeners: Iterable[Listener] = (),
    on_run: Callable[[Run], None] | None = None,
    control: RunControl | None = None,
    step: bool = False,
    breakpoints: str | Iterable[str] = (),
    break_when: Predicate | Iterable[Predicate] = (),
    approve: str = "auto",
    on_pause: OnPause | None = None,
) -> Run:
    """Let a model work on `task` in a sandbox until it submits or a limit is reached.

    Args:
        task: what to do, taken literally.
        model: a LiteLLM name such as `"openai/gpt-5"`, `"scripted/strawberry"`, or any `Model`.
        isolation, profile, image, network, sandbox_options: see `open_sandbox`; the last has the others.
        sandbox: an open sandbox to work in, or something to await for one; it stays open afterwards. Its
            isolation has to be named in `isolation` when that is `"process"`.
        inputs: files, folders (their content), or a mapping of names to contents, for the input folder.
        files_of: a run whose files the sandbox is to have first: those that it began with, or those at the end of
            a step, as in `(run, 4)`. What else is in the sandbox is gone then.
        output_dir: where the run's folder is made: `<output_dir>/<name>/<time>-<id>`.
        prompt_config: a YAML file, see `prompts/general.yaml`.
        limits, settings: as in `{"steps": 20}` and `{"temperature": 0}`; see `RunLimits` and `ModelSettings`.
        retries: see `RetryPolicy`.
        command_timeout: seconds for a command that does not name its own.
        api_base, api_key: where the model is, and its key, which is never written anywhere.
        listeners: called with every event, also the transient ones.
        on_run: called with the run, the one that is returned in the end, when its folder is there.
        control: pauses, stops and speaks to this run while it goes on; the run has it too. A run stopped by
            it is returned, with the stop reason `interrupted`.
        step: halt before the first call, and go on in steps.
        breakpoints: expressions such as `"tool == 'execute_bash' and 'rm ' in command"`, see `breakpoints`.
        break_when: functions that get a `Moment`, a pending call or a finished one, and say whether to halt.
        approve: `"ask"` halts before every call, `"edits"` before every command, `"auto"` before none.
        on_pause: what to do at a halt: a function of the run, `"stop"` or `"continue"`; see `OnPause`. Without
            one the run waits for its control.

    Raises:
        InputError, ModelError: an empty task, a missing input, no such script, ...; nothing was started.
        RunError: the model, the sandbox or this program failed; `error.run` is the run.
        asyncio.CancelledError: the run was interrupted; it is recorded as such.
    """
    watched = control is not None or on_run is not None
    control = control or RunControl()
    if control.used:
        raise InputError("The control belongs to another run: make a new RunControl for this one.")
    if not task.strip():
        raise InputError("The task is empty: write what the model shall do.")
    job = Job(
        task=str(ev.clean_text(task)),
        model=_model(model, api_base, api_key),
        prompts=load_prompts(prompt_config),
        inputs=check_inputs(inputs),
        limits=with_given(RunLimits(), limits),
        settings=with_given(ModelSettings(), settings),
        retries=retries or RetryPolicy(),
        command_timeout=command_timeout,
        halting=_halting(step, breakpoints, break_when, approve),
        make_model=lambda name: _other_model(name, model, api_base, api_key),
        **_files_of(files_of),
    )
    if on_pause is not None:
        checked_on_pause(on_pause)
    elif job.halting.needs_person and not watched:
        raise InputError(NOBODY)
    given = None if sandbox is None else _given(sandbox, isolation)
    opening = given or _own(isolation, profile, image, network, sandbox_options or {})
    return await _begin(job, opening, Path(output_dir), name, listeners, on_run, control, on_pause)


async def _begin(
    job: Job,
    opening: Opening,
    output_dir: Path,
    name: str | None,
    listeners: Iterable[Listener],
    on_run: Callable[[Run], None] | None,
    control: RunControl,
    on_pause: OnPause | None,
) -> Run:
    recorder = Recorder(new_run_folder(output_dir, name), listeners)
    run = Run(recorder.folder, recorder.trajectory, control)
    control.stepping = control.stepping or job.halting.step
    if on_pause is not None:
        control.on_halt = asker(run, on_pause)
    if on_run:
        on_run(run)
    return await Work(job, recorder, run, opening, control).do()


def with_given(usual: _T, given: _T | Mapping[str, Any] | None) -> _T:
    """Limits or settings with what is given. Raises InputError when that makes no sense."""
    try:
        return with_changes(usual, given)
    except (ControlError, ValueError) as error:
        raise InputError(str(error)) from error


def _files_of(wanted: Run | tuple[Run, int] | None) -> dict[str, Any]:
    """The part of a job that says with which files it begins."""
    if wanted is None:
        return {}
    run, step = wanted if isinstance(wanted, tuple) else (wanted, 0)
    try:
        origin = origin_of(run, step)
    except ValueError as error:
        raise InputError(str(error)) from error
    if origin is None:
        raise InputError(
            f"The files of step {step} of {run.folder.name} are not kept (any more): leave it out."
        )
    return {"origin": origin, "came_from": {"files_of": f"{run.id or run.folder.name}:{step}"}}


def _model(model: str | Model, api_base: str | None, api_key: str | None) -> Model:
    if not isinstance(model, str):
        return model
    from llm_sandbox_nb.agent.model_litellm import make_model

    return make_model(model, api_base=api_base, api_key=api_key)


def _other_model(name: str, first: str | Model, api_base: str | None, api_key: str | None) -> Model:
    """A model to change to. The key and address of the first are its own when its provider is the same."""
    same = isinstance(first, str) and name.partition("/")[0] == first.partition("/")[0]
    return _model(name, api_base if same else None, api_key if same else None)


def _halting(
    step: bool, breakpoints: str | Iterable[str], break_when: Predicate | Iterable[Predicate], approve: str
) -> Halting:
    try:
        return halting(step, breakpoints, break_when, approve)
    except ValueError as error:
        raise InputError(str(error)) from error


def _own(
    isolation: str, profile: str, image: str | None, network: str | None, options: Mapping[str, Any]
) -> Opening:
    from llm_sandbox_nb.sandbox.opening import open_sandbox

    try:
        opening = open_sandbox(isolation, profile=profile, image=image, network=network, **options)
    except (ValueError, TypeError, FileNotFoundError) as error:
        raise InputError(str(error)) from error
    asked = {"isolation": isolation, "profile": profile, "image": image, "network": network}
    known = {name: value for name, value in {**options, **asked}.items() if value is not None}
    return Opening(opening, True, None if isolation == "process" else Directories().root, known)


def _given(sandbox: Sandbox | Awaitable[Sandbox], isolation: str) -> Opening:
    if isinstance(sandbox, Sandbox):
        return Opening(sandbox, owned=False, root=sandbox.directories.root)
    return Opening(sandbox, owned=False, root=None if isolation == "process" else Directories().root)
