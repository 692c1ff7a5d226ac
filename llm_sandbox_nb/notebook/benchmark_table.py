"""The live table of a benchmark: a row for each task and mode, as HTML and as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llm_sandbox_nb.benchmark.progress import CellProgress, Progress
from llm_sandbox_nb.benchmark.report import as_text, short_html
from llm_sandbox_nb.card.page import card_html
from llm_sandbox_nb.card.text import escape, first_line, plain
from llm_sandbox_nb.formatting import format_cost, format_count, format_duration, format_percent

HEADS = ("task", "mode", "done", "running", "score", "errors", "tokens", "cost", "elapsed", "rest")
SCRIPTED = "The replies are read from a file: no model is asked and no request is sent."
"""What the word "scripted" means."""
KINDS = 4
"""Kinds of errors that a row names; the others are a number."""
_WORDS = 200
_CELL = 80


@dataclass(frozen=True)
class _Standing:
    """What the table shows; rows and notes are not escaped yet."""

    state: str
    rows: Sequence[Sequence[str]]
    notes: Sequence[str]
    found: Mapping[str, Any] | None
    note: str


class BenchmarkTable:
    """Renders the progress of a benchmark. Names, kinds and texts of errors are hostile: it escapes them."""

    def __init__(self, progress: Progress, model: str, scripted: bool, out: str) -> None:
        self.progress, self.model, self.scripted, self.out = progress, model, scripted, out

    def bundle(self, state: str, found: Mapping[str, Any] | None = None, note: str = "") -> dict[str, str]:
        """What to show now; `found` is the report that comes with the end."""
        rows = [_cells(row) for row in self.progress.rows()]
        notes = [_note(*one) for one in self.progress.notes]
        now = _Standing(state, rows, notes, found, note)
        return {"text/html": self._html(now), "text/plain": self._text(now)}

    def _html(self, now: _Standing) -> str:
        scripted = f"<span class='lsn-badge' title='{SCRIPTED}'>scripted</span>" if self.scripted else ""
        head = (
            f"<div class='lsn-head'><b>Benchmark</b> <span class='lsn-badge'>{escape(now.state)}</span> "
            f"<span>{escape(self.model)}</span> {scripted} "
            f"<span class='lsn-quiet'>results in {escape(self.out)}</span></div>"
        )
        parts = [head, _table(HEADS, now.rows)]
        parts += [f"<div class='lsn-bad'>{escape(one)}</div>" for one in now.notes]
        parts += [f"<div>{escape(now.note)}</div>"] if now.note else []
        parts += [short_html(now.found)] if now.found else []
        return card_html("".join(parts))

    def _text(self, now: _Standing) -> str:
        scripted = f" (scripted: {SCRIPTED})" if self.scripted else ""
        parts = [
            f"Benchmark: {now.state}, {self.model}{scripted}, results in {self.out}",
            _grid([HEADS, *now.rows]),
        ]
        parts += [*now.notes, now.note, as_text(now.found) if now.found else ""]
        return "\n".join(plain(line) for part in parts if part for line in part.split("\n"))


def _cells(row: CellProgress) -> list[str]:
    score = "" if row.score is None else format_percent(row.score)
    return [
        row.task,
        row.mode,
        f"{format_count(row.done)}/{format_count(row.total)}",
        str(row.running) if row.running else "",
        score,
        _errors(row.errors),
        format_count(row.tokens) if row.tokens else "",
        "unknown" if row.cost is None else format_cost(row.cost) if row.tokens else "",
        format_duration(row.elapsed) if row.elapsed else "",
        _rest(row),
    ]


def _errors(errors: Mapping[str, int]) -> str:
    listed = sorted(errors.items(), key=lambda one: (-one[1], one[0]))
    words = [f"{number} {first_line(plain(kind), 40)}" for kind, number in listed[:KINDS]]
    more = sum(number for _, number in listed[KINDS:])
    return ", ".join([*words, f"{more} others"] if more else words)


def _rest(row: CellProgress) -> str:
    if row.done >= row.total:
        return ""
    return "?" if row.rest is None else f"about {format_duration(row.rest)}"


def _note(key: tuple[str, str, str, int], kind: str, error: str) -> str:
    task, mode, item, repeat = key
    words = (f"{task}/{mode}", first_line(plain(item), 60), f"repeat {repeat}" if repeat else "", kind)
    return first_line(
        plain(f"{', '.join(filter(None, words))}: {first_line(plain(error[:2_000]), _WORDS)}"), 400
    )


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    def line(tag: str, cells: Iterable[str]) -> str:
        return f"<tr>{''.join(f'<{tag}>{escape(_one(cell))}</{tag}>' for cell in cells)}</tr>"

    body = "".join(line("td", row) for row in rows)
    return f"<table class='lsn-table'><thead>{line('th', heads)}</thead><tbody>{body}</tbody></table>"


def _one(text: str) -> str:
    return first_line(plain(text), _CELL)


def _grid(rows: Sequence[Sequence[str]]) -> str:
    shown = [[_one(cell) for cell in row] for row in rows]
    widths = [max(len(row[place]) for row in shown) for place in range(len(HEADS))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in shown
    )
