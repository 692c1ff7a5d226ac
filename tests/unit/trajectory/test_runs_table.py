"""What is said of a run is the same everywhere: one table of runs, `data/runs.json`, against each place that says it.

`labextension/tests/runs-table.test.mjs` tests the view against the same table.
"""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from card_checks import read
from card_runs import card_of, written

from llm_sandbox_nb.card import page as card_page
from llm_sandbox_nb.cli import main
from llm_sandbox_nb.cli.printer import Printer
from llm_sandbox_nb.runs.catalog import list_runs
from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.facts import with_facts
from llm_sandbox_nb.trajectory.run_summary import summarize
from llm_sandbox_nb.trajectory.saved_events import saved_events
from llm_sandbox_nb.trajectory.trajectory import Trajectory
from llm_sandbox_nb.trajectory.watched_run import WatchedRun

DATA = Path(__file__).parents[2] / "data"
sys.path.insert(0, str(DATA))

import make_runs  # noqa: E402

ROWS: list[dict[str, Any]] = json.loads((DATA / "runs.json").read_text("utf-8"))
ENDED = [row for row in ROWS if not row["live"]]
rows = pytest.mark.parametrize("row", ROWS, ids=[row["name"] for row in ROWS])


def events_of(row: dict[str, Any]) -> list[ev.Event]:
    return [ev.parse_python(event) for event in row["events"]]


def lines_of(trajectory: Trajectory) -> list[dict[str, Any]]:
    return [step.line.model_dump(exclude_defaults=True) if step.line else {} for step in trajectory.steps]


def text_of(page: str) -> str:
    """The text of a card's page, without its style sheet."""
    return "".join(read(page.partition("<style>")[0] + page.partition("</style>")[2]).text)


def said(line: dict[str, Any]) -> list[str]:
    chips = [chip["text"] for chip in line.get("chips", ())]
    return [word for word in (line.get("thought"), line.get("what"), *chips, line.get("figures")) if word]


def test_the_table_has_rows_of_all_kinds() -> None:
    assert len(ROWS) >= 120
    assert len({row["facts"]["state"] for row in ROWS}) >= 20
    assert {row["live"] for row in ROWS} == {True, False}
    assert sum(row["name"].startswith("recorded") for row in ROWS) >= 4


@rows
def test_who_reads_the_events_says_the_same(row: dict[str, Any]) -> None:
    """The fold; with facts that were recorded; of the events of a saved card; and the list of a server."""
    events, live, facts = events_of(row), row["live"], row["facts"]
    assert make_runs.facts(Trajectory(events), live=live) == facts
    told = list(with_facts(events, live=live))
    trajectory = Trajectory(told)
    assert make_runs.facts(trajectory, live=live) == facts
    assert [*with_facts(told, live=live)] == told, "a second reading adds nothing"
    assert all(lines_of(trajectory)[: -2 if live else None]), "all but the line of a step that runs"
    assert trajectory.branches == Trajectory(events).branches
    kept = [ev.parse_python(event) for event in saved_events(events, live=live)]
    assert make_runs.facts(Trajectory(kept), live=live) == facts
    run = WatchedRun()
    for event in row["events"]:
        run.add(event)
    listed = run.to_json(live=live, away=False)
    assert listed["status"] == {name: facts[name] for name in ("state", "words", "meaning", "check")}
    assert (listed["held"] or {}).get("call_id") == facts["held"]
    assert listed["paused"] == (facts["paused"] and live)


GREEN_RULES = {
    ".lsn-add": "lines that an edit adds", ".lsn-diff-added": "lines that an edit adds",
    ".lsn-add,b.lsn-g": "the same, and a check that passed",
    ".lsn-badge[data-state='done']": "the state, only when its meaning is `ok`",
    ".lsn-panel .lsn-badge[data-state='done']": "the same in the panel",
    ".lsn-panel [data-state='done']": "the same in its list",
    ".lsn-check[data-state='passed'] summary b": "a check that passed",
    ".lsn-view button.lsn-primary": "the button that allows a call",
    ".lsn-compared mark.lsn-only-right, .lsn-compared-answer mark.lsn-only-right": "what only one run has",
}  # fmt: skip
"""What may be green, and why it says nothing of a result that was not checked."""


def test_no_style_makes_something_else_green() -> None:
    sheets = {
        path.name: path.read_text("utf-8")
        for path in (Path(__file__).parents[3] / "labextension" / "style").glob("*.css")
    }
    sheets.pop("ansi.css")  # what programs print
    sheets["card.css"] = card_page.style()
    green = re.compile(r"--lsn-good|--jp-success|--lsn-panel-ok|var\(--g\)|#1a7f37|#3fb950|#2da44e|\bgreen\b")
    found = [
        (name, selector.strip())
        for name, sheet in sheets.items()
        for sheet in [re.sub(r"/\*.*?\*/", "", sheet, flags=re.DOTALL)]
        for selector, body in re.findall(r"([^{};]+)\{([^{}]*)\}", sheet)
        if green.search(re.sub(r"--[\w-]+:\s*(?:light-dark\([^)]*\)|#\w+);?", "", body))
    ]
    assert {selector for _, selector in found} == set(GREEN_RULES), found


@rows
def test_the_card_and_the_terminal_say_the_same(row: dict[str, Any]) -> None:
    """Green is a check that passed, and nothing else."""
    facts, events = row["facts"], events_of(row)
    card = card_of(events)
    bundle = card.live() if row["live"] else card.final()
    html = "".join(bundle["text/html"])
    for text in (text_of(html), bundle["text/plain"]):
        assert facts["words"] in text
        for line in facts["lines"][-1 if facts["calm"] else -3 :]:
            for word in said(line):
                assert word in text, word
        for calm in facts["calm"] if not row["live"] else ():
            assert all(word in text for word in calm), calm
    passed = facts["check"] == "passed"
    body = re.sub(r"<style.*?</style>", "", html, flags=re.DOTALL)
    has_check = any(event["kind"] == "checked" for event in row["events"])
    assert (facts["meaning"] == "ok") == passed
    assert ("color:#2da44e" in body) == passed
    assert ("class='lsn-g'" in body) <= has_check
    assert ("checked" in facts["words"].replace("not checked", "")) <= has_check
    out = io.StringIO()
    printer = Printer(out)
    for event in events:
        printer(event)
    if isinstance(events[-1], ev.RunFinished):
        assert out.getvalue().splitlines()[-1].startswith(f"{facts['words']} · ")
    assert "Steps remaining: 7" not in out.getvalue()


@pytest.mark.parametrize("row", ENDED, ids=[row["name"] for row in ENDED])
def test_the_lists_of_runs_and_the_repr(row: dict[str, Any], tmp_path: Path) -> None:
    """Of runs that nobody executes."""
    folder = written(tmp_path / "runs" / "20260101-120000-aa", events_of(row))
    facts = row["facts"]
    (entry,) = list_runs(tmp_path / "runs")
    assert entry.state == facts["words"]
    summary = summarize(folder)
    assert summary is not None
    assert summary.run_state(live=False).to_json() == {
        name: facts[name] for name in ("state", "words", "meaning", "check")
    }
    assert facts["words"] in repr(Run.load(folder))


@pytest.mark.parametrize("row", [row for row in ENDED if row["facts"]["calm"]], ids=lambda row: row["name"])
def test_show_folds_the_same_steps(
    row: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = written(tmp_path / "run", events_of(row))
    main(["show", str(folder)])
    text = capsys.readouterr().out
    shown = [
        line.split(" · ")[0].removeprefix("Step") for line in text.splitlines() if line.startswith("Step")
    ]
    calm = [one[0] for one in row["facts"]["calm"]]
    within = {step for one in calm for step in range(int(one.split("-")[0]), int(one.split("-")[1]) + 1)}
    alone = [f" {step}" for step in row["facts"]["steps"] if step not in within]
    assert sorted(shown) == sorted([f"s {one}" for one in calm] + alone)
    for numbers, words, figures in row["facts"]["calm"]:
        assert f"Steps {numbers} · {words} · {figures}" in text
    main(["show", "--all", str(folder)])
    assert capsys.readouterr().out.count("\nStep ") == len(row["facts"]["steps"])


def test_a_changed_word_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    row = next(row for row in ROWS if row["name"] == "denied by a person")
    monkeypatch.setitem(make_runs.step_line.__globals__["DECIDED"], "skip", "skipped by you")
    with pytest.raises(AssertionError):
        test_who_reads_the_events_says_the_same(row)
