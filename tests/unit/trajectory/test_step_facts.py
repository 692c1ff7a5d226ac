"""What is said of a step is written when it has ended, once, in few bytes; and older forms of events are still read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from card_runs import run_events, saved_file, start_event, step_events, written

from llm_sandbox_nb.agent.recorder import Recorder
from llm_sandbox_nb.card.card import Card
from llm_sandbox_nb.cli import main
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.facts import with_facts
from llm_sandbox_nb.trajectory.journal import JournalError, read_journal
from llm_sandbox_nb.trajectory.trajectory import Trajectory

FOOTER = "\n\n[Steps remaining: 7]"
NOTE = '[A person changed this call before it was executed. What was executed: execute_bash {"command": "ls"}]\n\n'


def recorded(folder: Path, events: list[ev.Event]) -> list[ev.Event]:
    recorder = Recorder(folder)
    for event in events:
        recorder.emit(event)
    recorder.close()
    return list(read_journal(folder))


def facts_of(events: list[ev.Event]) -> list[ev.StepFacts]:
    return [event for event in events if isinstance(event, ev.StepFacts)]


def test_each_step_has_its_facts_once_before_the_next_call_or_the_end(tmp_path: Path) -> None:
    kept = recorded(tmp_path, run_events(4))
    assert [facts.step for facts in facts_of(kept)] == [1, 2, 3, 4]
    places = [kept.index(facts) for facts in facts_of(kept)]
    after = [kept[place + 1] for place in places[:2]]
    assert [(type(event), getattr(event, "step", 0)) for event in after] == [
        (ev.CallStarted, 2),
        (ev.CallStarted, 3),
    ]
    assert isinstance(kept[-1], ev.RunFinished)
    assert all(kept[place].parent == kept[place - 1].id for place in places[:3])
    assert list(with_facts(kept)) == kept


def test_no_event_follows_facts_so_branches_are_as_without_them(tmp_path: Path) -> None:
    events = run_events(3)
    kept = recorded(tmp_path, events)
    assert not {facts.id for facts in facts_of(kept)} & {event.parent for event in kept}
    assert Trajectory(kept).branches == Trajectory(events).branches
    assert Trajectory(kept).head == events[-1].id


def test_a_file_that_is_saved_late_is_said_anew_and_other_events_are_not(tmp_path: Path) -> None:
    first, second = step_events(1), step_events(2)
    late = saved_file(tmp_path, "late.txt", b"x", step=1)
    kept = recorded(tmp_path, [start_event(), *first, *second[:3], late, *second[3:], *step_events(3)])
    lines = [[chip.text for chip in facts.line.chips] for facts in facts_of(kept)]
    assert lines == [["late.txt"], []], "saved before the next call: said once"
    kept = recorded(
        tmp_path / "b", [start_event(), *first, *second, late, *step_events(3), ev.Noted(text="x")]
    )
    assert [facts.step for facts in facts_of(kept)] == [1, 1, 2]
    assert Trajectory(kept).steps[0].line == facts_of(kept)[1].line


def test_a_decision_after_the_end_of_a_step_is_said(tmp_path: Path) -> None:
    """The run is rewound to the end of step 1, and its result is changed."""
    kept = recorded(tmp_path, [start_event(), *step_events(1), *step_events(2)])
    end = next(event.id for event in kept if isinstance(event, ev.CallFinished) and event.step == 1)
    recorder = Recorder(tmp_path, trajectory=Trajectory(kept))
    recorder.emit(ev.Rewound(to=end, step=1))
    recorder.emit(ev.CallDecided(step=1, call_id="call_1", action="observe", observation="nothing"))
    assert recorder.trajectory.steps[0].line is None, "the old line is no longer true"
    for event in (*step_events(2), *step_events(3)):
        recorder.emit(event)
    recorder.close()
    line = recorder.trajectory.steps[0].line
    assert line
    assert [chip.text for chip in line.chips] == ["result changed by you"]


def test_facts_take_few_bytes(tmp_path: Path) -> None:
    events: list[ev.Event] = [start_event()]
    for number in range(1, 51):
        change = ev.FileDiff(path=f"/w/part{number}.txt", kind="modified", size=9, diff="--- a\n+++ b\n+x\n")
        text = "I count the letters of the next part and look at the rest."
        events += step_events(number, text=text, changes=[change])
    kept = recorded(tmp_path, [*events, ev.RunFinished(stop_reason="submitted")])
    size = sum(len(ev.dump_event(facts)) + 1 for facts in facts_of(kept))
    assert len(facts_of(kept)) == 50
    assert size / 50 <= 300


def test_facts_are_bounded_whatever_the_step_holds(tmp_path: Path) -> None:
    changes = [ev.FileDiff(path="/w/" + "x" * 5_000, kind="added", size=1, diff="+x\n" * 10_000)] * 300
    events = [start_event(), *step_events(1, text="word" * 100_000, stderr="e" * 100_000, exit_code=1)]
    finished = next(event for event in events if isinstance(event, ev.CallFinished))
    finished.changes = changes
    kept = recorded(tmp_path, [*events, ev.RunFinished(stop_reason="submitted")])
    assert len(ev.dump_event(facts_of(kept)[0])) < 1_500


# --- events of earlier versions ---


def old(folder: Path, *events: dict[str, Any], version: Any = 1) -> Path:
    start = {"kind": "run.started", "schema_version": version, "run_id": "r", "task": "t", "model": "m"}
    folder.mkdir()
    lines = [json.dumps(one) for one in (start, *events)]
    (folder / "journal.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folder


CALL: dict[str, Any] = {"kind": "call.finished", "step": 1, "call_id": "c"}


def test_what_an_older_event_has_in_its_text_becomes_a_field(tmp_path: Path) -> None:
    said = "[Steps remaining: 5]\nthe answer is 42"
    background = "Exit code: 0\n[output of background jobs since the last call]\njob\n[stdout]\nout"
    events = [
        {**CALL, "observation": said + FOOTER},
        {**CALL, "observation": f"{NOTE}done{FOOTER}\nThis is your last step."},
        {**CALL, "observation": background + FOOTER, "exit_code": 0},
        {
            "kind": "call.decided",
            "step": 1,
            "call_id": "c",
            "action": "observe",
            "observation": f"mine{FOOTER}",
        },
    ]
    _, first, second, third, decided = read_journal(old(tmp_path / "r", *events))
    assert isinstance(first, ev.CallFinished)
    assert isinstance(second, ev.CallFinished)
    assert isinstance(third, ev.CallFinished)
    assert isinstance(decided, ev.CallDecided)
    assert (first.body, first.after) == (said, FOOTER)
    assert (second.body, second.before) == ("done", NOTE)
    assert third.background == "job"
    assert decided.after == FOOTER
    assert first.observation == said + FOOTER, "what the model saw stays as it was"


def test_a_result_of_this_version_is_never_parsed(tmp_path: Path) -> None:
    said = f"{NOTE}[Steps remaining: 5]\nthe answer is 42"
    folder = written(tmp_path / "r", [start_event(), ev.CallFinished(step=1, call_id="c", observation=said)])
    (_, kept) = read_journal(folder)
    assert isinstance(kept, ev.CallFinished)
    assert (kept.body, kept.before, kept.after) == (said, "", "")


def test_a_record_of_a_later_version_says_so_everywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = old(tmp_path / "r", {"kind": "note", "text": "x"}, {"kind": "of.later"}, version=99)
    sentence = "Made by a later version (99): parts may be missing."
    trajectory = Trajectory(read_journal(folder))
    assert trajectory.notes == [sentence, "x"]
    card = Card()
    for event in trajectory.events:
        card.add(event)
    assert sentence in card.final()["text/html"]
    assert main(["show", str(folder)]) == 0
    assert sentence in capsys.readouterr().out


@pytest.mark.parametrize("version", ["1", "99", 0, -1, True, None, 1.5, [1]])
def test_what_is_no_version_is_refused(version: Any, tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="is not the number of a version"):
        list(read_journal(old(tmp_path / "r", {"kind": "note", "text": "x"}, version=version)))
