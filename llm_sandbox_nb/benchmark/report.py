"""The report of a folder of results: as text, and as one HTML file."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llm_sandbox_nb.benchmark.judge import agreement, read_judgements
from llm_sandbox_nb.benchmark.results import ResultsError, count_errors, read_results
from llm_sandbox_nb.benchmark.statistics import tables
from llm_sandbox_nb.formatting import format_number, format_percent

_CELLS = (
    "task", "mode", "items", "results", "score", "score_low", "score_high", "errors", "unscored", "no_answer",
    "unparsable", "turns_mean", "tokens_once_mean", "tokens_billed_mean", "environment_share", "tool_share", "cost",
    "wall_time_mean", "runs_per_minute", "memory_peak_mb_mean", "memory_peak_mb_most", "disk_mb_mean", "disk_mb_most",
)  # fmt: skip
_SHORT = (
    "task", "mode", "items", "score", "score_low", "score_high", "errors", "turns_mean", "tokens_once_mean", "cost",
)  # fmt: skip
_NOTE = (
    "Scores are means over items, an item's repeats averaged first; intervals are 95 % bootstrap intervals over items. "
    "Errors are failures of model, engine or network and are in no score. Unscored: nobody could tell. Tokens count "
    "history once."
)


def summary(out: Path) -> dict[str, Any]:
    """Everything a report says, as JSON has it.

    Raises:
        ResultsError: there are no results.
    """
    results = read_results(out)
    if not results:
        raise ResultsError(
            f"There are no results in {out}: give the folder that was --out of `benchmark run`."
        )
    cells, comparisons = tables(results)
    judged = agreement(read_judgements(out / "judge" / "judgements.jsonl"))
    return {
        "cells": cells,
        "comparisons": comparisons,
        "errors": count_errors(results),
        "error_examples": {one.error_kind: one.error for one in reversed(results) if one.error_kind},
        "judge": vars(judged),
    }


def as_text(found: Mapping[str, Any]) -> str:
    """The report for a terminal."""
    parts = [_grid(found["cells"], _SHORT)]
    if found["comparisons"]:
        parts.append(_grid(found["comparisons"], tuple(found["comparisons"][0])))
    if found["errors"]:
        counts = ", ".join(f"{number} {kind}" for kind, number in found["errors"].items())
        first = [f"  {kind}: {_one_line(found['error_examples'][kind])}" for kind in found["errors"]]
        parts.append("\n".join([f"Errors: {counts}", *first]))
    if found["judge"]["answers"] or found["judge"]["no_verdict"]:
        parts.append("Judge: " + _judge(found["judge"]))
    return "\n\n".join(parts)


def _one_line(text: str) -> str:
    """The beginning of an error; what a server or a scorer says may be anything."""
    return "".join(letter for letter in " ".join(text.split())[:300] if letter.isprintable())


def _judge(judge: Mapping[str, Any]) -> str:
    agree = _shown("share", judge["pairs_agree"])
    return (
        f"{judge['answers']} answers judged more than once, {agree} of pairs of verdicts agree, Fleiss' kappa "
        f"{_shown('kappa', judge['kappa'])}, {judge['ties']} ties, {judge['no_verdict']} replies without a verdict"
    )


def _grid(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    shown = [
        [name.replace("_", " ") for name in columns],
        *([_shown(name, row[name]) for name in columns] for row in rows),
    ]
    widths = [max(len(line[place]) for line in shown) for place in range(len(columns))]
    return "\n".join(
        "  ".join(text.ljust(width) if place < 2 else text.rjust(width)
                  for place, (text, width) in enumerate(zip(line, widths, strict=True))).rstrip()
        for line in shown
    )  # fmt: skip


def _shown(column: str, value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float) and (column.startswith(("score", "delta")) or column.endswith("share")):
        return format_percent(value)
    if isinstance(value, float):
        return format_number(value)
    return str(value)


def short_html(found: Mapping[str, Any]) -> str:
    """What `as_text` says, as tables for a page."""
    return _tables(found, _SHORT)


def _tables(found: Mapping[str, Any], columns: Sequence[str]) -> str:
    parts = ["<h2>Scores</h2>", _rows(found["cells"], columns)]
    if found["comparisons"]:
        parts += ["<h2>Side by side</h2>", _rows(found["comparisons"], tuple(found["comparisons"][0]))]
    if found["errors"]:
        errors = [
            {"kind": kind, "results": number, "first": _one_line(found["error_examples"][kind])}
            for kind, number in found["errors"].items()
        ]
        parts += ["<h2>Errors</h2>", _rows(errors, ("kind", "results", "first"))]
    if found["judge"]["answers"] or found["judge"]["no_verdict"]:
        parts += ["<h2>Judge</h2>", f"<p>{html.escape(_judge(found['judge']))}.</p>"]
    return "\n".join(parts)


def as_html(out: Path, found: Mapping[str, Any], title: str = "Benchmark") -> str:
    """The report as a page, with what the runs did."""
    from llm_sandbox_nb.analysis import plots
    from llm_sandbox_nb.analysis.frames import groups_frame, runs_frame
    from llm_sandbox_nb.analysis.load import load_runs
    from llm_sandbox_nb.analysis.report import page, table

    reading = load_runs([out])
    parts = [f'<p class="note">{_NOTE} Scores and shares are percent.</p>', _tables(found, _CELLS)]
    if scripted := sum(
        run.trajectory.start is not None and run.trajectory.start.scripted for run in reading.runs
    ):
        whose = (
            "The model was scripted"
            if scripted == len(reading.runs)
            else f"In {scripted} runs the model was scripted"
        )
        parts.insert(
            0, f'<p class="note"><strong>{whose}: these numbers say nothing about a real model.</strong></p>'
        )
    if reading.runs:
        groups = groups_frame(runs_frame(reading.runs))
        rates = [name for name in groups.columns if name.endswith("_rate")]
        parts += ["<h2>What the runs did</h2>", plots.svg_of(plots.capability_figure(groups)),
                  table(groups, ["group", "runs", "turns_mean", *rates, "barren_share", "wandering_runs"]),
                  plots.svg_of(plots.token_figure(groups))]  # fmt: skip
    return page(title, "\n".join(parts))


def _rows(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    heads = "".join(f"<th>{html.escape(name.replace('_', ' '))}</th>" for name in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(_shown(name, row[name]))}</td>" for name in columns) + "</tr>\n"
        for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>\n{body}</tbody></table></div>'
