"""A comparison in words, and as a table without scripts."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

from llm_sandbox_nb.agent.aligning import Row, shown
from llm_sandbox_nb.trajectory.trajectory import Call, Step

if TYPE_CHECKING:
    from llm_sandbox_nb.agent.comparing import Comparison, Totals

_ROWS = 200
_FILES = 100
_LONGEST = 400
_MARKS = {"same": " ", "results": "~", "calls": "!"}
_WORDS = {"same": "the same", "results": "other results", "calls": "other calls"}
_COLOURS = {"same": "transparent", "results": "rgba(255, 193, 7, .25)", "calls": "rgba(244, 67, 54, .18)"}


def as_text(made: Comparison) -> str:
    """Totals, rows of steps, files."""
    lines = [f"{total.name}  {_facts(total)}" for total in made.totals]
    lines.append(_divergence(made))
    for index, row in enumerate(made.rows[:_ROWS]):
        mark = ">" if index == made.divergence else _MARKS[row.likeness]
        lines.append(f"{mark} " + " | ".join(_step_text(step) for step in row.steps))
    lines += [_more(len(made.rows), _ROWS, "rows")] if len(made.rows) > _ROWS else []
    lines += [made.note] if made.note else [f"{len(made.files)} files differ in the end."]
    lines += [f"  {printable(path)}" for path in list(made.files)[:_FILES]]
    lines += [_more(len(made.files), _FILES, "files")] if len(made.files) > _FILES else []
    return "\n".join(lines)


def as_html(made: Comparison) -> str:
    """The same as tables."""
    heads = "".join(
        f"<th>{escape(total.name)}<br><small>{escape(_facts(total))}</small></th>" for total in made.totals
    )
    rows = "".join(_html_row(index, row, made.divergence) for index, row in enumerate(made.rows[:_ROWS]))
    more = _more(len(made.rows), _ROWS, "rows") if len(made.rows) > _ROWS else ""
    parts = [
        f"<p>{escape(_divergence(made))}</p>",
        f'<table class="lsn-comparison"><thead><tr><th></th>{heads}</tr></thead><tbody>{rows}</tbody></table>',
        f"<p>{escape(more)}</p>" if more else "",
        _html_files(made),
    ]
    return "".join(parts)


def _html_row(index: int, row: Row, divergence: int | None) -> str:
    cells = "".join(
        f'<td style="text-align: left; vertical-align: top">{_html_step(step)}</td>' for step in row.steps
    )
    label = "first difference" if index == divergence else _WORDS[row.likeness]
    return f'<tr style="background: {_COLOURS[row.likeness]}"><td>{escape(label)}</td>{cells}</tr>'


def _html_step(step: Step | None) -> str:
    if step is None:
        return "<i>no step</i>"
    calls = "".join(
        f"<pre>{escape(_call(call))}</pre><pre>{escape(_short(shown(call)))}</pre>" for call in step.calls
    )
    tokens = f" · {step.usage.total_tokens} tokens" if step.usage else ""
    return f"<b>{step.number}</b> {escape(_short(step.thought))}{tokens}{calls}"


def _html_files(made: Comparison) -> str:
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
    return f"<p>{len(made.files)} files differ in the end.</p>" + "".join(items)


def _facts(total: Totals) -> str:
    cost = "cost not known" if total.usage.cost is None else f"${total.usage.cost:.4f}"
    state = total.stop_reason or "not finished"
    time = f"{total.model_time:.1f} s model, {total.tool_time:.1f} s tools"
    return f"{state}, {total.steps} steps, {total.usage.total_tokens} tokens, {cost}, {time}"


def _divergence(made: Comparison) -> str:
    step = made.first_different_step
    return "Every step is the same." if step is None else f"The first difference is at step {step}."


def _step_text(step: Step | None) -> str:
    if step is None:
        return "-"
    calls: Iterable[str] = (_call(call) for call in step.calls)
    return f"{step.number}: " + _short(printable("; ".join(calls) or step.thought), 70)


def _call(call: Call) -> str:
    arguments = call.arguments or {}
    what = arguments.get("command", "")
    path = arguments.get("path", "")
    return f"{call.tool} {what} {path}".strip()


def _short(text: str, longest: int = _LONGEST) -> str:
    return text if len(text) <= longest else f"{text[:longest]} …"


def _more(count: int, most: int, what: str) -> str:
    return f"{count - most} more {what} are not shown."


def printable(text: str) -> str:
    """Without line ends and terminal codes, on one line."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
