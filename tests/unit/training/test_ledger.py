"""Questions about ledgers: the same for a seed, with right answers, and never both learned from and held out."""

from __future__ import annotations

import asyncio
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from llm_sandbox_nb.benchmark.scorers import exact
from llm_sandbox_nb.benchmark.task import load_task
from llm_sandbox_nb.model.contract import ModelSettings
from llm_sandbox_nb.training import ledger
from llm_sandbox_nb.training.config import load_config
from llm_sandbox_nb.training.evaluation import plan_evaluation
from llm_sandbox_nb.training.ledger import KINDS, OTHER_KINDS, LedgerDemonstrator, command, ledger_rows
from llm_sandbox_nb.training.made_tasks import MADE, held_out
from llm_sandbox_nb.training.record import COMPLETE, END, TrainingRecord
from llm_sandbox_nb.training.training_run import task_and_rows
from llm_sandbox_nb.training.validation import validation_tasks

CONFIG = load_config("smollm2-cpu.yaml")
ALL_KINDS = {**KINDS, **OTHER_KINDS}


def test_rows_are_the_same_for_the_same_seed() -> None:
    assert ledger_rows(20, 7) == ledger_rows(20, 7)
    assert ledger_rows(20, 7) == ledger_rows(40, 7)[:20]
    assert ledger_rows(20, 7) != ledger_rows(20, 8)
    assert Counter(row.id.partition("-")[0] for row in ledger_rows(20, 7)) == dict.fromkeys(KINDS, 5)


@pytest.mark.parametrize("held_out", [False, True])
def test_the_command_of_a_kind_prints_the_answer(held_out: bool, tmp_path: Path) -> None:
    (tmp_path / "documents").mkdir()
    for row in ledger_rows(4 * len(ALL_KINDS), 7, ALL_KINDS, held_out=held_out):
        for name, text in row.input_files.items():
            (tmp_path / "documents" / name).write_text(text)
        kind = ALL_KINDS[row.id.partition("-")[0]]
        made = subprocess.run(
            ["bash", "-c", command(ledger.asked_about(row.problem_statement), kind)],
            cwd=tmp_path, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert made.stdout.strip() == row.ground_truth, row.problem_statement
        assert exact(made.stdout, row.ground_truth).value == 1.0


def test_a_word_of_a_question_is_in_no_other_word() -> None:
    """`grep tea` must not find a town."""
    words = sorted(ledger._KEYS)
    assert not [(a, b) for a in words for b in words if a != b and a in b and a in ledger._GOODS]
    assert not [(a, b) for a in words for b in words if a != b and b.startswith(a)]


def test_learned_scripted_and_held_out_rows_have_nothing_in_common() -> None:
    made = MADE[CONFIG.data.rows]
    learned = made.rows(256, CONFIG.seed)
    scripted = made.rows(300, CONFIG.seed + 1)
    same, other = held_out(made, 300, CONFIG), held_out(MADE["ledger-other"], 300, CONFIG)
    texts = [
        {text for row in rows for text in row.input_files.values()}
        for rows in (learned, scripted, same, other)
    ]
    assert all(not a & b for place, a in enumerate(texts) for b in texts[:place])
    assert not set(ledger.towns(held_out=True)) & set(ledger.towns(held_out=False))
    held = set(ledger.towns(held_out=True))
    for rows in (same, other):
        assert {
            line.split()[0] for row in rows for text in row.input_files.values() for line in text.splitlines()
        } <= held
    assert not OTHER_KINDS.keys() & KINDS.keys()


def test_no_prompt_has_an_answer() -> None:
    task, rows = task_and_rows(CONFIG)
    for row in rows:
        prompt = " ".join(
            one["content"] for one in task.prompts.messages(row.problem_statement, in_text=True)
        )
        assert row.ground_truth not in prompt.replace("?", " ").split()
        assert not any(line in prompt for text in row.input_files.values() for line in text.splitlines())


def test_half_of_the_scripted_runs_are_right_and_none_has_a_held_out_command() -> None:
    rows = ledger_rows(200, CONFIG.seed + 1)
    commands = []
    for row in rows:
        model = LedgerDemonstrator(f"{CONFIG.seed}-{row.id}", row)
        made = asyncio.run(model.reply([], [], ModelSettings()))
        key = ledger.asked_about(row.problem_statement)
        (name,) = [
            name for name, kind in ALL_KINDS.items() if f"```bash\n{command(key, kind)}\n```" == made.text
        ]
        commands.append((name, row.id.partition("-")[0]))
    assert {name for name, _ in commands} == set(KINDS)
    assert 0.4 < sum(name == kind for name, kind in commands) / len(rows) < 0.6


def test_validations_and_evaluations_have_held_out_rows(tmp_path: Path) -> None:
    config = load_config("smollm2-cpu.yaml", {"validation.every": 5, "validation.count": 12})
    _, learned = task_and_rows(config)
    ((task, rows),) = validation_tasks(config, learned)
    assert (task.name, rows) == ("ledger", held_out(MADE["ledger"], 12, config))
    record = TrainingRecord.begin(tmp_path / "run", CONFIG)
    (record.folder / END).mkdir()
    (record.folder / END / COMPLETE).touch()
    plan = plan_evaluation(record.folder, rows=8)
    assert list(plan.policies) == ["base", "before", "after"]
    assert plan.policies["base"] == "local/smollm2-135m"
    assert (plan.task.name, plan.learned_from) == ("ledger", False)
    assert plan.rows == held_out(MADE["ledger"], 8, CONFIG)
    other = plan_evaluation(record.folder, data="ledger-other", rows=8)
    assert other.task.name == "ledger-other"
    assert {row.id.partition("-")[0] for row in other.rows} == set(OTHER_KINDS)
    assert list(plan_evaluation(record.folder, before="elsewhere").policies) == ["before", "after"]


def test_the_prompts_are_short() -> None:
    """A policy of 135 million weights on a CPU pays for each token of the prompt."""
    task = ledger.ledger_task(load_task("instruct_pretrain"))
    assert len(task.prompts.system_prompt.split()) < 15
    assert task.prompts.text_form == "brief"
