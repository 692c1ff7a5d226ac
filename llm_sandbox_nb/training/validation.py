"""Validation: the policy is scored during its training, on rows that it does not learn from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from llm_sandbox_nb.benchmark.data import load_rows
from llm_sandbox_nb.benchmark.rows import Row
from llm_sandbox_nb.benchmark.statistics import score_interval
from llm_sandbox_nb.benchmark.task import Task, load_task
from llm_sandbox_nb.training.config import ConfigError, TrainingConfig
from llm_sandbox_nb.training.made_tasks import MADE, held_out
from llm_sandbox_nb.training.policy import Sampling, sampling_problem
from llm_sandbox_nb.training.rollouts import LOST, Rollout

_MADE_ROWS = 32
BY_RULES = "routed"
"""Scorer that replaces a judge. A judge would be asked thousands of times in a training."""


def validation_sampling(config: TrainingConfig) -> Sampling:
    """Return the sampling settings of a validation. Raise ConfigError if they are invalid."""
    how = config.validation
    sampling = Sampling(how.temperature, how.top_p, how.top_k)
    if problem := sampling_problem(sampling):
        raise ConfigError(f"{problem} in validation.")
    return sampling


def validation_tasks(config: TrainingConfig, learned: Iterable[Row]) -> list[tuple[Task, list[Row]]]:
    """Return the tasks of a validation with their rows. If the configuration has no validation, return no tasks.

    Raises:
        ConfigError: if there are no rows, or the policy learns from one of the rows.
    """
    how, data = config.validation, config.data
    if not how.every:
        return []
    validation_sampling(config)
    if (made := MADE.get(data.rows)) is not None and not how.tasks and not how.rows:
        found = [(made.task(load_task(data.task)), held_out(made, how.count or _MADE_ROWS, config))]
    elif not how.tasks and not how.rows:
        raise ConfigError(
            "A validation needs rows that the policy does not learn from: name tasks in validation.tasks, or a file in "
            "validation.rows."
        )
    else:
        found = [_task(name, config) for name in how.tasks or (data.task,)]
    known = {_question(row) for row in learned}
    for task, rows in found:
        if common := [row.id for row in rows if _question(row) in known]:
            raise ConfigError(
                f"Row {common[0]} of {task.name} is used for both training and validation ({len(common)} in common): "
                "remove it from data.rows or from the validation's rows."
            )
    return found


def _task(name: str, config: TrainingConfig) -> tuple[Task, list[Row]]:
    how = config.validation
    try:
        task = load_task(name)
        rows = load_rows(task, how.rows or None)[: how.count or None]
    except ValueError as error:
        reason = str(error).rstrip(".")
        raise ConfigError(
            f"The validation cannot begin: {reason}; validation.every=0 trains without a validation."
        ) from error
    if not how.tasks and config.data.scorer:
        task = replace(task, scorer=config.data.scorer)
    return (replace(task, scorer=BY_RULES) if task.needs_judge else task), rows


def _question(row: Row) -> tuple[str, str, tuple[str, ...]]:
    return row.problem_statement, row.ground_truth, tuple(sorted(row.input_files.values()))


def validation_figures(step: int, task: str, rollouts: Sequence[Rollout], seconds: float) -> dict[str, Any]:
    """Summarize the rollouts of a validation. They were sampled from the policy after `step`."""
    scores: dict[str, list[float]] = {}
    for rollout in rollouts:
        if rollout.reward is not None:
            scores.setdefault(rollout.row.id, []).append(rollout.reward)
    means = [sum(repeats) / len(repeats) for repeats in scores.values()]
    interval = score_interval(means)
    ended = [rollout for rollout in rollouts if rollout.stop_reason != LOST]
    return {
        "step": step,
        "task": task,
        "score": interval.mean if interval else None,
        "score_low": interval.low if interval else None,
        "score_high": interval.high if interval else None,
        "rollouts": len(rollouts),
        "scored": sum(map(len, scores.values())),
        "turns": sum(rollout.turns for rollout in ended) / len(ended) if ended else None,
        "stops": dict(Counter(rollout.stop_reason for rollout in rollouts)),
        "seconds": seconds,
    }


def validation_line(figures: Mapping[str, Any]) -> str:
    """Return a line about a validation of one task: the score with its 95 % interval, the rollouts, and the turns."""
    score, low, high = figures["score"], figures["score_low"], figures["score_high"]
    shown = "no score" if score is None else f"{score:.3f}"
    around = "" if low is None or high is None else f" [{low:.3f}, {high:.3f}]"
    turns = "" if figures["turns"] is None else f", {figures['turns']:.1f} turns"
    return (
        f"validation after step {figures['step']}: {figures['task']} {shown}{around}, "
        f"scored {figures['scored']} of {figures['rollouts']}{turns}"
    )
