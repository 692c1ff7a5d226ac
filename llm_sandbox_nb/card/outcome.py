"""What a run came to, in figures: steps, tokens, time, cost, its first error, files that changed. For the card."""

from __future__ import annotations

import time

from llm_sandbox_nb.formatting import format_duration, format_short, format_spent, plural
from llm_sandbox_nb.plain_text import first_line, plain
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.trajectory import Trajectory


class Tally:
    """What the outcome says about all steps of a branch, kept event by event: an update costs the same at any step."""

    def __init__(self) -> None:
        self.first_error: int | None = None
        """The number of the first step in which a call failed."""
        self._changed: set[str] = set()

    @property
    def changed_files(self) -> int:
        """Files that calls have changed, as far as the record says."""
        return len(self._changed)

    def add(self, result: ev.CallFinished) -> None:
        """A call has its result."""
        if self.first_error is None and result.failed:
            self.first_error = result.step
        self._changed.update(change.path for change in result.changes)


def figures(trajectory: Trajectory) -> list[str]:
    """Steps, tokens, time, model and cost, each as far as it is known."""
    usage = trajectory.usage
    parts = [plural(trajectory.steps_done, "step")]
    if usage.total_tokens:
        parts.append(f"{format_short(usage.total_tokens)} {'token' if usage.total_tokens == 1 else 'tokens'}")
    if seconds := _seconds(trajectory):
        parts.append(format_duration(seconds))
    if name := first_line(plain(trajectory.model), 60):
        parts.append(name)
    if trajectory.scripted:
        parts.append("scripted: free")
    elif usage.total_tokens:
        budget = trajectory.budget
        parts.append(format_spent(usage.cost if budget is None else trajectory.total_usage.cost, budget))
    return parts


def _seconds(trajectory: Trajectory) -> float:
    """0 when the record does not tell."""
    if trajectory.finish:
        return trajectory.finish.wall_time
    return max(0.0, time.time() - trajectory.start.time) if trajectory.start else 0.0
