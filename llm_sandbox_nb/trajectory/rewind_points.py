"""Events that a run can be rewound to, and the checkpoints that belong to them."""

from __future__ import annotations

from typing import Literal

from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.trajectory import Trajectory

Moment = Literal["call"]
_EXECUTED = ("call.held", "call.decided", "call.started", "call.finished")
_ENDINGS = ("run.finished", "continued", "rewind.started", "rewound")


def end_of_step(trajectory: Trajectory, step: int) -> str:
    """The last event of a step, with what was said before the next one; step 0 is all before the first.

    Raises:
        ValueError: there is no such step on this branch; says which there are.
    """
    _check(trajectory, step, 0)
    found: str | None = None
    for event in trajectory.path:
        if event.kind == "model.requested" and getattr(event, "step", 0) > step:
            break
        if event.kind == "model.replied" and getattr(event, "step", 0) > step:
            break  # of a trajectory that came from elsewhere, which has no requests
        if event.kind not in _ENDINGS:
            found = event.id
    if found is None:
        raise ValueError("Nothing has happened in this run yet, so there is nothing to go back to.")
    return found


def before_calls(trajectory: Trajectory, step: int) -> str:
    """The event after which the calls of a step are proposed, and none is decided on or executed.

    Raises:
        ValueError: there is no such step, or it has no call.
    """
    _check(trajectory, step, 1)
    found: str | None = None
    for event in trajectory.path:
        if getattr(event, "step", None) != step:
            continue
        if event.kind == "call.proposed":
            found = event.id
        elif event.kind in _EXECUTED:
            break
    if found is None:
        raise ValueError(f"Step {step} has no tool call to stop before: rewind to the end of a step instead.")
    return found


def files_after(trajectory: Trajectory, step: int) -> str | None:
    """The checkpoint with the files at the end of a step; None when they are not kept."""
    found: str | None = None
    changed = False
    for event in trajectory.path:
        match event:
            case ev.CallStarted(tool="submit"):
                continue
            case ev.CallStarted() if event.step > step:
                break
            case ev.CallStarted():
                changed = True
            case ev.Checkpointed() if (event.step or 0) <= step:
                found, changed = event.checkpoint, False
            case ev.Rewound(what="files") if trajectory.step_at(event.id) <= step:
                found, changed = event.target, False
    return None if changed else found


def _check(trajectory: Trajectory, step: int, first: int) -> None:
    last = trajectory.steps[-1].number if trajectory.steps else 0
    if isinstance(step, bool) or not isinstance(step, int) or not first <= step <= last:
        steps = f"the steps {first} to {last}" if first <= last else "none"
        raise ValueError(f"There is no step {step!r} on this branch: it has {steps}.")
