"""Reward of a rollout. The rules that compare answers are in `benchmark/scorers.py`.

A new addition to the score needs a key in `config.RolloutConfig`; for a number below zero, also a row in
`config._BOUNDS`. `RolloutConfig.unshaped` must switch it off, and docs/explanation/learning.md must list it: a test
checks both. `rollouts.check_ended` must leave out rollouts whose reward does not come from the scorer. `watch.py` draws
rewards from 0 to 1. A training is also resumed after a change of this module.
"""

from __future__ import annotations

from pathlib import Path

from llm_sandbox_nb.benchmark.rows import Row
from llm_sandbox_nb.benchmark.scoring_pool import Scoring
from llm_sandbox_nb.benchmark.text_scorers import Score
from llm_sandbox_nb.training.config import RolloutConfig


async def reward(
    scoring: Scoring,
    scorer: str,
    config: RolloutConfig,
    row: Row,
    stop_reason: str,
    answer: str | None,
    run: Path | None,
) -> Score:
    """Return the score of a run's answer and files, or 0 if `zero_reward_for` has the run's stop reason."""
    if stop_reason in config.zero_reward_for:
        return Score(0.0, f"the limit of {stop_reason} was reached")
    return await scoring.score(scorer, answer, row, run)
