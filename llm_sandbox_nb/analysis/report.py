"""HTML page with the tables and plots of an analysis. The page has no scripts and needs no external resources."""

from __future__ import annotations

import html
from pathlib import Path
from typing import TYPE_CHECKING

from llm_sandbox_nb.analysis import plots
from llm_sandbox_nb.analysis.behaviour import PATTERNS_VERSION
from llm_sandbox_nb.analysis.capability_rules import CAPABILITIES, RULES_VERSION
from llm_sandbox_nb.analysis.frames import groups_frame, runs_frame, tools_frame
from llm_sandbox_nb.analysis.load import Reading
from llm_sandbox_nb.formatting import format_number, format_percent, plural
from llm_sandbox_nb.trajectory.whole_file import write_whole

if TYPE_CHECKING:
    import pandas

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 75em; margin: 2em auto; padding: 0 1em; color: #222; }
table { border-collapse: collapse; font-size: 13px; margin: 1em 0; }
th, td { padding: .25em .6em; border-bottom: 1px solid #ddd; text-align: right; }
th:first-child, td:first-child { text-align: left; }
thead th { border-bottom: 2px solid #888; vertical-align: bottom; }
.wide { overflow-x: auto; } svg { max-width: 100%; height: auto; } .note { color: #555; }
"""
_CSP = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_MAX_RUNS = 2000
_TITLE = "What these runs did"
_PERCENT = ("_rate", "_share")


def page(title: str, body: str) -> str:
    """Return an HTML page. `body` is already HTML."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{_CSP}"><style>{STYLE}</style></head>'
        f"<body><h1>{html.escape(title)}</h1>\n{body}\n</body></html>\n"
    )


def table(frame: pandas.DataFrame, columns: list[str] | None = None) -> str:
    """Return a data frame as an HTML table. Texts are escaped, shares are in percent, and numbers are short."""
    frame = frame if columns is None else frame[columns]
    heads = "".join(f"<th>{html.escape(str(name).replace('_', ' '))}</th>" for name in frame.columns)
    rows = "".join(
        "<tr>" + "".join(f"<td>{cell(str(name), row[name])}</td>" for name in frame.columns) + "</tr>\n"
        for row in frame.to_dict("records")
    )
    return f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>\n{rows}</tbody></table></div>'


def cell(column: str, value: object) -> str:
    """Return a value as escaped text. For an unknown value, return a dash."""
    if value is None or value != value:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) and column.endswith(_PERCENT):
        return f"{format_percent(value)} %"
    if isinstance(value, float):
        return format_number(value)
    return html.escape(str(value))


def report_html(reading: Reading) -> str:
    runs = runs_frame(reading.runs)
    if runs.empty:
        return page(_TITLE, '<p class="note">No run was found.</p>' + _problems(reading))
    groups, tools = groups_frame(runs), tools_frame(reading.runs)
    guessed = int(runs["tokens_estimated"].sum())
    estimated = f" Runs with estimated tokens (four characters for a token): {guessed}." if guessed else ""
    rates = [f"{name}{kind}_rate" for kind in ("", "_succeeded") for name in CAPABILITIES]
    parts = [
        f'<p class="note">{plural(len(runs), "run")}, {plural(int(runs["turns"].sum()), "turn")}. '
        f"Capability rules version {RULES_VERSION}, writing patterns version {PATTERNS_VERSION}.{estimated}</p>",
        "<h2>How the runs ended</h2>",
        table(groups, ["group", "runs", "ended", "foreign_runs"]),
        "<h2>Capabilities</h2><p>Each bar is the share of all turns whose code uses a capability. Its solid part is "
        "the share of turns in which a call that uses this capability also succeeded.</p>",
        plots.svg_of(plots.capability_figure(groups)),
        table(groups, ["group", "runs", "turns_mean", *rates]),
        "<h2>Tokens</h2>",
        plots.svg_of(plots.token_figure(groups)),
        table(groups, ["group", *(name for name in groups.columns if "token" in name), "environment_share"]),
        "<h2>Turns and tools</h2>",
        plots.svg_of(plots.turns_figure(runs)),
        plots.svg_of(plots.tools_figure(tools)) if len(tools) else "",
        table(
            groups,
            ["group", "turns_mean", "barren_share", "wandering_runs", "verification_mean", "structure_mean"],
        ),
        "<h2>Time</h2>",
        table(groups, ["group", "runs", "runs_per_minute", "concurrency", "tool_share"]),
        "<h2>Runs</h2>",
        table(runs.head(_MAX_RUNS), [name for name in runs.columns if name not in ("task", "start")]),
    ]
    if len(runs) > _MAX_RUNS:
        parts.append(f'<p class="note">The first {_MAX_RUNS} of {len(runs)} runs are shown.</p>')
    return page(_TITLE, "\n".join(parts) + _problems(reading))


def _problems(reading: Reading) -> str:
    if not reading.problems:
        return ""
    items = "".join(f"<li>{html.escape(problem)}</li>" for problem in reading.problems)
    return f"<h2>Left out</h2><ul>{items}</ul>"


def write_report(reading: Reading, path: str | Path) -> Path:
    """Write the HTML page of an analysis to `path` atomically."""
    return write_whole(Path(path), report_html(reading).encode("utf-8", "replace"), follow_links=True)
