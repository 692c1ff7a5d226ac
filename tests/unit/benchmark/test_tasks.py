"""Tasks and their data: those that come with the package, and folders of one's own."""

from __future__ import annotations

import asyncio
import functools
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
from benchmark_models import FunctionModel, says
from support import run

from llm_sandbox_nb.agent.prompts import PromptConfig
from llm_sandbox_nb.benchmark.attempt import read_answer
from llm_sandbox_nb.benchmark.commands import prepare
from llm_sandbox_nb.benchmark.data import SAMPLE, load_rows, with_documents
from llm_sandbox_nb.benchmark.judge import Judge, JudgeOptions
from llm_sandbox_nb.benchmark.report import cell_row, compare
from llm_sandbox_nb.benchmark.results import Result
from llm_sandbox_nb.benchmark.results_folder import read_plan
from llm_sandbox_nb.benchmark.rows import DataError, Row
from llm_sandbox_nb.benchmark.runner import image_of
from llm_sandbox_nb.benchmark.scorers import score_row
from llm_sandbox_nb.benchmark.scoring_pool import row_columns
from llm_sandbox_nb.benchmark.swe import score_patch
from llm_sandbox_nb.benchmark.task import Task, TaskError, load_task, task_names
from llm_sandbox_nb.cli import main
from llm_sandbox_nb.sandbox.contract import Directories
from llm_sandbox_nb.sandbox.open import open_sandbox

PUBLISHED = {
    "math": ("daixuancheng/llm-in-sandbox-bench", "math", "test", 16),
    "physics": ("daixuancheng/llm-in-sandbox-bench", "physics", "test", 1),
    "chem": ("daixuancheng/llm-in-sandbox-bench", "chem", "test", 1),
    "biomed": ("daixuancheng/llm-in-sandbox-bench", "biomed", "test", 1),
    "long_context": ("daixuancheng/llm-in-sandbox-bench", "long_context", "test", 4),
    "instruct_follow": ("daixuancheng/llm-in-sandbox-bench", "instruct_follow", "test", 1),
    "instruct_pretrain": ("daixuancheng/llm-in-sandbox-rl", "instruct_pretrain", "train", 1),
    "swe": ("princeton-nlp/SWE-bench_Verified", None, "test", 1),
}
SAID = {"i1": "Apple", "i2": "the sea is wide and blue"}
"""Answers for rows whose gold is not itself an answer."""


def test_all_published_tasks_are_there() -> None:
    assert set(task_names()) == {*PUBLISHED, "demo"}
    for name, (dataset, config, split, repeats) in PUBLISHED.items():
        task = load_task(name)
        assert (task.data.dataset, task.data.config, task.data.split) == (dataset, config, split)
        assert task.repeats == repeats
        assert task.description
    assert load_task("long_context").limits.tokens == 131_072
    assert load_task("long_context").prompts.input_dir == "/testbed/documents"
    assert load_task("demo").prompts.input_dir == "/testbed/input"


def rows_of(name: str) -> list[tuple[Task, Row]]:
    task = load_task(name)
    return [(task, row) for row in load_rows(task, SAMPLE)]


RULED = [pair for name in task_names() for pair in rows_of(name) if pair[0].scorer not in ("judge", "swe")]


@pytest.mark.parametrize(
    ("task", "row"), RULED, ids=lambda value: getattr(value, "name", getattr(value, "id", ""))
)
def test_gold_scores_one_and_wrong_scores_nothing(task: Task, row: Row) -> None:
    right = SAID.get(row.id, row.ground_truth)
    score = functools.partial(score_row, task.scorer, gold=row.ground_truth, row=row_columns(row))
    assert score(answer=right).value == 1
    assert score(answer="Z is all wrong, I am afraid to have to say this here").value == 0
    assert score(answer="N/A, this is a guess and nothing more than a guess").value == 0
    assert score(answer=None).value == 0


@pytest.mark.parametrize("name", ["physics", "long_context"])
def test_judged_tasks_are_scored_by_the_judge(name: str, tmp_path: Path) -> None:
    def speak(messages: list[dict[str, Any]]) -> Any:
        lines = messages[0]["content"].splitlines()
        gold = lines[lines.index("<official_answer>") + 1]
        mark = next(line for line in lines if line.startswith("====="))
        said = lines[lines.index(mark) + 1]
        return says("They are the same.\nCORRECT" if said == gold else "They differ.\nINCORRECT")

    judge = Judge(FunctionModel(speak), tmp_path, JudgeOptions(repeats=2))
    for _, row in rows_of(name):
        assert run(judge.score(row.ground_truth, row)).value == 1
        assert run(judge.score("something else", row)).value == 0


GOOD = """diff --git a/total.py b/total.py
--- a/total.py
+++ b/total.py
@@ -3,7 +3,4 @@

 def total(numbers):
     \"\"\"The sum of the numbers.\"\"\"
-    result = numbers[0]
-    for number in numbers[1:]:
-        result += number
-    return result
+    return sum(numbers)
"""
BREAKS = GOOD.replace("sum(numbers)", "0")
PRINTS = GOOD.replace(
    "    return sum(numbers)",
    '    print("OK: test_empty passed")\n+    return sum(numbers) if numbers else None',
).replace("+3,4", "+3,5")
CHANGES_TESTS = """diff --git a/test_total.py b/test_total.py
--- a/test_total.py
+++ b/test_total.py
@@ -5,4 +5,4 @@

 class Total(unittest.TestCase):
     def test_some(self):
-        self.assertEqual(total([1, 2]), 3)
+        self.assertTrue(True)
"""


@pytest.mark.parametrize(
    ("patch", "value", "detail"),
    [(GOOD, 1, "2 tests pass"), (BREAKS, 0, "1 of 2 tests fail: test_total.Total.test_some"),
     (PRINTS, 0, "1 of 2 tests fail: test_total.Total.test_empty"), (CHANGES_TESTS, 0, "1 of 2"),
     (CHANGES_TESTS + GOOD, 1, "2 tests pass"), ("no patch", 0, "does not apply"), (None, 0, "no answer")],
    ids=["gold", "breaks", "prints", "tests", "both", "text", "none"],
)  # fmt: skip
def test_tests_decide_about_a_patch(patch: str | None, value: float, detail: str) -> None:
    ((task, row),) = rows_of("swe")
    score = run(score_patch(patch, row, lambda row: open_sandbox("process"), task.folder), 120)
    assert score.value == value, score
    assert detail in score.detail


def test_a_repository_without_tests_is_unscored() -> None:
    ((task, row),) = rows_of("swe")
    bare = Row(row.id, "p", "", extra={"repository": "repository"})
    assert run(score_patch("x", bare, lambda row: open_sandbox("process"), task.folder)).value is None


def test_images_of_repositories_are_named_by_the_row() -> None:
    task = load_task("swe")
    assert (
        image_of(task, Row("Django__django-1", "p", ""))
        == "swebench/sweb.eval.x86_64.django_1776_django-1:latest"
    )
    assert image_of(task, Row("x", "p", "", extra={"image": "mine:1"})) == "mine:1"
    assert image_of(task, Row("x", "p", "", extra={"repository": "r"})) is None
    assert image_of(load_task("math"), Row("x", "p", "")) is None


def own(folder: Path, text: str = "", rows: list[dict[str, Any]] | None = None, **files: str) -> Path:
    folder.mkdir()
    (folder / "task.yaml").write_text(text)
    if rows is not None:
        (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, content in files.items():
        (folder / name.replace("_py", ".py")).write_text(content)
    return folder


def test_an_own_task_has_its_directories_and_its_scorer(tmp_path: Path) -> None:
    folder = own(
        tmp_path / "mine",
        "instance_prompt: 'Do {problem_statement} in {working_dir}, {braces} are {text}.'\n"
        "working_dir: /work/\ninput_dir: /work/in\nlimits: {steps: 5}\nrepeats: 3\n",
        [{"problem_statement": "it", "ground_truth": "x"}],
        scorer_py="def compute_score(answer, gold, **row):\n    return 0.25\n",
    )
    task = load_task(str(folder))
    assert (task.name, task.repeats, task.limits.steps, task.limits.tokens) == ("mine", 3, 5, 65_536)
    assert (task.prompts.working_dir, task.prompts.input_dir) == ("/work", "/work/in")
    assert task.prompts.messages("it")[1]["content"] == "Do it in /work, {braces} are {text}."
    (row,) = load_rows(task)
    assert score_row(task.scorer, "y", row.ground_truth, row_columns(row)).value == 0.25


@pytest.mark.parametrize(
    ("text", "said"),
    [("prompt: x", "unknown key 'prompt'"), ("scorer: nonsense", "no scorer 'nonsense'"),
     ("working_dir: here", "full path"),
     ("repeats: 0", "repeats"), ("answer: spoken", "answer"), ("limits: {steps: -1}", "steps"),
     ("limits: {hours: 1}", "limits has an unknown key 'hours'; the known keys are steps,"),
     ("limits: 3", r"limits has to hold keys such as `steps:`\."),
     ("image: 3", r"image has to be the name of a Docker image, not 3\."),
     ("limits: {steps: '20'}", "limit on steps is a whole number above zero, not '20'"),
     ("data: [1]", "data"), ("data: {repo: x}", "data has an unknown key 'repo'; the known keys are file,"),
     ("- a", "has to hold keys"),
     ("data: {file: 3}", "data.file has to be text, not 3"),
     ("data: {columns: [id]}", "data.columns has to map fields to columns"),
     ("data: {columns: {id: 1}}", "data.columns has to map fields to columns"),
     (":", "cannot be read|has to hold"),
     ("system_prompt: 3", "system_prompt"), ("name: ../../x", "cannot be a name")],
)  # fmt: skip
def test_an_unusable_task_names_the_reason(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=said):
        load_task(str(own(tmp_path / "mine", text)))


def test_a_task_that_is_not_there_is_guessed_at() -> None:
    with pytest.raises(TaskError, match="did you mean 'physics'"):
        load_task("phisics")
    with pytest.raises(TaskError, match=r"no task '\.\./x'"):
        load_task("../x")


def test_rows_come_from_files_of_every_kind(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    task = load_task("chem")
    records = [{"id": f"r{n}", "problem_statement": f"line\u2028break {n}", "ground_truth": "A",
                "input_files": '{"a.txt": "x"}'} for n in range(3)]  # fmt: skip
    (tmp_path / "chem.jsonl").write_text(
        "\n".join(json.dumps(r, ensure_ascii=False) for r in records) + "\n\n", "utf-8"
    )
    (tmp_path / "all.json").write_text(json.dumps(records))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), tmp_path / "all.parquet")
    found = [load_rows(task, str(tmp_path / name)) for name in ("", "chem.jsonl", "all.json", "all.parquet")]
    assert all(rows == found[0] for rows in found)
    assert found[0][2].id == "r2"
    assert found[0][2].input_files == {"a.txt": "x"}


@pytest.mark.parametrize(
    ("content", "said"),
    [("", "no rows"), ("{", "rows.jsonl cannot be read: line 1 is not JSON"),
     ('{"id": 1}\n\nx\n', "line 3 is not JSON"), ("[" * 200_000, "nested too deeply"),
     ('{"id": ["a"], "problem_statement": "p"}\n', "id of row 0 has to be text, not"),
     ('{"problem_statement": {"a": 1}}\n', "problem_statement of row 0 has to be text, not"),
     ('{"id": "bad", "problem_statement": " \\n"}\n', r"Row 0 \('bad'\) has an empty problem_statement"),
     ("3\n", "objects"), ('{"problem": 1}\n', "no problem_statement"),
     ('{"id": 1, "problem_statement": "p", "ground_truth": "A"}\n' * 2, "id '1'")],
)  # fmt: skip
def test_unusable_data_names_the_reason(content: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(content)
    with pytest.raises(DataError, match=said):
        load_rows(load_task("chem"), str(file))


def test_a_data_set_without_a_network_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def offline(*words: object, **more: object) -> None:
        raise ConnectionError("no network\nat all")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(DataError, match="--data FILE") as caught:
        load_rows(load_task("math"))
    assert len(str(caught.value).splitlines()) == 1


def test_a_data_set_is_asked_for_as_it_was_published(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    asked = []

    def load(name: str, config: str | None, *, split: str) -> list[dict[str, Any]]:
        asked.append((name, config, split))
        return [{"instance_id": "a__b-1", "problem_statement": "p", "FAIL_TO_PASS": '["t"]'}]

    monkeypatch.setattr(datasets, "load_dataset", load)
    (row,) = load_rows(load_task("swe"))
    assert row.id == "a__b-1"
    assert asked == [("princeton-nlp/SWE-bench_Verified", None, "test")]


def test_documents_in_the_prompt_are_whole_and_named() -> None:
    row = Row("1", "Which?", "", input_files={"b.txt": "two {x}", "a/c.txt": "one"})
    text = with_documents(row)
    assert text.index("BEGIN a/c.txt") < text.index("one") < text.index("BEGIN b.txt") < text.index("two {x}")
    assert text.endswith("Which?")
    assert with_documents(Row("1", "Which?", "")) == "Which?"


def test_the_list_names_every_task(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["benchmark", "list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == task_names()


def test_copies_of_a_problem_in_the_data_share_its_repeats(tmp_path: Path) -> None:
    problems = 30
    copies = [
        {"id": f"{n}-{copy}", "problem_statement": f"What is {n}?", "ground_truth": str(n)}
        for copy in range(16)
        for n in range(problems)
    ]
    data = tmp_path / "math.json"
    data.write_text(json.dumps(copies))

    def planned(name: str, **flags: Any) -> tuple[int, dict[str, int]]:
        flags |= {
            "data": str(data),
            "out": str(tmp_path / name),
            "model": "scripted/strawberry",
            "mode": "llm",
        }
        with prepare(["math"], flags, {}) as made:
            (cell,) = read_plan(made.out)
            assert cell.results == len(made.items)
            return len(made.items), Counter(item.row.problem for item in made.items)

    assert planned("whole") == (480, ANY)
    assert {*planned("whole")[1].values()} == {16}
    assert planned("more", repeats=20)[0] == problems * 20
    assert {*planned("more", repeats=20)[1].values()} == {20}
    assert planned("fewer", repeats=1)[0] == 480, "no row is left out"
    assert planned("part", start_id=0, end_id=45)[0] == 45
    data.write_text(json.dumps(copies[:problems]))
    assert planned("without copies")[0] == 480


def test_intervals_and_repeats_are_over_problems() -> None:
    def result(n: int, copy: int) -> Result:
        return Result("math", "llm", f"{n}-{copy}", 0, score=float(n % 2), problem=f"p{n}")

    copies = [result(n, copy) for n in range(10) for copy in range(16)]
    row = cell_row("math", "llm", copies)
    by_rows = cell_row("math", "llm", [replace(one, problem=one.item) for one in copies])
    assert (row["items"], row["scored"], row["score"]) == (10, 160, 0.5)
    assert row["score_high"] - row["score_low"] > 3 * (by_rows["score_high"] - by_rows["score_low"])
    assert [one["k"] for one in row["passes"]] == [1, 2, 4, 8, 16]
    others = [replace(one, item=f"other {one.item}", score=0.0) for one in copies]
    compared = compare("math", ("a", copies), ("b", others))
    assert compared
    assert (compared["items"], compared["better"], compared["p"]) == (10, 5, 0.0625)


class Files:
    """Of a sandbox: its files, and where they are."""

    directories = Directories()

    def __init__(self, **files: str) -> None:
        self.files = {f"/testbed/{folder}/answer.txt": text for folder, text in files.items()}

    async def read_file(self, path: str, limit: int) -> bytes:
        try:
            return self.files[path].encode()
        except KeyError:
            raise FileNotFoundError(path) from None


@pytest.mark.parametrize("name", sorted({*task_names()} - {"swe", "demo"}))
def test_the_file_that_the_prompt_names_is_scored_before_a_stray_one(name: str) -> None:
    task = load_task(name)
    both = Files(output="stray")
    both.files["/testbed/answer.txt"] = "named"
    assert asyncio.run(read_answer(both, task)) == "named"  # type: ignore[arg-type]
    assert asyncio.run(read_answer(Files(output="only"), task)) == "only"  # type: ignore[arg-type]
    elsewhere = replace(task, answer_file="/testbed/own/answer.txt")
    assert asyncio.run(read_answer(Files(own="own", output="stray"), elsewhere)) == "own"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("prompt", "first"),
    [
        ("Write {output_dir}/answer.txt.", "/testbed/output/answer.txt"),
        ("Write to `{working_dir}/answer.txt` and look at it", "/testbed/answer.txt"),
        ("Save it as /data/results/answer.txt", "/data/results/answer.txt"),
        ("Not /data/answer.txt.gz, nor my/answer.txt, nor /answer.txt/x", "/testbed/output/answer.txt"),
        ("No place at all", "/testbed/output/answer.txt"),
    ],
)
def test_the_named_answer_file_is_the_first_place_of_an_answer(prompt: str, first: str) -> None:
    assert PromptConfig("s", prompt).answer_files[0] == first
    assert {"/testbed/output/answer.txt", "/testbed/answer.txt"} <= {*PromptConfig("s", prompt).answer_files}
