"""Runs side by side: steps, the first that differs, tokens, cost, time, and the files in the end."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from html import escape
from itertools import chain, groupby, zip_longest
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from llm_sandbox_nb.agent.errors import InputError
from llm_sandbox_nb.agent.run_record import RunRecord
from llm_sandbox_nb.formatting import format_cost, format_count, format_duration, plural
from llm_sandbox_nb.runs.checkpoint_files import CheckpointFiles
from llm_sandbox_nb.runs.event_loops import Awaitable
from llm_sandbox_nb.sandbox.errors import HistoryError, OutputLimitExceededError
from llm_sandbox_nb.sandbox.history.diff import differing_contents
from llm_sandbox_nb.sandbox.history.manifest import Entry
from llm_sandbox_nb.sandbox.isolations import has_own_root
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.trajectory import Call, Step
from llm_sandbox_nb.trajectory.unified_diff import COMPARED_BYTES, unified

if TYPE_CHECKING:
    import pandas

R = TypeVar("R", bound=RunRecord)
_DIFF_CHARACTERS = 256 * 1024
_ROOT = "/testbed"
Likeness = Literal["same", "results", "calls"]
"""Whether the steps of a row are the same, differ in results only, or in what was called (or are missing)."""


_ROWS = 200
_FILES = 100
_LONGEST = 400
_CELL = 36
"""Characters of a cell of the table in text."""
_LINE = 110
"""Characters of the line that decides, in text."""
_NAMED = 8
_WORD = re.compile(r"\s+|\w+|[^\w\s]")
_WRAPS = "white-space: pre-wrap; word-break: normal; overflow-wrap: anywhere"
_MUCH_IN_COMMON = 0.4
"""Share of words; texts with less in common would be marked all over."""
_WORDS = {"same": "the same", "results": "other results", "calls": "other calls"}
_COLOURS = {"same": "transparent", "results": "rgba(255, 193, 7, .25)", "calls": "rgba(244, 67, 54, .18)"}


@dataclass(frozen=True)
class AlignedRow:
    """The steps of all runs at one point; None where a run has none."""

    steps: tuple[Step | None, ...]
    likeness: Likeness


@dataclass(frozen=True)
class Totals:
    """What one run has used. Times are seconds; `cost` is US dollars, None when it is not known."""

    name: str
    steps: int
    stop_reason: str | None
    state: str
    """How it ended, in words."""
    answer: str | None
    usage: ev.Usage
    model_time: float
    tool_time: float
    scripted: bool = False
    """Whether the replies were read from a file, which costs nothing."""


@dataclass(frozen=True)
class ComparedFile:
    """One path that differs in the end: for each run its size and digest, None where it has none."""

    path: str
    states: tuple[str | None, ...]


@dataclass
class Comparison(Awaitable, Generic[R]):
    """What `run.compare` gives. Shown as a table in a notebook.

    >>> comparison.divergence, comparison.diff("/testbed/answer.txt")
    """

    runs: list[R]
    rows: list[AlignedRow]
    totals: list[Totals]
    files: dict[str, ComparedFile] = field(default_factory=dict)
    """Paths that differ in the end, anywhere in the sandbox."""
    note: str = ""
    """Why files are not compared, if they are not."""
    others: tuple[str, ...] = ()
    """Paths that were changed in a run's sandbox, and not by a step of the run: these changes are not compared."""
    _files: list[EndFiles] = field(default_factory=list, repr=False)

    @property
    def divergence(self) -> int | None:
        """Index in `rows` of the first that differs; None when none does."""
        return next((index for index, row in enumerate(self.rows) if row.likeness != "same"), None)

    @property
    def first_different_step(self) -> int | None:
        """The number of the first step that differs; None when none does."""
        if self.divergence is None:
            return None
        return min(step.number for step in self.rows[self.divergence].steps if step is not None)

    def diff(self, path: str, first: int = 0, second: int = 1) -> str:
        """How a file of one run differs from that of another, as a unified diff; else a sentence why there is none.

        Raises:
            KeyError: the path is the same in all runs, or in none.
        """
        if path not in self.files:
            raise KeyError(f"{path} does not differ; those that do: {', '.join(self.files) or 'none'}.")
        try:
            texts = [self._files[one].text(path) for one in (first, second)]
        except (HistoryError, OutputLimitExceededError, UnicodeDecodeError) as error:
            return f"{path} is not shown as a diff: {error}"
        made, note = unified(path.lstrip("/"), texts[0], texts[1], _DIFF_CHARACTERS)
        return made or note or "The content is the same; its mode differs."

    def to_dataframe(self) -> pandas.DataFrame:
        """One row for each aligned row of steps, with columns for each run. Needs pandas."""
        import pandas

        return pandas.DataFrame([self._frame_row(row) for row in self.rows])

    def _frame_row(self, row: AlignedRow) -> dict[str, Any]:
        made: dict[str, Any] = {"likeness": row.likeness}
        for total, step in zip(self.totals, row.steps, strict=True):
            usage = (step.usage if step else None) or ev.Usage()
            calls = step.calls if step else []
            made |= {
                f"{total.name}: step": step.number if step else None,
                f"{total.name}: calls": [[call.tool, call.arguments] for call in calls],
                f"{total.name}: outputs": [call.output for call in calls],
                f"{total.name}: tokens": usage.total_tokens,
                f"{total.name}: cost": usage.cost,
                f"{total.name}: model time": step.model_time if step else None,
            }
        return made

    def __str__(self) -> str:
        return _as_text(self)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return _as_html(self)


def compare_runs(runs: Sequence[R], names: Sequence[str] = ()) -> Comparison[R]:
    """Set runs side by side.

    Raises:
        InputError: there are fewer than two.
    """
    if len(runs) < 2:
        raise InputError("There is one attempt only: name another run to compare this one with.")
    rows = align([[step for step in run.steps if step.replied] for run in runs])
    named = names or [f"{number}: {run.folder.name}" for number, run in enumerate(runs, 1)]
    totals = [_totals(run, name) for run, name in zip(runs, named, strict=True)]
    made = Comparison(list(runs), rows, totals)
    try:
        made._files = [EndFiles(run, run.trajectory.files) for run in runs]
    except HistoryError as error:
        made.note = f"The files are not compared: {error}"
        return made
    made.files = EndFiles.differing(made._files)
    made.others = tuple(sorted(set().union(*(one.others for one in made._files))))
    return made


def _totals(run: RunRecord, name: str) -> Totals:
    results = [call.result for step in run.steps for call in step.calls if call.result]
    return Totals(
        name=name,
        steps=run.trajectory.steps_done,
        stop_reason=run.stop_reason,
        state=run.trajectory.state(live=False).words if run.trajectory.finish else "No end",
        answer=run.answer,
        usage=run.usage,
        model_time=sum(step.model_time for step in run.steps),
        tool_time=sum(result.duration for result in results),
        scripted=run.trajectory.scripted,
    )


class EndFiles:
    """The files of one run at a checkpoint."""

    def __init__(self, run: RunRecord, checkpoint: str | None) -> None:
        """Raises HistoryError when they are not kept."""
        self._reader = CheckpointFiles(run)
        if checkpoint is None or not self._reader.has(checkpoint):
            raise HistoryError(f"those of {run.folder.name} are not kept.")
        manifest, own = self._reader.manifest(checkpoint), self._reader.own(checkpoint)
        root = _working_directory(run, manifest)
        self.entries = {_under(path, root): entry for path, entry in own.items()}
        self.others = {_under(path, root) for path in differing_contents(own, manifest)}
        """Paths that others have changed: `entries` has them as they were before."""

    def state(self, path: str) -> str | None:
        """Its type, mode and content in a form that can be compared and read; None for what is as in the image."""
        entry = self.entries.get(path)
        return None if entry is None or entry.base else self._described(entry)

    def known_state(self, path: str) -> str | None:
        """The same for what is as in the image too, as far as the history knows the image; None for what is deleted."""
        if (state := self.state(path)) or self.hides(path):
            return state
        entry = self._reader.of_image(path)
        return None if entry is None else self._described(entry)

    @staticmethod
    def _described(entry: Entry) -> str:
        if entry.type == "l":
            return f"link to {entry.target}"
        if entry.type == "d":
            return f"folder, mode {entry.mode:o}"
        content = hashlib.sha256()
        for chunk in entry.chunks or ():
            content.update(b"%d " % chunk.offset + chunk.digest)
        return f"{entry.size} bytes, mode {entry.mode:o}, content {content.hexdigest()[:16]}"

    def hides(self, path: str) -> bool:
        """Whether the image's file at a path was deleted: the manifest lists its folder, and not the file."""
        above = self.entries.get(str(PurePosixPath(path).parent))
        return path not in self.entries and above is not None and not above.base

    def text(self, path: str) -> str:
        """The content of a file, empty where there is none. Raises HistoryError, UnicodeDecodeError, ..."""
        entry = self.entries.get(path)
        return "" if entry is None else self._reader.read(entry, COMPARED_BYTES).decode("utf-8")

    @staticmethod
    def differing(files: list[EndFiles]) -> dict[str, ComparedFile]:
        """Paths that are not the same, but for times and for folders."""
        paths = sorted({path for one in files for path, entry in one.entries.items() if entry.type != "d"})
        found: dict[str, ComparedFile] = {}
        for path in paths:
            states = tuple(one.state(path) for one in files)
            if None in states and len(set(states)) > 1:
                # Only written anew in some sandboxes, as an engine does with /etc/hosts: the content tells.
                states = tuple(one.known_state(path) for one in files)
            told = any(state is not None for state in states)
            if len(set(states)) > 1 or (not told and len({one.hides(path) for one in files}) > 1):
                found[path] = ComparedFile(path, states)
        return found


def _working_directory(run: RunRecord, manifest: dict[str, Entry] | Any) -> str:
    """Where sandboxes have roots of their own, the only folder that the manifest lists."""
    protection = run.trajectory.sandbox.protection if run.trajectory.sandbox else {}
    if not has_own_root(protection.get("isolation")):
        return _ROOT
    return min(manifest, key=len, default=_ROOT)


def _under(path: str, root: str) -> str:
    inside = path == root or path.startswith(f"{root}/")
    return _ROOT + path[len(root) :] if inside and root != "/" else path


def left_out(others: Collection[str]) -> str:
    """What is not compared, in a sentence; empty when all is."""
    if not others:
        return ""
    names = ", ".join(printable(path) for path in sorted(others)[:_NAMED])
    more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
    changed = plural(
        len(others),
        "path that was changed, but not by a step of this run, is",
        "paths that were changed, but not by a step of this run, are",
    )
    return f"{changed} not compared: {names}{more}."


# --- steps side by side ---


def align(runs: Sequence[Sequence[Step]]) -> list[AlignedRow]:
    """The steps of all runs in rows; the first run sets the order, and what it lacks stands between its steps."""
    first, others = runs[0], runs[1:]
    pairs = [_pairs(first, other) for other in others]
    rows: list[AlignedRow] = []
    for place in range(len(first) + 1):
        between = [inserted.get(place, []) for _, inserted in pairs]
        for number in range(max((len(steps) for steps in between), default=0)):
            rows.append(_row((None, *(steps[number] if number < len(steps) else None for steps in between))))
        if place < len(first):
            rows.append(_row((first[place], *(matched.get(place) for matched, _ in pairs))))
    return rows


def _pairs(first: Sequence[Step], other: Sequence[Step]) -> tuple[dict[int, Step], dict[int, list[Step]]]:
    """Steps of `other` by the place in `first` that they stand beside, and those that stand before a place."""
    matched: dict[int, Step] = {}
    inserted: dict[int, list[Step]] = {}
    matcher = SequenceMatcher(None, [called(step) for step in first], [called(step) for step in other], False)
    for _, start, end, low, high in matcher.get_opcodes():
        beside = min(end - start, high - low)
        for number in range(beside):
            matched[start + number] = other[low + number]
        if high - low > beside:
            inserted[end] = list(other[low + beside : high])
    return matched, inserted


def _row(steps: tuple[Step | None, ...]) -> AlignedRow:
    there = [step for step in steps if step is not None]
    if len(there) < len(steps) or len({called(step) for step in there}) > 1:
        return AlignedRow(steps, "calls")
    results = {tuple(shown(call) for call in step.calls) for step in there}
    return AlignedRow(steps, "same" if len(results) == 1 else "results")


def called(step: Step) -> str:
    """What a step did, in a form that can be compared; a reply without a call is what it said."""
    if not step.calls:
        return json.dumps(["", step.thought.strip()])
    calls = [
        [call.tool, call.raw_arguments if call.arguments is None else call.arguments] for call in step.calls
    ]
    return json.dumps(calls, sort_keys=True)


def shown(call: Call) -> str:
    """The result of a call, without the notes on remaining steps and on who changed the call."""
    return call.result.body if call.result else call.live_output


# --- as text and as HTML ---


def _as_text(made: Comparison[Any]) -> str:
    """A short table: how each run ended, what it used, where they part, and which files differ at the end."""
    names = [total.name for total in made.totals]
    told = [printable(total.answer) if total.answer else "none" for total in made.totals]
    place = _parts_at(told)
    table = [["", "answer", "ended", "steps", "tokens", "cost", "time"]]
    for total, answer in zip(made.totals, told, strict=True):
        steps, tokens, cost, _ = _figures(total)
        time = format_duration(total.model_time + total.tool_time)
        table.append([total.name, _window(answer, place, _CELL), total.state, steps, tokens, cost, time])
    table = [[_short(cell, _CELL) for cell in row] for row in table]
    wide = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, wide, strict=True)).rstrip() for row in table
    ]
    lines += ["", _divergence_text(made)]
    if made.divergence is not None:
        lines += _deciding_lines(names, made.rows[made.divergence])
    files = f"{_differing_files(made)}{': ' if made.files else ''}{_named(made.files)}. {left_out(made.others)}".strip()
    return "\n".join([*lines, made.note or files])


def _deciding_lines(names: Sequence[str], row: AlignedRow) -> list[str]:
    """What each run did at the step where they part: the first line that differs, with the place that differs in it."""
    told = [_told(step, row.likeness) for step in row.steps]
    lines = next(
        (
            found
            for found in zip_longest(*(text.splitlines() for text in told), fillvalue="")
            if len(set(found)) > 1
        ),
        tuple(told),
    )
    texts = [printable(line).strip() or "(nothing)" for line in lines]
    place, wide = _parts_at(texts), max(map(len, names))
    return [
        f"  {name:<{wide}}  {_window(text, place, _LINE)}" for name, text in zip(names, texts, strict=True)
    ]


def _told(step: Step | None, likeness: Likeness) -> str:
    """The calls of a step; where all runs made the same ones, their results."""
    if step is None:
        return "no such step"
    if likeness == "results":
        return "\n".join(shown(call) for call in step.calls)
    return "\n".join(map(_call, step.calls)) or step.thought


def _parts_at(texts: Sequence[str]) -> int:
    """How many characters all texts begin with alike."""
    return next(
        (place for place, found in enumerate(zip(*texts, strict=False)) if len(set(found)) > 1),
        min(map(len, texts)),
    )


def _window(text: str, place: int, most: int) -> str:
    """At most so many characters of a text, with those at `place` among them."""
    start = max(0, min(place - most // 3, len(text) - most + 2)) if len(text) > most else 0
    return _short(f"… {text[start:]}" if start else text, most)


def _named(files: Collection[str]) -> str:
    names = ", ".join(printable(path) for path in list(files)[:_NAMED])
    return f"{names} and {len(files) - _NAMED} more" if len(files) > _NAMED else names


def _answers(made: Comparison[Any]) -> list[str]:
    """The answers where they differ."""
    if len({total.answer for total in made.totals}) < 2:
        return []
    return [_short(printable(total.answer or "none"), 200) for total in made.totals]


def _as_html(made: Comparison[Any]) -> str:
    """The same as tables."""
    heads = "".join(
        f'<th style="text-align: left">{escape(total.name)}<br><small>{escape(_facts(total))}</small></th>'
        for total in made.totals
    )
    rows = _html_rows(made.rows[:_ROWS], made.divergence)
    more = _more(len(made.rows), _ROWS, "rows") if len(made.rows) > _ROWS else ""
    parts = [
        "".join(
            f"<p><b>{escape(total.name)}</b>: {told}</p>"
            for total, told in zip(made.totals, _marked(_answers(made)), strict=False)
        ),
        f"<p>{escape(_divergence_text(made))}</p>",
        f'<table class="lsn-comparison"><thead><tr><th style="width: 7em"></th>{heads}</tr></thead>',
        f"<tbody>{rows}</tbody></table>",
        f"<p>{escape(more)}</p>" if more else "",
        _html_files(made),
    ]
    return "".join(parts)


def _html_rows(rows: Sequence[AlignedRow], divergence: int | None) -> str:
    """A row for each step; steps that are the same in all runs are one row."""
    parts, index = [], 0
    for likeness, group in groupby(rows, key=lambda row: row.likeness):
        steps = [row.steps[0] for row in group]
        alike = [step.number for step in steps if step]
        if likeness == "same" and len(alike) > 1:
            parts.append(
                f"<tr><td>the same</td><td colspan={len(rows[index].steps)} style='text-align: left'>"
                f"steps {alike[0]} to {alike[-1]}</td></tr>"
            )
        else:
            parts += [
                _html_row(row, at == divergence)
                for at, row in enumerate(rows[index : index + len(steps)], index)
            ]
        index += len(steps)
    return "".join(parts)


def _html_row(row: AlignedRow, is_first: bool) -> str:
    texts = [_step_texts(step) for step in row.steps]
    shown_texts = list(zip(*map(_marked, zip_longest(*texts, fillvalue="")), strict=True))
    cells = "".join(
        f'<td style="text-align: left; vertical-align: top">{_html_step(step, told[: len(own)])}</td>'
        for step, own, told in zip(row.steps, texts, shown_texts, strict=True)
    )
    label = "first difference" if is_first else _WORDS[row.likeness]
    return f'<tr style="background: {_COLOURS[row.likeness]}"><td>{escape(label)}</td>{cells}</tr>'


def _step_texts(step: Step | None) -> list[str]:
    """The thought, then each call and its result."""
    if step is None:
        return ["no step"]
    calls = ((_call(call), _short(shown(call))) for call in step.calls)
    return [_short(step.thought), *chain.from_iterable(calls)]


def _html_step(step: Step | None, texts: Sequence[str]) -> str:
    """The `texts` of the step, which are HTML."""
    if step is None:
        return "<i>no step</i>"
    tokens = f" · {plural(step.usage.total_tokens, 'token')}" if step.usage else ""
    return f"<b>{step.number}</b> {texts[0]}{tokens}" + "".join(
        f"<pre style='{_WRAPS}'>{text}</pre>" for text in texts[1:]
    )


def _marked(texts: Sequence[str]) -> list[str]:
    """The texts as HTML. Of two that have much in common, `<mark>` shows the words that only one has."""
    if len(texts) != 2 or texts[0] == texts[1]:
        return [escape(text) for text in texts]
    words = [_WORD.findall(text) for text in texts]
    matcher = SequenceMatcher(None, words[0], words[1], autojunk=False)
    if matcher.ratio() < _MUCH_IN_COMMON:
        return [escape(text) for text in texts]
    sides = ["", ""]
    for kind, *ends in matcher.get_opcodes():
        for side, (begin, end) in enumerate((ends[:2], ends[2:])):
            text = escape("".join(words[side][begin:end]))
            sides[side] += text if kind == "equal" or not text else f"<mark>{text}</mark>"
    return sides


def _html_files(made: Comparison[Any]) -> str:
    if made.note:
        return f"<p>{escape(made.note)}</p>"
    items = []
    for path in list(made.files)[:_FILES]:
        diff = (
            made.diff(path)
            if len(made.runs) == 2
            else "\n".join(str(state) for state in made.files[path].states)
        )
        items.append(
            f"<details><summary>{escape(printable(path))}</summary><pre>{escape(_short(diff, 8000))}</pre></details>"
        )
    return f"<p>{_differing_files(made)}. {escape(left_out(made.others))}</p>" + "".join(items)


def _differing_files(made: Comparison[Any]) -> str:
    return f"{plural(len(made.files), 'file differs', 'files differ')} in the end"


def _figures(total: Totals) -> list[str]:
    """Steps, tokens, cost and time."""
    cost = "scripted: free" if total.scripted and total.usage.cost is None else format_cost(total.usage.cost)
    time = f"{format_duration(total.model_time)} model, {format_duration(total.tool_time)} tools"
    return [str(total.steps), format_count(total.usage.total_tokens), cost, time]


def _facts(total: Totals) -> str:
    _, _, cost, time = _figures(total)
    counts = f"{plural(total.steps, 'step')}, {plural(total.usage.total_tokens, 'token')}"
    return f"{total.state}, {counts}, {cost}, {time}"


def _divergence_text(made: Comparison[Any]) -> str:
    step = made.first_different_step
    return "Every step is the same." if step is None else f"They part at step {step}."


def _call(call: Call) -> str:
    arguments = call.arguments or {}
    what = arguments.get("command", "")
    path = arguments.get("path", "")
    return f"{call.tool} {what} {path}".strip()


def _short(text: str, longest: int = _LONGEST) -> str:
    return text if len(text) <= longest else f"{text[: longest - 2]} …"


def _more(count: int, most: int, what: str) -> str:
    return f"{count - most} more {what} are not shown."


def printable(text: str) -> str:
    """Without line ends and terminal codes, on one line."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
