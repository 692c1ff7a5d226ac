"""Display of compared runs as text and as HTML."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from html import escape
from itertools import chain, groupby, zip_longest
from typing import Any

from llm_sandbox_nb.formatting import format_cost, format_count, format_duration, plural, text_table
from llm_sandbox_nb.runs.aligned_steps import AlignedRow, Likeness
from llm_sandbox_nb.runs.comparison_data import ComparedRuns, Totals
from llm_sandbox_nb.runs.end_files import left_out, named_paths, printable
from llm_sandbox_nb.trajectory.trajectory import Call, Step

_MAX_ROWS = 200
_MAX_FILES = 100
_TEXT_CHARACTERS = 400
_DIFF_CHARACTERS = 8_000
_CELL_CHARACTERS = 36
"""Maximum characters of a cell in the text table."""
_LINE_CHARACTERS = 110
"""Maximum characters of the line with the first difference."""
_WORD = re.compile(r"\s+|\w+|[^\w\s]")
_WRAPS = "white-space: pre-wrap; word-break: normal; overflow-wrap: anywhere"
_MIN_MATCHING_SHARE = 0.4
"""Minimum share of equal words in two texts whose differing words are marked. Below, most words would be marked."""
_WORDS = {"same": "the same", "results": "other results", "calls": "other calls"}
_COLOURS = {"same": "transparent", "results": "rgba(255, 193, 7, .25)", "calls": "rgba(244, 67, 54, .18)"}


def as_text(made: ComparedRuns[Any]) -> str:
    """Return a short text with a table of answers and totals, the first different step, and the files that differ."""
    names = [total.name for total in made.totals]
    answers = [printable(total.answer) if total.answer else "none" for total in made.totals]
    place = _common_length(answers)
    table = [["", "answer", "ended", "steps", "tokens", "cost", "time"]]
    for total, answer in zip(made.totals, answers, strict=True):
        steps, tokens, cost, _ = _figures(total)
        time = format_duration(total.model_time + total.tool_time)
        table.append(
            [total.name, _window(answer, place, _CELL_CHARACTERS), total.state, steps, tokens, cost, time]
        )
    table = [[_short(cell, _CELL_CHARACTERS) for cell in row] for row in table]
    lines = [text_table(table), "", _divergence_text(made)]
    if made.divergence is not None:
        lines += _deciding_lines(names, made.rows[made.divergence])
    paths = f": {named_paths(made.files)}" if made.files else ""
    files = f"{_differing_files(made)}{paths}. {left_out(made.others)}".strip()
    return "\n".join([*lines, made.note or files])


def _deciding_lines(names: Sequence[str], row: AlignedRow) -> list[str]:
    """Return a line for each run: the first differing line of the first different step, cut around the difference."""
    descriptions = [_described(step, row.likeness) for step in row.steps]
    lines = next(
        (
            found
            for found in zip_longest(*(text.splitlines() for text in descriptions), fillvalue="")
            if len(set(found)) > 1
        ),
        tuple(descriptions),
    )
    texts = [printable(line).strip() or "(nothing)" for line in lines]
    place, wide = _common_length(texts), max(map(len, names))
    return [
        f"  {name:<{wide}}  {_window(text, place, _LINE_CHARACTERS)}"
        for name, text in zip(names, texts, strict=True)
    ]


def _described(step: Step | None, likeness: Likeness) -> str:
    """Return the calls of a step as text, or the results of the calls if only results differ."""
    if step is None:
        return "no such step"
    if likeness == "results":
        return "\n".join(call.body for call in step.calls)
    return "\n".join(map(_call, step.calls)) or step.thought


def _common_length(texts: Sequence[str]) -> int:
    """Return the length of the common beginning of all texts."""
    return next(
        (place for place, found in enumerate(zip(*texts, strict=False)) if len(set(found)) > 1),
        min(map(len, texts)),
    )


def _window(text: str, place: int, most: int) -> str:
    """Return at most `most` characters of a text, from a part that includes the character at `place`."""
    start = max(0, min(place - most // 3, len(text) - most + 2)) if len(text) > most else 0
    return _short(f"… {text[start:]}" if start else text, most)


def _answers(made: ComparedRuns[Any]) -> list[str]:
    """Return the answers of all runs, or an empty list if the answers are equal."""
    if len({total.answer for total in made.totals}) < 2:
        return []
    return [_short(printable(total.answer or "none"), 200) for total in made.totals]


def as_html(made: ComparedRuns[Any]) -> str:
    """Return the comparison as HTML tables."""
    heads = "".join(
        f'<th style="text-align: left">{escape(total.name)}<br><small>{escape(_facts(total))}</small></th>'
        for total in made.totals
    )
    rows = _html_rows(made.rows[:_MAX_ROWS], made.divergence)
    hidden = len(made.rows) - _MAX_ROWS
    parts = [
        "".join(
            f"<p><b>{escape(total.name)}</b>: {answer}</p>"
            for total, answer in zip(made.totals, _marked(_answers(made)), strict=False)
        ),
        f"<p>{escape(_divergence_text(made))}</p>",
        f'<table class="lsn-comparison"><thead><tr><th style="width: 7em"></th>{heads}</tr></thead>',
        f"<tbody>{rows}</tbody></table>",
        f"<p>{hidden} more rows are not shown.</p>" if hidden > 0 else "",
        _html_files(made),
    ]
    return "".join(parts)


def _html_rows(rows: Sequence[AlignedRow], divergence: int | None) -> str:
    """Return a table row for each row of steps. Neighbouring steps that are the same in all runs share one row."""
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
        f'<td style="text-align: left; vertical-align: top">{_html_step(step, marked[: len(plain)])}</td>'
        for step, plain, marked in zip(row.steps, texts, shown_texts, strict=True)
    )
    label = "first difference" if is_first else _WORDS[row.likeness]
    return f'<tr style="background: {_COLOURS[row.likeness]}"><td>{escape(label)}</td>{cells}</tr>'


def _step_texts(step: Step | None) -> list[str]:
    """Return the texts of a step: the thought, then each call and its result."""
    if step is None:
        return ["no step"]
    calls = ((_call(call), _short(call.body)) for call in step.calls)
    return [_short(step.thought), *chain.from_iterable(calls)]


def _html_step(step: Step | None, texts: Sequence[str]) -> str:
    """Return a step as HTML. `texts` are already HTML."""
    if step is None:
        return "<i>no step</i>"
    tokens = f" · {plural(step.usage.total_tokens, 'token')}" if step.usage else ""
    return f"<b>{step.number}</b> {texts[0]}{tokens}" + "".join(
        f"<pre style='{_WRAPS}'>{text}</pre>" for text in texts[1:]
    )


def _marked(texts: Sequence[str]) -> list[str]:
    """Return the texts as HTML. If there are two similar texts, `<mark>` shows the words that differ."""
    if len(texts) != 2 or texts[0] == texts[1]:
        return [escape(text) for text in texts]
    words = [_WORD.findall(text) for text in texts]
    matcher = SequenceMatcher(None, words[0], words[1], autojunk=False)
    if matcher.ratio() < _MIN_MATCHING_SHARE:
        return [escape(text) for text in texts]
    sides = ["", ""]
    for kind, *ends in matcher.get_opcodes():
        for side, (begin, end) in enumerate((ends[:2], ends[2:])):
            text = escape("".join(words[side][begin:end]))
            sides[side] += text if kind == "equal" or not text else f"<mark>{text}</mark>"
    return sides


def _html_files(made: ComparedRuns[Any]) -> str:
    if made.note:
        return f"<p>{escape(made.note)}</p>"
    items = []
    for path in list(made.files)[:_MAX_FILES]:
        diff = (
            made.diff(path)
            if len(made.runs) == 2
            else "\n".join(str(state) for state in made.files[path].states)
        )
        shown_diff = escape(_short(diff, _DIFF_CHARACTERS))
        items.append(
            f"<details><summary>{escape(printable(path))}</summary><pre>{shown_diff}</pre></details>"
        )
    return f"<p>{_differing_files(made)}. {escape(left_out(made.others))}</p>" + "".join(items)


def _differing_files(made: ComparedRuns[Any]) -> str:
    return f"{plural(len(made.files), 'file differs', 'files differ')} in the end"


def _figures(total: Totals) -> list[str]:
    """Return steps, tokens, cost and time as texts."""
    cost = "scripted: free" if total.scripted and total.usage.cost is None else format_cost(total.usage.cost)
    time = f"{format_duration(total.model_time)} model, {format_duration(total.tool_time)} tools"
    return [str(total.steps), format_count(total.usage.total_tokens), cost, time]


def _facts(total: Totals) -> str:
    _, _, cost, time = _figures(total)
    counts = f"{plural(total.steps, 'step')}, {plural(total.usage.total_tokens, 'token')}"
    return f"{total.state}, {counts}, {cost}, {time}"


def _divergence_text(made: ComparedRuns[Any]) -> str:
    step = made.first_different_step
    found = "Every step is the same." if step is None else f"First difference: step {step}."
    same = [row.steps[0] for row in made.rows if row.likeness == "same"]
    cut = next((one.number for one in same if one and any(_is_cut(call) for call in one.calls)), None)
    return (
        found if cut is None else f"{found} In step {cut}, only the recorded part of the output is compared."
    )


def _is_cut(call: Call) -> bool:
    return call.result is not None and call.result.truncated


def _call(call: Call) -> str:
    arguments = call.arguments or {}
    what = arguments.get("command", "")
    path = arguments.get("path", "")
    return f"{call.tool} {what} {path}".strip()


def _short(text: str, longest: int = _TEXT_CHARACTERS) -> str:
    return text if len(text) <= longest else f"{text[: longest - 2]} …"
