"""The table and the plot of docs/explanation/performance.md are made from measurements."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

FILE = Path(__file__).parents[1] / "performance" / "table.py"


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("performance_table", FILE)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "PLOT", tmp_path / "plot.svg")
    return module


def row(value: float) -> dict[str, object]:
    return {"value": value, "unit": "ms", "bar": "none", "note": ""}


def test_rows_that_were_not_measured_again_stay(made: ModuleType) -> None:
    page = made.page_with("", made.table({"b": row(1), "a": row(2)}, ""))
    lines = made.table({"b": row(3)}, page).splitlines()
    assert lines[2:] == ["| a | 2 ms | none |  |", "| b | 3 ms | none |  |"]


def test_the_plot_needs_two_points_of_each_side(made: ModuleType) -> None:
    rows = {
        f"benchmark with {workers} workers, {side}": row(workers)
        for workers in (4, 16)
        for side in (*made.SIDES, "another")
    }
    made.plot({what: one for what, one in rows.items() if "4 workers" in what})
    assert not made.PLOT.exists()
    made.plot(rows)
    first = made.PLOT.read_text()
    assert all(label in first for label in (*made.SIDES.values(), "another"))
    made.plot(rows)
    assert made.PLOT.read_text() == first
