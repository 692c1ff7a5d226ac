"""Records of trainings that never ran: figures of steps, and rows of rollouts."""

from __future__ import annotations

from llm_sandbox_nb.training.record import RolloutRow


def figures(step: int, reward: float | None = 0.5) -> dict[str, object]:
    return {
        "step": step, "reward": reward, "reward_std": 0.25, "turns": 3.0, "model_tokens": 20.5,
        "environment_tokens": 1200.0, "seconds": 4.25, "stops": {"steps": 1, "submitted": 3},
        "capabilities": {"external": 0.0, "files": 0.75, "computation": 0.1},
    }  # fmt: skip


def row(place: int, group: str, reward: float | None) -> RolloutRow:
    advantage = None if reward is None else reward - 0.5
    return RolloutRow(
        2, place, group, reward, advantage, "lost" if reward is None else "submitted", 3, 20, 30, 0.1, 1.5, 1,
        "a\nb", "", f"rollouts/step-0002/{place:04d}/run",
    )  # fmt: skip
