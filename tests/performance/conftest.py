"""What the performance tests measure is kept as JSON; `table.py` makes a table of it for the docs."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from pathlib import Path

import pytest

RESULTS = Path(__file__).parents[2] / "out" / "performance.json"

Measured = Callable[..., None]


@pytest.fixture
def measured() -> Measured:
    """Keep one number, then assert on it: `measured("close, Docker", 0.12, "s", bar="under 0.5 s")`."""
    return keep


def keep(what: str, value: float, unit: str, *, bar: str, note: str = "") -> None:
    """Write one row; a later run of the same row replaces it."""
    RESULTS.parent.mkdir(exist_ok=True)
    rows = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    rows[what] = {"value": value, "unit": unit, "bar": bar, "note": note, "machine": platform.machine()}
    partial = RESULTS.with_suffix(".partial")
    partial.write_text(json.dumps(rows, indent=2, sort_keys=True))
    partial.replace(RESULTS)
