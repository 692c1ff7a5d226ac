"""`solve`, the function that executes one task, with or without a notebook."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from inspect import isawaitable
from pathlib import Path
from typing import Any, ClassVar, Protocol

from llm_sandbox_nb.agent.checks import CHECK_TIMEOUT, CheckFunction, checked_check
from llm_sandbox_nb.agent.control.frontends import (
    OnPause,
    checked_on_pause,
    pause_handler,
    refusing_handler,
)
from llm_sandbox_nb.agent.control.pause_rules import Predicate, pause_rules
from llm_sandbox_nb.agent.control.run_control import RunControl, unused_control
from llm_sandbox_nb.agent.errors import InputError
from llm_sandbox_nb.agent.inputs import InputFiles, StartingFiles, check_inputs
from llm_sandbox_nb.agent.mcp_client.configuration import ServerNames
from llm_sandbox_nb.agent.mcp_client.servers import McpServers
from llm_sandbox_nb.agent.original_prompts import WhosePrompts, chosen_prompts
from llm_sandbox_nb.agent.prompts import PromptConfig
from llm_sandbox_nb.agent.recorder import Listener, Recorder, new_run_folder
from llm_sandbox_nb.agent.run_limits import RunLimits
from llm_sandbox_nb.agent.run_options import OPTION_DEFAULTS, ContextMode, Nudges, RunOptions, ToolCalls
from llm_sandbox_nb.agent.run_spec import RunSpec, SandboxOpening, require_decider, with_given
from llm_sandbox_nb.agent.session import Session
from llm_sandbox_nb.agent.tools.toolbox import Toolbox, with_own_tools
from llm_sandbox_nb.model.contract import Checkable, Model, ModelSettings, WritesCalls
from llm_sandbox_nb.model.model_names import make_model
from llm_sandbox_nb.model.retries import RetryPolicy
from llm_sandbox_nb.runs.checkpoint_files import starting_files
from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.sandbox.contract import Directories, Sandbox
from llm_sandbox_nb.sandbox.isolations import ISOLATIONS, has_own_root
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.doubts.rules import Rule
from llm_sandbox_nb.trajectory.run_folder import RUNS


class LiveCard(Protocol):
    """Live display of a run."""

    @property
    def can_decide(self) -> bool:
        """True if a person can decide how the run resumes when it pauses."""
        ...

    def start(self, run: Run) -> None: ...

    def listen(self, event: ev.Event) -> None: ...

    async def finish(self, run: Run) -> None: ...


class LiveCards:
    """Factory of the live cards of `solve`. Only a notebook sets `make`, so a script shows no cards."""

    make: ClassVar[Callable[[bool | None], Awaitable[LiveCard | None]] | None] = None

    @classmethod
    async def open(cls, show: bool | None) -> LiveCard | None:
        """Return a card for a run that begins now. None if no card is shown."""
        if show is False or cls.make is None:
            return None
        return await cls.make(show)


async def solve(
    task: str,
    *,
    model: str | Model,
    isolation: str = "auto",
    profile: str = "standard",
    image: str | None = None,
    network: str | None = None,
    allow: str | Sequence[str] = (),
    secrets: Mapping[str, str | Sequence[str]] | Sequence[str] = (),
    sandbox_options: Mapping[str, Any] | None = None,
    sandbox: Sandbox | Awaitable[Sandbox] | None = None,
    inputs: InputFiles = None,
    files_of: Run | tuple[Run, int] | None = None,
    output_dir: str | Path = RUNS,
    name: str | None = None,
    prompt_config: str | Path | PromptConfig | None = None,
    prompts: WhosePrompts = "own",
    limits: RunLimits | Mapping[str, Any] | None = None,
    settings: ModelSettings | Mapping[str, Any] | None = None,
    retries: RetryPolicy | None = None,
    command_timeout: float = RunOptions.command_timeout,
    nudges: Nudges = RunOptions.nudges,
    tool_calls: ToolCalls = RunOptions.tool_calls,
    same_failures: int = RunOptions.same_failures,
    remind: bool = True,
    context: ContextMode = RunOptions.context,
    check: str | CheckFunction | None = None,
    check_files: InputFiles = None,
    check_tries: int = 1,
    check_timeout: float = CHECK_TIMEOUT,
    tools: Iterable[Callable[..., Any]] = (),
    mcp: ServerNames | None = None,
    mcp_allow: str | Iterable[str] = (),
    doubts: Iterable[Rule] = (),
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
    show: bool | None = None,
    **more: Any,
) -> Run:
    """Let a model work on `task` in a sandbox until the model submits or a limit is reached.

    Args:
        task: the text of the task.
        model: a LiteLLM name such as `"openai/gpt-5"`, `"local/qwen2.5-coder-1.5b"` for a model on this machine,
            a script such as `"scripted/strawberry"`, or any `Model`.
        isolation, profile, image, network, allow, secrets: see `open_sandbox`.
        sandbox_options: further options of `open_sandbox`.
        sandbox: an open sandbox to work in, or an awaitable that returns one. The sandbox stays open afterwards. If
            its isolation is `"process"`, `isolation` must name this isolation.
        inputs: files for the input folder: a path, several paths, or a mapping of names to contents, which can be
            paths, bytes or data frames, as in `{"data.csv": frame}`. If a path is a folder, its content is copied.
        files_of: a run whose files the sandbox gets first: the files that this run began with. `(run, 4)` stands for
            the files at the end of step 4. All other files of the sandbox are removed.
        output_dir: folder of runs. The run's folder is `<output_dir>/<name>/<time>-<id>`.
        prompt_config: a YAML file; see `prompts/general.yaml`.
        prompts: `"own"` for the prompts of this package, or `"original"` for the prompts of the paper's package, which
            the extra `original` installs.
        limits, settings: mappings such as `{"steps": 20}` and `{"temperature": 0}`; see `RunLimits` and
            `ModelSettings`.
        retries: see `RetryPolicy`.
        command_timeout: timeout in seconds for a command, if the model names no timeout.
        nudges: number of times in a row that a reply without a call is answered with a request for a call. One more
            such reply ends the run with `answered` or `no_answer`. With `"all"`, only a limit ends the run, as in
            benchmarks.
        tool_calls: form of the calls: `"native"`, `"text"` for calls that the model writes as text, or `"auto"`.
            `"auto"` uses native calls, and text if native calls fail or are known to fail with the model.
        same_failures: number of times in a row that the same call may fail before the run ends with `repeated`.
            0 means that there is no limit.
        remind: True to explain once how to save a result, if the model submits with neither a file nor an answer.
        context: form in which a conversation is sent once it fills three quarters of the model's context. `"mask"`
            shortens each old output to one line. `"summary"` replaces old steps by a summary that the model writes.
            `"full"` sends the whole conversation until it no longer fits.
        check: a command that checks the result after the model has submitted, or a function of the run that returns
            true or false, a number or a text. The check passes if the command exits with 0. The command runs in a
            separate sandbox with a copy of the model's folders, so that the model can neither see nor change the
            command. `run.checks` has the verdicts.
        check_files: files that only the check gets, in the form of `inputs`. The command of the check runs in the
            folder of these files.
        check_tries: maximum number of checks of the result. After each failed check except the last, the model reads
            the output and continues in its sandbox.
        check_timeout: timeout in seconds for each check.
        tools: your own functions that the model can call too. Their names, docstrings and types explain them to the
            model. These functions run in this process with your rights, and not in the sandbox.
        mcp: MCP servers whose tools the model can call too, under names such as `server__tool`. A server is given as a
            name in `.mcp.json`, a file, a mapping in the form of such a file, `"NAME=COMMAND"` or `"NAME=URL"`.
            A person approves each call.
        mcp_allow: servers and tools (`server__tool`) whose calls need no approval. All other calls are refused if no
            person can approve them.
        doubts: your own rules: functions that get the record at the end, and return doubts about the result.
        api_base, api_key: address of the model, and its key. The key is never written to a file.
        listeners: functions that are called with every event, including transient events.
        on_run: function that is called with the run as soon as the run's folder exists.
        control: object that can pause and stop the run, and send messages to the model; also `run.control`. A run that
            the control stops is returned with the stop reason `interrupted`.
        step: True to pause before the first call, then at each call and observation.
        breakpoints: expressions such as `"tool == 'execute_bash' and 'rm ' in command"`; see `breakpoints`.
        break_when: functions that get a `Moment` (a pending or finished call), and return True to pause.
        approve: `"ask"` pauses before every call, `"edits"` before every call except edits and submit, `"auto"` never.
        on_pause: reaction to a pause: a function of the run, `"stop"` or `"continue"`; see `OnPause`. By default, the
            run waits for a decision through `run.control`.
        show: True if a notebook's cell shows the live card. None if the setting `show` decides. A script shows no card.
        more: the options of `RunOptions` that are not listed here.

    Raises:
        InputError, ModelError: if the task is empty, an input or a key is missing, a script or a provider does not
            exist, or an MCP server does not start. In these cases, no run is started.
        SandboxError: if an MCP server needs the sandbox, and the sandbox does not open. No run is started either.
        RunError: if the model, the sandbox or this program failed. `error.run` is the run.
        asyncio.CancelledError: if the run was interrupted. The record says so.
    """
    decided = control is not None or on_run is not None or on_pause is not None
    control = unused_control(control)
    if not isinstance(task, str):
        raise InputError(f"The task is a text, not {task!r:.80}.")
    if not task.strip():
        raise InputError("The task is empty: write what the model should do.")
    servers = McpServers.from_names(mcp, mcp_allow)
    starting, provenance = _starting_files(files_of)
    asked = _model(model, api_base, api_key)
    if tool_calls == "auto" and isinstance(asked, WritesCalls) and asked.writes_calls:
        tool_calls = "text"
    if unknown := sorted(more.keys() - OPTION_DEFAULTS.keys()):
        raise TypeError(f"solve() got an unexpected keyword argument {unknown[0]!r}")
    spec = RunSpec(
        task=str(ev.clean_text(task)),
        model=asked,
        prompts=chosen_prompts(prompts, prompt_config),
        inputs=check_inputs(inputs),
        starting_files=starting,
        limits=with_given(RunLimits(), limits),
        settings=with_given(ModelSettings(), settings),
        retries=retries or RetryPolicy(),
        command_timeout=command_timeout,
        nudges=nudges,
        tool_calls=tool_calls,
        same_failures=same_failures,
        remind=remind,
        context=context,
        check=checked_check(check, check_files, check_tries, check_timeout),
        toolbox=with_own_tools(tools),
        doubts=tuple(doubts),
        pause_rules=pause_rules(step, breakpoints, break_when, approve),
        make_model=lambda name: _other_model(name, model, api_base, api_key),
        provenance=provenance,
        isolation=_isolation(sandbox, isolation),
        **more,
    )
    checked_on_pause(on_pause)
    if isinstance(spec.model, Checkable):
        await spec.model.check()
    card = await LiveCards.open(show)
    decided = decided or (card is not None and card.can_decide)
    require_decider(spec.pause_rules, decided=decided)
    opening = _opening(
        sandbox,
        isolation,
        profile,
        image,
        network,
        {"allow": allow, "secrets": secrets},
        sandbox_options or {},
    )
    if servers is not None:
        spec, opening = await _with_servers(spec, opening, servers)
    listeners = listeners if card is None else [*listeners, card.listen]
    try:
        async with AsyncExitStack() as unless_begun:
            unless_begun.push_async_callback(opening.discard)
            recorder = Recorder(new_run_folder(Path(output_dir), name), listeners)
            unless_begun.callback(recorder.close)
            run = Run(recorder.folder, recorder.trajectory, control)
            control.stepping = control.stepping or spec.pause_rules.step
            if on_pause is not None:
                control.on_pause = pause_handler(run, on_pause)
            elif not decided and control.on_pause is None and servers is not None:
                control.on_pause = refusing_handler(run)
            if card:
                card.start(run)
            if on_run:
                on_run(run)
            unless_begun.pop_all()
        try:
            await Session(spec, recorder, run, opening, control).run()
        finally:
            if card:
                await card.finish(run)
    finally:
        if servers is not None:
            await servers.close()
    return run


async def _with_servers(
    spec: RunSpec, opening: SandboxOpening, servers: McpServers
) -> tuple[RunSpec, SandboxOpening]:
    """Start the MCP servers and add their tools. If a server runs in the sandbox, open the sandbox first.

    Raises:
        InputError: if a server does not start.
        SandboxError: if the sandbox does not open.
    """
    try:
        if servers.inside:
            box = opening.sandbox if isinstance(opening.sandbox, Sandbox) else await opening.sandbox
            servers.box, opening = box, replace(opening, sandbox=box)
        tools = await servers.tools(spec.toolbox)
    except BaseException:
        await servers.close()
        await opening.discard()
        raise
    return replace(spec, toolbox=Toolbox([*spec.toolbox.values(), *tools]), servers=servers), opening


def _isolation(sandbox: Sandbox | Awaitable[Sandbox] | None, asked: str) -> str | None:
    """Return the isolation of the sandbox. None if the isolation is only decided when the sandbox is opened."""
    if isinstance(sandbox, Sandbox):
        return sandbox.protection.isolation
    return asked if asked in ISOLATIONS else None


def _starting_files(files_of: Run | tuple[Run, int] | None) -> tuple[StartingFiles | None, dict[str, str]]:
    """Return the starting files of the sandbox, and for the record the setting `files_of`: their run and step."""
    if files_of is None:
        return None, {}
    run, step = files_of if isinstance(files_of, tuple) else (files_of, 0)
    if not isinstance(run, Run):
        raise InputError(
            f"files_of is a run, or (run, step), not {run!r:.80}: Run.load(folder) returns a run."
        )
    try:
        found = starting_files(run, step)
    except ValueError as error:
        raise InputError(str(error)) from error
    if found is None:
        raise InputError(
            f"The files of step {step} of {run.folder.name} are not kept (any more): leave files_of out."
        )
    return found, {"files_of": f"{run.id or run.folder.name}:{step}"}


def _model(model: str | Model, api_base: str | None, api_key: str | None) -> Model:
    if isinstance(model, str):
        return make_model(model, api_base=api_base, api_key=api_key)
    if not isinstance(model, Model):
        raise InputError(
            "model is a name such as 'openai/gpt-5' or 'scripted/strawberry', or an object with name, scripted and "
            f"reply, not {model!r:.80}."
        )
    return model


def _other_model(name: str, first: str | Model, api_base: str | None, api_key: str | None) -> Model:
    """Make the model `name`. Use key and address of the first model if both models have the same provider."""
    same = isinstance(first, str) and name.partition("/")[0] == first.partition("/")[0]
    return _model(name, api_base if same else None, api_key if same else None)


def _opening(
    sandbox: Sandbox | Awaitable[Sandbox] | None,
    isolation: str,
    profile: str,
    image: str | None,
    network: str | None,
    lists: Mapping[str, Any],
    options: Mapping[str, Any],
) -> SandboxOpening:
    if not isinstance(options, Mapping):
        raise InputError(f"sandbox_options is a mapping, as in {{'env': {{...}}}}, not {options!r:.80}.")
    if sandbox is None:
        named = {"isolation": isolation, "profile": profile, "image": image, "network": network}
        named |= {name: value or None for name, value in lists.items()}
        given = dict(options) | {name: value for name, value in named.items() if value is not None}
        return SandboxOpening.new(given)
    if isinstance(sandbox, Sandbox):
        return SandboxOpening(sandbox, owned=False, root=sandbox.directories.root)
    if not isawaitable(sandbox):
        raise InputError(
            f"sandbox is an open sandbox, as `await open_sandbox()` returns, not {sandbox!r:.80}."
        )
    return SandboxOpening(sandbox, owned=False, root=None if has_own_root(isolation) else Directories().root)
