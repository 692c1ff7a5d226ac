"""What is measured of runs, against values counted by hand."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import labelled
import pytest
from card_runs import run_events, written
from labelled import EXAMPLES, load

from llm_sandbox_nb.analysis.behaviour import behaviour_of, plain_output, succeeded, writing_of
from llm_sandbox_nb.analysis.frames import groups_frame, runs_frame, tools_frame, turns_frame
from llm_sandbox_nb.analysis.load import Loaded, load_runs
from llm_sandbox_nb.analysis.plots import svg_of
from llm_sandbox_nb.analysis.report import report_html
from llm_sandbox_nb.analysis.usage import Times, Tokens, throughput, times_of, tokens_of
from llm_sandbox_nb.cli import main
from llm_sandbox_nb.formats.llm_in_sandbox import dump_seed, from_seed, to_seed
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.trajectory import Trajectory


def replied(step: int, prompt: int, completion: int, reasoning: int = 0, **message: Any) -> ev.ModelReplied:
    usage = ev.Usage(prompt_tokens=prompt, completion_tokens=completion, reasoning_tokens=reasoning, cost=0.5)
    return ev.ModelReplied(step=step, message={"role": "assistant", "content": "x", **message}, usage=usage)


@pytest.mark.filterwarnings("error")
def test_a_name_in_another_script_prints_no_warning() -> None:
    from matplotlib.figure import Figure  # not at collection: each worker would spend half a second on it

    figure = Figure()
    figure.text(0.5, 0.5, "日本")
    assert svg_of(figure).startswith("<svg")


def test_tokens_are_counted_in_both_ways() -> None:
    # 100 of prompt; 10 written, 40 observed; 20 written, 30 observed; 5 written at the end.
    tokens = tokens_of(Trajectory([replied(1, 100, 10), replied(2, 150, 20), replied(3, 200, 5)]))
    assert tokens == Tokens(
        prompt=100, model=35, environment=70,
        billed_environment=40 + 70, billed_input=450, billed_output=35, cached=0, cost=1.5, estimated=False,
    )  # fmt: skip
    assert tokens.once == 205
    assert tokens.billed == 485
    assert tokens.environment_share == 70 / 205
    assert tokens.billed_environment_share == 110 / 485


def test_a_run_with_branches_is_measured_by_the_one_that_goes_on() -> None:
    first, left, taken = replied(1, 100, 10), replied(2, 900, 90), replied(2, 150, 20)
    left.parent = taken.parent = first.id
    run = Trajectory([first, left, taken])
    assert tokens_of(run) == tokens_of(Trajectory([replied(1, 100, 10), replied(2, 150, 20)]))
    assert len(behaviour_of(run).turns) == 2


def test_reasoning_that_is_not_sent_back_is_not_taken_for_history() -> None:
    dropped = tokens_of(Trajectory([replied(1, 100, 50, reasoning=40), replied(2, 130, 5)]))
    kept = tokens_of(Trajectory([replied(1, 100, 50, 40, reasoning_content="hm"), replied(2, 170, 5)]))
    assert dropped.environment == kept.environment == 20
    assert dropped.model == kept.model == 55


def test_a_history_that_shrinks_gives_no_negative_counts() -> None:
    tokens = tokens_of(Trajectory([replied(1, 100, 10), replied(2, 60, 10), replied(3, 90, 10)]))
    assert tokens.environment == 20
    assert tokens.billed_environment >= 0
    assert tokens.billed == 250 + 30


def test_without_counts_of_a_server_tokens_are_estimated() -> None:
    events = [event for event in run_events(2) if not isinstance(event, ev.ModelReplied)]
    texts = [ev.MessageAdded(message={"role": "user", "content": "p" * 40})]
    said = ev.ModelReplied(step=1, message={"role": "assistant", "content": "m" * 8}, reasoning="r" * 12)
    call = {"step": 1, "call_id": "c", "tool": "execute_bash", "arguments": {}}
    seen = ev.CallFinished(step=1, call_id="c", observation="o" * 20)
    again = ev.ModelReplied(step=2, message={"role": "assistant", "content": "m" * 4})
    run = Trajectory(
        [*texts, said, ev.CallProposed(**call, raw_arguments=""), ev.CallStarted(**call), seen, again]
    )
    tokens = tokens_of(run)
    assert tokens.estimated
    assert (tokens.prompt, tokens.model, tokens.environment) == (10, 2 + 3 + 1, 5)
    assert tokens.cost is None
    assert tokens_of(Trajectory(events)).once == 0


def journal(folder: Path, events: list[ev.Event], start: float = 1000.0) -> Path:
    for number, event in enumerate(events):
        event.time = start + number
    return written(folder, events)


def test_times_and_throughput_are_those_of_the_journal(tmp_path: Path) -> None:
    journal(tmp_path / "a", run_events(2))
    (run,) = load_runs([tmp_path]).runs
    times = times_of(run.trajectory)
    assert times.model == 1.0  # half a second a step
    assert times.tools == 4.0  # from the start of a call, over its output, which is transient, to its result
    assert times.wall == 3.0
    done = throughput(
        [Times(0, 1, 10.0, 100.0), Times(0, 1, 10.0, 110.0), Times(0, 1, 20.0, 100.0), Times(0)]
    )
    assert done is not None
    assert (done.per_minute, done.concurrency) == (9.0, 2.0)
    assert throughput([Times(1.0)]) is None


def test_journals_and_both_kinds_of_trajectory_files_are_found(tmp_path: Path) -> None:
    events = run_events(2)
    journal(tmp_path / "math" / "r1", events)
    (tmp_path / "math" / "r1" / "trajectory.json").write_text(dump_seed(Trajectory(events)))
    (tmp_path / "seed").mkdir()
    (tmp_path / "seed" / "trajectory.json").write_text(dump_seed(Trajectory(events)))
    many = {"p1": to_seed(Trajectory(events)), "p2": to_seed(Trajectory(run_events(3)))}
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "trajectory.json").write_text(json.dumps(many))
    reading = load_runs([tmp_path, tmp_path / "seed"])
    found = sorted((run.group, run.name, run.form) for run in reading.runs)
    assert found == [
        ("bench", "p1", "llm-in-sandbox"),
        ("bench", "p2", "llm-in-sandbox"),
        ("math", "r1", "journal"),
        ("seed", "seed", "llm-in-sandbox"),
    ]
    assert not reading.problems


@pytest.mark.parametrize(
    ("observation", "expected"),
    [("Exit code: 0\n3", True), ("Exit code: Error: Exit code 1\nx", False), ("Exit code: -1\n", False),
     ("ERROR: no such file", False), ("The file was edited. Error handling is next.", True)],
)  # fmt: skip
def test_success_is_read_from_the_first_line_of_a_seed_observation(observation: str, expected: bool) -> None:
    record = {"thought": "", "action": {"function": "execute_bash", "parameters": {"command": "x"}}}
    content = {"problem_statement": "t", "steps": [{**record, "observation": observation}]}
    (step,) = from_seed(content, "x").steps
    assert succeeded(step.calls[0]) is expected


def policy(commands: list[tuple[str, int]]) -> Trajectory:
    turns = [
        labelled.Labelled("execute_bash", {"command": command}, frozenset(), code)
        for command, code in commands
    ]
    return labelled.trajectory([*turns, labelled.Labelled("submit", {}, frozenset(), 0)])


def test_equal_replies_of_two_models_are_two_runs_and_a_copied_file_is_one(tmp_path: Path) -> None:
    for folder, model in (("a", "one"), ("b", "two"), ("c", "two")):
        info = {"config": {"model": {"model_name": model}}, "exit_status": "Submitted"}
        messages = [{"role": "user", "content": "Which?"}, {"role": "assistant", "content": "C"}]
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "task.traj.json").write_text(json.dumps({"info": info, "messages": messages}))
    reading = load_runs([tmp_path])
    assert [(run.group, run.name) for run in reading.runs] == [("a", "task"), ("b", "task")]
    assert reading.copies == 1


def test_a_weak_policy_wanders_and_a_strong_one_does_not() -> None:
    strong = policy([(f"sed -n {n}p report.txt", 0) for n in range(12)])
    weak = policy([("cat missing.txt", 1)] * 9 + [("ls", 0), ("pwd", 0), ("date", 0)])
    assert not behaviour_of(strong).wanders
    assert behaviour_of(weak).wanders
    assert behaviour_of(weak).barren_share == 9 / 13
    assert not behaviour_of(policy([("cat missing.txt", 1)] * 5)).wanders  # too short to say


def test_a_call_that_only_repeats_is_barren_and_one_with_news_is_not() -> None:
    same = run_events(1)[:-1]
    again = [event.model_copy(update={"step": n, "call_id": f"call_{n}"}) if hasattr(event, "step") else event
             for n in (2, 3) for event in same[2:]]  # fmt: skip
    turns = behaviour_of(Trajectory([*same, *again])).turns
    assert [turn.why for turn in turns] == ["", "repeated", "repeated"]


def test_frames_have_the_values(tmp_path: Path) -> None:
    runs = [Loaded(name, name, "journal", tmp_path, labelled.trajectory(load()[name])) for name in EXAMPLES]
    table = runs_frame(runs)
    assert list(table["turns"]) == [len(load()[name]) for name in EXAMPLES]
    turns = turns_frame(runs)
    assert len(turns) == table["turns"].sum()
    groups = groups_frame(table).set_index("group")
    math = turns[turns["group"] == "math"]
    assert groups.loc["math", "computation_rate"] == pytest.approx(math["computation"].mean())
    mix = tools_frame(runs)
    assert mix.groupby("group")["share"].sum().round(9).eq(1).all()
    both = [*runs[:2], *[Loaded(run.name, "all", run.form, run.path, run.trajectory) for run in runs[:2]]]
    pooled = groups_frame(runs_frame(both)).set_index("group")
    hits = pooled.loc[["math", "physics"], "computation_rate"] * [len(load()["math"]), len(load()["physics"])]
    assert pooled.loc["all", "computation_rate"] == pytest.approx(
        hits.sum() / (len(load()["math"]) + len(load()["physics"]))
    )


def test_writing_is_counted_outside_of_code() -> None:
    text = "# Plan\n\nLet's verify that 2 = 2.\n\n---\n1. one\n- two\n\n$$x$$\n"
    text += "```\n# no\n- no\nlet's check\n```\nWait, no."
    writing = writing_of(text)
    assert writing.parts == {"headings": 1, "separators": 1, "lists": 2, "math": 1}
    assert writing.structure == 5
    assert writing.verification == 2
    assert writing_of("The checkbook is plain; a verified user waits.").verification == 0


def call_of(command: str, exit_code: int = 0, observation: str = "", number: int = 0) -> list[ev.Event]:
    call = {"step": 1, "call_id": f"c{number}", "tool": "execute_bash", "arguments": {"command": command}}
    return [
        ev.CallProposed(**call, raw_arguments=""),
        ev.CallStarted(**call),
        ev.CallFinished(step=1, call_id=f"c{number}", observation=observation, exit_code=exit_code),
    ]


def test_failed_calls_are_calls_and_not_turns(tmp_path: Path) -> None:
    calls = [event for n, code in enumerate((1, 0, 2)) for event in call_of("x", code, number=n)]
    run = Trajectory([replied(1, 100, 10), *calls])
    table = runs_frame([Loaded("r", "g", "journal", tmp_path, run)])
    assert (table.loc[0, "calls"], table.loc[0, "failed_calls"]) == (3, 2)


@pytest.mark.parametrize(
    "text",
    [
        " " * 200_000 + "x",
        "x" + " " * 200_000 + "[Steps remaining",
        "Exit code:" + " " * 200_000 + "x",
        " " * 200_000 + "Exit code: Error: Exit code" + " " * 200_000,
        "[" * 200_000,
        "Steps remaining: " * 20_000,
    ],
)
def test_an_output_of_blanks_is_read_in_no_time(text: str) -> None:
    (step,) = Trajectory([replied(1, 100, 10), *call_of("x", observation=text)]).steps
    started = time.process_time()
    behaviour_of(Trajectory([replied(1, 100, 10), *call_of("x", observation=text)]))
    plain_output(step.calls[0])
    seed = step.calls[0]
    seed.result = ev.CallFinished(step=1, call_id="c0", observation=text, exit_code=None)
    succeeded(seed)
    assert time.process_time() - started < 5


@pytest.mark.parametrize(
    ("shown", "plain"),
    [
        ("3\n\n[Steps remaining: 7]", "3"),
        ("3\n\n[Steps remaining: 7]\nThis is your last step.", "3"),
        (
            "[Steps remaining: 5]\nthe answer is 42\n\n[Steps remaining: 7]",
            "[Steps remaining: 5]\nthe answer is 42",
        ),
        ("3\nSteps remaining: 12", "3"),
        ("[Steps remaining: 7] x", "[Steps remaining: 7] x"),
        ("Steps remaining: none", "Steps remaining: none"),
    ],
)
def test_the_line_about_the_steps_that_remain_is_no_output(shown: str, plain: str) -> None:
    """Neither in a record of this project's, where it is a field, nor in another program's, whose reader finds it."""
    action = {"function": "execute_bash", "parameters": {"command": "x"}}
    record = {"thought": "", "action": action, "observation": shown}
    (step,) = from_seed({"problem_statement": "t", "steps": [record]}, "r").steps
    assert plain_output(step.calls[0]) == plain


@pytest.mark.parametrize(
    "text",
    [
        "\\[ x " * 50_000,
        "\\[" * 100_000 + "\\]",
        "\\[\\]" * 50_000,
        "$" * 200_001,
        "$$ x " * 40_001,
        " " * 200_000,
        ("-" * 1000 + " " * 1000 + "x\n") * 100,
        "- " * 100_000,
        ("```\n" + " " * 20) * 10_000,
        "let me " * 30_000,
    ],
)
def test_any_text_is_counted_in_no_time(text: str) -> None:
    started = time.process_time()
    writing_of(text)
    assert time.process_time() - started < 5


def test_formulas_that_are_not_closed_are_none() -> None:
    def formulas(text: str) -> int:
        return writing_of(text).parts["math"]

    assert formulas(r"\[x\] \[y\] \[ z") == 2
    assert formulas(r"\[ a \[ b \] c \[ $$d$$ \[") == 2
    assert formulas(r"\[\[\]") == formulas(r"\[\]\]") == 1
    assert formulas(r"\[\] \[ \[") == 0
    assert formulas(r"\[ $$ \] $$ \begin{align*} \[") == 2


def test_the_report_escapes_what_runs_say(tmp_path: Path) -> None:
    events = run_events(2)
    events[0] = events[0].model_copy(update={"model": "<script>alert(1)</script>", "task": "<b>x</b>"})
    journal(tmp_path / "<img src=x onerror=alert(1)>" / "r1", events)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "trajectory.json").write_text("{")
    journal(tmp_path / "$x_{$" / "r1", events)
    text = report_html(load_runs([tmp_path]))
    assert "<script" not in text
    assert "<img" not in text
    assert "&lt;script&gt;" in text
    assert "<svg" in text
    assert "was left out" in text
    assert text == report_html(load_runs([tmp_path]))


def test_records_that_are_none_are_left_out_with_a_sentence_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal(tmp_path / "whole", run_events(2))
    contents = {
        "bytes/journal.jsonl": (b"\x93\xff\n" * 3, "line 1: not an event ("),
        "empty/journal.jsonl": (b"", "no run has begun in it."),
        "torn/journal.jsonl": (b'{"id": "a", "ki', "no run has begun in it."),
        "strange/journal.jsonl": (b'{"kind": "run.started"}\n{}\n', "line 1: not an event ("),
        "other/trajectory.json": (b'{"steps": [], "who": 3}', "it has no problem_statement."),
        "list/trajectory.json": (b"[1, 2]", "was left out: "),
        "text/trajectory.json": (b"{not json", "was left out: "),
        "steps/trajectory.json": (b'{"steps": 5}', "was left out: "),
        "number/trajectory.json": (b"3", "was left out: "),
    }
    for name, (data, _) in contents.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(data)
    for name in ("circle/journal.jsonl", "round/trajectory.json"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).symlink_to(tmp_path / name)
        contents[name] = (b"", "is a link instead of a file.")
    reading = load_runs([tmp_path])
    assert [run.name for run in reading.runs] == ["whole"]
    for name, (_, words) in contents.items():
        (problem,) = [one for one in reading.problems if str(tmp_path / name) in one]
        assert words in problem
        assert "\n" not in problem
        assert "pydantic" not in problem
    for name in ("bytes", "empty"):
        assert main(["export", str(tmp_path / name)]) == 2
        assert len(capsys.readouterr().err.splitlines()) <= 2
        assert not (tmp_path / name / "run.html").exists()


def test_the_command_prints_a_table_and_writes_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal(tmp_path / "math" / "r1", run_events(3))
    report = tmp_path / "out" / "report.html"
    assert main(["analyze", str(tmp_path), "--html", str(report)]) == 0
    out = capsys.readouterr().out
    assert "turns_mean" in out
    assert out.strip().endswith(str(report))
    assert "<h2>Capabilities</h2>" in report.read_text("utf-8")


@pytest.mark.parametrize("make", [lambda path: path / "missing", lambda path: path])
def test_the_command_says_what_is_missing(
    make: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyze", str(make(tmp_path))]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(".")


def test_an_empty_record_is_measured_too(tmp_path: Path) -> None:
    run = Loaded("r", "g", "journal", tmp_path, Trajectory())
    table = runs_frame([run])
    assert table.loc[0, "turns"] == 0
    assert groups_frame(table).loc[0, "computation_rate"] == 0


def test_the_command_says_how_runs_ended_and_nothing_that_is_not_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = run_events(2)
    journal(tmp_path / "math" / "r1", events)
    journal(tmp_path / "math" / "r2", run_events(2))
    journal(tmp_path / "math" / "r3", [*run_events(2)[:-1], ev.RunFinished(stop_reason="steps", steps=2)])
    journal(tmp_path / "math" / "r4", run_events(2)[:-1])
    journal(
        tmp_path / "math" / "copy-of-r1", events[:-1]
    )  # the same run, before it ended: the whole one counts
    journal(tmp_path / "math" / "no-turn", [one for one in events if not isinstance(one, ev.ModelReplied)])
    (tmp_path / "paper").mkdir()
    (tmp_path / "paper" / "trajectory.json").write_text(dump_seed(Trajectory(events)))
    assert main(["analyze", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    rows = {line.split("  ")[0]: " ".join(line.split()[1:]) for line in out.splitlines()}
    assert rows["ended"].startswith("Submitted 2, Step limit reached 1, No end 1 ")
    assert rows["foreign_runs"] == "0 1"
    assert "NaN" not in out
    assert "None" not in out
    assert "–" in rows["runs_per_minute"]
    assert err == "1 copy of a run left out.\n1 record left out, without a reply of a model.\n"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "trajectory.json").write_text('{"version": 3}')
    assert main(["analyze", str(tmp_path)]) == 1
    assert (
        "trajectory.json was left out: it is a JSON object with version, not a trajectory"
        in capsys.readouterr().err
    )
    assert "<h2>How the runs ended</h2>" in report_html(load_runs([tmp_path]))


def test_a_reader_that_goes_away_is_not_a_report_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    journal(tmp_path / "r1", run_events(2))
    read, write = os.pipe()
    os.close(read)
    with open(write, "w", buffering=1) as gone:
        monkeypatch.setattr(sys, "stdout", gone)
        code = main(["analyze", str(tmp_path)])
    assert code == 141
    assert capfd.readouterr().err == ""
