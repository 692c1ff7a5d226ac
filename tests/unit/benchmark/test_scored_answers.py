"""Answers that are known to be right or wrong: ours, made from a seed, and the test cases of other projects."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from answer_sets import DATA, LED_IN, Case, right, written, wrong
from support import CAMPAIGN

from llm_sandbox_nb.benchmark.data import load_rows
from llm_sandbox_nb.benchmark.normalisation import STEPS, normalised
from llm_sandbox_nb.benchmark.rows import DataError
from llm_sandbox_nb.benchmark.scorers import score_row
from llm_sandbox_nb.benchmark.task import Task, load_task

DOCS = Path(__file__).parents[3] / "docs" / "explanation" / "scores.md"


def value(case: Case) -> float:
    return score_row(case.rule, case.answer, case.gold, {}).value or 0.0


def test_no_wrong_answer_is_right() -> None:
    cases = written(right=False)
    cases += wrong(max(400 - len(cases), 200), seed=58)
    assert len(cases) >= 400
    assert [case for case in cases if value(case) > 0.5] == []


def test_right_answers_in_usual_forms_and_languages_are_right() -> None:
    cases = written(right=True)
    cases += right(max(300 - len(cases), 150), seed=58)
    assert len(cases) >= 300
    assert len(LED_IN) >= 12
    missed = [case for case in cases if value(case) != 1]
    assert len(missed) <= len(cases) // 60, missed


def public_cases() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / "public_answers.jsonl").read_text("utf-8").splitlines()]


def test_the_agreement_with_other_projects_is_the_published_one_and_each_disagreement_is_explained() -> None:
    """The table of docs/explanation/scores.md, counted again; `why` names the reason of a disagreement.

    `make test` takes every eighth row and all disagreements, and counts nothing.
    """
    counts: Counter[tuple[str, str, bool]] = Counter()
    docs = DOCS.read_text("utf-8")
    rows = public_cases()
    for row in (
        rows if CAMPAIGN else [row for number, row in enumerate(rows) if not number % 8 or "why" in row]
    ):
        agrees = (score_row(row["rule"], row["answer"], row["gold"], {}).value == 1) == bool(row["theirs"])
        counts[row["source"], row["rule"], agrees] += 1
        assert agrees == ("why" not in row), row
        assert agrees or f"**{row['why']}**" in docs, row
    for source, rule in {(source, rule) for source, rule, _ in counts} if CAMPAIGN else ():
        agreed, differs = counts[source, rule, True], counts[source, rule, False]
        assert f"| {source} | `{rule}` | {agreed + differs} | {agreed} |" in docs, (
            source,
            rule,
            agreed,
            differs,
        )


@pytest.mark.parametrize(("sentence", "before", "after"), STEPS)
def test_the_steps_of_normalisation_are_those_that_are_published(
    sentence: str, before: str, after: str
) -> None:
    assert normalised(before) == after
    assert f"| {sentence} | " in DOCS.read_text("utf-8")


def task_of(tmp_path: Path, scorer: str, records: str) -> Task:
    (tmp_path / "task.yaml").write_text(f"name: one\nscorer: {scorer}\n")
    (tmp_path / "data.jsonl").write_text(records, "utf-8")
    return load_task(str(tmp_path))


@pytest.mark.parametrize("gold", ["null", '""', '" "', "NaN", None])
@pytest.mark.parametrize("scorer", ["exact", "math", "judge"])
def test_a_row_that_nothing_can_be_scored_with_is_refused_with_its_number(
    tmp_path: Path, scorer: str, gold: str | None
) -> None:
    good = '{"id": "a", "problem_statement": "p", "ground_truth": "1"}\n'
    column = "" if gold is None else f', "ground_truth": {gold}'
    task = task_of(tmp_path, scorer, good + f'{{"id": "b", "problem_statement": "p"{column}}}\n')
    with pytest.raises(DataError, match=r"Row 1 \('b'\).*no ground_truth"):
        load_rows(task)


def test_a_row_of_constraints_without_their_numbers_is_refused(tmp_path: Path) -> None:
    row = {"id": "a", "problem_statement": "p", "instruction_id_list": ["count:numbers"]}
    with pytest.raises(DataError, match=r"Row 0 \('a'\).*kwargs"):
        load_rows(task_of(tmp_path, "ifbench", json.dumps(row)))
    lacking = score_row("ifbench", "1 2 3", "", {**row, "kwargs": [{}]})
    assert (lacking.value, "draw at random" in lacking.detail) == (None, True)


def test_the_mark_of_windows_is_read_also_between_joined_files(tmp_path: Path) -> None:
    line = '{"id": "%s", "problem_statement": "p", "ground_truth": "1"}'
    task = task_of(tmp_path, "exact", "\ufeff" + line % "a" + "\n\ufeff" + line % "b" + "\n")
    assert [row.id for row in load_rows(task)] == ["a", "b"]
