"""What a conversation that has begun already is gone on with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from llm_sandbox_nb.agent.model import ToolCall
from llm_sandbox_nb.agent.schemas import SUBMIT
from llm_sandbox_nb.trajectory.trajectory import Call, Trajectory


@dataclass(frozen=True)
class Past:
    """Where a conversation stands."""

    messages: list[dict[str, Any]]
    """All that the model has seen, as it has seen it; calls in `open` have no result yet."""
    open: tuple[ToolCall, ...] = ()
    """Calls of the newest reply that were not carried out: as decided, else as proposed."""
    given: Mapping[str, str] = field(default_factory=dict)
    """Observations that a person gave for open calls which are not to be executed."""
    said: tuple[str, ...] = ()
    """What the model is told first."""
    fresh: bool = False
    """Whether nothing was done in a sandbox yet, and none had its input files for sure."""
    step: int = 0
    last_text: str = ""


def past_of(trajectory: Trajectory, said: tuple[str, ...] = ()) -> Past:
    """Where the branch of HEAD stands."""
    step = trajectory.steps[-1] if trajectory.steps else None
    replied = [one for one in trajectory.steps if one.replied]
    waiting = [] if step is None or not step.replied else [call for call in step.calls if not call.finished]
    return Past(
        messages=list(trajectory.messages()),
        open=tuple(decided_call(call) for call in waiting),
        given={call.id: text for call in waiting if (text := given_for(call)) is not None},
        said=said,
        fresh=trajectory.files is None and not worked(trajectory),
        step=replied[-1].number if replied else 0,
        last_text=next((one.thought.strip() for one in reversed(replied) if one.thought.strip()), ""),
    )


def worked(trajectory: Trajectory) -> bool:
    """Whether a call was carried out in the sandbox, on the branch of HEAD."""
    return any(
        call.started is not None for step in trajectory.steps for call in step.calls if call.tool != SUBMIT
    )


def decided_call(call: Call) -> ToolCall:
    """A call as a person wanted it, else as it was proposed."""
    for decision in reversed(call.decisions):
        if decision.action == "edit" and decision.arguments is not None:
            arguments = json.dumps(decision.arguments, ensure_ascii=False)
            return ToolCall(call.id, decision.tool or call.tool, arguments)
    return ToolCall(call.id, call.tool, call.raw_arguments)


def given_for(call: Call) -> str | None:
    """What a person gave in place of the result of a call that was not to be executed."""
    for decision in reversed(call.decisions):
        if decision.action == "skip":
            return decision.observation or ""
    return None
