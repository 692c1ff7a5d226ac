"""Reward of a run that a person made from a rollout: a fork, or the rollout itself with an edited call."""

from __future__ import annotations

from pathlib import Path

from llm_sandbox_nb.benchmark.scoring_pool import Scoring
from llm_sandbox_nb.benchmark.text_scorers import Score
from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.training.record import RecordError, TrainingRecord
from llm_sandbox_nb.training.reward import reward
from llm_sandbox_nb.training.rollouts import in_loop
from llm_sandbox_nb.training.training_run import task_and_rows


def reward_of(run: Run) -> Score:
    """Return the reward that the training would give to a run that was made from one of its rollouts.

    Raises:
        RecordError: if the run does not belong to a training, or if its row or the table of its step no longer exists.
        ConfigError: if the rows of the training no longer exist.
    """
    record, group = _group_of(run.folder.absolute())
    config = record.config
    task, rows = task_and_rows(config)
    row = next((row for row in rows if row.id == group), None)
    if row is None:
        raise RecordError(
            f"Row {group} of the training in {record.folder} no longer exists: restore its data."
        )

    async def score() -> Score:
        async with Scoring() as scoring:
            scorer = config.data.scorer or task.scorer
            return await reward(
                scoring, scorer, config.rollouts, row, str(run.stop_reason), run.answer, run.folder
            )

    return in_loop(score())


def _group_of(folder: Path) -> tuple[TrainingRecord, str]:
    """Return the training that a run belongs to, and the id of the run's row."""
    record = TrainingRecord.around(folder)
    siblings = folder.parent.relative_to(record.folder)
    step = next(
        (int(part[5:]) for part in siblings.parts if part.startswith("step-") and part[5:].isdigit()), 0
    )
    for row in record.rollouts(step):
        if Path(row.run).parent == siblings:
            return record, row.group
    raise RecordError(
        f"The rollouts of step {step} are not kept in {record.folder}, so the row of {folder} is unknown."
    )
