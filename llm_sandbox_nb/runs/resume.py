"""Resume of a run that has ended, or that was rewound, forked, killed, or loaded from its folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from llm_sandbox_nb.agent.checks import Check, checked_check
from llm_sandbox_nb.agent.control.frontends import (
    OnPause,
    checked_on_pause,
    pause_handler,
    refusing_handler,
)
from llm_sandbox_nb.agent.control.pause_rules import PauseRules, pause_rules
from llm_sandbox_nb.agent.control.run_control import RunControl, unused_control
from llm_sandbox_nb.agent.conversation_state import conversation_state, seconds_so_far, worked
from llm_sandbox_nb.agent.errors import InputError
from llm_sandbox_nb.agent.mcp_client.configuration import ServerNames
from llm_sandbox_nb.agent.mcp_client.servers import McpServers, missing_servers
from llm_sandbox_nb.agent.recorder import Listener, Recorder, public_settings
from llm_sandbox_nb.agent.run_limits import RunLimits
from llm_sandbox_nb.agent.run_record import IN_USE, RunRecord, disown_files, in_use_by_another, owns_files
from llm_sandbox_nb.agent.run_spec import RunSpec, SandboxOpening, require_decider, with_given
from llm_sandbox_nb.agent.session import Session
from llm_sandbox_nb.formatting import format_cost, format_duration, plural
from llm_sandbox_nb.model.contract import Checkable, Model, ModelSettings, Recalls
from llm_sandbox_nb.model.model_names import make_model
from llm_sandbox_nb.model.retries import RetryPolicy
from llm_sandbox_nb.runs.checkpoint_files import CheckpointFiles
from llm_sandbox_nb.runs.recorded_spec import (
    check_recorded_addresses,
    missing_pause_functions,
    named_check,
    recorded_spec,
    sandbox_options,
)
from llm_sandbox_nb.runs.rewind import Destination, rewind, runs_since
from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.doubts.rules import Rule
from llm_sandbox_nb.trajectory.mcp_calls import recorded_servers
from llm_sandbox_nb.trajectory.trajectory import Trajectory

R = TypeVar("R", bound=RunRecord)
_NOT_KEPT = (
    "The files of this run are not kept, so it cannot resume: result.rebuild() executes its calls again."
)
CONTINUE = "Continue with the task."
PAUSE_OPTIONS = ("approve", "break_when", "breakpoints", "on_pause", "step")


@dataclass(frozen=True)
class ResumeOptions:
    """Options of a resume. An option that is None changes nothing."""

    text: str | None = None
    """First message for the model."""
    model: str | Model | None = None
    settings: ModelSettings | Mapping[str, Any] | None = None
    limits: RunLimits | Mapping[str, Any] | None = None
    sandbox: Sandbox | None = None
    sandbox_options: Mapping[str, Any] = field(default_factory=dict)
    api_base: str | None = None
    api_key: str | None = None
    listeners: Iterable[Listener] = ()
    control: RunControl | None = None
    pause: Mapping[str, Any] = field(default_factory=dict)
    """Rules for pauses. The keys are `step`, `breakpoints`, `break_when`, `approve` and `on_pause` of `solve`."""
    tools: Iterable[Callable[..., Any]] | None = None
    """User-defined tools of the run. None stands for the tools that this process knows."""
    mcp: ServerNames | None = None
    """MCP servers of the run. None stands for the servers that this process knows."""
    mcp_allow: str | Iterable[str] | None = None
    """Servers and tools whose calls need no approval."""
    others: bool = False
    """True if changes of other runs in the sandbox may be undone."""
    run_options: Mapping[str, Any] = field(default_factory=dict)
    """Changed fields of `RunOptions`, by name."""
    retries: RetryPolicy | None = None
    doubts: Iterable[Rule] | None = None
    """User-defined rules for doubts."""
    check: Mapping[str, Any] = field(default_factory=dict)
    """Changes to the check. The keys are `check`, `check_files`, `check_tries` and `check_timeout` of `solve`."""

    @property
    def on_pause(self) -> OnPause | None:
        """The reaction to a pause. None if no reaction was given."""
        return self.pause.get("on_pause")


async def resume(run: R, options: ResumeOptions) -> R:
    """Execute a run from HEAD to a new end.

    Raises:
        InputError: if the run cannot resume with these options. In this case, nothing is started.
        RunError: as in `solve`.
    """
    trajectory = run.trajectory
    _check(run, options)
    servers = _servers(run, options)
    spec = _spec(run, options, servers)
    if isinstance(spec.model, Checkable):
        await spec.model.check()
    if isinstance(spec.model, Recalls):
        replied = [event for event in trajectory.path if isinstance(event, ev.ModelReplied)]
        replies = [
            (
                event.message,
                event.reasoning,
                bool(event.message.get("tool_calls")) and event.calls_from != "text",
            )
            for event in replied
        ]
        spec.model.recall(trajectory.learned(spec.model.name), replies)
    if (box := options.sandbox or run.context.living()) is not None:
        opening = SandboxOpening(box, owned=False, root=box.directories.root)
    else:
        opening = SandboxOpening.new(sandbox_options(run, options.sandbox_options))
    first_message = _first_message(trajectory, options.text)
    checked_on_pause(options.on_pause)
    unused_control(options.control)
    if run.context.living() is not None:
        _check_limits(spec, trajectory, first_message)  # checked before files change
    await _restore_own_files(run, options)
    recorder = Recorder(run.folder, options.listeners, trajectory)
    try:
        _drop_unkept_calls(run, recorder)
        _check_limits(spec, trajectory, first_message)
        _record_changes(run, recorder, spec, options)
        control = options.control or run.fresh_control()
        run.take_control(control)
        control.stepping = control.stepping or spec.pause_rules.step
        if options.on_pause is not None:
            control.on_pause = pause_handler(run, options.on_pause)
        elif servers is not None and control.on_pause is None and not _decided(options):
            control.on_pause = refusing_handler(run)
        session = Session(
            spec, recorder, run, opening, control, conversation_state(trajectory, first_message)
        )
    except BaseException:
        recorder.close()
        raise
    try:
        await session.run()
    finally:
        if servers is not None:
            await servers.close()
    return run


def _servers(run: RunRecord, options: ResumeOptions) -> McpServers | None:
    """Return the MCP servers, which start at their first calls. Servers that only the record names are left out."""
    known = run.context.spec.servers if run.context.spec is not None else None
    allowed = [options.mcp_allow] if isinstance(options.mcp_allow, str) else options.mcp_allow
    if options.mcp is not None:
        servers = McpServers.from_names(options.mcp, allowed or ())
    else:
        servers = known.renewed(allowed) if known is not None else None
    recorded = recorded_servers(run.trajectory.start)
    if servers is not None and (missing := recorded.keys() - servers.servers.keys()):
        raise InputError(missing_servers(missing))
    if servers is not None and (new := [name for name in servers.servers if name not in recorded]):
        if recorded:
            raise InputError(f"This run had no MCP server {new[0]}: name only {', '.join(recorded)}.")
        raise InputError(
            f"This run had no MCP server {new[0]}: start the task again with solve(..., mcp='{new[0]}')."
        )
    return servers


def _check(run: RunRecord, options: ResumeOptions) -> None:
    if not run.has_journal:
        raise InputError(
            "This conversation has no journal and no files: call result.rebuild(), which executes its calls again, "
            "and resume the run that it returns."
        )
    if run.context.session is not None:
        raise InputError("The run has not ended: result.resume() without arguments resumes it after a pause.")
    if not run.journal.is_file():
        raise InputError(f"The folder of this run is gone, so it cannot resume: {run.folder}.")
    if run.trajectory.start is None:
        raise InputError(f"No run has begun in {run.folder}: start the task again.")
    files = run.trajectory.files
    box = options.sandbox or run.context.living()
    if box is not None and in_use_by_another(box, run.folder):
        raise InputError(IN_USE)
    if run.context.living() is None and files is not None and not CheckpointFiles(run).has(files):
        raise InputError(_NOT_KEPT)
    if box is None and files is None and worked(run.trajectory):
        raise InputError(_NOT_KEPT)


async def _restore_own_files(run: RunRecord, options: ResumeOptions) -> None:
    """Restore the files of HEAD by a rewind, if other runs have used the sandbox since this run."""
    box, (head, files) = run.context.living(), (run.trajectory.head, run.trajectory.files)
    if box is None or options.sandbox not in (None, box) or owns_files(box, run.folder):
        return
    if head is None or files is None or not runs_since(run, box):
        return
    step = run.trajectory.step_at(head)
    await rewind(run, Destination(head, step, "files", files, step, others=options.others))


def _first_message(trajectory: Trajectory, text: str | None) -> tuple[str, ...]:
    """Return a tuple with the first message for the model. Empty if the conversation can continue without a message."""
    text = str(ev.clean_text(text or "")).strip()
    finish, start = trajectory.finish, trajectory.start
    if text:
        return (text,)
    if finish is None or not any(trajectory.messages()):
        return ()
    if finish.stop_reason == "steps" and start is not None and "rebuilt_from" in start.settings:
        return ()
    if finish.stop_reason == "submitted":
        raise InputError(
            "The model has submitted: say what more to do, as in result.resume('Make it blue.')."
        )
    return (CONTINUE,)


def _drop_unkept_calls(run: RunRecord, recorder: Recorder) -> None:
    """Rewind to the last event whose files are stored, if the process was killed before a call's files were stored."""
    trajectory = run.trajectory
    to = trajectory.uncovered
    if run.context.living() is not None or to is None:
        return
    if trajectory.files is None:
        raise InputError(_NOT_KEPT)
    step, files = trajectory.step_at(to), trajectory.files
    recorder.emit(ev.RewindStarted(to=to, step=step, target=files, safety=files))
    recorder.emit(ev.Rewound(to=to, step=step, target=files, safety=files))


def _spec(run: RunRecord, options: ResumeOptions, servers: McpServers | None) -> RunSpec:
    spec = recorded_spec(run, _model(run, options), options.tools, servers.tool if servers else None)
    spec = dataclasses.replace(spec, servers=servers)
    names_body = options.settings is not None and (
        not isinstance(options.settings, Mapping) or "extra_body" in options.settings
    )
    model, body = (
        run.model if options.model is None else None,
        None if names_body else spec.settings.extra_body,
    )
    check_recorded_addresses(run, model, body)
    known, start = run.context.spec, run.trajectory.start
    if conversation_state(run.trajectory).fresh:  # the sandbox may never have been opened
        if known is not None:
            spec = dataclasses.replace(spec, inputs=known.inputs, starting_files=known.starting_files)
        elif start is not None and (start.inputs or "files_of" in start.settings):
            raise InputError(
                "The run ended before its input files were in the sandbox: start the task again."
            )
    given = {name: value for name, value in options.pause.items() if name != "on_pause"}
    spec = dataclasses.replace(spec, pause_rules=_pause_rules(run, spec.pause_rules, given))
    require_decider(spec.pause_rules, decided=_decided(options))
    if options.check:
        spec = dataclasses.replace(spec, check=_other_check(spec.check, options.check))
    return dataclasses.replace(
        spec,
        **options.run_options,
        limits=with_given(spec.limits, options.limits),
        settings=with_given(spec.settings, options.settings),
        retries=options.retries or spec.retries,
        doubts=spec.doubts if options.doubts is None else tuple(options.doubts),
        make_model=known.make_model if known else lambda name: _make_model(name, options),
    )


def _pause_rules(run: RunRecord, known: PauseRules, given: Mapping[str, Any]) -> PauseRules:
    """Apply the given changes to the known rules. Raises InputError if a rule is invalid, or a function is missing."""
    if "break_when" not in given and (missing := missing_pause_functions(run)):
        raise InputError(
            f"The run paused where the function {missing[0]} returned true, and records contain no functions: give it "
            f"again, as in result.resume(break_when={missing[0]}), or resume without it: break_when=()."
        )
    new = pause_rules(**given)
    return dataclasses.replace(
        known,
        step=new.step if "step" in given else known.step,
        breakpoints=new.breakpoints if "breakpoints" in given else known.breakpoints,
        predicates=new.predicates if "break_when" in given else known.predicates,
        approve=new.approve if "approve" in given else known.approve,
        approved_all=known.approved_all and "approve" not in given,
    )


def _decided(options: ResumeOptions) -> bool:
    """Return True if a person or a function may decide at a pause."""
    return options.control is not None or "on_pause" in options.pause or bool(options.listeners)


def _other_check(known: Check | None, given: Mapping[str, Any]) -> Check | None:
    """Apply the given options to the check. A new command or function makes a new check.

    Raises:
        InputError: if an option is invalid.
    """
    if known is None or "check" in given:
        names = ("check", "check_files", "check_tries", "check_timeout")
        values = {name.removeprefix("check_"): given[name] for name in names if name in given}
        return checked_check(values.pop("check", None), **values)
    tries, timeout = given.get("check_tries", known.tries), given.get("check_timeout", known.timeout)
    made = checked_check(known.what, given.get("check_files"), tries, timeout)
    return made if made is None or "check_files" in given else dataclasses.replace(made, files=known.files)


def _model(run: RunRecord, options: ResumeOptions) -> Model:
    if options.model is not None and not isinstance(options.model, str):
        return options.model
    known, now = run.context.spec, run.model
    if options.model is None and known is not None and not options.api_base:
        changed = any(change.model for change in run.trajectory.changed)
        if not changed or now == known.model.name:
            return known.model
        return run.context.models.get(now) or known.make_model(now)
    if not (name := options.model or now):
        raise InputError(
            "The record does not name the model of the run: name one, as in result.resume(model='openai/gpt-5')."
        )
    return _make_model(name, options)


def _make_model(name: str, options: ResumeOptions) -> Model:
    return make_model(name, api_base=options.api_base, api_key=options.api_key)


def _check_limits(spec: RunSpec, trajectory: Trajectory, said: tuple[str, ...]) -> None:
    if conversation_state(trajectory, said).submitted:  # the model is not asked again
        return
    done = max((step.number for step in trajectory.steps if step.replied), default=0)
    if spec.limits.steps <= done:
        raise InputError(
            f"The run has had {plural(done, 'step')} and may have {spec.limits.steps}: allow more, as in "
            f"result.resume(limits={{'steps': {done + 20}}})."
        )
    spent = trajectory.known_cost
    if spec.limits.cost is not None and spent >= spec.limits.cost:
        raise InputError(
            f"The run has cost {format_cost(spent)} and may cost {format_cost(spec.limits.cost)}: allow more, as in "
            f"result.resume(limits={{'cost': {spent * 2:.2f}}})."
        )
    used = trajectory.total_usage.total_tokens
    if spec.limits.total_tokens is not None and used >= spec.limits.total_tokens:
        raise InputError(
            f"The run has used {plural(used, 'token')} and may use {spec.limits.total_tokens:,}: allow more, as in "
            f"result.resume(limits={{'total_tokens': {used * 2}}})."
        )
    taken = seconds_so_far(trajectory)
    if spec.limits.time is not None and taken >= spec.limits.time:
        raise InputError(
            f"The run has taken {format_duration(taken)} and may take {format_duration(spec.limits.time)}: allow more, "
            f"as in result.resume(limits={{'time': {max(60, taken * 2):.0f}}})."
        )


def _record_changes(run: RunRecord, recorder: Recorder, spec: RunSpec, options: ResumeOptions) -> None:
    """Record changes of model, settings, limits and pause rules, so that the record shows the values for each step."""
    model = spec.model.name if spec.model.name != run.model else None
    settings = _given_values(options.settings, spec.settings)
    settings |= {name: getattr(spec, name) for name in options.run_options}
    if options.check:
        settings["check"] = spec.check and spec.check.as_json()
    _note_missing_check(run, recorder, spec)
    limits = _given_values(options.limits, spec.limits)
    halts = {name: rule for name, rule in spec.pause_rules.as_json().items() if name in options.pause}
    if model or settings or limits or halts:
        recorder.emit(
            ev.SettingsChanged(
                model=model, settings=public_settings(settings), limits=limits, halts=halts, source="python"
            )
        )
    if options.sandbox is not None:
        disown_files(options.sandbox)


def _note_missing_check(run: RunRecord, recorder: Recorder, spec: RunSpec) -> None:
    """Record a note if later results are not checked because this process lacks the run's check function."""
    changed = {name: value for change in run.trajectory.changed for name, value in change.settings.items()}
    named = named_check(run, changed)
    if spec.check is None and isinstance(named, Mapping) and named.get("function"):
        recorder.emit(
            ev.Noted(
                text=f"The check {str(named['function'])[:80]} is a Python function, which records do not contain: "
                "give it again, as in result.resume(check=...), to have the result checked."
            )
        )


def _given_values(given: Any, value: Any) -> dict[str, Any]:
    if given is None:
        return {}
    names = given if isinstance(given, Mapping) else [field.name for field in dataclasses.fields(given)]
    return {name: getattr(value, name) for name in names}
