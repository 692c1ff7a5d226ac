"""A training as text: a line for each step, and the table of one step's rollouts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from llm_sandbox_nb.analysis.capability_rules import CAPABILITIES
from llm_sandbox_nb.formatting import format_percent, plural
from llm_sandbox_nb.training.record import END, RecordError, RolloutRow, TrainingRecord

_COLUMNS = ("step", "reward", "", "turns", "tokens", "read", *CAPABILITIES, "seconds", "stops")
_WIDTHS = (4, 13, 12, 5, 6, 6, *(len(name) for name in CAPABILITIES), 7, 0)
_BAR = 12
_PAUSE = 1.0
"""Seconds between two looks at a training that runs."""


def heading() -> str:
    """The names of the columns of `step_line`."""
    return _joined(_COLUMNS)


def step_line(figures: Mapping[str, Any]) -> str:
    """One step in a line: reward with its spread, turns, tokens of model and sandbox, capability use, stop reasons."""
    reward, spread = figures.get("reward"), figures.get("reward_std") or 0.0
    uses = figures.get("capabilities") or {}
    stops = sorted((figures.get("stops") or {}).items(), key=lambda item: -item[1])
    cells = [
        str(figures["step"]),
        "none" if reward is None else f"{reward:.3f} ± {spread:.2f}",
        "" if reward is None else "█" * round(_BAR * min(1.0, max(0.0, reward))),
        _number(figures.get("turns")),
        _number(figures.get("model_tokens")),
        _number(figures.get("environment_tokens")),
        *(f"{format_percent(uses.get(name, 0.0))}%" for name in CAPABILITIES),
        _number(figures.get("seconds")),
        ", ".join(f"{count} {name}" for name, count in stops),
    ]
    return _joined(cells)


def rollout_lines(rows: Sequence[RolloutRow]) -> Iterator[str]:
    """The rollouts of a step, a line for each, those of one row together."""
    columns = ("rollout", "reward", "advantage", "turns", "tokens", "seconds", "stop", "answer")
    widths = (7, 7, 9, 5, 6, 7, 10, 24)
    yield _joined(columns, widths)
    group = None
    for row in sorted(rows, key=lambda one: (one.group, one.place)):
        if row.group != group:
            group = row.group
            yield f"row {group}"
        cells = (
            str(row.place),
            "none" if row.reward is None else f"{row.reward:.3f}",
            "none" if row.advantage is None else f"{row.advantage:+.3f}",
            str(row.turns),
            str(row.model_tokens),
            f"{row.seconds:.1f}",
            row.stop_reason,
            " ".join(row.answer.split())[:24],
        )
        yield _joined(cells, widths) + (f"  {row.run}" if row.run else "")


def overview(record: TrainingRecord) -> Iterator[str]:
    """The whole training: what it is, and all steps so far."""
    config, steps = record.config, record.steps()
    done = steps[-1]["step"] if steps else 0
    yield f"{config.name}: {done} of {plural(config.steps, 'step')}, {config.batch} rollouts each"
    yield heading()
    for figures in steps:
        yield step_line(figures)


def step_text(record: TrainingRecord, step: int) -> Iterator[str]:
    """One step with its rollouts.

    Raises:
        RecordError: there is no such step, or its rollouts are no longer kept.
    """
    found = [figures for figures in record.steps() if figures["step"] == step]
    rows = record.rollouts(step)
    if not found and not rows:
        raise RecordError(f"There is no step {step} in {record.folder} yet.")
    if found:
        yield heading()
        yield step_line(found[-1])
    if not rows:
        raise RecordError(
            f"The rollouts of step {step} are no longer kept: train with a larger record.keep, or with 0 for all."
        )
    yield from rollout_lines(rows)
    shown = next((row.run for row in rows if row.run), "")
    if shown:
        yield f"Show one: llm-sandbox-nb show {record.folder / shown}"


def follow(record: TrainingRecord, tell: Callable[[str], None], pause: float = _PAUSE) -> None:
    """Tell each new step, until the training has ended. A step that is repeated after a resume is told once."""
    lines = overview(record)
    for _ in range(2):
        tell(next(lines))
    told, over = 0, False
    while True:
        for figures in record.steps():
            if figures["step"] > told:
                tell(step_line(figures))
                told = figures["step"]
        if over:
            return
        over = is_over(record)
        time.sleep(0.0 if over else pause)


def is_over(record: TrainingRecord) -> bool:
    """Whether the trained policy is there."""
    steps = record.steps()
    return bool(steps) and steps[-1]["step"] >= record.config.steps and (record.folder / END).is_dir()


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def _joined(cells: Sequence[str], widths: Sequence[int] = _WIDTHS) -> str:
    shown = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
    return "  ".join(shown).rstrip()
