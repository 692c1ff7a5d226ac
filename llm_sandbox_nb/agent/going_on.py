"""Going on with a run that was rewound, forked or killed, that reached a limit, or was loaded from its folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, cast

from llm_sandbox_nb.agent.asking import asker, checked_on_pause
from llm_sandbox_nb.agent.control import RunControl
from llm_sandbox_nb.agent.failures import InputError
from llm_sandbox_nb.agent.files_of import FilesOf
from llm_sandbox_nb.agent.halting import Halting, halting
from llm_sandbox_nb.agent.inputs import Inputs
from llm_sandbox_nb.agent.job import Job, Opening
from llm_sandbox_nb.agent.limits import RunLimits
from llm_sandbox_nb.agent.model import Model, ModelSettings
from llm_sandbox_nb.agent.origin import Origin
from llm_sandbox_nb.agent.past import past_of, worked
from llm_sandbox_nb.agent.place import OTHERS, at_work_for_another, let_go
from llm_sandbox_nb.agent.prompts import PromptConfig, load_prompts
from llm_sandbox_nb.agent.recorder import Listener, Recorder
from llm_sandbox_nb.agent.retry import RetryPolicy
from llm_sandbox_nb.agent.solve import NOBODY, with_given
from llm_sandbox_nb.agent.work import Work
from llm_sandbox_nb.sandbox.contract import DEFAULT_TIMEOUT, Sandbox
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.trajectory import Trajectory

if TYPE_CHECKING:
    from llm_sandbox_nb.agent.run import Run

_T = TypeVar("_T", RunLimits, ModelSettings)
_NOT_KEPT = (
    "The files of this run are not kept, so it cannot go on: run.rebuild() carries its calls out again."
)
GO_ON = "Go on with the task."
_OPTIONS = ("isolation", "profile", "image", "network")


@dataclass(frozen=True)
class Wishes:
    """What shall be otherwise when a run goes on. None leaves it as it was."""

    text: str | None = None
    model: str | Model | None = None
    settings: ModelSettings | Mapping[str, Any] | None = None
    limits: RunLimits | Mapping[str, Any] | None = None
    sandbox: Sandbox | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    api_base: str | None = None
    api_key: str | None = None
    listeners: Iterable[Listener] = ()
    control: RunControl | None = None
    more: Mapping[str, Any] = field(default_factory=dict)
    """How calls are held: see `solve`."""


async def go_on(run: Run, wishes: Wishes) -> Run:
    """Go on from HEAD to the end.

    Raises:
        InputError: it cannot go on like this; nothing was started.
        RunError: as `solve`.
    """
    trajectory = run.trajectory
    _check_can_go_on(run, wishes)
    job = _job(run, wishes)
    opening = _opening(run, wishes)
    said = _said(trajectory, wishes.text)
    recorder = Recorder(run.folder, wishes.listeners, trajectory)
    try:
        _settle(run, recorder)
        _check_limits(job, trajectory)
        _record_changes(run, recorder, job, wishes)
        control = wishes.control or run.fresh_control()
        run.take_control(control)
        control.stepping = control.stepping or job.halting.step
        if (on_pause := wishes.more.get("on_pause")) is not None:
            checked_on_pause(on_pause)
            control.on_halt = asker(run, on_pause)
        work = Work(job, recorder, run, opening, control, past_of(trajectory, said))
    except BaseException:
        recorder.close()
        raise
    return await work.do()


def _check_can_go_on(run: Run, wishes: Wishes) -> None:
    if not run.has_journal:
        raise InputError(
            "This conversation has no journal and no files: run.rebuild() carries its calls out again, and what that "
            "gives can go on."
        )
    if run.place.work is not None:
        raise InputError("The run is under way: run.resume() without anything else goes on after a pause.")
    if not run.journal.is_file():
        raise InputError(f"The folder of this run is gone, so it cannot go on: {run.folder}.")
    files = run.trajectory.files
    box = wishes.sandbox or run.place.living()
    if box is not None and at_work_for_another(box, run.folder):
        raise InputError(OTHERS)
    if run.place.living() is None and files is not None and not FilesOf(run).has(files):
        raise InputError(_NOT_KEPT)
    if box is None and files is None and worked(run.trajectory):
        raise InputError(_NOT_KEPT)


def _said(trajectory: Trajectory, text: str | None) -> tuple[str, ...]:
    """What the model is told first. One that thinks it is done, or cut off, has to be told something."""
    text = str(ev.clean_text(text or "")).strip()
    finish = trajectory.finish
    if text:
        return (text,)
    if finish is None or not any(trajectory.messages()):
        return ()
    if finish.stop_reason == "steps" and "rebuilt_from" in (
        trajectory.start.settings if trajectory.start else {}
    ):
        return ()
    if finish.stop_reason == "submitted":
        raise InputError("The model has submitted: say what more to do, as in run.resume('Make it blue.').")
    return (GO_ON,)


def _settle(run: Run, recorder: Recorder) -> None:
    """Where talk and files disagree, as the process was killed: go back to where they last agreed."""
    trajectory = run.trajectory
    if run.place.living() is not None:
        return
    to = trajectory.uncovered
    if to is None:
        return
    if trajectory.files is None:
        raise InputError(_NOT_KEPT)
    facts: dict[str, Any] = {
        "to": to,
        "step": trajectory.step_at(to),
        "target": trajectory.files,
        "safety": trajectory.files,
    }
    recorder.emit(ev.RewindStarted(**facts))
    recorder.emit(ev.Rewound(**facts))


# --- what is asked for ---


def _job(run: Run, wishes: Wishes) -> Job:
    limits, settings = _in_force(run)
    before, first = run.place.job, run.place.job.make_model if run.place.job else None
    return Job(
        task=run.task,
        model=_model(run, wishes),
        prompts=_prompts(run),
        **_beginning(run),
        limits=with_given(limits, wishes.limits),
        settings=with_given(settings, wishes.settings),
        retries=before.retries if before else RetryPolicy(),
        command_timeout=_command_timeout(run),
        halting=_halting(run, wishes),
        make_model=first or (lambda name: _made(name, wishes)),
    )


def _beginning(run: Run) -> dict[str, Any]:
    """What the sandbox gets first, where nothing was done in one yet: it may never have come up."""
    job, start = run.place.job, run.trajectory.start
    if not past_of(run.trajectory).fresh:
        return {"inputs": Inputs()}
    if job is not None:
        return {"inputs": job.inputs, "origin": job.origin}
    if start is not None and (start.inputs or "files_of" in start.settings):
        raise InputError("The run ended before its sandbox had the files handed in: start the task again.")
    return {"inputs": Inputs()}


def job_like(
    run: Run, model: Model, inputs: Inputs, origin: Origin | None, given: Mapping[str, str], label: str
) -> Job:
    """The same task for a model that plays the record: it has no limit but its steps."""
    limits, settings = _in_force(run)
    steps = max(limits.steps, len(run.steps) + 1)
    return Job(
        task=run.task,
        model=model,
        prompts=_prompts(run),
        inputs=inputs,
        limits=RunLimits(steps, tokens=None, cost=None, time=None),
        settings=settings,
        retries=RetryPolicy(),
        command_timeout=_command_timeout(run),
        origin=origin,
        given=given,
        replies=sum(step.replied for step in run.steps),
        came_from={label: run.id or run.folder.name},
    )


def _in_force(run: Run) -> tuple[RunLimits, ModelSettings]:
    recorded = _recorded(run)
    before, changed = run.place.job, run.trajectory.changed
    limits = [one.limits for one in changed]
    settings = [one.settings for one in changed]
    return (
        _overlaid(RunLimits, before.limits if before else None, recorded.get("limits"), limits),
        _overlaid(ModelSettings, before.settings if before else None, recorded.get("sampling"), settings),
    )


def _recorded(run: Run) -> dict[str, Any]:
    return run.trajectory.start.settings if run.trajectory.start else {}


def _command_timeout(run: Run) -> float:
    return float(_recorded(run).get("command_timeout") or DEFAULT_TIMEOUT)


def _halting(run: Run, wishes: Wishes) -> Halting:
    known = {"step", "breakpoints", "break_when", "approve", "on_pause"}
    if unknown := sorted(set(wishes.more) - known):
        raise InputError(f"resume() takes no {unknown[0]!r}: it can be {', '.join(sorted(known))}.")
    rules = {name: value for name, value in wishes.more.items() if name != "on_pause"}
    try:
        made = halting(
            bool(rules.get("step")),
            rules.get("breakpoints", ()),
            rules.get("break_when", ()),
            rules.get("approve", "auto"),
        )
    except ValueError as error:
        raise InputError(str(error)) from error
    if not rules and run.place.job is not None:
        made = dataclasses.replace(run.place.job.halting, step=False)
    if (
        made.needs_person
        and wishes.control is None
        and "on_pause" not in wishes.more
        and not wishes.listeners
    ):
        raise InputError(NOBODY)
    return made


def _overlaid(kind: type[_T], given: _T | None, recorded: Any, changes: list[dict[str, Any]]) -> _T:
    """What was in force: as it was asked for in this process, or as recorded, with what was changed since."""
    value: Any = given if given is not None else kind(**_known(kind, recorded))
    for change in changes:
        value = dataclasses.replace(value, **_known(kind, change))
    return cast(_T, value)


def _known(kind: Any, values: Any) -> dict[str, Any]:
    names = {field.name for field in dataclasses.fields(kind)}
    return {name: value for name, value in (values or {}).items() if name in names}


def _prompts(run: Run) -> PromptConfig:
    if run.place.job is not None:
        return run.place.job.prompts
    recorded = _recorded(run).get("prompts")
    if isinstance(recorded, dict) and isinstance(recorded.get("system_prompt"), str):
        return PromptConfig(**_known(PromptConfig, recorded))
    return load_prompts(None)


def _model(run: Run, wishes: Wishes) -> Model:
    if wishes.model is not None and not isinstance(wishes.model, str):
        return wishes.model
    job, changed = run.place.job, _changed_to(run)
    name = wishes.model or changed or run.model
    if wishes.model is None and job is not None and not wishes.api_base:
        if changed in (None, job.model.name):
            return job.model
        return run.place.models.get(name) or job.make_model(name)
    if not name:
        raise InputError(
            "The record does not say which model it was: name one, as in run.resume(model='openai/gpt-5')."
        )
    return _made(name, wishes)


def _changed_to(run: Run) -> str | None:
    """The model that the branch of HEAD was changed to last."""
    return next((one.model for one in reversed(run.trajectory.changed) if one.model), None)


def _made(name: str, wishes: Wishes) -> Model:
    from llm_sandbox_nb.agent.model_litellm import make_model

    return make_model(name, api_base=wishes.api_base, api_key=wishes.api_key)


def _opening(run: Run, wishes: Wishes) -> Opening:
    box = wishes.sandbox or run.place.living()
    if box is not None:
        return Opening(box, owned=False, root=box.directories.root)
    from llm_sandbox_nb.sandbox.opening import open_sandbox

    try:
        opening = open_sandbox(**sandbox_options(run, wishes.options))
    except (ValueError, FileNotFoundError, TypeError) as error:
        raise InputError(str(error)) from error
    return Opening(opening, owned=True, root=None)


def sandbox_options(run: Run, wished: Mapping[str, Any]) -> dict[str, Any]:
    """How to open a sandbox like the one that the run had, but for what is `wished`."""
    options = dict(run.place.options) or _recorded_options(run.trajectory)
    return options | {name: value for name, value in wished.items() if value is not None}


def _recorded_options(trajectory: Trajectory) -> dict[str, Any]:
    protection = trajectory.sandbox.protection if trajectory.sandbox else {}
    options = {name: protection[name] for name in ("isolation", "profile") if protection.get(name)}
    if options.get("isolation") != "process" and protection.get("network") in ("none", "open"):
        options["network"] = protection["network"]
    image = (protection.get("details") or {}).get("image")
    return options | ({"image": image} if image and options.get("isolation") == "docker" else {})


def _check_limits(job: Job, trajectory: Trajectory) -> None:
    done = max((step.number for step in trajectory.steps if step.replied), default=0)
    if job.limits.steps <= done:
        raise InputError(
            f"The run has had {done} steps and may have {job.limits.steps}: allow more, as in "
            f"run.resume(limits={{'steps': {done + 20}}})."
        )
    spent = trajectory.spent.cost
    if job.limits.cost is not None and spent is not None and spent >= job.limits.cost:
        raise InputError(
            f"The run has cost ${spent:.2f} and may cost ${job.limits.cost:.2f}: allow more, as in "
            f"run.resume(limits={{'cost': {spent * 2:.2f}}})."
        )


def _record_changes(run: Run, recorder: Recorder, job: Job, wishes: Wishes) -> None:
    """What is otherwise from here on is an event, so that the record says with what each step was made."""
    model = job.model.name if job.model.name != (_changed_to(run) or run.model) else None
    settings = _asked(wishes.settings, job.settings)
    limits = _asked(wishes.limits, job.limits)
    if model or settings or limits:
        from llm_sandbox_nb.agent.folders import public_settings

        recorder.emit(
            ev.SettingsChanged(
                model=model, settings=public_settings(settings), limits=limits, source="python"
            )
        )
    if wishes.sandbox is not None:
        let_go(wishes.sandbox)


def _asked(wish: Any, value: Any) -> dict[str, Any]:
    if wish is None:
        return {}
    names = wish if isinstance(wish, Mapping) else [field.name for field in dataclasses.fields(wish)]
    return {name: getattr(value, name) for name in names}
