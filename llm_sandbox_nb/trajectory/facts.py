"""What is said of steps that have ended, as events: a recorder writes them, a reader adds those that are missing.

Files that a step made are saved while the model thinks about the next one: so a step's facts come before the first call
of the next step that does something, or before the end of the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.step_line import step_line, tool_kind
from llm_sandbox_nb.trajectory.trajectory import Step, Trajectory

_LOOKED_AT = 3
"""Steps that may lack their facts: those before have them."""


def facts_before(trajectory: Trajectory, event: ev.Event) -> list[ev.StepFacts]:
    """What is to be said of steps before `event`, which shows that they have ended."""
    newest = trajectory.steps[-_LOOKED_AT:]
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


def facts_after(trajectory: Trajectory, event: ev.Event) -> list[ev.StepFacts]:
    """What is to be said anew of a step, because `event` is a file of it that was saved late."""
    if not isinstance(event, ev.ArtifactSaved) or event.step is None:
        return []
    step = trajectory.step(event.step)
    ended = trajectory.finish is not None or step not in trajectory.steps[-2:]
    return [_facts(trajectory, step)] if step is not None and step.line is None and ended else []


def with_facts(events: Iterable[ev.Event], *, live: bool = False) -> Iterator[ev.Event]:
    """The events of a record with those facts that it lacks. `live`: its last step has not ended.

    Raises:
        JournalError: see `Trajectory`.
    """
    trajectory = Trajectory()
    for event in events:
        for facts in facts_before(trajectory, event):
            yield _added(trajectory, facts)
        trajectory.add(event)
        yield event
        for facts in facts_after(trajectory, event):
            yield _added(trajectory, facts)
    for step in trajectory.steps[-_LOOKED_AT:]:
        if step.line is None and not live:
            yield _added(trajectory, _facts(trajectory, step))


def _ends_run(trajectory: Trajectory, event: ev.CallStarted | ev.CallFinished) -> bool:
    """Whether it is of the call that ends the run, which waits for no files."""
    step = trajectory.step(event.step)
    calls = step.calls if step else []
    return any(call.id == event.call_id and tool_kind(call.tool) == "submit" for call in calls)


def _facts(trajectory: Trajectory, step: Step) -> ev.StepFacts:
    return ev.StepFacts(step=step.number, line=step_line(step, trajectory.root), parent=trajectory.head)


def _added(trajectory: Trajectory, facts: ev.StepFacts) -> ev.StepFacts:
    """Facts that no journal has, with an id and a time that are the same at each reading."""
    facts.id, facts.time = f"{facts.parent}-{facts.step}", trajectory.events[-1].time
    trajectory.add(facts)
    return facts
