"""Report of a folder of results, as text or as one HTML file.

Scores are means over items. Two modes are compared over the items that both modes have. The module `statistics`
computes the intervals of the scores.
"""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

from llm_sandbox_nb.analysis.usage import Times, throughput
from llm_sandbox_nb.benchmark.judge import agreement, read_judgements
from llm_sandbox_nb.benchmark.results import ANSWERED, Result, ResultsError
from llm_sandbox_nb.benchmark.results_folder import counted_results, read_plan
from llm_sandbox_nb.benchmark.spent import Spent, spent_in
from llm_sandbox_nb.benchmark.statistics import paired, passes, score_interval
from llm_sandbox_nb.formatting import (
    format_cost,
    format_duration,
    format_number,
    format_percent,
    plural,
    text_table,
)

LIMITS = ("steps", "tokens", "total_tokens", "cost", "time")
"""Stop reasons of runs that reached a limit. The answers of such runs are scored too."""


def item_scores(results: Iterable[Result]) -> dict[str, float]:
    """Return the mean score of each problem over its repeats. Failed and unscored results do not count."""
    return {problem: sum(scores) / len(scores) for problem, scores in repeat_scores(results).items()}


def repeat_scores(results: Iterable[Result]) -> dict[str, list[float]]:
    """Return the scores of each problem, one for each scored repeat."""
    found: dict[str, list[float]] = {}
    for result in results:
        if result.score is not None and not result.error_kind:
            found.setdefault(result.problem, []).append(result.score)
    return found


def cell_row(
    task: str, mode: str, results: Sequence[Result], planned: int = 0, spent: Spent | None = None
) -> dict[str, Any]:
    """Return the table row of one task in one mode. `planned` is the planned number of results, or 0 if unknown."""
    scores = score_interval(list(item_scores(results).values()))
    good = [result for result in results if not result.error_kind]
    done = throughput(Times(0.0, 0.0, result.wall_time, result.started) for result in good)
    once = [result.prompt_tokens + result.model_tokens + result.environment_tokens for result in good]
    wall = sum(result.wall_time for result in good)
    costs = [result.cost for result in good]
    return {
        "task": task,
        "mode": mode,
        "prompts": next((result.prompts for result in results if result.prompts), "own"),
        "items": len({result.problem for result in results}),
        "results": len(results),
        "planned": max(planned, len(results)),
        "scored": sum(result.score is not None for result in good),
        "score": scores.mean if scores else None,
        "score_low": scores.low if scores else None,
        "score_high": scores.high if scores else None,
        "no_answer": sum(result.detail == "no answer" for result in good),
        "unparsable": sum(result.detail == "unparsable" for result in good),
        "unscored": sum(result.score is None for result in good),
        "errors": len(results) - len(good),
        "answered": sum(result.error_kind in ANSWERED for result in results),
        "at_limit": sum(result.stop_reason in LIMITS for result in good),
        "cut_off": sum(result.cut_replies > 0 for result in good),
        "turns_mean": _mean([result.turns for result in good]),
        "tokens_once_mean": _mean(once),
        "tokens_billed_mean": _mean([result.billed_tokens for result in good]),
        "environment_share": _ratio(sum(result.environment_tokens for result in good), sum(once)),
        "cost": None if not costs or None in costs else sum(cost or 0.0 for cost in costs),
        "spent_attempts": spent.attempts if spent else None,
        "spent_tokens": spent.tokens if spent else None,
        "spent_cost": spent.cost if spent else None,
        "spent_time": spent.seconds if spent else None,
        "passes": [asdict(share) for share in passes(repeat_scores(results).values())],
        "wall_time_mean": _mean([result.wall_time for result in good]),
        "tool_share": _ratio(sum(result.tool_time for result in good), wall),
        "runs_per_minute": done.per_minute if done else None,
        **_megabytes("memory_peak", [result.memory_peak for result in good]),
        **_megabytes("disk", [result.disk for result in good]),
        "reused_sandboxes": sum(result.reused for result in good),
    }


def compare(
    task: str, first: tuple[str, Sequence[Result]], second: tuple[str, Sequence[Result]]
) -> dict[str, Any] | None:
    """Compare the scores of two sides over their common items. A side is a name and its results.

    The delta is the mean score of `first` minus the mean score of `second`. Return None if there are no common items.
    """
    ours, theirs = item_scores(first[1]), item_scores(second[1])
    found = paired(ours, theirs)
    if found is None:
        return None
    common = sorted(ours.keys() & theirs.keys())
    return {
        "task": task,
        "compared": f"{first[0]} - {second[0]}",
        "items": found.items,
        "delta": found.delta.mean,
        "delta_low": found.delta.low,
        "delta_high": found.delta.high,
        "better": found.better,
        "worse": found.worse,
        "p": found.p,
        "token_ratio": _ratio(_tokens(first[1], common), _tokens(second[1], common)),
    }


def _tokens(results: Iterable[Result], problems: Iterable[str]) -> float:
    """Return the token count of all problems. The token count of a problem is the mean over its repeats.

    The history of a conversation counts once.
    """
    wanted = set(problems)
    found: dict[str, list[int]] = {}
    for result in results:
        if result.problem in wanted and not result.error_kind:
            total = result.prompt_tokens + result.model_tokens + result.environment_tokens
            found.setdefault(result.problem, []).append(total)
    return sum(sum(counts) / len(counts) for counts in found.values())


def tables(
    results: Iterable[Result],
    planned: Mapping[tuple[str, str], int] = MappingProxyType({}),
    spent: Mapping[tuple[str, str], Spent] = MappingProxyType({}),
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the table rows of all cells, and the rows that compare two modes of a task. A cell is a task in one mode.

    `planned` has the planned number of results of each cell, and `spent` the tokens, cost and time spent on the cell.
    """
    cells: dict[tuple[str, str], list[Result]] = {key: [] for key in planned}
    for result in results:
        cells.setdefault((result.task, result.mode), []).append(result)
    rows = [
        cell_row(task, mode, cells[task, mode], planned.get((task, mode), 0), spent.get((task, mode)))
        for task, mode in sorted(cells)
    ]
    compared = [
        compare(task, (first, cells[task, first]), (second, cells[task, second]))
        for first, second in (("sandbox", "llm"), ("sandbox", "sandbox-prompt"))
        for task in sorted({task for task, _ in cells})
        if (task, first) in cells and (task, second) in cells
    ]
    return rows, [row for row in compared if row]


def compare_folders(out: Path, other: Path) -> dict[str, Any]:
    """Compare the folders `out` and `other` over their common scored items, for each common task and mode.

    `left_out` in the result is the number of items whose rows differ between the folders.

    Raises:
        ResultsError: if a folder has no results, or the folders have no scored item in common.
    """
    sides: list[dict[tuple[str, str], list[Result]]] = []
    for folder in (out, other):
        found: dict[tuple[str, str], list[Result]] = {}
        for result in _results_of(folder):
            found.setdefault((result.task, result.mode), []).append(result)
        sides.append(found)
    names = (out.resolve().name, other.resolve().name)
    if names[0] == names[1]:
        names = (str(out), str(other))
    rows, left_out = [], 0
    for task, mode in sorted(sides[0].keys() & sides[1].keys()):
        first, second = sides[0][task, mode], sides[1][task, mode]
        others = _other_rows(first, second)
        left_out += len(others)
        ours, theirs = ([result for result in side if result.item not in others] for side in (first, second))
        if row := compare(f"{task}/{mode}", (names[0], ours), (names[1], theirs)):
            scores = item_scores(ours), item_scores(theirs)
            common = scores[0].keys() & scores[1].keys()
            means = {
                name: _mean([side[item] for item in common])
                for name, side in zip(("score_first", "score_second"), scores, strict=True)
            }
            rows.append(row | means)
    if not rows:
        raise ResultsError(f"{out} and {other} have no scored item in common: run the same task in both.")
    return {"comparisons": rows, "left_out": left_out}


def _other_rows(first: Iterable[Result], second: Iterable[Result]) -> set[str]:
    """Return the ids of rows whose content differs between the two folders."""
    known = {result.item: result.row for result in second}
    return {result.item for result in first if known.get(result.item, result.row) != result.row}


def _megabytes(name: str, values: Iterable[int | None]) -> dict[str, float | None]:
    """Return the mean and the maximum of the known values, in MB."""
    known = [value / 1e6 for value in values if value is not None]
    return {f"{name}_mb_mean": _mean(known), f"{name}_mb_most": max(known, default=None)}


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


_PAGE_COLUMNS = (
    "task", "mode", "prompts", "items", "scored", "score", "score_low", "score_high", "errors", "at_limit", "cut_off",
    "unscored", "no_answer", "unparsable", "turns_mean", "tokens_once_mean", "tokens_billed_mean", "environment_share",
    "tool_share", "cost", "wall_time_mean", "spent_attempts", "spent_tokens", "spent_cost", "spent_time",
    "runs_per_minute", "memory_peak_mb_mean", "memory_peak_mb_most", "disk_mb_mean", "disk_mb_most",
    "reused_sandboxes",
)  # fmt: skip
_TEXT_COLUMNS = (
    "task", "mode", "prompts", "items", "scored", "score", "score_low", "score_high", "errors", "at_limit",
    "turns_mean", "tokens_once_mean", "cost",
)  # fmt: skip
_COLUMN_TITLES = {
    "at_limit": "stopped at a limit", "cost": "cost of scored runs", "wall_time_mean": "wall time mean of scored runs",
}  # fmt: skip
_NOTE = (
    "Scores are means over items. An item is one problem, and its score is the mean of its repeats. All intervals are "
    "95 % intervals: Wilson's if each score is 0 or 1 or all scores are equal, and otherwise a bootstrap over items. A "
    "single item has no interval. Scored: number of planned results that have a score. Errors: failures of the model, "
    "engine, network or scorer; they do not count in scores. Stopped at a limit: runs that reached a limit; their "
    "answers count. Cut off: results with a reply that broke off twice and was accepted incomplete. Unscored: results "
    "without a verdict. Tokens: the history of a conversation counts once. Spent: all attempts count, also lost "
    "attempts. p: p-value of McNemar's exact test."
)


def summary(out: Path) -> dict[str, Any]:
    """Return the content of a report as JSON values.

    Raises:
        ResultsError: if there are no results.
    """
    results = _results_of(out)
    planned = {(cell.task, cell.mode): cell.results for cell in read_plan(out)}
    cells, comparisons = tables(results, planned, spent_in(out))
    judged = agreement(read_judgements(out / "judge" / "judgements.jsonl"))
    return {
        "cells": cells,
        "comparisons": comparisons,
        "errors": dict(sorted(Counter(one.error_kind for one in results if one.error_kind).items())),
        "error_examples": {
            result.error_kind: result.error for result in reversed(results) if result.error_kind
        },
        "judge": vars(judged),
    }


def _results_of(out: Path) -> list[Result]:
    """Return the results of a folder that count. Raise ResultsError if there are no such results."""
    if results := counted_results(out):
        return results
    raise ResultsError(f"There are no results in {out}: give the --out folder of `benchmark run`.")


def as_text(found: Mapping[str, Any]) -> str:
    parts = [_grid(found["cells"], _TEXT_COLUMNS)]
    if missing := "\n".join(_missing(row) for row in found["cells"] if row["scored"] < row["planned"]):
        parts.append(missing)
    if found["comparisons"]:
        parts.append(_grid(found["comparisons"], tuple(found["comparisons"][0])))
    if repeated := _passes(found["cells"]):
        parts.append(_grid(repeated, tuple(repeated[0])))
    if spent := "\n".join(_spent(row) for row in found["cells"] if row["spent_attempts"]):
        parts.append(spent)
    if cut := sum(row["cut_off"] for row in found["cells"]):
        parts.append(
            f"Cut off: {plural(cut, 'result')} with a reply that broke off and was accepted incomplete."
        )
    if found["errors"]:
        counts = ", ".join(f"{number} {kind}" for kind, number in found["errors"].items())
        first = [f"  {kind}: {_one_line(found['error_examples'][kind])}" for kind in found["errors"]]
        parts.append("\n".join([f"Errors: {counts}", *first]))
    if found["judge"]["answers"] or found["judge"]["no_verdict"]:
        parts.append("Judge: " + _judge(found["judge"]))
    return "\n\n".join(parts)


def _missing(row: Mapping[str, Any]) -> str:
    """Return a line about the missing scores of one task and mode."""
    open_results = row["planned"] - row["results"]
    lacks = [
        f"{number} {what}"
        for number, what in (
            (open_results, "not done yet"),
            (row["errors"], "failed"),
            (row["unscored"], "without a verdict"),
        )
        if number
    ]
    return f"{_one_line(row['task'])}/{row['mode']}: scored {row['scored']} of {row['planned']}; {', '.join(lacks)}"


def _passes(cells: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "task": cell["task"],
            "mode": cell["mode"],
            "k": passed["k"],
            "pass@k": passed["any"],
            "pass^k": passed["all"],
        }
        for cell in cells
        for passed in cell["passes"]
    ]


def _spent(row: Mapping[str, Any]) -> str:
    """Return a line about the tokens, cost and time spent on one task and mode, including lost attempts."""
    lost = row["spent_attempts"] - row["answered"]
    more = f", {lost} of them lost or failed" if lost > 0 else ""
    cost = "cost unknown" if row["spent_cost"] is None else format_cost(row["spent_cost"])
    return (
        f"Spent on {_one_line(row['task'])}/{row['mode']}: {row['spent_tokens']:,} tokens as billed, {cost}, "
        f"{format_duration(row['spent_time'])} in {plural(row['spent_attempts'], 'attempt')}{more}"
    )


def comparison_text(found: Mapping[str, Any]) -> str:
    columns = ("task", "compared", "items", "score_first", "score_second", "delta", "delta_low", "delta_high",
               "better", "worse", "p", "token_ratio")  # fmt: skip
    parts = [_grid(found["comparisons"], columns)]
    if found["left_out"]:
        parts.append(f"{plural(found['left_out'], 'item')} left out: the rows differ between the folders.")
    return "\n\n".join(parts)


def _one_line(text: str) -> str:
    """Return the beginning of a text as one line, without control characters, which a hostile server could misuse."""
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
    shown = [[_head(name) for name in columns], *([_cell(name, row) for name in columns] for row in rows)]
    return text_table(shown, left=2)


def _head(column: str) -> str:
    return _COLUMN_TITLES.get(column, column.replace("_", " "))


def _cell(column: str, row: Mapping[str, Any]) -> str:
    if column == "scored":
        return f"{row['scored']} of {row['planned']}"
    return _shown(column, row[column])


def _shown(column: str, value: Any) -> str:
    if value is None:
        return "-"
    percent = column.startswith(("score", "delta", "pass")) or column.endswith("share")
    if isinstance(value, float) and percent:
        return format_percent(value)
    if isinstance(value, float) and column == "p":
        return f"{value:.4f}"
    if isinstance(value, float):
        return format_number(value)
    return str(value)


def short_html(found: Mapping[str, Any]) -> str:
    """Return the tables of `as_text` as HTML."""
    return _tables(found, _TEXT_COLUMNS)


def _tables(found: Mapping[str, Any], columns: Sequence[str]) -> str:
    parts = ["<h2>Scores</h2>", _rows(found["cells"], columns)]
    parts += [
        f"<p><strong>{html.escape(_missing(row))}</strong></p>"
        for row in found["cells"]
        if row["scored"] < row["planned"]
    ]
    if found["comparisons"]:
        parts += ["<h2>Side by side</h2>", _rows(found["comparisons"], tuple(found["comparisons"][0]))]
    if repeated := _passes(found["cells"]):
        parts += ["<h2>Repeats</h2>", _rows(repeated, tuple(repeated[0]))]
    if found["errors"]:
        errors = [
            {"kind": kind, "results": number, "first": _one_line(found["error_examples"][kind])}
            for kind, number in found["errors"].items()
        ]
        parts += ["<h2>Errors</h2>", _rows(errors, ("kind", "results", "first"))]
    if found["judge"]["answers"] or found["judge"]["no_verdict"]:
        parts += ["<h2>Judge</h2>", f"<p>{html.escape(_judge(found['judge']))}.</p>"]
    return "\n".join(parts)


def as_html(out: Path, found: Mapping[str, Any]) -> str:
    """Return the report as an HTML page, with plots of the runs' behaviour."""
    from llm_sandbox_nb.analysis import plots
    from llm_sandbox_nb.analysis.frames import groups_frame, runs_frame
    from llm_sandbox_nb.analysis.load import load_runs
    from llm_sandbox_nb.analysis.report import page, table

    reading = load_runs([out])
    parts = [f'<p class="note">{_NOTE} Scores and shares are percent.</p>', _tables(found, _PAGE_COLUMNS)]
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
    return page("Benchmark", "\n".join(parts))


def _rows(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    heads = "".join(f"<th>{html.escape(_head(name))}</th>" for name in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(_cell(name, row))}</td>" for name in columns) + "</tr>\n"
        for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>\n{body}</tbody></table></div>'
