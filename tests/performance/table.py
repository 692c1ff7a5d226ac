"""Makes the table and the plot of docs/explanation/performance.md from what the performance tests measured.

python tests/performance/table.py
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "out" / "performance.json"
PAGE = ROOT / "docs" / "explanation" / "performance.md"
PLOT = ROOT / "docs" / "images" / "tasks-a-minute.svg"
SIDES = {
    "seed package": "original package, Docker",
    "docker": "this package, Docker",
    "bubblewrap": "this package, bubblewrap",
}
"""Labels of sides in the plot. Any other side has its own name there."""
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"


def table(rows: dict[str, dict[str, object]], page: str) -> str:
    """Return the table of `rows`, and of the rows of `page` that were not measured again."""
    before = page.partition(BEGIN)[2].partition(END)[0]
    lines = {
        line.split(" | ")[0].removeprefix("| "): line for line in before.splitlines() if line.startswith("| ")
    }
    lines.pop("what", None)
    for what, row in rows.items():
        value = f"{_three_digits(float(str(row['value'])))} {row['unit']}"
        note = re.sub(
            r"\b\d(\.\d+)?e\+\d\d\b", lambda found: _three_digits(float(found[0])), str(row["note"])
        )
        lines[what] = f"| {what} | {value} | {row['bar']} | {note} |"
    return "\n".join(
        ["| what | measured | bar | |", "|---|---|---|---|", *(lines[what] for what in sorted(lines))]
    )


def plot(rows: dict[str, dict[str, object]]) -> None:
    """Draw the tasks a minute by the number of workers, with a line for each side, if all of `SIDES` were measured."""
    points: dict[str, dict[int, float]] = {side: {} for side in SIDES}
    for what, row in rows.items():
        if found := re.fullmatch(r"benchmark with (\d+) workers, (.+)", what):
            points.setdefault(found[2], {})[int(found[1])] = float(str(row["value"]))
    if any(len(measured) < 2 for measured in points.values()):
        return

    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "tasks-a-minute"  # the same picture for the same numbers
    mpl.rcParams["svg.fonttype"] = "none"
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for side, measured in points.items():
        workers, values = zip(*sorted(measured.items()), strict=True)
        axes.plot(workers, values, marker="o", label=SIDES.get(side, side))
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.set_xlabel("workers")
    axes.set_ylabel("tasks a minute")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    figure.savefig(PLOT, metadata={"Date": None})


def _three_digits(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def page_with(page: str, content: str) -> str:
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{content}\n\n{END}{after}"


def main() -> int:
    """Rewrite the table and the plot; say what is missing."""
    if not RESULTS.is_file():
        print(
            "Nothing was measured yet: run `LLM_SANDBOX_TESTS=whole make test-all PYTEST=tests/performance` first.",
            file=sys.stderr,
        )
        return 1
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    rows = json.loads(RESULTS.read_text())
    page = PAGE.read_text()
    content = f"Measured on: {machine}.\n\n{table(rows, page)}"
    PAGE.write_text(page_with(page, content))
    plot(rows)
    print(content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
