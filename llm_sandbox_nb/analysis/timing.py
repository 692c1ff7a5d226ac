"""Where the time of a run goes, and how many runs a set of them did in a minute."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from llm_sandbox_nb.analysis.load import Loaded


@dataclass(frozen=True)
class Times:
    """Seconds. None is what the record does not tell: the paper's form has model time only."""

    model: float
    tools: float | None = None
    wall: float | None = None
    start: float | None = None
    """Since the epoch."""

    @property
    def tool_share(self) -> float | None:
        """The part of the wall time in which calls were executed."""
        return self.tools / self.wall if self.tools is not None and self.wall else None


@dataclass(frozen=True)
class Throughput:
    """`per_minute`: finished runs in a minute of the time from the first start to the last end."""

    runs: int
    span: float
    per_minute: float
    concurrency: float
    """How many runs were active on average."""


def times_of(run: Loaded) -> Times:
    """The times of one run."""
    trajectory = run.trajectory
    model = sum(step.model_time for step in trajectory.steps)
    if run.form != "journal" or not trajectory.events:
        return Times(model)
    first, last = trajectory.events[0].time, trajectory.events[-1].time
    tools = sum(
        call.result.time - call.started
        for step in trajectory.steps
        for call in step.calls
        if call.result is not None and call.started is not None
    )
    wall = trajectory.finish.wall_time if trajectory.finish and trajectory.finish.wall_time else last - first
    return Times(model, max(0.0, tools), wall, first)


def throughput(times: Iterable[Times]) -> Throughput | None:
    """Of runs that were done beside each other; None when none has a time of its own."""
    known = [(time.start, time.start + time.wall, time.wall) for time in times if time.start and time.wall]
    if not known:
        return None
    span = max(end for _, end, _ in known) - min(start for start, _, _ in known)
    return Throughput(len(known), span, 60 * len(known) / span, sum(wall for _, _, wall in known) / span)
