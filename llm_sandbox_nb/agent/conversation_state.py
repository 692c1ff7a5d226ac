"""The state of a conversation that a session resumes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from llm_sandbox_nb.agent.run_limits import Thoughts, estimated_tokens
from llm_sandbox_nb.agent.tools.toolbox import ends_run
from llm_sandbox_nb.model.contract import ToolCall
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.messages import message_text
from llm_sandbox_nb.trajectory.state import Status
from llm_sandbox_nb.trajectory.trajectory import Call, Trajectory

_FIRST_OF_PART = (ev.SettingsChanged, ev.RewindStarted, ev.Forked, ev.Continued)
"""Events that can be the first event of a session. The time before such an event belongs to no session."""


@dataclass(frozen=True)
class ConversationState:
    """State of a conversation at the end of a branch."""

    messages: list[dict[str, Any]]
    """All messages of the conversation. The calls in `open` have no result yet."""
    open: tuple[ToolCall, ...] = ()
    """Calls of the newest reply that were not executed, each as edited by a person or else as proposed."""
    given: Mapping[str, str] = field(default_factory=dict)
    """Observations that a person wrote for open calls that must not be executed."""
    said: tuple[str, ...] = ()
    """Messages of the person that the model reads next."""
    fresh: bool = False
    """True if there is no checkpoint and no call was executed. Then the input files may be missing in the sandbox."""
    step: int = 0
    """Number of the newest step that has a reply. 0 if there is no such step."""
    answer: str = ""
    """The answer with which the run had ended last. Empty if the run had not ended with an answer."""
    submitted: bool = False
    """True if the run was killed after it accepted a submission and before it recorded its end."""


def conversation_state(trajectory: Trajectory, said: tuple[str, ...] = ()) -> ConversationState:
    """Return the state of the conversation on the current branch."""
    step = trajectory.steps[-1] if trajectory.steps else None
    replied = [step.number for step in trajectory.steps if step.replied]
    waiting = [] if step is None or not step.replied else [call for call in step.calls if not call.finished]
    end = next((event for event in reversed(trajectory.path) if isinstance(event, ev.RunFinished)), None)
    return ConversationState(
        messages=list(trajectory.messages()),
        open=tuple(decided_call(call) for call in waiting),
        given={call.id: text for call in waiting if (text := given_for(call)) is not None},
        said=said,
        fresh=trajectory.files is None and not worked(trajectory),
        step=replied[-1] if replied else 0,
        answer=(end.answer or "") if end is not None and end.stop_reason in ("submitted", "answered") else "",
        submitted=not said and _submitted(trajectory),
    )


def _submitted(trajectory: Trajectory) -> bool:
    step = trajectory.steps[-1] if trajectory.steps else None
    if step is None:
        return False
    # After a rewind or a fork, a person wants the run to continue. Its place is then an event after the call.
    places = {rewind.to for rewind in trajectory.rewinds}
    if trajectory.start and trajectory.start.forked_from:
        places.add(trajectory.start.forked_from.event)
    for event in reversed(trajectory.path):
        if event.id in places or isinstance(event, ev.RunFinished | ev.MessageAdded | ev.Rewound):
            return False
        if isinstance(event, ev.CallFinished):
            break
    return any(
        ends_run(call.tool) and call.result is not None and not call.result.error for call in step.calls
    )


def tokens_so_far(trajectory: Trajectory) -> tuple[int, int]:
    """Return the tokens of the next request: the provider's newest count, and the estimated tokens of later text."""
    added = 0
    for event in reversed(trajectory.path):
        match event:
            case ev.CallFinished():
                added += estimated_tokens(event.observation)
            case ev.MessageAdded():
                added += estimated_tokens(message_text(event.message))
            case ev.ContextReduced():
                return event.tokens_after, added
            case ev.ModelReplied(usage=ev.Usage() as usage, message=message) if usage.total_tokens:
                thoughts = Thoughts.of(message, event.reasoning, usage)
                return usage.total_tokens - (0 if thoughts.sent_back else thoughts.tokens), added
    return 0, added


def seconds_so_far(trajectory: Trajectory) -> float:
    """Return the duration of the current branch in seconds, without pauses, checks, and the time between two sessions.

    A session that was killed has no recorded end, and neither has the beginning of a fork. For these, add up the times
    between events.
    """
    status, seconds, before = Status(), 0.0, 0.0
    for event in trajectory.path:
        stood_still = status.finish or status.paused or status.held or status.checking
        if isinstance(event, ev.RunFinished):
            seconds = event.wall_time
        elif before and not stood_still and not isinstance(event, _FIRST_OF_PART):
            seconds += max(0.0, event.time - before)
        status.add(event)
        before = event.time
    return seconds if math.isfinite(seconds) else 0.0


def files_before_answer(trajectory: Trajectory) -> str | None:
    """Return the checkpoint of the files as they were before the work on the current answer. None if it is missing.

    This work begins at the first step. If a run that had ended with an answer was resumed, it begins at the resume.
    """
    found: str | None = None
    files: str | None = None
    answered = False
    for event in trajectory.path:
        match event:
            case ev.Checkpointed():
                files = event.checkpoint
                found = found if event.step else files
            case ev.Rewound(what="files"):
                files = event.target
            case ev.RunFinished():
                answered = event.stop_reason in ("submitted", "answered")
            case ev.Continued() if answered:
                found, answered = files, False
    return found


def worked(trajectory: Trajectory) -> bool:
    """Return True if a call on the current branch was executed, other than `submit`."""
    return any(
        call.started is not None and not ends_run(call.tool)
        for step in trajectory.steps
        for call in step.calls
    )


def decided_call(call: Call) -> ToolCall:
    """Return a call as a person has edited it, or else as the model proposed it."""
    for decision in reversed(call.decisions):
        if decision.action == "edit" and decision.arguments is not None:
            arguments = json.dumps(decision.arguments, ensure_ascii=False)
            return ToolCall(call.id, decision.tool or call.tool, arguments)
    return ToolCall(call.id, call.tool, call.raw_arguments)


def given_for(call: Call) -> str | None:
    """Return the observation that a person gave instead of a result. None if the call was not skipped."""
    for decision in reversed(call.decisions):
        if decision.action == "skip":
            return decision.observation or ""
    return None
