"""Replay of a run: the recorded calls are executed again, and differences are reported."""

from __future__ import annotations

import asyncio
import dataclasses
import fnmatch
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any, Generic, TypeVar

from llm_sandbox_nb.agent.control.pause_rules import PauseRules
from llm_sandbox_nb.agent.conversation_state import decided_call, given_for
from llm_sandbox_nb.agent.errors import InputError, StopRun
from llm_sandbox_nb.agent.inputs import InputFiles, check_inputs
from llm_sandbox_nb.agent.mcp_client.definition import DefinedTool, Definition
from llm_sandbox_nb.agent.mcp_client.results import outcome_of
from llm_sandbox_nb.agent.recorder import Recorder, new_run_folder
from llm_sandbox_nb.agent.run_limits import RunLimits
from llm_sandbox_nb.agent.run_record import RunRecord
from llm_sandbox_nb.agent.run_spec import SandboxOpening
from llm_sandbox_nb.agent.session import Session
from llm_sandbox_nb.agent.tools.tool import Outcome, Tool, ToolContext
from llm_sandbox_nb.formatting import plural
from llm_sandbox_nb.model.contract import DeltaCallback, ModelSettings, Reply
from llm_sandbox_nb.runs.aligned_steps import without_output_files
from llm_sandbox_nb.runs.checkpoint_files import starting_files
from llm_sandbox_nb.runs.end_files import EndFiles, left_out, printable
from llm_sandbox_nb.runs.event_loops import AwaitableResult
from llm_sandbox_nb.runs.recorded_spec import recorded_shell, recorded_spec, sandbox_options
from llm_sandbox_nb.runs.rewind_points import files_after
from llm_sandbox_nb.sandbox.errors import HistoryError
from llm_sandbox_nb.sandbox.isolations import has_own_root
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.journal import load_text
from llm_sandbox_nb.trajectory.mcp_calls import recorded_servers
from llm_sandbox_nb.trajectory.messages import message_text
from llm_sandbox_nb.trajectory.replay_outcome import write_outcome
from llm_sandbox_nb.trajectory.run_folder import RUNS
from llm_sandbox_nb.trajectory.trajectory import Call, Step

R = TypeVar("R", bound=RunRecord)
# The second part of the expression matches every other path, so that hostile text does not take quadratic time.
_OWN_ROOT = re.compile(r"(/\S*?/llm-sandbox-\w+(?=/))|/\S*+")
_SHOWN_CHARACTERS = 300


@dataclass(frozen=True)
class Difference:
    """The differences between a step and its replay."""

    step: int
    recorded: str = ""
    """The recorded observations, without ignored parts. Empty if the replay has the same observations and outputs.

    If only the part of an output differs that the model was not shown, this is the first differing line of the output.
    """
    now: str = ""
    files: tuple[str, ...] = ()
    """Paths that differ after this step, and did not differ after an earlier step."""

    def __str__(self) -> str:
        lines = [f"Step {self.step}:"]
        if self.recorded != self.now:
            lines += [f"  recorded: {_short(self.recorded)}", f"  now:      {_short(self.now)}"]
        lines += [f"  file: {printable(path)}" for path in self.files[:20]]
        if len(self.files) > 20:
            lines.append(f"  and {plural(len(self.files) - 20, 'more file')}")
        return "\n".join(lines)


@dataclass
class ReplayReport(AwaitableResult, Generic[R]):
    """The result of a replay."""

    run: R
    """The new run, which has its own folder."""
    steps: int
    """Number of replayed steps."""
    differences: list[Difference] = field(default_factory=list)
    note: str = ""
    """Remark on files and outputs that were not compared, with the reason. Empty if all were compared."""

    @property
    def ok(self) -> bool:
        """True if nothing differs."""
        return not self.differences

    @property
    def first(self) -> Difference | None:
        """The first step that differs."""
        return self.differences[0] if self.differences else None

    def __str__(self) -> str:
        if self.ok:
            lines = [f"Replayed {plural(self.steps, 'step')}: nothing differs."]
        else:
            number = len(self.differences)
            lines = [
                f"Replayed {plural(self.steps, 'step')}: {number} differ, the first is step {self.differences[0].step}."
            ]
            lines += [str(difference) for difference in self.differences[:20]]
        return "\n".join([*lines, self.note] if self.note else lines)

    __repr__ = __str__


async def replay(
    run: R,
    ignore: tuple[str, ...] = (),
    *,
    ignore_files: Iterable[str] = (),
    inputs: InputFiles = None,
    output_dir: Any = None,
    tools: Iterable[Callable[..., Any]] | None = None,
    **options: Any,
) -> ReplayReport[R]:
    """Execute the recorded calls in a fresh sandbox, and compare the results; see `Run.replay`."""
    try:
        patterns = [re.compile(pattern) for pattern in ignore]
    except re.error as error:
        raise InputError(f"{error.pattern!r} is not a regular expression: {error}.") from error
    new = await play(run, "replay_of", inputs, output_dir, options, tools)
    found = await asyncio.to_thread(report, run, new, patterns, tuple(ignore_files))
    write_outcome(new.folder, [difference.step for difference in found.differences])
    return found


async def rebuild(
    run: R,
    *,
    inputs: InputFiles = None,
    output_dir: Any = None,
    tools: Iterable[Callable[..., Any]] | None = None,
    **options: Any,
) -> ReplayReport[R]:
    """Execute the recorded calls in a new run; see `Run.rebuild`. Return the new run and its differences."""
    new = await play(run, "rebuilt_from", inputs, output_dir, options, tools)
    return await asyncio.to_thread(report, run, new, list[re.Pattern[str]](), ())


class RecordedModel:
    """Model that returns the replies of a record, in order. The calls have the arguments that were executed."""

    def __init__(self, run: RunRecord) -> None:
        self.name = run.model
        self.scripted = bool(run.trajectory.start and run.trajectory.start.scripted)
        self._steps = [step for step in run.steps if step.replied]
        replied = [event for event in run.trajectory.path if isinstance(event, ev.ModelReplied)]
        self._messages = [event.message for event in replied]

    async def reply(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]],
        settings: ModelSettings,
        on_delta: DeltaCallback | None = None,
    ) -> Reply:
        """Return the next recorded reply. Raises StopRun if the record has no further reply."""
        number = sum(message.get("role") == "assistant" for message in messages)
        if number >= len(self._steps):
            raise StopRun("steps")
        step, message = self._steps[number], self._messages[number]
        return Reply(
            message=message,
            text=message_text(message),
            reasoning=step.reasoning or None,
            calls=tuple(decided_call(call) for call in step.calls),
            usage=step.usage,
            finish_reason=step.finish_reason,
        )


class RecordedResults:
    """Recorded results of MCP calls. A replay uses these results instead of calling the servers."""

    def __init__(self, run: RunRecord) -> None:
        self._run = run

    def tool(self, definition: Definition) -> Tool:
        """Return a tool that returns the recorded results of its calls, in order."""
        calls = [call for step in self._run.steps for call in step.calls if call.tool == definition.name]
        results = [call.result for call in calls if call.started is not None and call.result]
        return _RecordedResultTool(definition, self._run.folder, results)


class _RecordedResultTool(DefinedTool):
    def __init__(self, definition: Definition, folder: Path, results: Iterable[ev.CallFinished]) -> None:
        super().__init__(definition)
        self._folder = folder
        self._results = iter(results)

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> Outcome:
        result = next(self._results, None)
        if result is None:
            return Outcome("Error: the record has no result of this call.", error="tool_failed")
        try:
            raw = json.loads(load_text(self._folder, result.raw_result) or "null")
        except (OSError, ValueError, RecursionError):
            raw = None
        if not isinstance(raw, dict) or not ev.is_flat(raw):
            return Outcome(result.body, error=result.error)
        return await outcome_of(self.name, raw, context)


async def play(
    run: R,
    label: str,
    inputs: InputFiles,
    output_dir: str | Path | None,
    options: Mapping[str, Any],
    tools: Iterable[Callable[..., Any]] | None = None,
) -> R:
    """Execute the calls of a record in a fresh sandbox. Return the new run, whose settings name `run` under `label`.

    Raises:
        InputError: if there is nothing to execute, or the new run cannot start with these arguments.
        RunError: if the sandbox or this program failed.
    """
    replied = [step for step in run.steps if step.replied]
    if not replied:
        raise InputError("There is no reply in this record, so there is nothing to execute.")
    calls = [call for step in run.steps for call in step.calls]
    spec = recorded_spec(run, RecordedModel(run), tools, RecordedResults(run).tool)
    servers = recorded_servers(run.trajectory.start)
    spec = dataclasses.replace(
        spec,
        inputs=check_inputs(inputs),
        starting_files=None if inputs is not None else starting_files(run),
        limits=RunLimits(max(spec.limits.steps, len(run.steps) + 1), tokens=None, cost=None, time=None),
        pause_rules=PauseRules(),
        given={call.id: text for call in calls if (text := given_for(call)) is not None},
        replies=len(replied),
        provenance={
            label: run.id or run.folder.name,
            **recorded_shell(run),
            **({"mcp": servers} if servers else {}),
        },
    )
    opening = SandboxOpening.new(sandbox_options(run, options))
    default_parent = run.folder.parent if run.has_journal else Path(RUNS)
    parent = default_parent if output_dir is None else Path(output_dir)
    recorder = Recorder(new_run_folder(parent, None))
    new = type(run)(recorder.folder, recorder.trajectory)
    await Session(spec, recorder, new, opening, new.fresh_control()).run()
    new.context.spec = None
    return new


def report(run: R, new: R, patterns: list[re.Pattern[str]], ignore_files: tuple[str, ...]) -> ReplayReport[R]:
    """Compare a run and its replay."""
    steps = [step for step in run.steps if step.replied]
    made = ReplayReport(new, len([step for step in new.steps if step.replied]))
    later = {step.number: step for step in new.steps}
    known: set[str] = set()
    others: set[str] = set()
    cut: int | None = None
    for number, step in enumerate(steps, 1):
        other = later.get(number)
        texts = [_observed(observed, owner, patterns) for observed, owner in ((step, run), (other, new))]
        if texts[0] == texts[1] and other is not None:
            outputs = [_cut_outputs(*one, patterns) for one in ((step, run), (other, new))]
            texts = ["", ""]
            if outputs[0] is not None and outputs[1] is not None:
                texts = _first_different_line(outputs[0], outputs[1])
            calls = [*step.calls, *other.calls]
            if cut is None and (
                None in outputs or any(call.result and call.result.truncated for call in calls)
            ):
                cut = number
        files: list[str] = []
        if not made.note:
            try:
                files, of_others = _other_files(run, new, step.number, number, ignore_files)
                others |= of_others
            except HistoryError as error:
                made.note = f"The files were not compared from step {number} on: {error}"
        fresh = tuple(path for path in files if path not in known)
        known |= set(files)
        if texts[0] != texts[1] or fresh:
            same = texts[0] == texts[1]
            made.differences.append(
                Difference(number, "" if same else texts[0], "" if same else texts[1], fresh)
            )
    partly = "" if cut is None else f"In step {cut}, only the recorded part of the output is compared."
    made.note = " ".join(filter(None, (made.note, left_out(others), partly)))
    return made


def _observed(step: Step | None, run: RunRecord, patterns: list[re.Pattern[str]]) -> str:
    if step is None:
        return "(this step was not reached)"
    return _comparable("\n".join(_original(call) for call in step.calls), run, patterns)


def _cut_outputs(step: Step, run: RunRecord, patterns: list[re.Pattern[str]]) -> str | None:
    """Return the recorded outputs of which the model was shown only the beginning and the end.

    Return None if the record does not have these outputs: the file of an output is missing or damaged, or the record
    was read from a format that holds only what the model was shown.
    """
    texts = []
    for call in step.calls:
        if call.result is not None and without_output_files(body := _original(call)) != body:
            if not run.has_journal:
                return None
            for output in (call.result.stdout, call.result.stderr):
                try:
                    texts.append(load_text(run.folder, output))
                except OSError:
                    return None
    return _comparable("\n".join(texts), run, patterns)


def _first_different_line(recorded: str, now: str) -> list[str]:
    """Return the first different line of each text, or two empty texts if no line differs."""
    lines = zip_longest(recorded.split("\n"), now.split("\n"), fillvalue="(no such line)")
    return list(next((pair for pair in lines if pair[0] != pair[1]), ("", "")))


def _comparable(text: str, run: RunRecord, patterns: list[re.Pattern[str]]) -> str:
    """Remove what differs in each run and what the patterns match."""
    protection = run.trajectory.sandbox.protection if run.trajectory.sandbox else {}
    if has_own_root(protection.get("isolation")):
        text = _OWN_ROOT.sub(lambda found: "" if found[1] else found[0], text)
    text = without_output_files(text)
    for pattern in patterns:
        text = pattern.sub("…", text)
    return text


def _original(call: Call) -> str:
    """Return the result of a call. If a person replaced the observation, return the result before the replacement."""
    for decision in call.decisions:
        if decision.action == "observe" and isinstance(decision.original, str) and call.result:
            return call.result.model_copy(update={"observation": decision.original}).body
    return call.body


def _other_files(
    run: RunRecord, new: RunRecord, step: int, number: int, ignored: tuple[str, ...]
) -> tuple[list[str], set[str]]:
    """Return the paths that differ, and the paths that are not compared because others have changed them."""
    pair = []
    for compared, place in ((run, step), (new, number)):
        try:
            checkpoint = files_after(compared.trajectory, place)
        except ValueError:
            return [], set()
        if checkpoint is None:
            raise HistoryError(f"the files of {compared.folder.name} are not kept.")
        pair.append(EndFiles(compared, checkpoint))
    differing = EndFiles.differing(pair)
    found = [path for path in differing if not any(fnmatch.fnmatch(path, pattern) for pattern in ignored)]
    return found, pair[0].others | pair[1].others


def _short(text: str) -> str:
    text = text.replace("\n", "\\n")
    text = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]} …"
    return printable(text)
