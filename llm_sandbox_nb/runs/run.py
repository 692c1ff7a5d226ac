"""A run in Python, which either executes now or was loaded from its folder."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from llm_sandbox_nb.agent.control.decisions import DENIED, edited_call, given_text
from llm_sandbox_nb.agent.control.run_control import RunControl
from llm_sandbox_nb.agent.errors import ControlError, InputError, RunError
from llm_sandbox_nb.agent.recorder import Listener, Recorder
from llm_sandbox_nb.agent.run_options import OPTION_DEFAULTS
from llm_sandbox_nb.agent.run_record import RunRecord
from llm_sandbox_nb.card.card import Display, ShownFile, run_display
from llm_sandbox_nb.card.export import export_html
from llm_sandbox_nb.errors import LLMSandboxError
from llm_sandbox_nb.formatting import plural, shorten
from llm_sandbox_nb.runs.compare import Comparison, compare_runs
from llm_sandbox_nb.runs.event_loops import AwaitableResult, run_in_loop, running_loop
from llm_sandbox_nb.runs.fork import fork
from llm_sandbox_nb.runs.recorded_spec import recorded_toolbox
from llm_sandbox_nb.runs.replay import ReplayReport, rebuild, replay
from llm_sandbox_nb.runs.resume import PAUSE_OPTIONS, ResumeOptions, resume
from llm_sandbox_nb.runs.rewind import (
    Destination,
    Preview,
    RewindResult,
    What,
    find_destination,
    last_rewind,
    preview,
    ready_text,
    rewind,
)
from llm_sandbox_nb.runs.rewind_points import Before
from llm_sandbox_nb.sandbox.client import ChannelSandbox
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.branches import Branch
from llm_sandbox_nb.trajectory.doubts.rules import Rule
from llm_sandbox_nb.trajectory.journal import JournalNotWrittenError
from llm_sandbox_nb.trajectory.run_folder import FILES, RunFiles
from llm_sandbox_nb.trajectory.trajectory import Call, Step

if TYPE_CHECKING:
    import pandas

T = TypeVar("T")


class ClosedSandbox(AwaitableResult):
    """Result of `Run.close`, which can be awaited. A cell shows the result as a sentence."""

    def __repr__(self) -> str:
        return "The sandbox of the run is closed; its files are kept."


class Run(RunRecord, AwaitableResult):
    """A run. In a coroutine, `await` the results of methods such as `rewind` and `resume`.

    >>> result = await solve("How many r's are in strawberry?", model="openai/gpt-5")
    >>> result.answer, result.stop_reason, result.files["poster.png"], result.steps[3].calls[0].output
    """

    rebuilt: ReplayReport[Run] | None = None
    """The differences from the record, for a run that `rebuild` has made. None for any other run."""

    # --- until it ends ---

    def pause(self) -> None:
        """Pause before the next request or call. Raises ControlError if the run has ended."""
        self.control.pause()

    def step(self) -> None:
        """Resume until the next call or observation. Raises ControlError if the run has ended."""
        self.control.step()

    def change(self, **changed: Any) -> None:
        """Change `model`, `settings`, `limits`, `breakpoints` or `approve` for the rest of the run.

        >>> result.change(model="openai/gpt-5-mini", settings={"temperature": 0}, limits={"steps": 20})

        Raises:
            ControlError: if a value is invalid, or the run has ended. In this case, nothing is changed.
        """
        self.control.change(**changed)

    def say(self, text: str) -> None:
        """Send a message to the model. Raises ControlError if the text is empty, or the run has ended."""
        self.control.say(text)

    def stop(self) -> None:
        """End the run and its commands. Raises ControlError if the run has ended already."""
        self.control.stop()

    # --- rewind ---

    def preview(self, step: int, what: What = "both", *, before: Before | None = None) -> Preview:
        """Return the changes that `rewind` would make to files.

        Raises:
            InputError: if there is no such step, or its files are not stored.
        """
        return self._travel(
            lambda: find_destination(self, step, what, before), preview, f"result.preview({step})"
        )

    def rewind(
        self,
        step: int,
        what: What = "both",
        *,
        before: Before | None = None,
        attempt: Branch | str | None = None,
        others: bool = False,
    ) -> RewindResult:
        """Rewind conversation and files, or only one of them, to the end of `step`. 0 is the beginning of the run.

        A run that executes is interrupted, and pauses after the rewind. Later steps remain as an earlier attempt, to
        which `undo` returns.

        Args:
            step: number of the step, counted from 1, as in `run.steps`.
            what: `"both"`, `"files"` or `"conversation"`.
            before: `"call"` rewinds to the point before the first call of the step, so that `edit` can change the call.
            attempt: an item of `attempts`, needed if the step belongs to an earlier attempt.
            others: True to also undo later changes of other runs in the sandbox. `preview` lists these changes.

        Raises:
            InputError: if there is no such step, its files are not stored, or another run has changed files since then.
                In these cases, nothing is changed.
        """
        self._check_journal()
        return self._travel(
            lambda: replace(
                find_destination(self if attempt is None else self.at(attempt), step, what, before),
                others=others,
            ),
            rewind,
            f"result.rewind({step})",
        )

    def undo(self, *, others: bool = False) -> RewindResult:
        """Undo the newest rewind, including its changes to files. A second call undoes the rewind before that one.

        Args:
            others: True to also undo later changes of other runs in the sandbox.

        Raises:
            InputError: if there is no rewind, or another run has changed files since then. In these cases, nothing is
                changed.
        """
        self._check_journal()
        destination = replace(last_rewind(self.trajectory), others=others)
        return self._do(lambda: rewind(self, destination), "result.undo()")

    # --- resume ---

    def resume(
        self,
        text: str | None = None,
        *,
        model: Any = None,
        settings: Any = None,
        limits: Any = None,
        sandbox: Any = None,
        isolation: str | None = None,
        network: str | None = None,
        allow: Any = None,
        secrets: Any = None,
        api_base: str | None = None,
        api_key: str | None = None,
        listeners: Iterable[Listener] = (),
        control: RunControl | None = None,
        tools: Iterable[Callable[..., Any]] | None = None,
        mcp: Any = None,
        mcp_allow: Any = None,
        others: bool = False,
        retries: Any = None,
        doubts: Iterable[Rule] | None = None,
        check: Any = None,
        check_files: Any = None,
        check_tries: int | None = None,
        check_timeout: float | None = None,
        **more: Any,
    ) -> Run:
        """Resume a paused run. Resume an ended run from HEAD, and execute the run to a new end.

        Args:
            text: a message for the model before it continues. A message is needed if the model has submitted.
            model: another model, for the rest of the run.
            settings, limits: a `ModelSettings` and a `RunLimits`, or mappings with the changed values.
            sandbox: an open sandbox to work in. By default, the run works in its own sandbox, or in a new sandbox with
                its files if its own sandbox is closed. If a notebook's cell opened the sandbox with `await`, await this
                call too, because the run works in the cell's event loop.
            isolation, network, allow, secrets: options of a new sandbox, by default as before. If the run was loaded
                from its folder, these must be given again: `"process"`, an open network that is not the default,
                allowed hosts and secrets.
            api_base, api_key: address and key of the model, if the run was loaded from its folder.
            tools, doubts: user-defined tools and rules of the run, if the run was loaded from its folder; see `solve`.
            mcp: MCP servers of the run, if the run was loaded from its folder; see `solve`.
            mcp_allow: servers and tools whose calls need no approval; see `solve`.
            retries: only for an ended run; see `solve`.
            check, check_files, check_tries, check_timeout: only for an ended run; see `solve`. By default, the run
                keeps its check.
            listeners, control: see `solve`.
            more: `step`, `breakpoints`, `break_when`, `approve` and `on_pause` of `solve`. For an ended run, also
                fields of `RunOptions`, such as `context`.
            others: True to undo later changes of other runs in the run's sandbox. `undo` restores these changes.

        Raises:
            InputError: if the run cannot resume with these arguments, or another run has changed files and `others` is
                False. In this case, nothing is started.
            RunError: if the model, the sandbox or this program failed.
        """
        if text is not None and not isinstance(text, str):
            raise InputError(
                f"The first argument of resume() is a text for the model, not {text!r:.80}: give the rest by name."
            )
        if unknown := sorted(more.keys() - {*PAUSE_OPTIONS, *OPTION_DEFAULTS}):
            known = ", ".join((*PAUSE_OPTIONS, *OPTION_DEFAULTS))
            raise InputError(f"resume() has no option {unknown[0]!r}: use {known}.")
        pause = {name: more[name] for name in PAUSE_OPTIONS if name in more}
        changed = {name: more[name] for name in OPTION_DEFAULTS if more.get(name) is not None}
        given_check = {"check": check, "check_files": check_files, "check_tries": check_tries,
                       "check_timeout": check_timeout}  # fmt: skip
        given_check = {name: value for name, value in given_check.items() if value is not None}
        if self.context.session is not None:
            others_given = {"retries": retries, "mcp": mcp, "mcp_allow": mcp_allow}
            named = (name for name, value in others_given.items() if value is not None)
            if given := [*given_check, *changed, *named]:
                raise InputError(f"{given[0]} cannot change before the run has ended: leave it out.")
            if any(value is not None for value in (model, settings, limits)):
                self._work_control().change(model=model, settings=settings, limits=limits)
            if text:
                self._work_control().say(text)
            self._work_control().resume()
            return self

        def work(listeners: Iterable[Listener] = listeners) -> Coroutine[Any, Any, Run]:
            options = ResumeOptions(
                text, model, settings, limits, sandbox,
                {"isolation": isolation, "network": network, "allow": allow, "secrets": secrets}, api_base, api_key,
                listeners, control, pause, tools, mcp, mcp_allow, others, changed, retries, doubts, given_check,
            )  # fmt: skip
            return resume(self, options)

        loop = sandbox.channel.loop if isinstance(sandbox, ChannelSandbox) else self.context.loop
        if self.context.resume_display is not None and loop is not running_loop():
            self.context.resume_display(self, work)
            return self
        return run_in_loop(loop, work, "result.resume(...)")

    # --- decide on a call ---

    def edit(
        self, arguments: Mapping[str, Any] | None = None, *, tool: str | None = None, **changed: Any
    ) -> None:
        """Execute the next call with `arguments`, or with the proposed arguments and the new values in `changed`.

        >>> result.edit(command="ls")

        Raises:
            ControlError: if no call waits, or the arguments do not fit the tool.
        """
        if self.context.session is not None:
            self._work_control().edit(arguments, tool=tool, **changed)
            return
        call = self._waiting()
        tool, new = edited_call(recorded_toolbox(self), call.tool, call.arguments, arguments, changed, tool)
        self._decide(call, action="edit", tool=tool, arguments=new)

    def deny(self, reason: str | None = None) -> None:
        """Do not execute the next call. The model reads `reason` instead of a result."""
        if self.context.session is not None:
            self._work_control().deny(reason)
            return
        call = self._waiting()
        shown = str(ev.clean_text(given_text(reason or ""))).strip() or DENIED
        self._decide(call, action="skip", tool=call.tool, observation=shown)

    def observe(self, observation: str) -> None:
        """Show the model another observation for the newest call.

        Raises:
            ControlError: if the model has seen the earlier observation.
        """
        if self.context.session is not None:
            self._work_control().observe(observation)
            return
        calls = [call for step in self.trajectory.steps[-1:] for call in step.calls if call.finished]
        if not calls or self.trajectory.seen_by_model:
            raise ControlError("The model has seen every observation already: rewind first.")
        shown = str(ev.clean_text(given_text(observation)))
        self._decide(
            calls[-1], action="observe", tool=calls[-1].tool, observation=shown, original=calls[-1].output
        )

    def _waiting(self) -> Call:
        calls = [call for step in self.trajectory.steps[-1:] for call in step.calls if not call.finished]
        if not calls:
            raise ControlError(
                "No call waits to be executed: go back to one, as in result.rewind(5, before='call')."
            )
        return calls[0]

    def _decide(self, call: Call, **decided: Any) -> None:
        """Record a decision for a run that has no session."""
        self._check_journal()
        step = self.trajectory.steps[-1].number
        recorder = Recorder(self.folder, trajectory=self.trajectory)
        try:
            recorder.emit(ev.CallDecided(step=step, call_id=call.id, source="python", **decided))
        finally:
            recorder.close()

    # --- fork, compare, replay ---

    def fork(
        self,
        step: int,
        *,
        before: Before | None = None,
        isolation: str | None = None,
        network: str | None = None,
    ) -> Run:
        """Make a second run that begins with a copy of this run up to `step`, in a separate folder and sandbox.

        Both runs can resume, even at the same time. `close()` of the second run ends its sandbox.

        Args:
            step, before: as in `rewind`.
            isolation, network: options of the new sandbox if this run's sandbox is gone, by default as before. For a
                run that was loaded from its folder, `"process"` and an open network that is not the default must be
                named.

        Raises:
            InputError: if there is no such step, or its files are not stored. In this case, no run is made.
            SandboxError: if no second sandbox can be started.
        """
        self._check_journal()
        return self._travel(
            lambda: find_destination(self, step, "both", before),
            lambda run, destination: fork(run, destination, isolation, network),
            f"result.fork({step})",
        )

    @property
    def attempts(self) -> list[Branch]:
        """The current attempt, and the earlier attempts that rewinds have left, in the order of their last events."""
        return self.trajectory.branches

    def at(self, attempt: Branch | str) -> Run:
        """Return a view of this run at the end of an attempt, or at an event. The view can be read and compared.

        Raises:
            InputError: if `attempt` is neither an attempt nor the id of an event of this run.
        """
        tip = attempt.tip if isinstance(attempt, Branch) else attempt
        if not isinstance(tip, str):
            raise InputError(f"at() needs one of result.attempts, or the id of an event, not {tip!r:.80}.")
        try:
            then = self.trajectory.at(tip)
        except KeyError:
            raise InputError(
                f"There is no event {tip!r:.80} in this run: result.attempts lists its attempts."
            ) from None
        return type(self)(self.folder, then, has_journal=False)

    def compare(self, *others: Run) -> Comparison[Run]:
        """Compare this run with others, step by step. If no others are given, compare this run's attempts."""
        if strange := [other for other in others if not isinstance(other, RunRecord)]:
            raise InputError(
                f"Runs are compared with runs, not with {strange[0]!r:.80}: Run.load(folder) returns a run."
            )
        if others:
            return compare_runs([self, *others])
        branches = self.attempts
        names = [
            f"Attempt {number}{', current' if branch.head else ''}"
            for number, branch in enumerate(branches, 1)
        ]
        return compare_runs([self.at(branch) for branch in branches], names)

    def replay(self, ignore: Iterable[str] = (), **options: Any) -> ReplayReport[Run]:
        r"""Execute the recorded calls in a fresh sandbox, and report the differences.

        Args:
            ignore: regular expressions of expected differences in observations, such as `r"pid \d+"`.
            options: `ignore_files` are patterns of paths that are not compared. `inputs` are files for the input
                folder, if the record has none. `tools` are the run's user-defined tools, if the run was loaded from its
                folder. `isolation`, `network`, `image`, ... describe a sandbox that differs from the run's. For a run
                that was loaded, `"process"` and an open network that is not the default must be named.

        Raises:
            InputError: if an expression is invalid, or there is nothing to execute.
        """
        return self._do(lambda: replay(self, tuple(ignore), **options), "result.replay()")

    def rebuild(self, **options: Any) -> Run:
        """Execute all recorded calls again in a new sandbox. Return a new run that has files and can resume.

        Use this method for a record of another program, or for a run whose files were not stored.

        Args:
            options: `inputs` are files for the input folder. `output_dir` is the parent of the new run's folder, by
                default the parent of this run's folder, or `sandbox-runs` for a record of another program. `tools` are
                the run's user-defined tools. `isolation`, `image`, ... describe the sandbox.

        Raises:
            InputError: if there is nothing to execute.
        """
        return self._do(lambda: self._rebuild(options), "result.rebuild()")

    async def _rebuild(self, options: Mapping[str, Any]) -> Run:
        report = await rebuild(self, **options)
        report.run.rebuilt = report
        return report.run

    def close(self) -> ClosedSandbox:
        """Close the sandbox of a fork. The run keeps its files, and can resume in another sandbox."""
        return self._do(self._closed, "result.close()")

    async def _closed(self) -> ClosedSandbox:
        if self.context.owned and self.context.living() is not None:
            await self.context.close()
        return ClosedSandbox()

    def _work_control(self) -> RunControl:
        assert self._control is not None
        return self._control

    def _do(self, work: Callable[[], Coroutine[Any, Any, T]], call: str) -> T:
        async def work_or_sentence() -> T:
            try:
                return await work()
            except OSError as error:
                if not isinstance(error, JournalNotWrittenError) and isinstance(error, LLMSandboxError):
                    raise
                raise RunError(
                    f"The files of the run in {self.folder} cannot be read or written ({error}): remove this cause, "
                    "such as a full disk or too many open files, and repeat the call.",
                    self,
                ) from None

        return run_in_loop(self.context.loop, work_or_sentence, call)

    def _travel(
        self,
        find: Callable[[], Destination],
        work: Callable[[Run, Destination], Coroutine[Any, Any, T]],
        call: str,
    ) -> T:
        """Wait until the checkpoint of the last call is complete, and call `work` with the result of `find`."""
        session = self.context.session
        found = find() if session is None else None

        async def travel() -> T:
            if session is not None:
                await session.complete_checkpoint()
            return await work(self, found or find())

        return self._do(travel, call)

    def _check_journal(self) -> None:
        if not self.has_journal:
            raise InputError(
                "This is a view of a record, or a record in the original package's form, and cannot be changed: use "
                "the run itself, or result.rebuild()."
            )

    # --- export ---

    def to_html(self, path: str | Path) -> Path:
        """Write the run with its files as one HTML file, which any browser can open without a network.

        Raises:
            ExportError: if the file cannot be written.
        """
        return export_html(self, path)

    def to_dataframe(self) -> pandas.DataFrame:
        """Return a data frame with a row for each tool call, and a row for each step without a call. Needs pandas."""
        try:
            import pandas
        except ImportError as error:
            raise ImportError("to_dataframe needs pandas: run `pip install pandas`.") from error
        rows = [row for step in self.steps for row in _rows(step)]
        return pandas.DataFrame(rows, columns=_COLUMNS)

    @property
    def connections(self) -> list[ev.ConnectionMade]:
        """Allowed and refused connections out of the sandbox, if its network is an allow-list; see `open_sandbox`."""
        return list(self.trajectory.connections)

    @property
    def files(self) -> RunFiles:
        """The files that the model left in the output folder. A notebook shows a file by its kind."""
        return RunFiles(self.folder / FILES, ShownFile)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Display:
        """Return the card, or only a text if the cell shows the card already."""
        return ({"text/plain": repr(self)}, {}) if self.context.shown else run_display(self)

    def __repr__(self) -> str:
        live = self.context.session is not None
        state = self.trajectory.state(live=live).words
        answer = f", answer {_short(self.answer)!r}" if self.answer else ""
        files = f", {plural(len(self.files), 'file')}" if len(self.files) else ""
        if self.trajectory.finish is not None:
            state = f"{state} · {plural(self.trajectory.steps_done, 'step')}"
        state = f"{state}{answer}{files}"
        if self.trajectory.ready_at is not None and not live:
            state = f"{ready_text(self.trajectory.ready_at)}{files}"
        return f"<Run {_short(self.task)!r}: {state}, in {self.folder}>"


_COLUMNS = [
    "step", "call", "tool", "arguments", "output", "exit_code", "timed_out", "error", "duration",
    "changed_files", "thought", "reasoning", "prompt_tokens", "completion_tokens", "cost", "model_time",
    "finish_reason",
]  # fmt: skip


def _rows(step: Step) -> Iterator[dict[str, Any]]:
    of_step = {
        "step": step.number,
        "thought": step.thought,
        "reasoning": step.reasoning,
        "prompt_tokens": step.usage.prompt_tokens if step.usage else None,
        "completion_tokens": step.usage.completion_tokens if step.usage else None,
        "cost": step.usage.cost if step.usage else None,
        "model_time": step.model_time,
        "finish_reason": step.finish_reason,
    }
    if not step.calls:
        yield of_step
    for number, call in enumerate(step.calls):
        result = call.result
        yield of_step | {
            "call": number,
            "tool": call.tool,
            "arguments": call.arguments,
            "output": call.output,
            "exit_code": call.exit_code,
            "timed_out": bool(result and result.timed_out),
            "error": result.error if result else None,
            "duration": (result.duration or None) if result else None,
            "changed_files": [change.path for change in call.changes],
        }


def _short(text: str | None) -> str:
    return shorten(" ".join((text or "").split()), 60)
