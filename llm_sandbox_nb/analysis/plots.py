"""Plots of the tables as matplotlib figures. This module needs matplotlib, but no screen."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from llm_sandbox_nb.analysis.capability_rules import CAPABILITIES

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
"""Colours of Okabe and Ito. Colour-blind people can distinguish these colours, also in a grey copy."""
_LABELS = {"external": "External resources", "files": "File management", "computation": "Computation"}


def capability_figure(groups: pandas.DataFrame) -> Figure:
    """Draw the share of turns that use each capability, for each group of runs.

    In the turns of a bar's pale part, no call with the capability succeeded.
    """
    figure, axes = _new(len(groups))
    width = 0.8 / len(CAPABILITIES)
    for number, name in enumerate(CAPABILITIES):
        places = [row + (number - 1) * width for row in range(len(groups))]
        axes.bar(places, 100 * groups[f"{name}_rate"], width, color=COLOURS[number], alpha=0.35)
        axes.bar(
            places, 100 * groups[f"{name}_succeeded_rate"], width, color=COLOURS[number], label=_LABELS[name]
        )
    return _finish(figure, axes, list(groups["group"]), "Turns that use it (%)")


def token_figure(groups: pandas.DataFrame) -> Figure:
    """Draw the mean number of tokens of a run, for each group and origin. Each token of a conversation counts once."""
    figure, axes = _new(len(groups))
    origins = ("prompt", "model", "environment")
    _stack(axes, ((name.capitalize(), groups[f"{name}_tokens_mean"] / 1000) for name in origins))
    return _finish(figure, axes, list(groups["group"]), "Tokens of a run (thousands)")


def turns_figure(runs: pandas.DataFrame) -> Figure:
    """Draw the distribution of the number of turns in a run, for each group."""
    names = sorted(set(runs["group"]))
    figure, axes = _new(len(names))
    axes.boxplot([runs[runs["group"] == name]["turns"].tolist() for name in names], widths=0.5)
    axes.set_xticks(range(1, len(names) + 1), [_plain(name) for name in names], rotation=20, ha="right")
    axes.set_ylabel("Turns")
    axes.set_ylim(bottom=0)
    return figure


def tools_figure(tools: pandas.DataFrame) -> Figure:
    """Draw the share of each tool in the calls of a group, for each group."""
    table = tools.pivot_table(index="group", columns="tool", values="share", fill_value=0.0, aggfunc="sum")
    figure, axes = _new(len(table))
    _stack(axes, ((_plain(tool), 100 * table[tool]) for tool in table.columns))
    return _finish(figure, axes, list(table.index), "Calls (%)")


def svg_of(figure: Figure) -> str:
    """Return a figure as an `<svg>` element. Equal figures give equal texts."""
    import matplotlib

    target = io.StringIO()
    with (
        matplotlib.rc_context({"svg.hashsalt": "llm-sandbox-nb", "svg.fonttype": "path"}),
        warnings.catch_warnings(),
    ):
        # A plot may lack letters that its font does not have. The tables show the same names in full.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.savefig(target, format="svg", metadata={"Date": None})
    text = target.getvalue()
    return text[text.index("<svg") :]


def _new(groups: int) -> tuple[Figure, Any]:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("Plots need matplotlib: run `pip install 'llm-sandbox-nb[benchmark]'`.") from error
    figure = Figure(figsize=(max(5.0, 1.6 + 1.1 * groups), 3.6), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    return figure, axes


def _stack(axes: Any, parts: Iterable[tuple[str, pandas.Series[float]]]) -> None:
    """Draw a bar for each group. A part has a label and a value for each group. The first part is at the bottom."""
    bottom: Any = 0.0
    for number, (label, values) in enumerate(parts):
        colour = COLOURS[number % len(COLOURS)]
        axes.bar(range(len(values)), values, 0.6, bottom=bottom, color=colour, label=label)
        bottom = bottom + values.to_numpy()


def _finish(figure: Figure, axes: Any, names: Sequence[object], label: str) -> Figure:
    axes.set_xticks(range(len(names)), [_plain(name) for name in names], rotation=20, ha="right")
    axes.set_ylabel(label)
    axes.legend(frameon=False)
    return figure


def _plain(name: object) -> str:
    """Return a name with each `$` escaped, because matplotlib would read `$` as the start of a formula."""
    return str(name).replace("$", r"\$")
