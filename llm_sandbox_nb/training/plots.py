"""The figures of a training as small plots, one beside the other: SVG, without a library and without scripts."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from llm_sandbox_nb.analysis.capability_rules import CAPABILITIES

WIDTH, HEIGHT = 260, 120
_LEFT, _RIGHT, _TOP, _BOTTOM = 34, 8, 8, 18
_COLOURS = ("#0860c4,#58a6ff", "#8250df,#b48cf2", "#1a7f37,#3fb950", "#9a3f00,#f0883e", "#57606a,#9da7b3")
"""Light and dark; each line of a plot takes the next."""
Line = tuple[str, Sequence[float | None]]
"""A name, and a value for each step, or None."""


def plots(steps: Sequence[Mapping[str, Any]], total: int) -> list[str]:
    """Reward with its spread, turns, tokens, capability use and stop reasons over `total` steps, as SVG texts."""
    numbers = [int(one["step"]) for one in steps]

    def line(name: str, key: str) -> Line:
        return name, [one.get(key) for one in steps]

    reward, spread = [one.get("reward") for one in steps], [one.get("reward_std") or 0.0 for one in steps]
    band = [
        None if mean is None else (max(0.0, mean - around), min(1.0, mean + around))
        for mean, around in zip(reward, spread, strict=True)
    ]
    uses = [(name, [(one.get("capabilities") or {}).get(name) for one in steps]) for name in CAPABILITIES]
    reasons = sorted({reason for one in steps for reason in one.get("stops") or ()})
    counts: list[Mapping[str, int]] = [one.get("stops") or {} for one in steps]
    stops = [(name, [one.get(name, 0) / max(1, sum(one.values())) for one in counts]) for name in reasons]
    return [
        plot("Reward", [("mean", reward)], numbers, total, top=1.0, band=band),
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


def plot(
    title: str,
    lines: Sequence[Line],
    numbers: Sequence[int],
    total: int,
    *,
    top: float | None = None,
    band: Sequence[tuple[float, float] | None] = (),
) -> str:
    """One plot. `numbers` are the steps of the values; `top` is the upper end of the scale, else the largest value."""
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
    words = ", ".join(f"{name} {_told(series)}" for name, series in lines)
    legend = "".join(
        f'<span style="{_paint("color", place)}">■</span> {html.escape(name)} {_told(series)} '
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


def _paint(what: str, place: int) -> str:
    return f"{what}:light-dark({_COLOURS[place % len(_COLOURS)]})"


def _told(series: Sequence[float | None]) -> str:
    """The newest value."""
    last = next((value for value in reversed(series) if value is not None), None)
    return "" if last is None else _short(last)


def _short(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"
