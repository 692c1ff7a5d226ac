"""Makes the table in docs/explanation/performance.md from what the performance tests measured.

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
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"


def table(rows: dict[str, dict[str, object]]) -> str:
    lines = ["| what | measured | bar | |", "|---|---|---|---|"]
    for what, row in sorted(rows.items()):
        value = f"{_three_digits(float(str(row['value'])))} {row['unit']}"
        note = re.sub(
            r"\b\d(\.\d+)?e\+\d\d\b", lambda found: _three_digits(float(found[0])), str(row["note"])
        )
        lines.append(f"| {what} | {value} | {row['bar']} | {note} |")
    return "\n".join(lines)


def _three_digits(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def page_with(page: str, content: str) -> str:
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{content}\n\n{END}{after}"


def main() -> int:
    """Rewrite the table; say what is missing."""
    if not RESULTS.is_file():
        print(
            "Nothing was measured yet: run `make test-all PYTEST=tests/performance` first.", file=sys.stderr
        )
        return 1
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    content = f"Measured on: {machine}.\n\n{table(json.loads(RESULTS.read_text()))}"
    PAGE.write_text(page_with(PAGE.read_text(), content))
    print(content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
