"""Playing a run again, and what comes out otherwise: a regression test of tools and images."""

from __future__ import annotations

import asyncio
import fnmatch
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from llm_sandbox_nb.agent.aligning import shown
from llm_sandbox_nb.agent.comparing import EndFiles
from llm_sandbox_nb.agent.comparison_text import printable
from llm_sandbox_nb.agent.failures import InputError
from llm_sandbox_nb.agent.home import Awaitable
from llm_sandbox_nb.agent.inputs import InputFiles
from llm_sandbox_nb.agent.recorded import play
from llm_sandbox_nb.sandbox.errors import HistoryError
from llm_sandbox_nb.trajectory.places import files_after
from llm_sandbox_nb.trajectory.trajectory import Call, Step

if TYPE_CHECKING:
    from llm_sandbox_nb.agent.run import Run

_SPILL = r"/\S*/(?:tmp/llm-sandbox|spill)/[0-9a-f]+\.std(?:out|err)"
_LONGEST = 300


@dataclass(frozen=True)
class Difference:
    """What came out otherwise at one step."""

    step: int
    recorded: str = ""
    """The observations as recorded, without what was declared to differ; empty when they are the same."""
    now: str = ""
    files: tuple[str, ...] = ()
    """Paths that are otherwise after this step, and were not after the one before."""

    def __str__(self) -> str:
        lines = [f"Step {self.step}:"]
        if self.recorded != self.now:
            lines += [f"  recorded: {_short(self.recorded)}", f"  now:      {_short(self.now)}"]
        lines += [f"  file: {printable(path)}" for path in self.files[:20]]
        if len(self.files) > 20:
            lines.append(f"  and {len(self.files) - 20} more files")
        return "\n".join(lines)


@dataclass
class Report(Awaitable):
    """What a replay has shown."""

    run: Run
    """The new run, with a folder of its own."""
    steps: int
    """Steps that were played."""
    differences: list[Difference] = field(default_factory=list)
    note: str = ""
    """Why files were not compared, if they were not."""

    @property
    def ok(self) -> bool:
        """Whether nothing came out otherwise."""
        return not self.differences

    @property
    def first(self) -> Difference | None:
        """The first step that came out otherwise."""
        return self.differences[0] if self.differences else None

    def __str__(self) -> str:
        if self.ok:
            lines = [f"Replayed {self.steps} steps: nothing differs."]
        else:
            number = len(self.differences)
            lines = [
                f"Replayed {self.steps} steps: {number} differ, the first is step {self.differences[0].step}."
            ]
            lines += [str(one) for one in self.differences[:20]]
        return "\n".join([*lines, self.note] if self.note else lines)

    def __repr__(self) -> str:
        return str(self)


async def replay(
    run: Run,
    ignore: tuple[str, ...] = (),
    *,
    ignore_files: Iterable[str] = (),
    inputs: InputFiles = None,
    output_dir: Any = None,
    **options: Any,
) -> Report:
    """See `Run.replay`."""
    try:
        patterns = [re.compile(one) for one in (*ignore, _SPILL)]
    except re.error as error:
        raise InputError(f"{error.pattern!r} is no regular expression: {error}.") from error
    new = await play(run, "replay_of", inputs, output_dir, options)
    new.place.job = None
    return await asyncio.to_thread(report, run, new, patterns, tuple(ignore_files))


def report(run: Run, new: Run, patterns: list[re.Pattern[str]], ignore_files: tuple[str, ...]) -> Report:
    """What differs between a run and its replay."""
    steps = [step for step in run.steps if step.replied]
    made = Report(new, len([step for step in new.steps if step.replied]))
    later = {step.number: step for step in new.steps}
    known: set[str] = set()
    for number, step in enumerate(steps, 1):
        other = later.get(number)
        texts = [_observed(one, who, patterns) for one, who in ((step, run), (other, new))]
        files: list[str] = []
        if not made.note:
            try:
                files = _other_files(run, new, step.number, number, ignore_files)
            except HistoryError as error:
                made.note = f"The files were not compared from step {number} on: {error}"
        fresh = tuple(path for path in files if path not in known)
        known |= set(files)
        if texts[0] != texts[1] or fresh:
            same = texts[0] == texts[1]
            made.differences.append(
                Difference(number, "" if same else texts[0], "" if same else texts[1], fresh)
            )
    return made


def _observed(step: Step | None, run: Run, patterns: list[re.Pattern[str]]) -> str:
    if step is None:
        return "(this step was not reached)"
    text = "\n".join(_original(call) for call in step.calls)
    protection = run.trajectory.sandbox.protection if run.trajectory.sandbox else {}
    if protection.get("isolation") == "process":
        text = re.sub(r"/\S*?/llm-sandbox-\w+(?=/)", "", text)
    for pattern in patterns:
        text = pattern.sub("…", text)
    return text


def _original(call: Call) -> str:
    """What a call gave, also when a person had the model shown something else."""
    for decision in call.decisions:
        if decision.action == "observe" and isinstance(decision.original, str):
            return shown(Call(call.id, call.tool, "", result=_with(call, decision.original)))
    return shown(call)


def _with(call: Call, observation: str) -> Any:
    assert call.result is not None
    return call.result.model_copy(update={"observation": observation})


def _other_files(run: Run, new: Run, step: int, number: int, ignored: tuple[str, ...]) -> list[str]:
    pair = []
    for one, place in ((run, step), (new, number)):
        try:
            checkpoint = files_after(one.trajectory, place)
        except ValueError:
            return []
        if checkpoint is None:
            raise HistoryError(f"those of {one.folder.name} are not kept.")
        pair.append(EndFiles(one, checkpoint))
    differing = EndFiles.differing(pair)
    return [path for path in differing if not any(fnmatch.fnmatch(path, pattern) for pattern in ignored)]


def _short(text: str) -> str:
    text = text.replace("\n", "\\n")
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"
    return printable(text)
