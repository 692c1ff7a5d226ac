"""Numbers that can be trusted: nothing unscored hides, nothing changed is mixed, and a second start mends it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from agent_scripts import script_text, turn
from support import until

from llm_sandbox_nb.benchmark import scoring_pool
from llm_sandbox_nb.benchmark.commands import prepare
from llm_sandbox_nb.benchmark.results import CONFIG, FILE, Result, read_results, write_result
from llm_sandbox_nb.cli import main

GOOD = "def score(answer, gold, **row):\n    return float(answer == gold)\n"
ROWS = [{"id": str(n), "problem_statement": f"Say it, {n}.", "ground_truth": "it"} for n in range(10)]


class Task:
    """A task folder of ten rows, a scripted model that says `it`, and the folder of its results."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.out, self.script = folder / "own", folder / "out", folder / "script.yaml"
        self.folder.mkdir()
        self.write()

    def write(
        self, scorer: str = GOOD, rows: list[dict[str, Any]] = ROWS, yaml: str = "", says: str = "it"
    ) -> None:
        (self.folder / "task.yaml").write_text(f"scorer: scorer.py\n{yaml}\n")
        (self.folder / "scorer.py").write_text(scorer)
        (self.folder / "data.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        self.script.write_text(script_text(turn(text=says)))

    @property
    def words(self) -> list[str]:
        words = ["benchmark", "run", str(self.folder), "--model", f"scripted/{self.script}", "--mode", "llm"]
        # one worker needs one process that scores; test_benchmark_runner.py has many
        return [*words, "--isolation", "process", "--workers", "1", "--out", str(self.out)]

    def measure(self, *more: str) -> int:
        return main([*self.words, *more])

    @property
    def scores(self) -> dict[str, float | None]:
        return {result.item: result.score for result in read_results(self.out)}


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return Task(tmp_path)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("os._exit(3)", "the scorer's process died"),
        ("time.sleep(300)", "the scorer did not end within"),
        ("return None", "the scorer gave no score"),
        ("raise KeyError('x')", "the scorer failed with KeyError"),
    ],
    ids=["dies", "hangs", "none", "raises"],
)
def test_a_scorer_that_gives_nothing_is_seen_and_a_second_start_mends_it(
    task: Task, fault: str, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring_pool.Scoring.__init__, "__defaults__", (1, 5.0 if "sleep" in fault else 60.0))
    task.write(
        f"import os, time\ndef score(answer, gold, **row):\n    if row['id'] > '7':\n        {fault}\n    return 1\n"
    )
    assert task.measure() == 1
    told = capsys.readouterr().out
    assert "8 of 10" in told
    assert "own/llm: scored 8 of 10; 2 failed" in told
    assert f"scorer: {said}" in told
    task.write(says="nobody is asked again")
    assert task.measure() == 0
    assert "10 of 10" in capsys.readouterr().out
    assert task.scores == dict.fromkeys((row["id"] for row in ROWS), 1.0)


def test_another_scorer_or_gold_scores_the_kept_answers_again(
    task: Task, capsys: pytest.CaptureFixture[str]
) -> None:
    assert task.measure() == 0
    runs = {result.run for result in read_results(task.out)}
    task.write(GOOD.replace("==", "!="), says="nobody is asked again")
    assert task.measure() == 0
    assert set(task.scores.values()) == {0.0}
    task.write(rows=[{**ROWS[0], "ground_truth": "else"}, *ROWS[1:]], says="nobody is asked again")
    assert main(["benchmark", "score", str(task.out)]) == 0
    assert task.scores == {row["id"]: float(row["id"] != "0") for row in ROWS}
    assert {result.run for result in read_results(task.out)} == runs
    lines = (task.out / "own" / "llm" / FILE).read_text().count("\n")
    assert task.measure() == 0
    assert (task.out / "own" / "llm" / FILE).read_text().count("\n") == lines, "nothing has changed since"
    capsys.readouterr()
    assert main(["benchmark", "score", str(task.out / "nowhere")]) == 2
    assert "has no plan of tasks and results" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rows": [{**ROWS[0], "problem_statement": "Say no."}, *ROWS[1:]]}, "Row '0' of own has changed"),
        (
            {"yaml": "vanilla_prompt: 'Please. {problem_statement}'"},
            "The prompts or limits of own have changed",
        ),
        ({"yaml": "limits: {steps: 3}"}, "The prompts or limits of own have changed"),
    ],
    ids=["question", "prompt", "limits"],
)
def test_answers_that_would_be_others_are_refused(
    task: Task, change: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert task.measure() == 0
    before = read_results(task.out)
    task.write(**change)
    assert task.measure() == 2
    assert said in capsys.readouterr().err
    assert read_results(task.out) == before


def test_answers_of_another_version_are_not_mixed_but_scored(
    task: Task, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert task.measure("--end_id", "5") == 0
    monkeypatch.setattr("llm_sandbox_nb.benchmark.digests.__version__", "99.0")
    assert task.measure() == 2
    assert "and this is 99.0: choose another --out" in capsys.readouterr().err
    assert main(["benchmark", "score", str(task.out)]) == 0
    assert task.measure("--end_id", "5") == 0, "all are done: nothing is mixed"


def test_rows_that_were_taken_out_do_not_count(task: Task, capsys: pytest.CaptureFixture[str]) -> None:
    task.write(GOOD.replace("answer == gold", "row['id'] != '0'"))
    assert task.measure() == 0
    assert "  90.0" in capsys.readouterr().out
    task.write(GOOD.replace("answer == gold", "row['id'] != '0'"), rows=ROWS[1:])
    assert task.measure() == 0
    told = capsys.readouterr().out
    assert "9 of 9" in told
    assert "100.0" in told
    task.write(rows=[*ROWS[1:], {**ROWS[0], "id": "new"}])
    assert task.measure() == 0
    assert task.scores["new"] == 1.0


def test_report_of_a_killed_start_counts_missing_and_spent_and_its_lock_refuses_a_second_start(
    task: Task, capsys: pytest.CaptureFixture[str]
) -> None:
    hang = "import time\ndef score(answer, gold, **row):\n    time.sleep(600 * (row['id'] == '9'))\n    return 1\n"
    task.write(hang)
    started = subprocess.Popen(
        [sys.executable, "-m", "llm_sandbox_nb", *task.words], stderr=subprocess.DEVNULL
    )
    try:
        until(lambda: len(read_results(task.out)) == 9, "all but one")
        assert task.measure() == 2
        assert f"Another start works in {task.out} (process {started.pid} on " in capsys.readouterr().err
    finally:
        started.kill()
        started.wait()
    assert main(["benchmark", "report", str(task.out)]) == 1
    told = capsys.readouterr().out
    assert "own/llm: scored 9 of 10; 1 not done yet" in told
    assert "in 10 attempts, 1 of them lost or failed" in told
    task.write()
    assert task.measure() == 0
    assert main(["benchmark", "report", str(task.out)]) == 0
    told = capsys.readouterr().out
    assert "10 of 10" in told
    assert "in 11 attempts, 1 of them lost or failed" in told


def test_the_plan_grows_with_slices_and_repeats_show_how_often_all_are_right(
    task: Task, capsys: pytest.CaptureFixture[str]
) -> None:
    task.write("import hashlib\ndef score(answer, gold, **row):\n    return row['id'] < '5'\n")
    assert task.measure("--end_id", "5") == 0
    assert task.measure("--start_id", "5", "--repeats", "2") == 0
    plan = json.loads((task.out / CONFIG).read_text())["plan"]
    assert [sum(one["rows"].values()) for one in plan] == [15]
    capsys.readouterr()
    assert task.measure("--repeats", "2") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["own", "llm", "2", "50.0", "50.0"] in lines


def test_two_folders_are_compared_item_by_item(
    task: Task, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task.write("def score(answer, gold, **row):\n    return row['id'] < '8'\n")
    assert task.measure() == 0
    first, task.out = task.out, tmp_path / "second"
    task.write("def score(answer, gold, **row):\n    return row['id'] in '01'\n")
    assert task.measure() == 0
    capsys.readouterr()
    assert main(["benchmark", "compare", str(first), str(task.out)]) == 0
    (_, line) = capsys.readouterr().out.strip().splitlines()
    # Six items are better, none is worse: 2 / 2**6 by McNemar's exact test.
    assert line.split()[:7] == ["own/llm", "out", "-", "second", "10", "80.0", "20.0"]
    assert line.split()[7] == "60.0"
    assert line.split()[10:13] == ["6", "0", "0.0312"]
    assert main(["benchmark", "compare", str(first), str(tmp_path)]) == 2
    assert "There are no results in" in capsys.readouterr().err


def test_folders_with_the_same_name_are_told_apart(
    task: Task, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task.out = tmp_path / "a" / "results"
    assert task.measure("--end_id", "2") == 0
    first, task.out = task.out, tmp_path / "b" / "results"
    assert task.measure("--end_id", "2") == 0
    capsys.readouterr()
    assert main(["benchmark", "compare", str(first), str(task.out)]) == 0
    assert f"{first} - {task.out}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--tool_calls", "text"), "holds results with tool_calls None, not 'text'"),
        (("--nudges", "0"), "holds results with nudges None, not 0"),
        (("--same_failures", "2"), "holds results with same_failures None, not 2"),
        (("--profile", "strict"), "holds results with profile None, not 'strict'"),
        (("--isolation", "bubblewrap"), "holds results with isolation 'process', not 'bubblewrap'"),
        (("--allow", "b.org,a.org"), "holds results with allow None, not ['a.org', 'b.org']"),
        (("--mcp_allow", "web"), "holds results with mcp_allow None, not ['web']"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_results_of_other_settings_are_not_mixed(
    task: Task, flags: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert task.measure("--end_id", "2") == 0
    assert task.measure(*flags) == 2
    assert said in capsys.readouterr().err
    assert len(task.scores) == 2


def test_the_order_of_allowed_hosts_is_no_other_setting(task: Task) -> None:
    assert task.measure("--end_id", "2", "--allow", "b.org,a.org") == 0
    assert task.measure("--end_id", "2", "--allow", "a.org,b.org") == 0


def test_limits_of_a_settings_file_do_not_count(task: Task, tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("nudges = 0\ncommand_timeout = 1\nsame_failures = 1\nsteps = 1\n")
    flags = {"more_tasks": [str(task.folder)], "settings": str(file), "out": str(task.out)}
    with prepare([], {**flags, "model": f"scripted/{task.script}"}, {}) as made:
        how = made.runner.backend.how
        assert (how.nudges, how.command_timeout, how.same_failures) == ("all", 120.0, 8)
        assert made.items[0].task.limits.steps == 100


def test_results_that_cannot_be_read_are_named(task: Task, capsys: pytest.CaptureFixture[str]) -> None:
    assert task.measure("--end_id", "2") == 0
    file = task.out / "own" / "llm" / FILE
    file.unlink()
    file.mkdir()
    capsys.readouterr()
    for words in (("report", task.out), ("compare", task.out, task.out)):
        assert main(["benchmark", *map(str, words)]) == 2
        told = capsys.readouterr().err
        assert (
            f"The results in {file} cannot be read (Is a directory): correct the file, or remove it.\n"
            == told
        )


@pytest.mark.parametrize(
    ("scorer", "said"),
    [
        ("def score(", "SyntaxError"),
        ("import nothing_of_this_name", "No module named"),
        ("def points(answer): pass", "has no function `score(answer, gold, **row)`"),
        ("raise SystemExit(3)", "SystemExit"),
    ],
)
def test_a_scorer_that_cannot_be_loaded_is_refused_first(
    task: Task, scorer: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    task.write(scorer=scorer)
    assert task.measure() == 3
    told = capsys.readouterr().err
    assert said in told
    assert "Traceback" not in told
    assert read_results(task.out) == []


def test_the_process_that_checks_the_scorer_also_scores(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[scoring_pool._Worker] = []
    start = scoring_pool._Worker._start

    async def counted(worker: scoring_pool._Worker) -> asyncio.subprocess.Process:
        started.append(worker)
        return await start(worker)

    monkeypatch.setattr(scoring_pool._Worker, "_start", counted)
    assert task.measure() == 0
    assert len(started) == 1


SCORE = """
from llm_sandbox_nb.benchmark.text_scorers import Score
def score(answer, gold, **row):
    return Score({})
"""


@pytest.mark.parametrize(
    ("value", "score"), [("answer == gold", 1.0), ("None, 'nobody knows'", None), ("float('nan')", None)]
)
def test_a_score_with_words_counts_as_a_number_does(task: Task, value: str, score: float | None) -> None:
    task.write(scorer=SCORE.format(value), rows=ROWS[:2])
    assert task.measure() == (1 if score is None else 0)
    results = read_results(task.out)
    assert {result.error_kind for result in results} == {"scorer" if score is None else ""}
    assert task.scores == dict.fromkeys("01", score)
    assert all(type(result.score) in (float, type(None)) for result in results)


def test_unscored_items_run_again_when_task_or_row_change(task: Task) -> None:
    task.write("def score(answer, gold, **row):\n    return 1 / 0\n", ROWS[:2])
    assert task.measure() == 1
    task.write(rows=[{**ROWS[0], "problem_statement": "Say no more."}, ROWS[1]])
    before = {result.item: result.run for result in read_results(task.out)}
    assert task.measure() == 0
    assert task.scores == {"0": 1.0, "1": 1.0}
    after = {result.item: result.run for result in read_results(task.out)}
    assert (after["0"] == before["0"], after["1"] == before["1"]) == (False, True)


def test_wrong_ranges_and_folders_are_one_sentence(
    task: Task, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert task.measure("--start_id", "10") == 2
    assert "--start_id 10 selects no row: there are 10" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/results")):
        task.out = out
        assert task.measure() == 2
        told = capsys.readouterr().err
        assert f"Results cannot be written to {out} (" in told
        assert "choose another --out." in told


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"score": "hi"}, "its score is 'hi'"),
        ({"score": float("nan")}, "its score is nan"),
        ({"turns": "many"}, "its turns is 'many'"),
        ({"item": None}, "its item is None"),
        ({"repeat": ...}, "it has no repeat"),
        ({"score": 2.0}, "its score is 2.0"),
        ({"cost": 10**400}, "its cost is 1" + 79 * "0"),
        ({"turns": 10**400}, "its turns is 1" + 79 * "0"),
        ({"task": "../own"}, "its task is '../own'"),
        ({"mode": "../../elsewhere"}, "its mode is '../../elsewhere'"),
        ({"run": "own/llm/runs/../../../../run"}, "its run is 'own/llm/runs/../../../../run'"),
        ({"run": "/run"}, "its run is '/run'"),
    ],
)
def test_a_line_that_is_not_a_result_is_named(
    tmp_path: Path, change: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_result(tmp_path, Result("own", "llm", "a", 0, 1.0))
    path = tmp_path / "own" / "llm" / FILE
    line = json.loads(path.read_text()) | change
    path.write_text(json.dumps({name: value for name, value in line.items() if value is not ...}) + "\n")
    assert main(["benchmark", "report", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert f"holds a line that is not a result ({said}): correct or remove it." in told


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        (CONFIG, "[" * 100_000, "cannot be read ("),
        (CONFIG, '{"plan": [{"task": [], "mode": "llm"}]}', "holds an invalid plan: remove that key."),
        (
            CONFIG,
            '{"plan": [{"task": "own", "mode": "llm", "rows": {"a": "many"}}]}',
            "holds an invalid plan",
        ),
        ("judge/judgements.jsonl", '{"key": [], "repeat": 0, "opinion": "correct"}', "is not a judgement"),
        (
            "judge/judgements.jsonl",
            '{"key": "k", "repeat": 0, "opinion": "correct", "cost": "x"}',
            "is not a",
        ),
    ],
)
def test_a_file_of_others_that_is_no_plan_or_judgement_is_named(
    tmp_path: Path, file: str, text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_result(tmp_path, Result("own", "llm", "a", 0, 1.0, started=1.7e9, wall_time=1e-9))
    with (tmp_path / "own" / "llm" / FILE).open("a") as lines:
        lines.write("[" * 100_000 + "\n")  # skipped, like any line that is not JSON
    assert main(["benchmark", "report", str(tmp_path)]) == 0
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(text)
    assert main(["benchmark", "report", str(tmp_path)]) == 2
    assert said in capsys.readouterr().err


def test_a_damaged_record_of_a_run_does_not_stop_the_scoring_of_all_answers(task: Task) -> None:
    assert task.measure() == 0
    (journal, *_) = task.out.glob("own/llm/runs/0-0/*/journal.jsonl")
    damaged = journal.read_text().replace("{", "", 1)
    journal.write_text(damaged)
    (task.folder / "scorer.py").write_text("def score(answer, gold, **row):\n    return 0.5\n")
    assert main(["benchmark", "score", str(task.out)]) == 0
    assert set(task.scores.values()) == {0.5}
    assert journal.read_text() == damaged


def test_answers_are_scored_from_any_folder(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rows").mkdir()
    (task.folder / "data.jsonl").rename(tmp_path / "rows" / "own.jsonl")
    monkeypatch.chdir(tmp_path)
    words = [task.folder.name if word == str(task.folder) else word for word in task.words]
    assert main([*words, "--data", "rows"]) == 0
    monkeypatch.chdir("/")
    assert main(["benchmark", "score", str(task.out)]) == 0
