"""The report of a folder of results: as text, and as one HTML file.

Scores stand side by side: means over items, differences over the items that both have, bootstrap intervals.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_sandbox_nb.analysis.usage import Times, throughput
from llm_sandbox_nb.benchmark.judge import agreement, read_judgements
from llm_sandbox_nb.benchmark.results import Result, ResultsError, count_errors, read_results
from llm_sandbox_nb.formatting import format_number, format_percent, plural

RESAMPLES = 10_000
SEED = 20_260_122
"""Fixed, so that the same results give the same interval."""
_BATCH = 1000
"""Resamples that are in memory at once."""


@dataclass(frozen=True)
class Interval:
    """A mean and its 95 % percentile bootstrap interval."""

    mean: float
    low: float
    high: float


def bootstrap(values: Sequence[float], resamples: int = RESAMPLES) -> Interval | None:
    """The interval of a mean over items, by drawing items with replacement; None without any."""
    if not values:
        return None
    import numpy

    data = numpy.asarray(values, dtype=float)
    mean = float(data.mean())
    if len(data) == 1 or data.min() == data.max():
        return Interval(mean, mean, mean)
    chance = numpy.random.default_rng(SEED)
    batches = [min(_BATCH, resamples - start) for start in range(0, resamples, _BATCH)]
    means = numpy.concatenate([
        data[chance.integers(0, len(data), size=(size, len(data)))].mean(axis=1) for size in batches
    ])  # fmt: skip
    low, high = numpy.percentile(means, [2.5, 97.5])
    return Interval(mean, float(low), float(high))


def item_scores(results: Iterable[Result]) -> dict[str, float]:
    """The mean score of each item over its repeats; what failed or could not be scored is left out."""
    found: dict[str, list[float]] = {}
    for result in results:
        if result.score is not None and not result.error_kind:
            found.setdefault(result.item, []).append(result.score)
    return {item: sum(scores) / len(scores) for item, scores in found.items()}


def cell_row(task: str, mode: str, results: Sequence[Result]) -> dict[str, Any]:
    """One row of the table: one task in one mode."""
    scores = bootstrap(list(item_scores(results).values()))
    good = [result for result in results if not result.error_kind]
    done = throughput(Times(0.0, 0.0, result.wall_time, result.started) for result in good)
    once = [result.prompt_tokens + result.model_tokens + result.environment_tokens for result in good]
    wall = sum(result.wall_time for result in good)
    costs = [result.cost for result in good]
    return {
        "task": task,
        "mode": mode,
        "items": len({result.item for result in results}),
        "results": len(results),
        "score": scores.mean if scores else None,
        "score_low": scores.low if scores else None,
        "score_high": scores.high if scores else None,
        "no_answer": sum(result.detail == "no answer" for result in good),
        "unparsable": sum(result.detail == "unparsable" for result in good),
        "unscored": sum(result.score is None for result in good),
        "errors": len(results) - len(good),
        "cut_off": sum(result.cut_replies > 0 for result in good),
        "turns_mean": _mean([result.turns for result in good]),
        "tokens_once_mean": _mean(once),
        "tokens_billed_mean": _mean([result.billed_tokens for result in good]),
        "environment_share": _ratio(sum(result.environment_tokens for result in good), sum(once)),
        "cost": None if not costs or None in costs else sum(cost or 0.0 for cost in costs),
        "wall_time_mean": _mean([result.wall_time for result in good]),
        "tool_share": _ratio(sum(result.tool_time for result in good), wall),
        "runs_per_minute": done.per_minute if done else None,
        **_megabytes("memory_peak", [result.memory_peak for result in good]),
        **_megabytes("disk", [result.disk for result in good]),
    }


def compare(
    task: str, first: tuple[str, Sequence[Result]], second: tuple[str, Sequence[Result]]
) -> dict[str, Any] | None:
    """`first` less `second`, over the items that both have scores for."""
    ours, theirs = item_scores(first[1]), item_scores(second[1])
    common = sorted(ours.keys() & theirs.keys())
    delta = bootstrap([ours[item] - theirs[item] for item in common])
    if delta is None:
        return None
    return {
        "task": task,
        "compared": f"{first[0]} - {second[0]}",
        "items": len(common),
        "delta": delta.mean,
        "delta_low": delta.low,
        "delta_high": delta.high,
        "token_ratio": _ratio(_tokens(first[1], common), _tokens(second[1], common)),
    }


def _tokens(results: Iterable[Result], items: Iterable[str]) -> float:
    """Tokens of an item, history counted once, summed over items; the mean over an item's repeats."""
    wanted = set(items)
    found: dict[str, list[int]] = {}
    for result in results:
        if result.item in wanted and not result.error_kind:
            total = result.prompt_tokens + result.model_tokens + result.environment_tokens
            found.setdefault(result.item, []).append(total)
    return sum(sum(one) / len(one) for one in found.values())


def tables(results: Iterable[Result]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The rows of all cells, and of all comparisons of two modes of one task."""
    cells: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        cells.setdefault((result.task, result.mode), []).append(result)
    rows = [cell_row(task, mode, cells[task, mode]) for task, mode in sorted(cells)]
    compared = [
        compare(task, (first, cells[task, first]), (second, cells[task, second]))
        for first, second in (("sandbox", "llm"), ("sandbox", "sandbox-prompt"))
        for task in sorted({task for task, _ in cells})
        if (task, first) in cells and (task, second) in cells
    ]
    return rows, [row for row in compared if row]


def _megabytes(name: str, values: Iterable[int | None]) -> dict[str, float | None]:
    """Mean and most, in MB, of those that are known."""
    known = [value / 1e6 for value in values if value is not None]
    return {f"{name}_mb_mean": _mean(known), f"{name}_mb_most": max(known, default=None)}


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


_CELLS = (
    "task", "mode", "items", "results", "score", "score_low", "score_high", "errors", "cut_off", "unscored",
    "no_answer", "unparsable", "turns_mean", "tokens_once_mean", "tokens_billed_mean", "environment_share",
    "tool_share", "cost", "wall_time_mean", "runs_per_minute", "memory_peak_mb_mean", "memory_peak_mb_most",
    "disk_mb_mean", "disk_mb_most",
)  # fmt: skip
_SHORT = (
    "task", "mode", "items", "score", "score_low", "score_high", "errors", "turns_mean", "tokens_once_mean", "cost",
)  # fmt: skip
_NOTE = (
    "Scores are means over items, an item's repeats averaged first; intervals are 95 % bootstrap intervals over items. "
    "Errors are failures of model, engine or network and are in no score. Cut off: results with a reply that broke off "
    "twice and was taken as it came. Unscored: nobody could tell. Tokens count "
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
    if cut := sum(row["cut_off"] for row in found["cells"]):
        parts.append(
            f"Cut off: {plural(cut, 'result')} with a reply that broke off, and was taken as it came."
        )
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
        f"{_shown('kappa', judge['kappa'])}, {judge['ties']} ties, {judge['no_verdict']} replies without a verdict; "
        f"{judge['requests']} requests, "
        f"{judge['prompt_tokens'] + judge['completion_tokens']} tokens, ${judge['cost']:.2f}"
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
