"""Scores side by side: means over items, differences over the items that both have, bootstrap intervals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from llm_sandbox_nb.analysis.usage import Times, throughput
from llm_sandbox_nb.benchmark.results import Result

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
