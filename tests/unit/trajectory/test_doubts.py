"""Doubts: the planted faults are named first, right runs are quiet, and every place shows the same doubts."""

from __future__ import annotations

import gzip
import io
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from card_checks import read
from card_runs import card_of, run_events, start_event, step_events, written

from llm_sandbox_nb.agent.recorder import Recorder
from llm_sandbox_nb.analysis.frames import run_row
from llm_sandbox_nb.analysis.load import load_runs
from llm_sandbox_nb.cli import main
from llm_sandbox_nb.cli.printer import Printer
from llm_sandbox_nb.runs.catalog import list_runs, runs_json, runs_text
from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.server.run_handlers import _listed
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.doubts.claims import _is_file
from llm_sandbox_nb.trajectory.doubts.evidence import MEDIA, Evidence
from llm_sandbox_nb.trajectory.doubts.rules import RULES, DoubtFinder, doubts_line
from llm_sandbox_nb.trajectory.facts import with_facts
from llm_sandbox_nb.trajectory.journal import read_journal
from llm_sandbox_nb.trajectory.run_summary import summarize
from llm_sandbox_nb.trajectory.trajectory import Trajectory
from llm_sandbox_nb.trajectory.unified_diff import unified
from llm_sandbox_nb.trajectory.watched_run import WatchedRun

DATA = Path(__file__).parents[2] / "data"
KINDS = Path(__file__).parents[3] / "labextension" / "src" / "artifacts" / "kinds.ts"
RUNS: dict[str, Any] = json.loads(gzip.decompress((DATA / "doubted_runs.json.gz").read_bytes()))


def events_of(name: str) -> list[ev.Event]:
    return [ev.parse_python(event) for event in RUNS[name]["events"]]


def doubts(events: list[ev.Event]) -> list[ev.Doubt]:
    trajectory = Trajectory(events)
    assert trajectory.finish
    return DoubtFinder().all(trajectory, trajectory.finish)


def of_group(group: str) -> list[str]:
    return [name for name, row in RUNS.items() if row["group"] == group]


def names_guilty(name: str) -> bool:
    """Whether the first doubt is of the guilty step."""
    found = doubts(events_of(name))
    return bool(found) and found[0].step == RUNS[name]["guilty"]


@pytest.mark.parametrize(("group", "most"), [("planted", 3), ("fresh", 2)])
def test_the_guilty_step_is_the_first_doubt(group: str, most: int) -> None:
    names = of_group(group)
    missed = [name for name in names if not names_guilty(name)]
    assert len(names) >= 20
    assert len(missed) <= most, missed


@pytest.mark.parametrize(("group", "most"), [("right", 6), ("fresh-right", 4)])
def test_right_runs_are_quiet(group: str, most: int) -> None:
    loud = {name: doubts_line(found) for name in of_group(group) if (found := doubts(events_of(name)))}
    assert len(of_group(group)) >= 20
    assert len(loud) <= most, loud


@pytest.mark.parametrize("rule", [one.name for one in RULES])
def test_each_rule_has_runs_that_only_it_finds(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The canary: without the rule, the guilty steps of its runs are no longer named by it."""
    planted = [name for name, row in RUNS.items() if row["rule"] == rule]
    assert len(planted) >= 2
    named = [one.rule for name in planted for one in doubts(events_of(name))[:1]]
    assert Counter(named)[rule] >= 2
    others = [one for one in RULES if one.name != rule]
    monkeypatch.setattr("llm_sandbox_nb.trajectory.doubts.rules.RULES", others)
    assert rule not in {one.rule for name in planted for one in doubts(events_of(name))}


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """A recorded run with several doubts."""
    recorder = Recorder(tmp_path / "runs" / "20260101-120000-aa")
    for event in events_of("swallowed-pipe"):
        if not isinstance(event, ev.Facts):
            recorder.emit(event.model_copy(update={"parent": None}))
    recorder.close()
    return recorder.folder


def called(step: int, command: str, output: str = "", **result: Any) -> list[ev.Event]:
    call: Any = {"step": step, "call_id": f"c{step}"}
    proposed = ev.CallProposed(
        **call, tool="execute_bash", raw_arguments="{}", arguments={"command": command}
    )
    finished = ev.CallFinished(**call, observation=output, stdout=output, **result)
    return [ev.ModelReplied(step=step, message={"role": "assistant", "content": ""}), proposed, finished]


def test_after_a_rewind_the_checks_of_the_other_branch_count_no_more() -> None:
    finder, start = DoubtFinder(), start_event()
    failed = called(1, "pytest -q | tail -1", "1 failed in 0.1s", exit_code=0)
    assert isinstance(failed[-1], ev.CallFinished)
    finder.newest(Trajectory([start, *failed]), failed[-1])
    finish = ev.RunFinished(stop_reason="submitted", answer="Done.", steps=1)
    other = [start, *called(1, "echo done", "done", exit_code=0), finish]
    assert finder.all(Trajectory(other), finish) == doubts(other) == []


@pytest.mark.parametrize("folder", ["input", "given"])
def test_a_given_file_is_missed_in_the_folder_that_the_prompts_name(folder: str) -> None:
    prompts = {"working_dir": "/w", "input_dir": f"/w/{folder}", "output_dir": "/w/out"}
    gone = ev.FileDiff(path=f"{folder}/model.bin", kind="deleted", size=9)
    finish = ev.RunFinished(stop_reason="submitted", answer="Done.", steps=1)
    events = [
        start_event(inputs=["model.bin"], settings={"prompts": prompts}),
        *called(1, f"rm {folder}/model.bin", exit_code=0, changes=[gone]),
        finish,
    ]
    assert [one.text for one in doubts(events)] == ["model.bin, a given file, was removed"]


def test_the_suffixes_of_media_are_those_with_viewers() -> None:
    """A video that is encoded again loses no data, and an answer may name every file that the view shows."""
    viewers = dict(re.findall(r"\['\.(\w+)', (?:\{ shown: ')?(\w+)", KINDS.read_text("utf-8")))
    assert len(viewers) >= 28
    texts = ("framed", "preview", "written")
    assert {ending for ending, viewer in viewers.items() if viewer not in texts} == MEDIA - {"svg"}
    assert [ending for ending in viewers if not _is_file(f"a.{ending}")] == []


@pytest.mark.parametrize(
    ("path", "said"), [("input/a.ogg", []), ("input/a.bin", ["a.bin lost 3.0 KB of 4.0 KB"])]
)
def test_media_may_become_smaller(path: str, said: list[str]) -> None:
    smaller = ev.FileDiff(path=path, kind="modified", size=1024, size_before=4096)
    finish = ev.RunFinished(stop_reason="submitted", answer="Done.", steps=1)
    events = [start_event(inputs=[path[6:]]), *called(1, "encode", exit_code=0, changes=[smaller]), finish]
    assert [one.text for one in doubts(events)] == said


def test_a_weakened_test_that_was_restored_by_its_inverse_diff_is_no_doubt() -> None:
    """The texts are not known: the files were there before the run."""
    texts = "assert f() == 1\nassert g() == 2\n", "pass\n"
    weaker, restored = (
        ev.FileDiff(
            path="tests/test_a.py", kind="modified", size=9, diff=unified("tests/test_a.py", old, new, 999)[0]
        )
        for old, new in (texts, texts[::-1])
    )
    finish = ev.RunFinished(stop_reason="submitted", answer="Done.", steps=2)
    first = called(1, "./spoil", exit_code=0, changes=[weaker])
    second = called(2, "git checkout tests", exit_code=0, changes=[restored])
    found = [{one.step for one in doubts([start_event(), *first, *later, finish])} for later in ([], second)]
    assert (1 in found[0], 1 in found[1]) == (True, False)


def test_every_place_shows_the_same(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run.load(recorded)
    expected = [one.line for one in run.doubts]
    line = doubts_line(run.doubts)
    assert expected
    assert all(one.step and one.rule and one.text for one in run.doubts)
    bundle = card_of(list(read_journal(recorded))).final()
    page = read(bundle["text/html"].partition("<style>")[0] + bundle["text/html"].partition("</style>")[2])
    assert f"Doubts: {line}" in "".join(page.text)
    assert f"Doubts: {line}" in bundle["text/plain"]
    assert main(["show", str(recorded)]) == 0
    shown = capsys.readouterr().out
    assert f"Doubts     {line}" in shown
    assert f"doubt: {expected[0]}" in shown.partition("Answer")[0], "also at the step"
    (entry,) = list_runs(recorded.parent)
    assert [one.line for one in entry.doubts] == expected
    assert line in runs_text(recorded.parent)
    assert [one["line"] for one in runs_json([entry])[0]["doubts"]] == expected
    summary = summarize(recorded)
    assert summary
    listed = _listed(summary, None, live=False)["doubts"]
    watched = WatchedRun()
    for event in read_journal(recorded):
        watched.add(json.loads(ev.dump_event(event)))
    told = watched.to_json(live=False, away=False)["doubts"]
    for rest in (listed, told):
        assert [one["line"] for one in rest] == expected
        assert [(one["step"], one["rule"], one["text"]) for one in rest] == [
            (one.step, one.rule, one.text) for one in run.doubts
        ]
    (loaded,) = load_runs([str(recorded)]).runs
    row = run_row(loaded)
    assert (row["doubts"], row["first_doubt"]) == (len(expected), expected[0])


def test_the_row_of_a_watched_run_follows_rewinds_and_undos(recorded: Path) -> None:
    events, watched = list(read_journal(recorded)), WatchedRun()

    def row(*more: ev.Event) -> tuple[int, int]:
        for event in more:
            watched.add(json.loads(ev.dump_event(event)))
        told = watched.to_json(live=False, away=False)
        return told["steps"], len(told["doubts"])

    ended = row(*events)
    assert min(ended) > 0
    first, second = (ev.Rewound(to=events[0].id, step=0) for _ in range(2))
    assert row(first) == (0, 0)
    assert row(second, ev.Rewound(to=first.id, step=0, undo_of=second.id)) == (0, 0)
    assert row(ev.Rewound(to=events[-1].id, step=ended[0], undo_of=first.id)) == ended


def test_a_journal_without_doubts_gets_them_when_it_is_read(recorded: Path, tmp_path: Path) -> None:
    with_doubts = list(read_journal(recorded))
    bare = [event for event in with_doubts if not isinstance(event, ev.Facts)]
    folder = written(tmp_path / "old" / "20260101-120000-bb", bare)
    expected = Run.load(recorded).doubts
    assert Run.load(folder).doubts == expected
    assert list_runs(folder.parent)[0].doubts == expected
    summary = summarize(folder)
    assert summary
    assert summary.doubts == expected
    found = [event for event in with_facts(bare) if isinstance(event, ev.DoubtsFound)]
    assert [event.doubts for event in found] == [expected]
    assert list(with_facts(with_doubts)) == with_doubts, "nothing is added to a record that has them"


def test_doubts_are_no_part_of_the_tree_and_end_with_a_rewind(recorded: Path) -> None:
    events = list(read_journal(recorded))
    found = [event for event in events if isinstance(event, ev.DoubtsFound)]
    assert [event.final for event in found] == [False, True]
    assert isinstance(events[-1], ev.RunFinished)
    assert not {event.id for event in found} & {event.parent for event in events}
    bare = [event for event in events if not isinstance(event, ev.Facts)]
    assert Trajectory(events).branches == Trajectory(bare).branches
    step_one = next(event.id for event in events if isinstance(event, ev.CallFinished))
    trajectory = Trajectory([*events, ev.Rewound(to=step_one, step=1)])
    assert trajectory.doubts == [], "those of later steps are of another branch"


def test_a_continued_run_gets_new_doubts(recorded: Path) -> None:
    recorder = Recorder(recorded, trajectory=Trajectory(read_journal(recorded)))
    last = recorder.trajectory.steps[-1].number
    recorder.emit(ev.Continued())
    for event in run_events(1)[2:-1]:
        update = {"step": last + 1} if hasattr(event, "step") else {}
        recorder.emit(event.model_copy(update={**update, "parent": None}))
    recorder.emit(ev.RunFinished(stop_reason="submitted", answer="All tests pass.", steps=last + 1))
    recorder.close()
    assert "claim against evidence" in {one.rule for one in Run.load(recorded).doubts}


def test_a_loop_that_a_limit_ended_says_that_more_steps_will_not_help() -> None:
    failing = [event for number in range(1, 31) for event in step_events(1, exit_code=1)]
    step = 0
    for event in failing:
        step += isinstance(event, ev.ModelRequested)
        if hasattr(event, "step"):
            event.step = step
        if hasattr(event, "call_id"):
            event.call_id = f"c{step}"
    (found,) = doubts([start_event(), *failing, ev.RunFinished(stop_reason="steps", steps=30)])
    assert found.line == "1-30: same command, same error, 30 times; more steps will not help"
    waiting = [ev.RunFinished(stop_reason="submitted", answer="x", steps=30)]
    assert doubts([start_event(), *failing, *waiting])[0].text == "same command, same error, 30 times"


def mentions_water(record: Evidence) -> Iterator[Any]:
    """A rule of a user."""
    yield 3, f"{record.answer} is dry"
    yield "no step"


def breaks(record: Evidence) -> None:
    """A rule of a user that fails."""
    raise KeyError("x")


def test_rules_of_a_user(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.use_rules([mentions_water, breaks])
    for event in run_events(2, answer="Sand"):
        recorder.emit(event)
    recorder.close()
    own = [one for one in Run.load(tmp_path).doubts if one.rule in ("mentions water", "breaks")]
    assert [one.line for one in own] == [
        "no step",
        "3: Sand is dry",
        "the rule could not be applied (KeyError: 'x')",
    ]


def test_the_terminal_says_a_doubt_at_its_step() -> None:
    out = io.StringIO()
    printer = Printer(out)
    printer(ev.DoubtsFound(doubts=[ev.Doubt(rule="r", step=2, until=30, text="same\x1b[31m command")]))
    assert out.getvalue().startswith("  doubt: 2-30: same")
    assert "\x1b" not in out.getvalue()


def test_a_hostile_record_is_bounded() -> None:
    """Rules read what a stranger wrote: they end soon, and raise nothing."""
    text = "a" * 200_000 + "(" * 5_000 + "\ud800"
    change = ev.FileDiff(
        path="../" * 300 + "x.csv", kind="modified", size=-5, diff="@@ -99999999999 +1 @@\n-" + text
    )
    events = run_events(3, answer=text, output=text, changes=[change] * 300, exit_code=0)
    for event in events:
        if isinstance(event, ev.CallStarted):
            event.arguments = {"command": text, "path": 5}
    found = doubts(events)
    assert len(found) <= 20
    assert all(len(one.text) <= 200 for one in found)


def written_file(step: int, path: str, text: str, before: str | None = None) -> list[ev.Event]:
    """A call that writes a whole file of the working folder `/w`."""
    change = ev.FileDiff(
        path=f"/w/{path}",
        kind="added" if before is None else "modified",
        size=len(text),
        diff=unified(path, before or "", text, 99_999)[0],
    )
    call: Any = {"step": step, "call_id": f"c{step}"}
    arguments = {"command": "create", "path": f"/w/{path}", "file_text": text}
    proposed = ev.CallProposed(**call, tool="str_replace_editor", raw_arguments="{}", arguments=arguments)
    return [proposed, ev.CallFinished(**call, observation="", changes=[change])]


ROOT = ev.SandboxReady(sandbox_id="s", protection={}, start_time=0.0, root="/w")


def test_a_table_with_carriage_returns_loses_a_column() -> None:
    """A lone CR, the line end of old Macs, ends the header and not the run."""
    tables = "name,age\r1,2\r3,4\r", "nom,age\r1,2\r3,4\r"
    first, second = written_file(1, "data.csv", tables[0]), written_file(2, "data.csv", tables[1], tables[0])
    finish = ev.RunFinished(stop_reason="submitted", answer="Done.", steps=2)
    found = doubts([start_event(), ROOT, *first, *second, finish])
    assert "data.csv has lost the column name" in [one.text for one in found]


HOSTILE_TEXTS = {
    "a.json": "[" * 60_000,
    "a.rb": "rescue" + "\n" * 30_000,
    "a.py": "except:" + "\n" * 30_000,
    "a.js": "catch(" + " " * 31_000,
    "output/answer.txt": "." * 100_000 + "x",
}
LONG_NAME = f"data_{'1' * 60}x.csv"
HOSTILE_COMMANDS = {
    "sed " * 8_000: "",
    "git " * 8_000: "",
    "urlopen( " * 3_500: "",
    "sort input/raw.csv": LONG_NAME,
    "sort -u input/raw.csv": "data_new.csv",
    f"cat {LONG_NAME}": "output/made.csv",
}
"""Commands, and the file that each of them changes."""


@pytest.mark.timeout(60)  # a time-out is what is tested
@pytest.mark.parametrize("task", ["A task", "Create\n" + "-" * 79 + "\nA table.", "write " + "a/" * 2_000])
def test_what_a_model_writes_does_not_keep_the_rules_busy(task: str) -> None:
    """Patterns with two ways to match the same characters need seconds or years for these texts."""
    events: list[ev.Event] = [start_event(task=task, inputs=["raw.csv"]), ROOT]
    for path, text in HOSTILE_TEXTS.items():
        step = len(events)
        events += written_file(step, path, "{}" if path == "a.json" else text)
        events += written_file(step + 1, path, text, "{}")
        made = ev.FileDiff(path="/w/output/made.csv", kind="added", size=1, diff=None)
        events += called(step + 2, f"python3 {path} > output/made.csv", exit_code=0, changes=[made])
    for command, path in HOSTILE_COMMANDS.items():
        change = ev.FileDiff(path=f"/w/{path}", kind="modified", size=9, lines=9, lines_before=99)
        events += called(len(events), f"{command} > {path}", exit_code=0, changes=[change] if path else [])
    trajectory, finder = Trajectory(), DoubtFinder()
    for event in [*events, ev.RunFinished(stop_reason="submitted", answer="It is committed.", steps=99)]:
        trajectory.add(event)
        if isinstance(event, ev.CallFinished):
            finder.newest(trajectory, event)
    assert trajectory.finish
    assert len(finder.all(trajectory, trajectory.finish)) <= 20


def test_the_line_number_of_a_hostile_diff_may_have_any_length() -> None:
    change = ev.FileDiff(path="output/a.txt", kind="added", size=9, diff=f"@@ -{'9' * 5_000} +1 @@\n+a\n")
    finish = ev.RunFinished(stop_reason="submitted", answer="Done.", steps=1)
    assert doubts([start_event(), *called(1, "./make", exit_code=0, changes=[change]), finish]) == []


def test_a_repeated_action_costs_the_same_however_often_it_was_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Counts how often the result of a call is read for the doubts about the newest call."""
    reads = 0
    body: Any = vars(ev.CallFinished)["body"]

    def counted(event: ev.CallFinished) -> str:
        nonlocal reads
        reads += 1
        return str(body.fget(event))

    monkeypatch.setattr(ev.CallFinished, "body", property(counted))
    trajectory, finder, costs = Trajectory([start_event()]), DoubtFinder(), []
    for number in range(1, 101):
        for event in step_events(number):
            same = {"arguments": {"command": "echo again"}} if "arguments" in type(event).model_fields else {}
            trajectory.add(event.model_copy(update=same))
        result = trajectory.steps[-1].calls[-1].result
        assert result
        reads = 0
        finder.newest(trajectory, result)
        costs.append(reads)
    assert costs[98] == costs[60] <= 10
