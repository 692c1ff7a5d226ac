"""How far a benchmark is, in numbers and as a table; names and errors in it are hostile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from card_checks import not_static, read
from hypothesis import given, settings
from hypothesis import strategies as st
from support import examples

from llm_sandbox_nb.benchmark import progress as module
from llm_sandbox_nb.benchmark.item_pipeline import Item
from llm_sandbox_nb.benchmark.progress import Progress
from llm_sandbox_nb.benchmark.report import as_text, cell_row, tables
from llm_sandbox_nb.benchmark.results import Result
from llm_sandbox_nb.benchmark.rows import Row
from llm_sandbox_nb.benchmark.runner import plan
from llm_sandbox_nb.benchmark.task import load_task
from llm_sandbox_nb.notebook.benchmark_command import KINDS, SCRIPTED, BenchmarkTable

ROWS = [Row(f"q{n}", f"{n}?", "1") for n in range(4)]


def items(*modes: str, repeats: int = 1) -> list[Item]:
    return plan([(load_task("demo"), ROWS)], modes or ("sandbox",), repeats)


def result(item: Item, score: float | None = 1.0, **more: Any) -> Result:
    values: dict[str, Any] = {"prompt_tokens": 10, "model_tokens": 5, "environment_tokens": 1, "cost": 0.5}
    return Result(*item.key, score=score, problem=item.row.problem, **(values | more))


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_progress_counts_items_that_begin_and_end(clock: Clock) -> None:
    work = items()
    progress = Progress(work, work, [], workers=2)
    (row,) = progress.rows()
    assert (row.total, row.done, row.running, row.score, row.rest, row.elapsed) == (4, 0, 0, None, None, 0.0)
    progress.began(work[0])
    progress.began(work[1])
    clock.now += 10
    progress.ended(result(work[0]))
    progress.began(work[2])
    (row,) = progress.rows()
    assert (row.done, row.running, row.score, row.tokens, row.cost) == (1, 2, 1.0, 16, 0.5)
    assert (row.elapsed, row.rest) == (10.0, 15.0), "three are left, two at once, ten seconds each"
    clock.now += 10
    progress.ended(result(work[1], 0.0))
    progress.ended(result(work[2], None, error_kind="server", error="down"))
    (row,) = progress.rows()
    assert (row.done, row.running, row.score, row.errors) == (3, 0, 0.5, {"server": 1})
    assert (row.tokens, row.cost) == (32, 1.0), "what failed is in no number, as in the report"
    assert list(progress.notes) == [(work[2].key, "server", "down")]
    clock.now += 50
    assert progress.rows()[0].elapsed == 20.0, "nothing is under way: its time stands still"


def test_progress_includes_earlier_results_and_reopens_failed_items() -> None:
    work = items("sandbox", "llm")
    before = [result(work[0]), result(work[1], None, error_kind="server")]
    progress = Progress(work, work[1:], before, workers=1)
    assert (progress.before, progress.done, progress.total) == (1, 1, 8)
    sandbox, llm, whole = progress.rows()
    assert (sandbox.done, llm.done, whole.done, whole.total) == (1, 0, 1, 8)
    assert sandbox.errors == {}
    assert (whole.task, whole.mode, whole.score) == ("all", "", None)


def test_an_unknown_cost_makes_the_sum_unknown() -> None:
    work = items()
    progress = Progress(work, [], [result(work[0]), result(work[1], cost=None)], workers=1)
    assert progress.rows()[0].cost is None


@settings(max_examples=examples(60))
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 2), st.sampled_from([0.0, 0.5, 1.0, None])), max_size=12
    )
)
def test_the_score_so_far_is_that_of_the_report(drawn: list[tuple[int, int, float | None]]) -> None:
    work = {item.key: item for item in items(repeats=3)}
    results = [
        result(work["demo", "sandbox", f"q{n}", repeat], score)
        for (n, repeat), score in {(n, repeat): score for n, repeat, score in drawn}.items()
    ]
    progress = Progress(work.values(), work.values(), [], workers=1)
    for one in results:
        progress.ended(one)
    if results:
        (cell,), _ = tables(results)
        shown = progress.rows()[0].score
        assert shown == pytest.approx(cell["score"]) if cell["score"] is not None else shown is None


KNOWN = {"div", "style", "b", "span", "table", "thead", "tbody", "tr", "th", "td"}


@settings(max_examples=examples(60))
@given(st.text(), st.text(), st.text())
def test_names_and_errors_are_shown_as_text(identity: str, kind: str, error: str) -> None:
    hostile = f"<img src=x onerror=alert(1)>'\"{identity}\x1b]8;;x\x07\u202e"
    item = Item(load_task("demo"), Row(hostile, "?", "1"), "sandbox", 1)
    progress = Progress([item], [item], [], workers=1)
    progress.ended(result(item, None, error_kind=f"<script>{kind}", error=hostile + error))
    bundle = BenchmarkTable(progress, hostile, False, hostile).bundle("running", note=hostile)
    assert set(read(bundle["text/html"]).tags) <= KNOWN
    assert not_static(bundle["text/html"]) == []
    assert "scripted" not in bundle["text/html"]
    for character in "\x1b\x07\u202e":
        assert character not in bundle["text/html"] + bundle["text/plain"]
    assert len(bundle["text/plain"].splitlines()) < 12


def test_many_kinds_of_errors_stay_short() -> None:
    work = items(repeats=5)
    progress = Progress(work, work, [], workers=1)
    for number, item in enumerate(work):
        progress.ended(result(item, None, error_kind=f"kind{number}", error="x" * 100_000))
    bundle = BenchmarkTable(progress, "m", True, "out").bundle("running")
    assert f"{20 - KINDS} others" in bundle["text/plain"]
    assert len(bundle["text/html"]) < 8_000
    assert ">scripted</span>" in bundle["text/html"]
    assert f"(scripted: {SCRIPTED})" in bundle["text/plain"]


def test_the_end_has_the_report(tmp_path: Path) -> None:
    work = items("sandbox", "llm")
    done = [result(item, float(item.mode == "sandbox")) for item in work]
    progress = Progress(work, [], done, workers=1)
    cells, comparisons = tables(done)
    found = {
        "cells": cells,
        "comparisons": comparisons,
        "errors": {},
        "judge": {"answers": 0, "no_verdict": 0},
    }
    bundle = BenchmarkTable(progress, "m", False, str(tmp_path)).bundle("done", found)
    # No difference among the differences says nothing about chance; four of four better is 2 / 2**4.
    assert (
        "demo  sandbox - llm      4  100.0          -           -       4      0  0.1250"
        in bundle["text/plain"]
    )
    assert "<h2>Side by side</h2>" in bundle["text/html"]


def test_results_with_a_reply_that_broke_off_are_counted() -> None:
    (first, second, *_) = items()
    row = cell_row("demo", "sandbox", [result(first, cut_replies=3), result(second)])
    assert row["cut_off"] == 1
    found = {"cells": [row], "comparisons": [], "errors": {}, "judge": {"answers": 0, "no_verdict": 0}}
    assert "Cut off: 1 result with a reply that broke off" in as_text(found)
    found["cells"] = [cell_row("demo", "sandbox", [result(second)])]
    assert "Cut off" not in as_text(found)
