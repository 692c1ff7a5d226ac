"""The events a run is made of. Everything that is shown, scored or debugged is read from these alone.

An event is written once and never changed. `parent` is the event it follows, so that branches form a tree.
Sizes are bytes, times are seconds, `time` is seconds since the epoch.
"""

from __future__ import annotations

import time
import uuid
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    field_serializer,
    field_validator,
)
from pydantic_core import PydanticSerializationError

SCHEMA_VERSION = 2
"""Of the events that this version writes. 1: without `before`, `after` and `background` of `call.finished`, and without
`step.facts`; `older.py` adds what it lacks. Doubts are found on reading where a record has none."""

StopReason = Literal[
    "submitted", "answered", "steps", "tokens", "total_tokens", "cost", "time",
    "interrupted", "model_error", "sandbox_lost", "error", "no_answer", "refused", "repeated",
]  # fmt: skip
"""Why a run ended. `tokens`: the conversation was full. `total_tokens`: all requests had used so many. `answered`: the
model gave text and no tool call, more often in a row than it may. `no_answer`: it gave neither. `refused`: it or its
provider refused. `repeated`: the same call failed too often in a row."""

STOP_REASONS: tuple[str, ...] = get_args(StopReason)


def new_id() -> str:
    """A fresh event id, unique over all runs."""
    return uuid.uuid4().hex[:16]


class EventModel(BaseModel):
    """A part of an event. Fields that this version does not know are kept."""

    model_config = ConfigDict(extra="allow", ser_json_bytes="base64", val_json_bytes="base64")


class EventBase(EventModel):
    """What every event has."""

    id: str = Field(default_factory=new_id)
    parent: str | None = None
    time: float = Field(default_factory=time.time)


class Blob(EventModel):
    """Bytes kept outside the journal, in `blobs/<sha256>` beside it, because they are many or not UTF-8."""

    sha256: str
    size: int
    preview: str = ""


Text = str | Blob


class Usage(EventModel):
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


class Chip(EventModel):
    """One consequence of a step, in a few words: a failure, a person's decision, a file with its lines."""

    text: str
    kind: Literal["bad", "human", "plain"] = "plain"
    added: int = 0
    removed: int = 0


class StepLine(EventModel):
    """A step in one line: what the model said first, its first call, its consequences, its tokens and seconds."""

    tool: Literal["bash", "edit", "submit", "other", "none"] = "none"
    thought: str = ""
    what: str = ""
    added: int = 0
    """Lines that the editor added and removed in the first call."""
    removed: int = 0
    chips: list[Chip] = Field(default_factory=list)
    figures: str = ""


class Verdict(EventModel):
    """The verdict of a check, as the state of a run shows it.

    `passed` and `failed` are a command's or a function's yes and no, `score` is a number, `text` a remark; `error`: the
    check could not run.
    """

    outcome: Literal["passed", "failed", "score", "text", "error"]
    summary: str
    protected: bool = True
    """False: the model's programs could have changed the check, as in the isolation `process`."""


class ForkedFrom(EventModel):
    """Where a fork comes from: the parent run, its folder's name, and the step and event it shares last."""

    run_id: str
    folder: str
    step: int
    event: str


class ShownInstead(EventModel):
    """A message that is sent with another content. `at` is its place, from 0, in the conversation before the event."""

    at: int
    content: str


class RunStarted(EventBase):
    """First event of a journal."""

    kind: Literal["run.started"] = "run.started"
    schema_version: int = SCHEMA_VERSION
    """Of the version that wrote it. A record of a later one is read as far as this one knows it."""
    run_id: str
    task: str
    model: str
    scripted: bool = False
    settings: dict[str, Any] = Field(default_factory=dict)
    """Model settings, limits, prompt configuration and isolation, as far as they are known; never a key or a secret."""
    tools: list[dict[str, Any]] = Field(default_factory=list)
    inputs: list[str] = Field(default_factory=list)
    versions: dict[str, str] = Field(default_factory=dict)
    forked_from: ForkedFrom | None = None
    """Set when the run began as a fork; the events up to there are copies of its parent's, same ids."""

    @field_validator("schema_version", mode="before")
    @classmethod
    def _is_version(cls, value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{value!r:.40} is not the number of a version")
        return value

    @property
    def later_version(self) -> str:
        """A sentence for the reader when a later version made the record; else empty."""
        if self.schema_version <= SCHEMA_VERSION:
            return ""
        return f"Made by a later version ({self.schema_version}): parts may be missing."


class SandboxReady(EventBase):
    """The sandbox is open; `protection` is what protects the host, as read back from the engine."""

    kind: Literal["sandbox.ready"] = "sandbox.ready"
    sandbox_id: str
    protection: dict[str, Any]
    start_time: float
    root: str | None = None
    """Its working directory."""


class MessageAdded(EventBase):
    """A system or user message joined the conversation, exactly as the model gets it."""

    kind: Literal["message"] = "message"
    message: dict[str, Any]


class ModelRequested(EventBase):
    """A request went out."""

    kind: Literal["model.requested"] = "model.requested"
    step: int
    attempt: int = 1
    settings: dict[str, Any] = Field(default_factory=dict)


class ModelDelta(EventBase):
    """A piece of a streamed reply. Transient: shown live, not written to the journal."""

    kind: Literal["model.delta"] = "model.delta"
    step: int
    text: str = ""
    reasoning: str = ""


class ModelFailed(EventBase):
    """A request failed. `retry_in` is None when no further attempt is made.

    `learned` holds all that the server's refusals have taught so far, where this one taught something.
    """

    kind: Literal["model.failed"] = "model.failed"
    step: int
    attempt: int
    error: str
    message: str
    retry_in: float | None = None
    learned: dict[str, Any] = Field(default_factory=dict)


class ModelReplied(EventBase):
    """A whole reply. `message` is the assistant message as it is sent back in the history."""

    kind: Literal["model.replied"] = "model.replied"
    step: int
    message: dict[str, Any]
    reasoning: str | None = None
    usage: Usage | None = None
    finish_reason: str | None = None
    """As the server has it; `cut_off`: the reply broke off, and so did the next one; the server sent none."""
    model_time: float = 0.0
    response_id: str | None = None
    response_model: str | None = None
    context_window: int | None = None
    """Tokens that the model can take in, when they are known."""
    calls_from: Literal["text"] | None = None
    """`text`: its calls were read out of its text."""
    raw_text: str | None = None
    """Its text as it came, where calls or thoughts were read out of it."""


class ContextKnown(EventBase):
    """How many tokens a model can take in, learned from its server; it counts for all further requests to this model.

    `source`: `server` (asked), `refusal` (a request was too long), `cut` (the server left messages out silently).
    """

    kind: Literal["context.known"] = "context.known"
    model: str
    tokens: int
    source: Literal["server", "refusal", "cut"]


class ContextReduced(EventBase):
    """Older parts of the conversation are sent in a shorter form from now on. The events before it keep them whole.

    First each message of `shown` gets its new content, then the messages from `removed_from` up to, and without,
    `removed_to` are removed. Places count from 0. `usage` is that of the request for a summary. Tokens are estimated.
    """

    kind: Literal["context.reduced"] = "context.reduced"
    step: int
    """The step whose request is the first that is shorter."""
    how: Literal["mask", "summary"]
    shown: list[ShownInstead] = Field(default_factory=list)
    removed_from: int = 0
    removed_to: int = 0
    tokens_before: int = 0
    tokens_after: int = 0
    limit: int = 0
    """Tokens that the model can take in."""
    usage: Usage | None = None


class CallProposed(EventBase):
    """A tool call of a reply. `arguments` is None when the raw text could not be parsed."""

    kind: Literal["call.proposed"] = "call.proposed"
    step: int
    call_id: str
    tool: str
    raw_arguments: str
    arguments: dict[str, Any] | None = None


class CallStarted(EventBase):
    """What is executed; differs from what was proposed when a person edited the call."""

    kind: Literal["call.started"] = "call.started"
    step: int
    call_id: str
    tool: str
    arguments: dict[str, Any]


class CallOutput(EventBase):
    """Output of a command as it arrives. Transient."""

    kind: Literal["call.output"] = "call.output"
    call_id: str
    stream: Literal["stdout", "stderr"]
    text: str


class FileDiff(EventModel):
    """One path a call changed; `diff` is a unified diff when both sides are text of a sensible size.

    `size` is that of a deleted file before it was deleted. `lines` and `lines_before` are counted when the file is
    text and small enough to be looked at, also where the diff is cut.
    """

    path: str
    kind: Literal["added", "modified", "deleted"]
    size: int
    diff: str | None = None
    note: str = ""
    size_before: int | None = None
    lines: int | None = None
    lines_before: int | None = None


class CallFinished(EventBase):
    """The one result of a tool call. `observation` is what the model is shown: `before`, the result, `after`."""

    kind: Literal["call.finished"] = "call.finished"
    step: int
    call_id: str
    observation: str
    before: str = ""
    """What `observation` begins with beside the result: that a person changed the call."""
    after: str = ""
    """What it ends with beside the result: the steps that remain, and advice."""
    error: str | None = None
    """Short name of what was wrong with the call itself (`bad_arguments`, `interrupted`, ...)."""
    exit_code: int | None = None
    timed_out: bool = False
    stdout: Text = ""
    stderr: Text = ""
    background: Text = ""
    """What jobs in the background wrote since the call before."""
    truncated: bool = False
    duration: float = 0.0
    notice: str = ""
    changes: list[FileDiff] = Field(default_factory=list)
    changes_incomplete: str = ""

    @property
    def failed(self) -> bool:
        """Whether the call went wrong: of itself, by its exit code, or by the clock. One that was not begun did not."""
        return self.error not in ("skipped", "not_executed") and bool(
            self.error or self.timed_out or self.exit_code
        )

    @property
    def body(self) -> str:
        """What the tool gave, without what the loop says around it."""
        return self.observation.removeprefix(self.before).removesuffix(self.after)


class StepFacts(EventBase):
    """What is said of a step, written when it has ended; a later one of the same step counts instead.

    It belongs to the event that it follows, and no event follows it: it is on every branch that has that event.
    """

    kind: Literal["step.facts"] = "step.facts"
    step: int
    line: StepLine

    @field_serializer("line")
    def _short(self, line: StepLine) -> dict[str, Any]:
        return line.model_dump(exclude_defaults=True)


class Doubt(EventModel):
    """A reason to think that the result is wrong, and the step to look at."""

    rule: str
    """The name of a rule, or of a user's function."""
    step: int | None = None
    """The step to look at; None when it is about the whole run."""
    until: int | None = None
    """The last step, when it is about several."""
    text: str
    severity: Literal["high", "medium", "low"] = "medium"

    @property
    def line(self) -> str:
        """The doubt with its step, as a person reads it."""
        if self.step is None:
            return self.text
        steps = f"{self.step}" if self.until in (None, self.step) else f"{self.step}-{self.until}"
        return f"{steps}: {self.text}"


class DoubtsFound(EventBase):
    """Doubts that a call gave rise to; or, with `final`, all of the run, the worst first, in place of the others.

    As `step.facts`, it belongs to the event that it follows, and no event follows it.
    """

    kind: Literal["doubts"] = "doubts"
    doubts: list[Doubt] = Field(default_factory=list)
    final: bool = False


class ArtifactSaved(EventBase):
    """A file of the output folder was copied to the run's `files/` folder; `path` is relative to it."""

    kind: Literal["artifact"] = "artifact"
    step: int | None = None
    path: str
    mime: str
    size: int
    sha256: str
    blank: str = ""
    """Why the file shows nothing, where its content was looked at: a picture of one colour, silence, no text."""


class ArtifactSkipped(EventBase):
    """Something in the output folder was not taken, and why."""

    kind: Literal["artifact.skipped"] = "artifact.skipped"
    reason: str


class ArtifactRemoved(EventBase):
    """A file that had been copied to `files/` is gone from the output folder, so the copy is gone too."""

    kind: Literal["artifact.removed"] = "artifact.removed"
    step: int | None = None
    path: str


class ConnectionMade(EventBase):
    """A connection of a sandbox whose network is an allow-list has ended, was refused, or failed.

    `line` says it in a few words. A step has so many at most; of the others the last one of the step has the number.
    """

    kind: Literal["connection"] = "connection"
    step: int | None = None
    line: str
    host: str = ""
    port: int = 0
    decision: Literal["allowed", "refused", "failed"] = "allowed"
    """`refused`: by the list. `failed`: the server does not answer, or one side broke off."""
    reason: str = ""
    rule: str = ""
    """The entry of the list that let it through."""
    address: str = ""
    secrets: list[str] = Field(default_factory=list)
    """The names of the secrets that were put in; never a value."""
    sent: int = 0
    received: int = 0
    duration: float = 0.0
    more: int = 0
    """So many further connections of the step that have no event."""


class Noted(EventBase):
    """A note for the reader that changed nothing: a warning of the loop, a limit that is near."""

    kind: Literal["note"] = "note"
    text: str


ControlAction = Literal["pause", "paused", "resume", "step", "say", "stop"]
"""What a person decided; `paused` is recorded by the run itself when it pauses. `step`: resume until the next place
where a run can pause."""


class Controlled(EventBase):
    """A decision during the run. `text` is what was said; `source` is where it came from, e.g. `browser`."""

    kind: Literal["control"] = "control"
    action: ControlAction
    text: str | None = None
    source: str = ""


class CallHeld(EventBase):
    """The run waits for a person: before a call is executed, or before the model sees its observation.

    A `control` event `paused` follows. `text` says why, such as the breakpoint that was met.
    """

    kind: Literal["call.held"] = "call.held"
    step: int
    call_id: str
    at: Literal["call", "observation"]
    reason: Literal["step", "breakpoint", "approval", "pause"]
    text: str = ""
    hosts: list[str] = Field(default_factory=list)
    """What the list of allowed hosts has refused to the call, as HOST:PORT, so that a person can allow it."""


class CallDecided(EventBase):
    """What a person decided on a call that was held; it was proposed in `call.proposed`.

    `run`: as it was proposed. `edit`: `tool` and `arguments` instead. `skip`: it is not executed, and the result
    that follows is the person's. `observe`: it has its result already, and the model is shown `observation`
    in place of `original`.
    """

    kind: Literal["call.decided"] = "call.decided"
    step: int
    call_id: str
    action: Literal["run", "edit", "skip", "observe"]
    tool: str | None = None
    arguments: dict[str, Any] | None = None
    observation: str | None = None
    after: str = ""
    """What `observation` ends with beside the person's text, as in `call.finished`."""
    original: Text | None = None
    source: str = ""


class SettingsChanged(EventBase):
    """The model, sampling settings, limits, pause rules or allowed hosts change for what follows.

    `settings`, `limits` and `halts` hold what was changed and nothing else; never a key.
    """

    kind: Literal["settings.changed"] = "settings.changed"
    model: str | None = None
    settings: dict[str, Any] = Field(default_factory=dict)
    limits: dict[str, Any] = Field(default_factory=dict)
    halts: dict[str, Any] = Field(default_factory=dict)
    """`breakpoints`: list of expressions; `approve`: ask, edits or auto."""
    network: dict[str, Any] = Field(default_factory=dict)
    """`allow`: hosts that the sandbox may reach too; `allow_once`: hosts to each of which one connection may go."""
    source: str = ""


class Checkpointed(EventBase):
    """The sandbox's files after a step are kept; `step` is None or 0 before the first call.

    `files` counts what changed since the checkpoint before, `size` is the bytes that were newly stored.
    """

    kind: Literal["checkpoint"] = "checkpoint"
    step: int | None = None
    checkpoint: str
    files: int = 0
    size: int = 0
    duration: float = 0.0
    incomplete: str = ""
    by_others: bool = False
    """Whether a person, a program or another run made all changes since the checkpoint before, and no step did."""
    other_runs: list[str] = Field(default_factory=list)
    """The tasks of the runs that have used the sandbox since then; only with `by_others`."""


class RewindStarted(EventBase):
    """A rewind begins. Without the `rewound` that follows, it did not happen."""

    kind: Literal["rewind.started"] = "rewind.started"
    to: str
    """Id of the event that HEAD moves to."""
    step: int
    what: Literal["both", "files", "conversation"] = "both"
    target: str | None = None
    """The checkpoint that is restored."""
    safety: str | None = None
    """The checkpoint taken before, which `undo` restores."""
    other_runs: list[str] = Field(default_factory=list)
    """Tasks of the runs that have used the sandbox since this run's newest checkpoint."""


class Rewound(EventBase):
    """The rewind is done. Unless it restored only files, the event after it has `to` as its parent."""

    kind: Literal["rewound"] = "rewound"
    to: str
    step: int
    what: Literal["both", "files", "conversation"] = "both"
    target: str | None = None
    safety: str | None = None
    undo_of: str | None = None
    """Id of the rewind that this one undoes."""
    restored: int = 0
    """How many paths the restored files differed in; 0 when the run had no sandbox, and gets the files later."""


class Forked(EventBase):
    """Another run began from here, in the folder of that name beside this one."""

    kind: Literal["forked"] = "forked"
    run_id: str
    folder: str
    step: int
    checkpoint: str | None = None


class Continued(EventBase):
    """A run that had ended, or was killed, resumes."""

    kind: Literal["continued"] = "continued"
    source: str = ""


class CheckStarted(EventBase):
    """A check of the result begins."""

    kind: Literal["check.started"] = "check.started"
    number: int
    """Which check it is since the run began or was continued, from 1."""
    what: str
    """The command, or the name of the function."""


class Checked(EventBase):
    """A check of the result has ended. One that follows the end of the run is the score of a benchmark."""

    kind: Literal["checked"] = "checked"
    number: int
    what: str
    verdict: Verdict
    score: float | None = None
    """The number that a function or a scorer gave."""
    exit_code: int | None = None
    timed_out: bool = False
    duration: float = 0.0
    output: Text = ""
    """Both streams of the command in one, or why the function failed."""
    left_out: list[str] = Field(default_factory=list)
    """A sentence for each file of the model that the check did not get."""


class Rewarded(EventBase):
    """What training made of the run. It follows the end, when the other runs of its group have ended too."""

    kind: Literal["rewarded"] = "rewarded"
    training_step: int
    group: str
    """The row that the runs of its group worked on."""
    reward: float | None = None
    """None: it could not be scored, and is no part of the training."""
    advantage: float | None = None
    """How much better it is than the other runs of its group."""
    detail: str = ""
    """What the scorer says."""


class RunFinished(EventBase):
    """Last event of a run, unless it is a rollout of a training."""

    kind: Literal["run.finished"] = "run.finished"
    stop_reason: StopReason
    answer: str | None = None
    error: str | None = None
    usage: Usage = Field(default_factory=Usage)
    steps: int = 0
    wall_time: float = 0.0
    without_answer: bool = False
    """Whether the model submitted with nothing saved and nothing said, also when it was reminded."""
    check: Verdict | None = None
    """The verdict on this end; None when nothing was checked."""


class UnknownEvent(EventBase):
    """An event of a kind this version does not know; kept as it is."""

    kind: str


_EVENTS = (
    RunStarted, SandboxReady, MessageAdded, ModelRequested, ModelDelta, ModelFailed, ModelReplied, ContextKnown,
    ContextReduced, CallProposed, CallStarted, CallOutput, CallFinished, StepFacts, DoubtsFound, ArtifactSaved,
    ArtifactSkipped, ArtifactRemoved, ConnectionMade, Noted, Controlled, CallHeld, CallDecided, SettingsChanged,
    Checkpointed, RewindStarted, Rewound, Forked, Continued, CheckStarted, Checked, Rewarded, RunFinished,
)  # fmt: skip
_KINDS: dict[str, type[EventBase]] = {cls.model_fields["kind"].default: cls for cls in _EVENTS}
TRANSIENT = frozenset({"model.delta", "call.output"})
"""Kinds that are shown live and not written: a later event carries the whole."""


Facts = StepFacts | DoubtsFound
"""Events that say something of others: no event follows them, and HEAD stays where it is."""


def default_fields(kind: str) -> dict[str, Any]:
    """What the fields of an event of this kind hold when nothing is said of them, without its id and its time."""
    fields = _KINDS[kind].model_fields if kind in _KINDS else {}
    return {
        name: field.get_default(call_default_factory=True)
        for name, field in fields.items()
        if name not in ("id", "time") and not field.is_required()
    }


def is_transient(event: Event) -> bool:
    """Whether the event is shown live and not written."""
    return event.kind in TRANSIENT


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
    | Annotated[ContextKnown, Tag("context.known")]
    | Annotated[ContextReduced, Tag("context.reduced")]
    | Annotated[CallProposed, Tag("call.proposed")]
    | Annotated[CallStarted, Tag("call.started")]
    | Annotated[CallOutput, Tag("call.output")]
    | Annotated[CallFinished, Tag("call.finished")]
    | Annotated[StepFacts, Tag("step.facts")]
    | Annotated[DoubtsFound, Tag("doubts")]
    | Annotated[ArtifactSaved, Tag("artifact")]
    | Annotated[ArtifactSkipped, Tag("artifact.skipped")]
    | Annotated[ArtifactRemoved, Tag("artifact.removed")]
    | Annotated[ConnectionMade, Tag("connection")]
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
    | Annotated[CheckStarted, Tag("check.started")]
    | Annotated[Checked, Tag("checked")]
    | Annotated[Rewarded, Tag("rewarded")]
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
