"""Points of a run that a rewind can restore: events of the record, and the checkpoint after a step."""

from __future__ import annotations

from typing import Literal

from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.trajectory import Trajectory

Before = Literal["call"]
"""Place in a step: `call` is before the calls of the step, and None is the end of the step."""
_EXECUTED = ev.CallHeld | ev.CallDecided | ev.CallStarted | ev.CallFinished
_ENDINGS = (
    ev.RunFinished | ev.Continued | ev.RewindStarted | ev.Rewound | ev.Facts | ev.CheckStarted | ev.Checked
)


def end_of_step(trajectory: Trajectory, step: int) -> str:
    """Return the id of the last event of a step. Step 0 stands for the time before the first step.

    Raises:
        ValueError: if the current attempt of `trajectory` does not have the step, or nothing has happened in the run
            yet. The message names the existing steps.
    """
    _check_step(trajectory, step, 0)
    found: str | None = None
    for event in trajectory.path:
        # a trajectory from another program has no requests
        if isinstance(event, ev.ModelRequested | ev.ModelReplied) and event.step > step:
            break
        if not isinstance(event, _ENDINGS):
            found = event.id
    if found is None:
        raise ValueError("Nothing has happened in this run yet, so there is nothing to go back to.")
    return found


def before_calls(trajectory: Trajectory, step: int) -> str:
    """Return the id of the event that proposes the last call of a step. No call of the step is executed before it.

    Raises:
        ValueError: if there is no such step, or the step has no call.
    """
    _check_step(trajectory, step, 1)
    found: str | None = None
    for event in trajectory.path:
        if getattr(event, "step", None) != step:
            continue
        if isinstance(event, ev.CallProposed):
            found = event.id
        elif isinstance(event, _EXECUTED):
            break
    if found is None:
        raise ValueError(f"Step {step} has no tool call to stop before: rewind to the end of a step instead.")
    return found


def files_after(trajectory: Trajectory, step: int, *, before_next: bool = False) -> str | None:
    """Return the checkpoint with the files at the end of a step. None if the files are not stored.

    With `before_next`, return the files just before the next step. These differ if only the files or only the
    conversation was rewound in between.
    """
    found: str | None = None
    changed, at = False, trajectory.step_at
    end = step + before_next  # rewinds of only the files or only the conversation count until this step
    for event in trajectory.path:
        match event:
            case ev.CallStarted(tool="submit"):
                continue
            case ev.CallStarted() if event.step > step:
                break
            case ev.CallStarted():
                changed = True
            case ev.Checkpointed(by_others=True) if (event.step or 0) == step:
                continue  # files that others changed after the step
            case ev.Checkpointed(after_step=str(own)) if (event.step or 0) == step and at(event.id) >= end:
                if changed or found is None:  # the step's own checkpoint is on an abandoned branch
                    found, changed = own or None, False
            case ev.Checkpointed() if (event.step or 0) <= step:
                found, changed = event.checkpoint, False
            case ev.Rewound(what="files") if at(event.id) < end:
                found, changed = event.target, False
    return None if changed else found


def _check_step(trajectory: Trajectory, step: int, first: int) -> None:
    last = trajectory.steps[-1].number if trajectory.steps else 0
    if isinstance(step, bool) or not isinstance(step, int) or not first <= step <= last:
        steps = f"the steps {first} to {last}" if first <= last else "none"
        raise ValueError(f"There is no step {step!r} in this attempt: it has {steps}.")
