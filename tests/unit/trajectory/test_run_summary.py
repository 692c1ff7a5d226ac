"""A run in a line, from the ends of its journal: cheap for a long one, true after a rewind, safe for any content."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from card_runs import start_event
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from random_runs import EVENTS

from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.run_folder import notebook_folder_name
from llm_sandbox_nb.trajectory.run_summary import summaries, summarize
from llm_sandbox_nb.trajectory.trajectory import Trajectory

START: dict[str, Any] = {"kind": "run.started", "time": 100.0, "task": "Tidy up", "model": "m", "run_id": "r"}
ASKED: dict[str, Any] = {"kind": "model.requested", "step": 5}
ENDED: dict[str, Any] = {"kind": "run.finished", "stop_reason": "submitted", "steps": 5}
BACK: dict[str, Any] = {"kind": "rewound", "id": "b", "step": 2, "what": "both"}
UNDONE: dict[str, Any] = {"kind": "rewound", "id": "u", "undo_of": "b", "step": 5}
AGAIN: list[dict[str, Any]] = [
    {"kind": "continued"}, {**ASKED, "step": 3}, {**ENDED, "stop_reason": "answered", "steps": 3, "answer": "other"},
]  # fmt: skip


def journal(folder: Path, *events: dict[str, Any], name: str = "r") -> Path:
    (folder / name).mkdir(parents=True)
    (folder / name / "journal.jsonl").write_text("".join(json.dumps(one) + "\n" for one in events))
    return folder / name


@pytest.mark.parametrize(
    ("events", "state", "steps"),
    [
        ([], "open", -1),
        ([ASKED], "open", 5),
        ([ASKED, ENDED], "submitted", 5),
        ([ASKED, ENDED, BACK], "ready", 2),
        ([ASKED, ENDED, {**BACK, "what": "files"}], "submitted", 5),
        ([ASKED, ENDED, BACK, {"kind": "rewound", "id": "u", "undo_of": "b", "step": 5}], "submitted", 5),
        ([ASKED, ENDED, BACK, {"kind": "continued"}, {**ASKED, "step": 3}], "open", 3),
        ([ASKED, ENDED, {"kind": "forked", "step": 1}], "submitted", 5),
        ([ASKED, ENDED, BACK, *AGAIN, UNDONE], "submitted", 5),
        ([ASKED, ENDED, BACK, *AGAIN[:2], UNDONE], "submitted", 5),
        ([ASKED, BACK, *AGAIN, UNDONE], "ready", 5),
        (
            [ASKED, ENDED, BACK, *AGAIN, {**BACK, "id": "b2"}, {**UNDONE, "undo_of": "b2"}, UNDONE],
            "submitted",
            5,
        ),
        ([ASKED, ENDED, BACK, *AGAIN, UNDONE, {**BACK, "id": "b2"}], "ready", 2),
    ],
)
def test_how_a_run_ended(tmp_path: Path, events: list[dict[str, Any]], state: str, steps: int) -> None:
    found = summarize(journal(tmp_path, START, *events))
    assert found is not None
    assert (found.task, found.started, found.state, found.steps) == ("Tidy up", 100.0, state, steps)


def test_the_beginning_of_the_answer_is_kept(tmp_path: Path) -> None:
    def answer(name: str, *events: dict[str, Any]) -> str | None:
        found = summarize(journal(tmp_path, START, *events, name=name))
        assert found is not None
        return found.answer

    assert answer("a", ASKED, {**ENDED, "answer": "42 cities"}) == "42 cities"
    assert answer("b", ASKED, {**ENDED, "answer": "x" * 5000}) == "x" * 300
    assert answer("c", ASKED, ENDED) is None
    assert answer("d", ASKED, {**ENDED, "answer": "42"}, BACK) is None, "a rewound run has no answer yet"
    assert answer("e", ASKED, {**ENDED, "answer": "42"}, BACK, *AGAIN, UNDONE) == "42", "of the first attempt"


def test_a_run_with_a_very_long_task_is_listed(tmp_path: Path) -> None:
    found = summarize(journal(tmp_path, {**START, "task": "x" * 3_000_000}, ASKED, ENDED))
    assert found is not None
    assert (found.task, found.state, found.steps) == ("x" * 300, "submitted", 5)


LIMITS = st.builds(ev.SettingsChanged, limits=st.just({"steps": 7, "cost": 2.0}))
STOPS = st.builds(ev.Controlled, action=st.just("stop"), source=st.sampled_from(["browser", "on_pause"]))
STREAM = st.lists(EVENTS | LIMITS | STOPS, min_size=20, max_size=40)
OTHERS = ev.RunStarted | ev.ModelRequested | ev.ModelDelta | ev.CallOutput | ev.Rewound | ev.RunFinished


# A failure shows the state that is wrong, and to shrink its events would take minutes.
@settings(phases=[Phase.generate])
@given(streams=st.tuples(STREAM, STREAM, STREAM))
def test_the_end_in_words_is_that_of_the_whole_journal(streams: tuple[list[ev.Event], ...]) -> None:
    first, last, after = ([event for event in stream if not isinstance(event, OTHERS)] for stream in streams)
    events: list[ev.Event] = [start_event(settings={"limits": {"tokens": 9}})]
    for step, stream in enumerate((first, last), 1):
        events.append(ev.ModelRequested(step=step))
        events += [one.model_copy(update={"step": step} if hasattr(one, "step") else {}) for one in stream]
    scored = [event for event in after if isinstance(event, ev.Checked | ev.Rewarded | ev.Forked | ev.Noted)]
    with tempfile.TemporaryDirectory() as folder:
        for reason in ev.STOP_REASONS:
            whole = [*events, ev.RunFinished(stop_reason=reason, steps=2), *scored]
            written = [json.loads(ev.dump_event(event)) for event in whole]
            found = summarize(journal(Path(folder), *written, name=reason))
            assert found is not None
            assert found.run_state(live=False) == Trajectory(whole).state(live=False)


@pytest.mark.parametrize("after", [[], [{"kind": "forked", "step": 1}]])
def test_the_end_is_found_however_long_the_answer_is(tmp_path: Path, after: list[dict[str, Any]]) -> None:
    found = summarize(journal(tmp_path, START, ASKED, {**ENDED, "answer": "x" * 1_000_000}, *after))
    assert found is not None
    assert (found.state, found.steps, found.answer) == ("submitted", 5, "x" * 300)


def test_a_live_run_whose_step_has_begun_is_running(tmp_path: Path) -> None:
    for name, events, words in (
        ("a", [], "Starting the sandbox"),
        ("b", [{**ASKED, "step": 1}], "Running · step 1"),
        ("c", [ASKED], "Running · step 5"),
    ):
        found = summarize(journal(tmp_path, START, *events, name=name))
        assert found is not None
        assert found.run_state(live=True).words == words


def test_only_the_ends_of_a_long_journal_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = [{"kind": "call.finished", "stdout": "x" * 100_000}] * 200
    folder = journal(tmp_path, START, *long, ASKED, ENDED)
    assert (folder / "journal.jsonl").stat().st_size > 20_000_000
    read = 0
    loads = json.loads

    def counting(text: bytes) -> Any:
        nonlocal read
        read += len(text)
        return loads(text)

    monkeypatch.setattr(json, "loads", counting)
    found = summarize(folder)
    assert found is not None
    assert found.state == "submitted"
    assert read < 10_000


@pytest.mark.parametrize(
    "first",
    [
        "",
        "not JSON",
        "[1]",
        "[" * 100_000,
        '{"kind": "run.started"}',
        '{"kind": "run.started", "time": "x"}',
        '{"kind": "run.started", "time": Infinity}',
        '{"kind": "run.started", "time": NaN}',
        '{"kind": "run.started", "time": -1}',
        '{"kind": "run.started", "time": 1%s}' % ("0" * 400),
        "null",
    ],
)
def test_a_folder_that_holds_no_run_is_left_out(tmp_path: Path, first: str) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "journal.jsonl").write_text(first)
    assert summaries(tmp_path, 10) == ([], 1)
    assert summaries(tmp_path / "missing", 10) == ([], 0)


def test_only_folders_of_the_folder_itself_are_runs(tmp_path: Path) -> None:
    journal(tmp_path, START, ENDED, name="20260101-120000-aa")
    (tmp_path / "20260101-130000-bb").symlink_to(tmp_path / "20260101-120000-aa")
    (tmp_path / "20260101-140000-cc").write_text("a file")
    listed, total = summaries(tmp_path, 10)
    assert ([one.id for one in listed], total) == (["20260101-120000-aa"], 1)


def test_runs_are_in_the_order_of_their_beginnings(tmp_path: Path) -> None:
    for name, began in (
        ("20260101-120000-zz", 1.0),
        ("20260101-120000-aa", 2.0),
        ("20260101-110000-bb", 0.0),
    ):
        journal(tmp_path, {**START, "time": began}, ENDED, name=name)
    listed, total = summaries(tmp_path, 2)
    assert [one.id for one in listed] == ["20260101-120000-aa", "20260101-120000-zz"]
    assert total == 3
    for day in range(10, 30):
        journal(tmp_path, {**START, "time": float(day)}, ENDED, name=f"202602{day}-120000-aa")
    listed, total = summaries(tmp_path, 2)
    assert [one.id for one in listed] == ["20260229-120000-aa", "20260228-120000-aa"]
    assert total == 23


def test_a_name_that_leads_elsewhere_is_no_path() -> None:
    assert notebook_folder_name("a/b/../.. .ipynb") == "notebook"
    assert notebook_folder_name("week 1/Übung (2).ipynb") == "Übung-2"
