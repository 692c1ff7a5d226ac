"""Tokens, cost and time of a benchmark. Attempts that failed, or were lost because a start was killed, count too."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from llm_sandbox_nb.analysis.usage import times_of, tokens_of
from llm_sandbox_nb.benchmark.results import Result, all_results
from llm_sandbox_nb.trajectory.journal import JournalError, read_journal
from llm_sandbox_nb.trajectory.run_folder import JOURNAL
from llm_sandbox_nb.trajectory.trajectory import Trajectory


@dataclass
class Spent:
    """Sums over attempts. `tokens` are billed tokens. `cost` in US dollars is None if an attempt's cost is unknown."""

    attempts: int = 0
    tokens: int = 0
    cost: float | None = 0.0
    seconds: float = 0.0

    def add(self, tokens: int, cost: float | None, seconds: float) -> None:
        self.attempts += 1
        self.tokens += tokens
        self.cost = None if self.cost is None or cost is None else self.cost + cost
        self.seconds += seconds


def spent_in(out: Path) -> dict[tuple[str, str], Spent]:
    """Return the sums for each task and mode. For an attempt without a result, the run's journal gives the numbers."""
    found: dict[tuple[str, str], Spent] = {}
    results: dict[str, Result] = {result.run: result for result in all_results(out) if result.run}
    for result in results.values():
        cell = found.setdefault((result.task, result.mode), Spent())
        cell.add(result.billed_tokens, result.cost, result.wall_time)
    for journal in sorted(out.glob(f"*/*/runs/*/*/{JOURNAL}")):
        run = journal.parent.relative_to(out)
        if run.as_posix() not in results:
            _add_lost(found.setdefault((run.parts[0], run.parts[1]), Spent()), journal)
    return found


def _add_lost(cell: Spent, journal: Path) -> None:
    """Add the attempt of `journal` to `cell`, unless the model never replied. The attempt has no result."""
    try:
        trajectory = Trajectory(read_journal(journal))
    except (OSError, ValueError, JournalError):
        return
    if not any(step.replied for step in trajectory.steps):
        return
    tokens = tokens_of(trajectory)
    times = times_of(trajectory)
    cell.add(tokens.billed, tokens.cost, times.wall or times.model + (times.tools or 0.0))
