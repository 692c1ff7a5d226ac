"""A task of one's own that is wrong somewhere: said before anything is asked, or mended and gone on with."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from agent_scripts import script_text, turn

from llm_sandbox_nb.benchmark import scoring_pool
from llm_sandbox_nb.benchmark.results import FILE, Result, read_results, write_result
from llm_sandbox_nb.cli import main

GOOD = "def score(answer, gold, **row):\n    return float(answer == gold)\n"
ROWS = [{"id": name, "problem_statement": "Say it.", "ground_truth": "it"} for name in "ab"]


class Own:
    """A task folder, a model that says `it`, and the folder of its results."""

    def __init__(self, folder: Path) -> None:
        self.task, self.out, self.script = folder / "own", folder / "out", folder / "script.yaml"
        self.task.mkdir()
        self.write(scorer=GOOD)
        self.script.write_text(script_text(turn(text="it")))

    def write(self, scorer: str | None = None, rows: list[dict[str, Any]] = ROWS, yaml: str = "") -> None:
        (self.task / "task.yaml").write_text(f"scorer: scorer.py\n{yaml}\n")
        if scorer is not None:
            (self.task / "scorer.py").write_text(scorer)
        (self.task / "data.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    def measure(self, *more: str, out: Path | None = None) -> int:
        words = ["benchmark", "run", str(self.task), "--model", f"scripted/{self.script}", "--mode", "llm"]
        # one worker needs one process that scores; test_benchmark_runner.py has many
        return main(
            [*words, "--isolation", "process", "--workers", "1", "--out", str(out or self.out), *more]
        )

    @property
    def scores(self) -> dict[str, float | None]:
        return {result.item: result.score for result in read_results(self.out)}


@pytest.fixture
def own(tmp_path: Path) -> Own:
    return Own(tmp_path)


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
    own: Own, scorer: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    own.write(scorer=scorer)
    assert own.measure() == 3
    told = capsys.readouterr().err
    assert said in told
    assert "Traceback" not in told
    assert read_results(own.out) == []
    own.write(scorer=GOOD)
    assert own.measure() == 0
    assert own.scores == {"a": 1.0, "b": 1.0}


def test_the_process_that_checks_the_scorer_also_scores(own: Own, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[scoring_pool._Worker] = []
    start = scoring_pool._Worker._start

    async def counted(worker: scoring_pool._Worker) -> asyncio.subprocess.Process:
        started.append(worker)
        return await start(worker)

    monkeypatch.setattr(scoring_pool._Worker, "_start", counted)
    assert own.measure() == 0
    assert len(started) == 1


@pytest.mark.parametrize("what", ["1 / 0", "'yes'", "float('nan')", "7"])
def test_answers_are_scored_again_when_the_scorer_is_mended(
    own: Own, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    own.write(scorer=f"def score(answer, gold, **row):\n    return {what} if row['id'] == 'b' else 1.0\n")
    assert own.measure() == 1
    told = capsys.readouterr().out
    assert "Errors: 1 scorer\n  scorer: the scorer failed with" in told
    runs = {result.item: result.run for result in read_results(own.out)}
    own.write(scorer=GOOD)
    own.script.write_text(script_text(turn(text="nobody is asked again")))
    assert own.measure() == 0
    assert own.scores == {"a": 1.0, "b": 1.0}
    assert {result.item: result.run for result in read_results(own.out)} == runs


SCORE = """
from llm_sandbox_nb.benchmark.text_scorers import Score
def score(answer, gold, **row):
    return Score({})
"""


@pytest.mark.parametrize(
    ("value", "score"), [("answer == gold", 1.0), ("None, 'nobody knows'", None), ("float('nan')", None)]
)
def test_a_score_with_words_counts_as_a_number_does(own: Own, value: str, score: float | None) -> None:
    own.write(scorer=SCORE.format(value))
    assert own.measure() == (1 if score is None else 0)
    results = read_results(own.out)
    assert {result.error_kind for result in results} == {"scorer" if score is None else ""}
    assert own.scores == dict.fromkeys("ab", score)
    assert all(type(result.score) in (float, type(None)) for result in results)


def test_unscored_items_run_again_when_task_or_row_change(own: Own) -> None:
    own.write(scorer="def score(answer, gold, **row):\n    return 1 / 0\n")
    assert own.measure() == 1
    own.write(scorer=GOOD, rows=[{**ROWS[0], "problem_statement": "Say no more."}, ROWS[1]])
    before = {result.item: result.run for result in read_results(own.out)}
    assert own.measure() == 0
    assert own.scores == {"a": 1.0, "b": 1.0}
    after = {result.item: result.run for result in read_results(own.out)}
    assert (after["a"] == before["a"], after["b"] == before["b"]) == (False, True)


def test_a_changed_row_does_not_count_as_done(own: Own, capsys: pytest.CaptureFixture[str]) -> None:
    assert own.measure() == 0
    own.write(rows=[{**ROWS[0], "problem_statement": "Say no more."}, ROWS[1]])
    assert own.measure() == 2
    assert "Row 'a' of own has changed since" in capsys.readouterr().err
    own.write(rows=[*ROWS, {**ROWS[0], "id": "c"}])
    assert own.measure() == 0
    assert own.scores == dict.fromkeys("abc", 1.0)


@pytest.mark.parametrize(
    ("yaml", "said"),
    [
        ("image: 3", "image has to be the name of a Docker image, not 3."),
        ("limits: {stepz: 1}", "limits has an unknown key 'stepz'; the known keys are steps,"),
        ("limits: 3", "limits has to hold keys such as `steps:`."),
        ("data: {datasett: x}", "data has an unknown key 'datasett'; the known keys are file, dataset,"),
    ],
)
def test_a_wrong_task_file_is_one_sentence(
    own: Own, yaml: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    own.write(yaml=yaml)
    assert own.measure() == 2
    told = capsys.readouterr().err
    assert said in told
    assert "()" not in told


def test_wrong_ranges_and_folders_are_one_sentence(
    own: Own, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert own.measure("--start_id", "9") == 2
    assert "--start_id 9 selects no row: there are 2" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/results")):
        assert own.measure(out=out) == 2
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
    assert f"holds a line that is not a result ({said}): mend or remove it." in told
