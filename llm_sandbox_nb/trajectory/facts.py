"""Facts about a run: summary lines of ended steps, and doubts. The recorder writes facts. A reader adds missing facts.

The line of a step names its saved files, which are copied while the model thinks about the next step. So the line is
written before the first call of the next step, or before the end of the run. A doubt is written after the call that
caused it. All doubts are written again before the end of the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.doubts.rules import DoubtFinder, Rule
from llm_sandbox_nb.trajectory.step_line import step_line, tool_kind
from llm_sandbox_nb.trajectory.trajectory import Step, Trajectory

_MAX_OPEN_STEPS = 3
"""Maximum number of steps at the end of a run that lack their lines. All earlier steps have their lines."""
_F = TypeVar("_F", bound=ev.Facts)


class FactFinder:
    """Finder of facts about a run whose events arrive one by one."""

    def __init__(self, trajectory: Trajectory, rules: Sequence[Rule] = ()) -> None:
        self._trajectory = trajectory
        self._doubts = DoubtFinder(rules)

    def before(self, event: ev.Event) -> list[ev.Facts]:
        """Return the facts to record before `event`, if `event` shows that a step or the run has ended."""
        found: list[ev.Facts] = [*_steps_before(self._trajectory, event)]
        if isinstance(event, ev.RunFinished):
            doubts = self._doubts.all(self._trajectory, event)
            found.append(ev.DoubtsFound(doubts=doubts, final=True, parent=self._trajectory.head))
        return found

    def after(self, event: ev.Event) -> list[ev.Facts]:
        """Return the facts to record after `event`: doubts about a call, or the line of a step with a late file."""
        trajectory = self._trajectory
        if isinstance(event, ev.CallFinished):
            doubts = self._doubts.newest(trajectory, event)
            return [ev.DoubtsFound(doubts=doubts, parent=trajectory.head)] if doubts else []
        return [*_steps_after(trajectory, event)]


def with_facts(events: Iterable[ev.Event], *, live: bool = False) -> Iterator[ev.Event]:
    """Yield the events of a record, with missing facts added.

    `live` is True if the last step may not have ended. In this case, missing lines of the last steps are not added.

    Raises:
        JournalError: if the rewinds of the record make a reader read too many events again.
    """
    trajectory = Trajectory()
    for event in events:
        for facts in _steps_before(trajectory, event):
            yield _added(trajectory, facts, f"{facts.step}")
        if isinstance(event, ev.RunFinished) and not trajectory.doubts_final:
            doubts = DoubtFinder().all(trajectory, event)
            yield _added(
                trajectory, ev.DoubtsFound(doubts=doubts, final=True, parent=trajectory.head), "doubts"
            )
        trajectory.add(event)
        yield event
        for facts in _steps_after(trajectory, event):
            yield _added(trajectory, facts, f"{facts.step}")
    for step in trajectory.steps[-_MAX_OPEN_STEPS:]:
        if step.line is None and not live:
            facts = _facts(trajectory, step)
            yield _added(trajectory, facts, f"{facts.step}")


def _steps_before(trajectory: Trajectory, event: ev.Event) -> list[ev.StepFacts]:
    newest = trajectory.steps[-_MAX_OPEN_STEPS:]
    match event:
        case ev.RunFinished():
            ended = newest
        case ev.CallStarted() | ev.CallFinished() if not _ends_run(trajectory, event):
            ended = [step for step in newest if step.number < event.step]
        case ev.ModelRequested() | ev.ModelReplied() if newest and newest[-1].number != event.step:
            ended = newest[:-1]
        case _:
            return []
    return [_facts(trajectory, step) for step in ended if step.line is None]


def _steps_after(trajectory: Trajectory, event: ev.Event) -> list[ev.StepFacts]:
    if not isinstance(event, ev.ArtifactSaved) or event.step is None:
        return []
    step = trajectory.step(event.step)
    ended = trajectory.finish is not None or step not in trajectory.steps[-2:]
    return [_facts(trajectory, step)] if step is not None and step.line is None and ended else []


def _ends_run(trajectory: Trajectory, event: ev.CallStarted | ev.CallFinished) -> bool:
    """Return True for the call that ends the run.

    When this call starts, files of earlier steps may not be saved yet. The lines of these steps are written later.
    """
    step = trajectory.step(event.step)
    calls = step.calls if step else []
    return any(call.id == event.call_id and tool_kind(call.tool) == "submit" for call in calls)


def _facts(trajectory: Trajectory, step: Step) -> ev.StepFacts:
    line = step_line(step, trajectory.root, start=trajectory.start)
    return ev.StepFacts(step=step.number, line=line, parent=trajectory.head)


def _added(trajectory: Trajectory, facts: _F, mark: str) -> _F:
    """Add missing facts to the trajectory, with an id and a time that are the same each time the record is read."""
    facts.id, facts.time = f"{facts.parent}-{mark}", trajectory.events[-1].time if trajectory.events else 0.0
    trajectory.add(facts)
    return facts
