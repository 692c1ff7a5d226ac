"""Views of a training as text and as plots.

The text has a line for each step, and a table of a step's rollouts. The plots are small SVG pictures in a row. They
need no library and no scripts.
"""

from __future__ import annotations

import html
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from llm_sandbox_nb.analysis.capability_rules import CAPABILITIES
from llm_sandbox_nb.formatting import format_percent, plural
from llm_sandbox_nb.training.record import COMPLETE, END, RecordError, RolloutRow, TrainingRecord
from llm_sandbox_nb.training.validation import validation_line

_COLUMNS = ("step", "reward", "", "alike", "turns", "tokens", "read", *CAPABILITIES, "seconds", "stops")
_WIDTHS = (4, 13, 12, 7, 5, 6, 6, *(len(name) for name in CAPABILITIES), 7, 0)
_BAR_CHARACTERS = 12
_LOOK_SECONDS = 1.0
"""Seconds between two reads of a running training's folder."""


def heading() -> str:
    """Return a line with the column names of `step_line`."""
    return _joined(_COLUMNS)


def step_line(figures: Mapping[str, Any]) -> str:
    """Return a line about a step: reward and its spread, turns, tokens, capability use, seconds, and stop reasons.

    The column `alike` has the number of groups whose rollouts all had the same reward, and the number of all groups.
    """
    reward, spread = figures.get("reward"), figures.get("reward_std") or 0.0
    uses = figures.get("capabilities") or {}
    stops = sorted((figures.get("stops") or {}).items(), key=lambda item: -item[1])
    cells = [
        str(figures["step"]),
        "none" if reward is None else f"{reward:.3f} ± {spread:.2f}",
        "" if reward is None else "█" * round(_BAR_CHARACTERS * min(1.0, max(0.0, reward))),
        _alike(figures),
        _number(figures.get("turns")),
        _number(figures.get("model_tokens")),
        _number(figures.get("environment_tokens")),
        *(f"{format_percent(uses.get(name, 0.0))}%" for name in CAPABILITIES),
        _number(figures.get("seconds")),
        ", ".join(f"{count} {name}" for name, count in stops),
    ]
    return _joined(cells)


def rollout_lines(rows: Sequence[RolloutRow]) -> Iterator[str]:
    """Yield a line for each rollout of a step. Rollouts on the same row form a group."""
    columns = ("rollout", "reward", "advantage", "turns", "tokens", "seconds", "stop", "answer")
    widths = (7, 7, 9, 5, 6, 7, 10, 24)
    yield _joined(columns, widths)
    group = None
    for row in sorted(rows, key=lambda row: (row.group, row.place)):
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
    """Yield a summary of the training, all steps so far, and each validation after its step."""
    config, steps = record.config, record.steps()
    done = steps[-1]["step"] if steps else 0
    yield f"{config.name}: {done} of {plural(config.steps, 'step')}, {config.batch} rollouts each"
    yield heading()
    for _, line in sorted([*_step_lines(record), *_validation_lines(record)], key=lambda pair: pair[0]):
        yield line


def _step_lines(record: TrainingRecord) -> list[tuple[tuple[int, int], str]]:
    """Return the line of each step, with its sort key."""
    return [((int(figures["step"]), 0), step_line(figures)) for figures in record.steps()]


def _validation_lines(record: TrainingRecord) -> list[tuple[tuple[int, int], str]]:
    """Return the line of each task in each validation, with its sort key."""
    return [
        ((int(figures["step"]), place), validation_line(figures))
        for place, figures in enumerate(record.validations(), 1)
    ]


def step_text(record: TrainingRecord, step: int) -> Iterator[str]:
    """Yield a step with its rollouts.

    Raises:
        RecordError: if the step does not exist, or its rollouts are no longer kept.
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


def follow(record: TrainingRecord, emit: Callable[[str], None], pause: float = _LOOK_SECONDS) -> None:
    """Pass a line about each new step and validation to `emit` until the training ends.

    A step that a resume repeats is passed only once.
    """
    lines = overview(record)
    for _ in range(2):
        emit(next(lines))
    emitted, over = set[tuple[int, int]](), False
    while True:
        for place, line in sorted([*_step_lines(record), *_validation_lines(record)]):
            if place not in emitted:
                emit(line)
                emitted.add(place)
        if over:
            return
        over = is_over(record)
        time.sleep(0.0 if over else pause)


def is_over(record: TrainingRecord) -> bool:
    """Return True if the last step is done and the trained policy is completely written."""
    steps = record.steps()
    return (
        bool(steps)
        and steps[-1]["step"] >= record.config.steps
        and (record.folder / END / COMPLETE).is_file()
    )


def _alike(figures: Mapping[str, Any]) -> str:
    """Return a text such as `2 of 8`: in two of eight groups, all rewards are equal, so these groups teach nothing."""
    alike, groups = figures.get("groups_alike"), figures.get("groups")
    return "" if alike is None else f"{alike} of {groups}" if groups is not None else str(alike)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def _joined(cells: Sequence[str], widths: Sequence[int] = _WIDTHS) -> str:
    shown = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
    return "  ".join(shown).rstrip()


WIDTH, HEIGHT = 260, 120
_LEFT, _RIGHT, _TOP, _BOTTOM = 34, 8, 8, 18
_COLOURS = ("#0860c4,#58a6ff", "#8250df,#b48cf2", "#1a7f37,#3fb950", "#9a3f00,#f0883e", "#57606a,#9da7b3")
"""Colours of the first to the fifth line of a plot: the colour on a light page, then on a dark page."""
Line = tuple[str, Sequence[float | None]]
"""Name of a line in a plot, and for each step a value, or None if there is no value."""


def plots(
    steps: Sequence[Mapping[str, Any]], total: int, validations: Sequence[Mapping[str, Any]] = ()
) -> list[str]:
    """Draw reward with its spread, turns, tokens, capability use and stop reasons over `total` steps, as SVG texts.

    If there are validations, another plot has the score of each of their tasks. The score of the first policy is drawn
    at step 1.
    """
    numbers = [int(figures["step"]) for figures in steps]

    def line(name: str, key: str) -> Line:
        return name, [figures.get(key) for figures in steps]

    reward = [figures.get("reward") for figures in steps]
    spread = [figures.get("reward_std") or 0.0 for figures in steps]
    band = [
        None if mean is None else (max(0.0, mean - around), min(1.0, mean + around))
        for mean, around in zip(reward, spread, strict=True)
    ]
    uses = [
        (name, [(figures.get("capabilities") or {}).get(name) for figures in steps]) for name in CAPABILITIES
    ]
    reasons = sorted({reason for figures in steps for reason in figures.get("stops") or ()})
    counts: list[Mapping[str, int]] = [figures.get("stops") or {} for figures in steps]
    stops = [
        (name, [figures.get(name, 0) / max(1, sum(figures.values())) for figures in counts])
        for name in reasons
    ]
    return [
        plot("Reward", [("mean", reward)], numbers, total, top=1.0, band=band),
        *([_validation_plot(validations, total)] if validations else ()),
        plot("Turns", [line("mean", "turns"), line("most", "turns_max")], numbers, total),
        plot(
            "Tokens of a rollout",
            [line("model", "model_tokens"), line("sandbox", "environment_tokens")],
            numbers,
            total,
        ),
        plot("Turns that use", uses, numbers, total, top=1.0),
        plot("Stop reasons", stops[: len(_COLOURS)], numbers, total, top=1.0),
    ]


def _validation_plot(validations: Sequence[Mapping[str, Any]], total: int) -> str:
    after = sorted({int(score["step"]) for score in validations})
    scores = {(score["task"], int(score["step"])): score["score"] for score in validations}
    tasks = list(dict.fromkeys(str(score["task"]) for score in validations))[: len(_COLOURS)]
    lines = [(task, [scores.get((task, step)) for step in after]) for task in tasks]
    return plot("Validation", lines, [max(1, step) for step in after], total, top=1.0)


def plot(
    title: str,
    lines: Sequence[Line],
    numbers: Sequence[int],
    total: int,
    *,
    top: float | None = None,
    band: Sequence[tuple[float, float] | None] = (),
) -> str:
    """Draw one plot, and return it as HTML. `numbers` are the steps of the values. `total` is the last planned step.

    `top` is the value at the top of the scale. With None, the largest value is near the top. For each step, `band` has
    the lower and the upper bound of a shaded area, or None for no area.
    """
    values = [value for _, series in lines for value in series if value is not None]
    scale = top or max([*values, 1e-9]) * 1.05

    def point(number: int, value: float) -> str:
        x = _LEFT + (WIDTH - _LEFT - _RIGHT) * (number - 1) / max(1, total - 1)
        y = HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * min(1.0, value / scale)
        return f"{x:.1f},{y:.1f}"

    drawn = [_axes(scale, total)]
    spans = [(number, span) for number, span in zip(numbers, band, strict=False) if span is not None]
    if spans:
        around = [point(number, high) for number, (_, high) in spans]
        around += [point(number, low) for number, (low, _) in reversed(spans)]
        drawn.append(f'<polygon points="{" ".join(around)}" style="{_paint("fill", 0)};opacity:.18"/>')
    for place, (_, series) in enumerate(lines):
        pairs = [(number, value) for number, value in zip(numbers, series, strict=True) if value is not None]
        points = [point(number, value) for number, value in pairs]
        drawn.append(
            f'<polyline points="{" ".join(points)}" fill="none" stroke-width="1.6" style="{_paint("stroke", place)}"/>'
        )
        if points:
            x, _, y = points[-1].partition(",")
            drawn.append(f'<circle cx="{x}" cy="{y}" r="2.4" style="{_paint("fill", place)}"/>')
    words = ", ".join(f"{name} {_newest(series)}" for name, series in lines)
    legend = "".join(
        f'<span style="{_paint("color", place)}">■</span> {html.escape(name)} {_newest(series)} '
        for place, (name, series) in enumerate(lines)
    )
    return (
        f"<figure style='margin:0'><figcaption><b>{html.escape(title)}</b> <small>{legend}</small></figcaption>"
        f'<svg role="img" aria-label="{html.escape(f"{title}: {words}")}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}">{"".join(drawn)}</svg></figure>'
    )


def _axes(scale: float, total: int) -> str:
    foot = HEIGHT - _BOTTOM
    style = "font:10px sans-serif;fill:currentColor;opacity:.75"
    return (
        f'<path d="M{_LEFT} {_TOP}V{foot}H{WIDTH - _RIGHT}" fill="none" stroke="currentColor" opacity=".35"/>'
        f'<text x="{_LEFT - 4}" y="{_TOP + 8}" text-anchor="end" style="{style}">{_short(scale)}</text>'
        f'<text x="{_LEFT - 4}" y="{foot}" text-anchor="end" style="{style}">0</text>'
        f'<text x="{_LEFT}" y="{HEIGHT - 4}" style="{style}">1</text>'
        f'<text x="{WIDTH - _RIGHT}" y="{HEIGHT - 4}" text-anchor="end" style="{style}">step {total}</text>'
    )


def _paint(property: str, place: int) -> str:
    return f"{property}:light-dark({_COLOURS[place % len(_COLOURS)]})"


def _newest(series: Sequence[float | None]) -> str:
    last = next((value for value in reversed(series) if value is not None), None)
    return "" if last is None else _short(last)


def _short(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"
