"""The page about attackers names the test of each promise: each test exists, and no line is without one."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINES = (
    (ROOT / "docs/explanation/threat-model.md")
    .read_text("utf-8")
    .partition("## Side by side")[0]
    .splitlines()
)


def test_each_line_names_tests_that_exist() -> None:
    rows = [line for line in LINES if line.startswith("| ") and not line.startswith("| it tries to")]
    assert len(rows) >= 15
    for row in rows:
        named = re.findall(r"tests/[\w/]+\.py", row.split("|")[-2])
        assert named, f"no test: {row}"
        for path in named:
            assert "def test_" in (ROOT / path).read_text("utf-8"), f"{path} has no test"
