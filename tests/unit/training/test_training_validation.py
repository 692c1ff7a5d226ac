"""Scores while a policy trains, and what an evaluation after it takes: what is asked for, refused, kept and shown."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from training_records import figures

from llm_sandbox_nb.benchmark.data import load_rows
from llm_sandbox_nb.benchmark.rows import DataError, Row
from llm_sandbox_nb.benchmark.task import load_task
from llm_sandbox_nb.cli import main
from llm_sandbox_nb.training.config import ConfigError, config_names, load_config
from llm_sandbox_nb.training.evaluation import JudgeAccess, plan_evaluation
from llm_sandbox_nb.training.record import COMPLETE, END, TrainingRecord
from llm_sandbox_nb.training.rollouts import Rollout
from llm_sandbox_nb.training.token_model import TokenConversation
from llm_sandbox_nb.training.training_run import task_and_rows
from llm_sandbox_nb.training.validation import validation_figures, validation_tasks
from llm_sandbox_nb.training.watch import follow, plots

ROW = {"id": "a", "problem_statement": "How many?", "ground_truth": "3"}


def write_rows(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def config_with(data: Path, **changes: Any) -> Any:
    named = {
        f"validation.{key}": value for key, value in {"every": 5, "tasks": [], "rows": "", **changes}.items()
    }
    return load_config("qwen3-4b.yaml", {"data.rows": str(data), "rollouts.rows_per_step": 1, **named})


def test_a_validation_has_rows_that_the_policy_does_not_learn_from(tmp_path: Path) -> None:
    learned = write_rows(tmp_path / "learned.jsonl", ROW)
    with pytest.raises(ConfigError, match="needs rows that the policy does not learn from: name tasks"):
        validation_tasks(config_with(learned), [])
    same = config_with(learned, rows=str(write_rows(tmp_path / "same.jsonl", {**ROW, "id": "b"})))
    with pytest.raises(
        ConfigError, match="Row b of instruct_pretrain is used for both training and validation"
    ):
        validation_tasks(same, task_and_rows(same)[1])
    held = {
        "id": "b",
        "problem_statement": "How many now?",
        "ground_truth": "4",
        "input_files": {"a.txt": "x"},
    }
    other = config_with(learned, rows=str(write_rows(tmp_path / "held.jsonl", held)))
    ((task, rows),) = validation_tasks(other, task_and_rows(other)[1])
    assert (task.name, [row.id for row in rows]) == ("instruct_pretrain", ["b"])
    with pytest.raises(ConfigError, match="The validation cannot begin: There is no task 'maths'"):
        validation_tasks(config_with(learned, tasks=["maths"]), [])
    with pytest.raises(ConfigError, match="Top-p has to be above 0 and at most 1, not 2 in validation"):
        validation_tasks(config_with(learned, top_p=2.0), [])
    assert validation_tasks(config_with(learned, every=0, tasks=["maths"]), []) == []


def test_rows_of_the_tiny_task_are_others_and_a_judge_is_not_asked_while_training(tmp_path: Path) -> None:
    tiny = load_config("tiny-cpu.yaml", {"validation.every": 1, "validation.count": 5})
    _, learned = task_and_rows(tiny)
    ((_, rows),) = validation_tasks(tiny, learned)
    assert len(rows) == 5
    assert {row.ground_truth for row in rows}.isdisjoint(row.ground_truth for row in learned)
    file = write_rows(tmp_path / "rows.jsonl", {**ROW, "domain": "physics"})
    (pair,) = validation_tasks(config_with(file, tasks=["physics"], rows=str(file)), [])
    assert pair[0].scorer == "routed"


def test_validations_are_kept_forgotten_and_shown_after_their_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = TrainingRecord.begin(tmp_path / "run", load_config("tiny-cpu.yaml", {"steps": 2}))
    ended = [("a", "submitted", 1.0), ("a", "steps", 0.0), ("b", "submitted", 1.0), ("b", "lost", None)]
    rollouts = [
        Rollout(Row(item, "?", "1"), TokenConversation(), stop_reason=stop, reward=reward, turns=4)
        for item, stop, reward in ended
    ]
    for step in (0, 2):
        record.add_validation(validation_figures(step, "math", rollouts, 1.5))
        record.validation_folder(step, "math").mkdir(parents=True)
    assert record.validations()[0]["score"] == 0.75, "the mean over rows of the means over repeats"
    for step in (1, 2):
        record.add_step(figures(step))
    told: list[str] = []
    (record.folder / END).mkdir()
    (record.folder / END / COMPLETE).touch()
    follow(record, told.append, pause=0.0)
    words = "math 0.750 [-0.250, 1.000], scored 3 of 4, 4.0 turns"
    assert [line.split()[0] for line in told[2:]] == ["validation", "1", "2", "validation"]
    assert told[2].startswith("validation after step 0: math 0.750 [")
    assert told[2].endswith(words.partition("], ")[2])
    assert main(["train", "watch", str(record.folder), "--once"]) == 0
    assert capsys.readouterr().out.splitlines() == told
    (drawn,) = [one for one in plots(record.steps(), 2, record.validations()) if "Validation" in one]
    assert "math 0.75" in drawn
    record.forget_after(1)
    assert [one["step"] for one in record.validations()] == [0]
    assert not record.validation_folder(2, "math").exists()
    record.prune(1)
    assert record.validation_folder(0, "math").exists()


# --- the evaluation after it ---


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    record = TrainingRecord.begin(tmp_path / "run", load_config("tiny-cpu.yaml"))
    (record.folder / END).mkdir()
    (record.folder / END / COMPLETE).touch()
    return record.folder


def test_an_evaluation_takes_a_judge_and_the_sampling_of_a_model(trained: Path, tmp_path: Path) -> None:
    file = str(write_rows(tmp_path / "rows.jsonl", ROW))
    with pytest.raises(
        ConfigError, match="Task physics is scored by a judge: name a model with --judge_model"
    ):
        plan_evaluation(trained, task="physics", data=file)
    plan = plan_evaluation(
        trained, task="physics", data=file, judge=JudgeAccess("scripted/strawberry"), temperature=0.7, top_p=0.8,
        top_k=20, repetition_penalty=1.05, network="public",
    )  # fmt: skip
    sampling = plan.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.repetition_penalty) == (
        0.7,
        0.8,
        20,
        1.05,
    )
    assert plan.config.rollouts.network == "public"
    assert not plan.learned_from
    kept = plan_evaluation(trained).sampling
    assert (kept.temperature, kept.top_p, kept.top_k, kept.repetition_penalty) == (1.0, 1.0, 0, 1.0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--top_p", "0"), "Top-p has to be above 0 and at most 1, not 0."),
        (("--top_k", "-1"), "Top-k has to be at least 0 (all tokens), not -1."),
        (("--repetition_penalty", "0"), "The repetition penalty has to be above 0, not 0."),
        (
            ("--network", "internet"),
            "rollouts.network has to be none, allow, public, open or empty, not 'internet'.",
        ),
        (
            ("--judge_model", "scripted/none", "--judge_repeats", "many"),
            "--judge_repeats: must be a whole number",
        ),
        (("--judge_model", "scripted/none.yaml"), "There is no script"),
    ],
)
def test_an_evaluation_refuses_mistakes_in_a_sentence(
    trained: Path, words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "evaluate", str(trained), *words]) == 2
    assert said in capsys.readouterr().err


# --- rows of the paper's training ---


def test_the_mini_sets_and_its_converted_rows_can_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Any, ...]] = []

    def load_dataset(name: str, config: str | None, split: str) -> list[dict[str, Any]]:
        asked.append((name, config, split))
        return [ROW]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    task = load_task("long_context")
    for source in ("hf:o/sets/{task}_mini", "hf:o/sets:train"):
        assert [row.id for row in load_rows(task, source)] == ["a"]
    assert asked == [("o/sets", "long_context_mini", "test"), ("o/sets", None, "train")]
    for wrong in ("hf:sets", "hf:o/sets/a/b"):
        with pytest.raises(DataError, match="does not name a data set: write hf:OWNER/NAME"):
            load_rows(task, wrong)
    verl = {
        "data_source": "instruct_pretrain", "prompt": [{"role": "user", "content": "placeholder"}],
        "reward_model": {"style": "rule", "ground_truth": "3"},
        "extra_info": {**ROW, "qa_type": "free form", "input_files": '{"a.txt": "x"}'},
    }  # fmt: skip
    (tmp_path / "train_verl.json").write_text(json.dumps([verl]))
    (row,) = load_rows(load_task("instruct_pretrain"), str(tmp_path / "train_verl.json"))
    assert (row.id, row.ground_truth, row.input_files) == ("a", "3", {"a.txt": "x"})


@pytest.mark.parametrize("name", [name for name in config_names() if name.startswith("qwen3")])
def test_the_paper_s_recipes_have_its_network_and_its_validation(name: str) -> None:
    config = load_config(name)
    assert (config.rollouts.rows_per_step, config.rollouts.per_row, config.rollouts.network) == (
        8,
        8,
        "public",
    )
    assert config.steps == {"qwen3-4b.yaml": 150, "qwen3-coder-30b.yaml": 50}[name]
    how = config.validation
    assert (how.every, how.temperature, how.top_p, how.top_k) == (10, 0.7, 0.8, 20)
    assert how.rows.endswith("/{task}_mini")
