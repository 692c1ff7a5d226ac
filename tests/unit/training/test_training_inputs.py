"""What a training and an evaluation began with does not change between two starts: reward, rows, prompts, policy."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from training_records import figures
from training_records import row as rollout_row

from llm_sandbox_nb.agent.run_limits import RunLimits
from llm_sandbox_nb.benchmark.digests import signed
from llm_sandbox_nb.benchmark.results import Result, ResultsError, append_line, write_result
from llm_sandbox_nb.benchmark.results_folder import counted_results
from llm_sandbox_nb.benchmark.rows import Row
from llm_sandbox_nb.benchmark.task import load_task
from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.training.config import TrainingConfig, load_config, make_config
from llm_sandbox_nb.training.edited_rollouts import reward_of
from llm_sandbox_nb.training.evaluation import EvaluationPlan, check_evaluation, differences
from llm_sandbox_nb.training.policy import Sampling
from llm_sandbox_nb.training.record import TABLE, RecordError, TrainingRecord
from llm_sandbox_nb.training.training_run import input_digests, task_and_rows
from llm_sandbox_nb.trajectory.trajectory import Trajectory


def test_a_training_is_not_resumed_with_other_rows_or_another_reward(tmp_path: Path) -> None:
    task = tmp_path / "task"
    task.mkdir()
    (task / "task.yaml").write_text("scorer: reward.py\n")

    def digests(reward: str = "1", gold: str = "it") -> dict[str, str]:
        (task / "reward.py").write_text(f"def score(answer, gold, **row): return {reward}\n")
        (task / "data.jsonl").write_text(
            json.dumps({"id": 1, "problem_statement": "Say.", "ground_truth": gold})
        )
        content = {"model": {"path": "x"}, "data": {"task": str(task)}, "rollouts": {"rows_per_step": 1}}
        config = make_config(content)
        return input_digests(config, *task_and_rows(config))

    made = TrainingRecord(tmp_path)
    made.check_inputs(digests())
    made.check_inputs(
        digests(reward="2")
    )  # nothing was learned yet: a reward that rewarded nothing is mended
    made.add_step(figures(1))
    made.check_inputs(digests(reward="2"))
    for changed, said in (({}, "rewards"), ({"reward": "2", "gold": "else"}, "rows")):
        with pytest.raises(
            RecordError, match=f"The {said} of the training in .* have changed since it began"
        ):
            made.check_inputs(digests(**changed))


def test_a_rollout_whose_row_was_removed_has_no_reward(tmp_path: Path) -> None:
    record = TrainingRecord.begin(tmp_path / "run", load_config("tiny-cpu.yaml"))
    record.step_folder(2).mkdir(parents=True)
    known = rollout_row(0, "removed", 1.0)
    append_line(record.step_folder(2) / TABLE, asdict(known))
    with pytest.raises(RecordError, match=r"Row removed of the training in .* no longer exists"):
        reward_of(Run(record.folder / known.run, Trajectory()))


def test_an_evaluation_is_not_mixed_with_another_policy_or_other_rows(tmp_path: Path) -> None:
    task, out = load_task("demo"), tmp_path / "out"
    config = load_config("tiny-cpu.yaml")
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "model.safetensors").write_bytes(b"weights")
    path = str(tmp_path / "policy")

    def plan(question: str = "?", rows: int = 2, temperature: float = 1.0) -> EvaluationPlan:
        given = [Row(f"r{n}", question, "1") for n in range(rows)]
        return EvaluationPlan({"after": path}, task, given, ["llm"], 1, config, out, Sampling(temperature))

    out.mkdir()
    check_evaluation(plan(rows=3), path, out)
    for row in plan(rows=3).rows:
        made = Result("demo", "llm", row.id, 0, 1.0 if row.id == "r2" else 0.0)
        write_result(out, signed(made, replace(task, limits=_limits(config)), row, None))
    check_evaluation(plan(rows=2), path, out)
    assert [one.item for one in counted_results(out)] == ["r0", "r1"], "rows that were taken out do not count"
    with pytest.raises(ResultsError, match="Row 'r0' of demo has changed since"):
        check_evaluation(plan("What?"), path, out)
    with pytest.raises(ResultsError, match="holds results with temperature"):
        check_evaluation(plan(temperature=0.5), path, out)
    (tmp_path / "policy" / "model.safetensors").write_bytes(b"WEIGHTS")
    with pytest.raises(ResultsError, match="holds results with weights"):
        check_evaluation(plan(), path, out)


def test_a_change_is_that_of_the_evaluated_task(tmp_path: Path) -> None:
    """A folder may have the results of several tasks, one evaluation after the other."""
    names = {"before": 0.0, "after": 1.0}
    for task, gain in (("math", 1.0), ("demo", 0.0)):
        for name, score in names.items():
            row = Row("1", f"A question of {task}?", "1")
            write_result(tmp_path / name, Result(task, "llm", row.id, 0, score * gain, problem=row.problem))
    config = load_config("tiny-cpu.yaml")
    policies = dict.fromkeys(names, "")
    plan = EvaluationPlan(policies, load_task("math"), [], ["llm"], 1, config, tmp_path, Sampling())
    ((_, _, change),) = differences(plan)
    assert (change.items, change.delta.mean) == (1, 1.0)


def _limits(config: TrainingConfig) -> RunLimits:
    how = config.rollouts
    return RunLimits(how.turns, how.prompt_tokens + how.completion_tokens, None, how.time)
