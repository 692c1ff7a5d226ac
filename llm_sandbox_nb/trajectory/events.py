"""The events a run is made of. Everything that is shown, scored or debugged is read from these alone.

An event is written once and never changed. `parent` is the event it follows, so that branches form a tree.
Sizes are bytes, times are seconds, `time` is seconds since the epoch.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, TypeAdapter
from pydantic_core import PydanticSerializationError

from llm_sandbox_nb.trajectory.debug_events import CallDecided as CallDecided
from llm_sandbox_nb.trajectory.debug_events import CallHeld as CallHeld
from llm_sandbox_nb.trajectory.debug_events import Checkpointed as Checkpointed
from llm_sandbox_nb.trajectory.debug_events import Continued as Continued
from llm_sandbox_nb.trajectory.debug_events import Forked as Forked
from llm_sandbox_nb.trajectory.debug_events import ForkedFrom as ForkedFrom
from llm_sandbox_nb.trajectory.debug_events import RewindStarted as RewindStarted
from llm_sandbox_nb.trajectory.debug_events import Rewound as Rewound
from llm_sandbox_nb.trajectory.debug_events import SettingsChanged as SettingsChanged
from llm_sandbox_nb.trajectory.event_base import Blob as Blob
from llm_sandbox_nb.trajectory.event_base import Event as _Event
from llm_sandbox_nb.trajectory.event_base import Model as _Model
from llm_sandbox_nb.trajectory.event_base import Text as Text
from llm_sandbox_nb.trajectory.event_base import new_id as new_id

SCHEMA_VERSION = 1

StopReason = Literal[
    "submitted", "answered", "steps", "tokens", "cost", "time",
    "interrupted", "model_error", "sandbox_lost", "error",
]  # fmt: skip
"""Why a run ended. `answered`: the model gave text and no tool call, more often in a row than it may."""


class Usage(_Model):
    """Tokens and money of one reply, or of a whole run. `cost` is US dollars, None when it is not known."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    cost: float | None = None

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
            cost=None if self.cost is None or other.cost is None else self.cost + other.cost,
        )

    @property
    def total_tokens(self) -> int:
        """Prompt and completion together, as billed."""
        return self.prompt_tokens + self.completion_tokens


class RunStarted(_Event):
    """First event of a journal."""

    kind: Literal["run.started"] = "run.started"
    schema_version: int = SCHEMA_VERSION
    run_id: str
    task: str
    model: str
    scripted: bool = False
    settings: dict[str, Any] = Field(default_factory=dict)
    """Model settings, limits and prompt configuration in force; never a key or a secret."""
    tools: list[dict[str, Any]] = Field(default_factory=list)
    inputs: list[str] = Field(default_factory=list)
    versions: dict[str, str] = Field(default_factory=dict)
    forked_from: ForkedFrom | None = None
    """Set when the run began as a fork; the events up to there are copies of its parent's, same ids."""


class SandboxReady(_Event):
    """The sandbox answered; what protects the host, as read back."""

    kind: Literal["sandbox.ready"] = "sandbox.ready"
    sandbox_id: str
    protection: dict[str, Any]
    start_time: float
    root: str | None = None
    """Its working directory."""


class MessageAdded(_Event):
    """A system or user message joined the conversation, exactly as the model gets it."""

    kind: Literal["message"] = "message"
    message: dict[str, Any]


class ModelRequested(_Event):
    """A request went out."""

    kind: Literal["model.requested"] = "model.requested"
    step: int
    attempt: int = 1
    settings: dict[str, Any] = Field(default_factory=dict)


class ModelDelta(_Event):
    """A piece of a streamed reply. Transient: shown live, not written to the journal."""

    kind: Literal["model.delta"] = "model.delta"
    step: int
    text: str = ""
    reasoning: str = ""


class ModelFailed(_Event):
    """A request failed. `retry_in` is None when no further attempt is made."""

    kind: Literal["model.failed"] = "model.failed"
    step: int
    attempt: int
    error: str
    message: str
    retry_in: float | None = None


class ModelReplied(_Event):
    """A whole reply. `message` is the assistant message as it is sent back in the history."""

    kind: Literal["model.replied"] = "model.replied"
    step: int
    message: dict[str, Any]
    reasoning: str | None = None
    usage: Usage | None = None
    finish_reason: str | None = None
    model_time: float = 0.0
    response_id: str | None = None
    response_model: str | None = None


class CallProposed(_Event):
    """A tool call of a reply. `arguments` is None when the raw text could not be parsed."""

    kind: Literal["call.proposed"] = "call.proposed"
    step: int
    call_id: str
    tool: str
    raw_arguments: str
    arguments: dict[str, Any] | None = None


class CallStarted(_Event):
    """What is executed; differs from what was proposed when a person edited the call."""

    kind: Literal["call.started"] = "call.started"
    step: int
    call_id: str
    tool: str
    arguments: dict[str, Any]


class CallOutput(_Event):
    """Output of a command as it arrives. Transient."""

    kind: Literal["call.output"] = "call.output"
    call_id: str
    stream: Literal["stdout", "stderr"]
    text: str


class FileDiff(_Model):
    """One path a call changed; `diff` is a unified diff when both sides are text of a sensible size."""

    path: str
    kind: Literal["added", "modified", "deleted"]
    size: int
    diff: str | None = None
    note: str = ""


class CallFinished(_Event):
    """The one result of a tool call. `observation` is exactly what the model is shown."""

    kind: Literal["call.finished"] = "call.finished"
    step: int
    call_id: str
    observation: str
    error: str | None = None
    """Short name of what was wrong with the call itself (`bad_arguments`, `interrupted`, ...)."""
    exit_code: int | None = None
    timed_out: bool = False
    stdout: Text = ""
    stderr: Text = ""
    truncated: bool = False
    duration: float = 0.0
    notice: str = ""
    changes: list[FileDiff] = Field(default_factory=list)
    changes_incomplete: str = ""


class ArtifactSaved(_Event):
    """A file of the output folder was copied to the run's `files/` folder; `path` is relative to it."""

    kind: Literal["artifact"] = "artifact"
    step: int | None = None
    path: str
    mime: str
    size: int
    sha256: str


class ArtifactSkipped(_Event):
    """Something in the output folder was not taken, and why."""

    kind: Literal["artifact.skipped"] = "artifact.skipped"
    reason: str


class ArtifactRemoved(_Event):
    """A file that had been copied to `files/` is gone from the output folder, so the copy is gone too."""

    kind: Literal["artifact.removed"] = "artifact.removed"
    step: int | None = None
    path: str


class Noted(_Event):
    """Something a reader should know that changed nothing: a warning of the loop, a limit that is near."""

    kind: Literal["note"] = "note"
    text: str


ControlAction = Literal["pause", "paused", "resume", "step", "say", "stop"]
"""What a person decided; `paused` is the run's own word that it has come to a halt. `step`: go on to the next
place where a run can halt."""


class Controlled(_Event):
    """A decision during the run. `text` is what was said; `source` is where it came from, e.g. `browser`."""

    kind: Literal["control"] = "control"
    action: ControlAction
    text: str | None = None
    source: str = ""


class RunFinished(_Event):
    """Last event of a run."""

    kind: Literal["run.finished"] = "run.finished"
    stop_reason: StopReason
    answer: str | None = None
    error: str | None = None
    usage: Usage = Field(default_factory=Usage)
    steps: int = 0
    wall_time: float = 0.0


class UnknownEvent(_Event):
    """An event of a kind this version does not know; kept as it is."""

    kind: str


_EVENTS = (
    RunStarted, SandboxReady, MessageAdded, ModelRequested, ModelDelta, ModelFailed, ModelReplied,
    CallProposed, CallStarted, CallOutput, CallFinished, ArtifactSaved, ArtifactSkipped, ArtifactRemoved,
    Noted, Controlled, CallHeld, CallDecided, SettingsChanged, Checkpointed, RewindStarted, Rewound, Forked,
    Continued, RunFinished,
)  # fmt: skip
_KINDS = {cls.model_fields["kind"].default for cls in _EVENTS}
TRANSIENT = frozenset({"model.delta", "call.output"})
"""Kinds that are shown live and not written: a later event carries the whole."""


def _tag(value: Any) -> str:
    kind = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
    return kind if isinstance(kind, str) and kind in _KINDS else "unknown"


Event = Annotated[
    Annotated[RunStarted, Tag("run.started")]
    | Annotated[SandboxReady, Tag("sandbox.ready")]
    | Annotated[MessageAdded, Tag("message")]
    | Annotated[ModelRequested, Tag("model.requested")]
    | Annotated[ModelDelta, Tag("model.delta")]
    | Annotated[ModelFailed, Tag("model.failed")]
    | Annotated[ModelReplied, Tag("model.replied")]
    | Annotated[CallProposed, Tag("call.proposed")]
    | Annotated[CallStarted, Tag("call.started")]
    | Annotated[CallOutput, Tag("call.output")]
    | Annotated[CallFinished, Tag("call.finished")]
    | Annotated[ArtifactSaved, Tag("artifact")]
    | Annotated[ArtifactSkipped, Tag("artifact.skipped")]
    | Annotated[ArtifactRemoved, Tag("artifact.removed")]
    | Annotated[Noted, Tag("note")]
    | Annotated[Controlled, Tag("control")]
    | Annotated[CallHeld, Tag("call.held")]
    | Annotated[CallDecided, Tag("call.decided")]
    | Annotated[SettingsChanged, Tag("settings.changed")]
    | Annotated[Checkpointed, Tag("checkpoint")]
    | Annotated[RewindStarted, Tag("rewind.started")]
    | Annotated[Rewound, Tag("rewound")]
    | Annotated[Forked, Tag("forked")]
    | Annotated[Continued, Tag("continued")]
    | Annotated[RunFinished, Tag("run.finished")]
    | Annotated[UnknownEvent, Tag("unknown")],
    Discriminator(_tag),
]
_ADAPTER: TypeAdapter[Event] = TypeAdapter(Event)


def parse_event(line: str | bytes) -> Event:
    """One event from one JSON text. Raises `pydantic.ValidationError` (a `ValueError`) when it is not one."""
    return _ADAPTER.validate_json(line)


def dump_event(event: Event) -> str:
    """One event as one line of JSON, without the line end. Lone surrogates are replaced."""
    try:
        return event.model_dump_json(exclude_defaults=False)
    except PydanticSerializationError:
        return parse_python(clean_text(event.model_dump())).model_dump_json(exclude_defaults=False)


def parse_python(value: Any) -> Event:
    """One event from what JSON would give. Raises `pydantic.ValidationError` when it is not one."""
    return _ADAPTER.validate_python(value)


def clean_text(value: Any) -> Any:
    """`value` with every lone surrogate in its texts replaced, so that it can be written as UTF-8.

    They come from `\\ud800` in a model's JSON and from file names that are not UTF-8.
    """
    if isinstance(value, str):
        if value.isascii():
            return value
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {clean_text(key): clean_text(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean_text(item) for item in value]
    return value
