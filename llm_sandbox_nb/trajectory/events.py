"""The events of a run. Everything that is shown, scored or debugged is read from these alone.

An event is written once and never changed. `parent` is the event before it, so that branches form a tree.
"""

from __future__ import annotations

import time
import uuid
from typing import Annotated, Any, Literal, Union, get_args

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
"""Version of the events that this package writes. Version 1 lacks `before`, `after` and `background` of
`call.finished`, which `older.py` adds on reading, and `step.facts`. Doubts are found on reading if there are none."""

StopReason = Literal[
    "submitted", "answered", "steps", "tokens", "total_tokens", "cost", "time",
    "interrupted", "model_error", "sandbox_lost", "error", "no_answer", "refused", "repeated",
]  # fmt: skip
"""Reason of a run's end. `tokens`: the conversation reached its limit. `total_tokens`: all requests together did.
`answered`: the model returned text without a tool call too often in a row. `no_answer`: the model returned neither.
`refused`: the model or its provider refused. `repeated`: the same call failed too often in a row."""

STOP_REASONS: tuple[str, ...] = get_args(StopReason)


def new_id() -> str:
    """Return a new event id, unique over all runs."""
    return uuid.uuid4().hex[:16]


class EventModel(BaseModel):
    """A part of an event. Fields that this version does not know are preserved."""

    # A process uses few of the kinds: what pydantic makes of each is made on its first use.
    model_config = ConfigDict(
        extra="allow", ser_json_bytes="base64", val_json_bytes="base64", defer_build=True
    )


class EventBase(EventModel):
    """The fields of every event."""

    id: str = Field(default_factory=new_id)
    """16 hexadecimal digits, unique over all runs."""
    parent: str | None = None
    """Id of the event that this one follows; None: the one at HEAD."""
    time: float = Field(default_factory=time.time)
    """Seconds since the epoch."""


class Blob(EventModel):
    """Bytes outside the journal, in `blobs/<sha256>` of the same folder, because they are many or not UTF-8."""

    sha256: str
    """SHA-256 of the bytes, as hexadecimal digits."""
    size: int
    """Bytes."""
    preview: str = ""
    """The beginning and the end of the text, shortened."""


Text = str | Blob


class Usage(EventModel):
    """Tokens and cost of one reply, or of a whole run."""

    prompt_tokens: int = 0
    """Tokens sent to the model."""
    completion_tokens: int = 0
    """Tokens that the model generated, reasoning included."""
    cached_tokens: int = 0
    """Prompt tokens that the provider read from its cache."""
    reasoning_tokens: int = 0
    """Completion tokens that were reasoning."""
    cost: float | None = None
    """US dollars; None if the price is not known."""

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
        """Prompt and completion tokens together, as billed."""
        return self.prompt_tokens + self.completion_tokens


class Chip(EventModel):
    """A consequence of a step, in a few words: a failure, a person's decision, or a file with its lines."""

    text: str
    """The words on the chip."""
    kind: Literal["bad", "human", "plain"] = "plain"
    """`bad`: a failure. `human`: a person's decision. `plain`: anything else."""
    added: int = 0
    """Lines added to the file."""
    removed: int = 0
    """Lines removed from the file."""


class StepLine(EventModel):
    """A step in one line: the model's first sentence, its first call, its consequences, its tokens and seconds."""

    tool: Literal["bash", "edit", "submit", "other", "none"] = "none"
    """Kind of the first call."""
    thought: str = ""
    """The first sentence of the reply."""
    what: str = ""
    """The first call, shortened, and the number of further calls."""
    added: int = 0
    """Lines that the editor added in the first call."""
    removed: int = 0
    """Lines that the editor removed in the first call."""
    chips: list[Chip] = Field(default_factory=list)
    """Consequences: failures, then decisions, then files."""
    figures: str = ""
    """Tokens and seconds, as shown."""


class Verdict(EventModel):
    """The verdict of a check, as shown in the state of a run."""

    outcome: Literal["passed", "failed", "score", "text", "error"]
    """`passed`, `failed`: by a command or a function. `score`: a number. `text`: a remark. `error`: not run."""
    summary: str
    """The verdict in a few words, such as `exit 1` or `0.8`."""
    protected: bool = True
    """False if the model's programs could have changed the check, as in the isolation `process`."""


class ForkedFrom(EventModel):
    """The parent run of a fork, and the last step and event that both share."""

    run_id: str
    """Id of the parent run."""
    folder: str
    """Name of the parent's run folder."""
    step: int
    """Number of the last shared step."""
    event: str
    """Id of the last shared event."""


class ShownInstead(EventModel):
    """A message that is sent with another content."""

    at: int
    """Index of the message, from 0, in the conversation before the event."""
    content: str
    """The content that is sent."""


class RunStarted(EventBase):
    """First event of a journal."""

    kind: Literal["run.started"] = "run.started"
    schema_version: int = SCHEMA_VERSION
    """Schema version of the writer. A later version's record is read as far as this version knows its events."""
    run_id: str
    """Id of the run."""
    task: str
    """The task as the person wrote it."""
    model: str
    """Name of the model."""
    scripted: bool = False
    """True if the replies are read from a script."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Model settings, limits, prompt configuration and isolation, as far as they are known; never a key or a secret."""
    tools: list[dict[str, Any]] = Field(default_factory=list)
    """Schemas of the tools, as sent to the model."""
    inputs: list[str] = Field(default_factory=list)
    """Names of the input files."""
    versions: dict[str, str] = Field(default_factory=dict)
    """Versions of this package and of its libraries, by name."""
    forked_from: ForkedFrom | None = None
    """Set if the run began as a fork; the events up to there are copies of the parent's, with the same ids."""

    @field_validator("schema_version", mode="before")
    @classmethod
    def _is_version(cls, value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{value!r:.40} is not the number of a version")
        return value

    @property
    def later_version(self) -> str:
        """A sentence for the reader if a later version made the record; otherwise empty."""
        if self.schema_version <= SCHEMA_VERSION:
            return ""
        return f"Made by a later version ({self.schema_version}): parts may be missing."


class SandboxReady(EventBase):
    """The sandbox is open."""

    kind: Literal["sandbox.ready"] = "sandbox.ready"
    sandbox_id: str
    """Id of the sandbox."""
    protection: dict[str, Any]
    """The protection of the host, as read back from the engine."""
    start_time: float
    """Seconds that the sandbox took to start."""
    root: str | None = None
    """Working directory in the sandbox."""


class MessageAdded(EventBase):
    """A system or user message joined the conversation."""

    kind: Literal["message"] = "message"
    message: dict[str, Any]
    """The message exactly as sent to the model."""


class ModelRequested(EventBase):
    """A request was sent to the model."""

    kind: Literal["model.requested"] = "model.requested"
    step: int
    """Step number, from 1."""
    attempt: int = 1
    """Attempt at this step, from 1."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Sampling and other model settings of the request."""


class ModelDelta(EventBase):
    """A piece of a streamed reply. Transient: shown live, not written to the journal."""

    kind: Literal["model.delta"] = "model.delta"
    step: int
    """Step number, from 1."""
    text: str = ""
    """The next piece of the text."""
    reasoning: str = ""
    """The next piece of the reasoning."""


class ModelFailed(EventBase):
    """A request to the model failed."""

    kind: Literal["model.failed"] = "model.failed"
    step: int
    """Step number, from 1."""
    attempt: int
    """Attempt at this step, from 1."""
    error: str
    """Short name of the failure, such as `rate_limit`."""
    message: str
    """The error message."""
    retry_in: float | None = None
    """Seconds until the next attempt; None if no further attempt is made."""
    learned: dict[str, Any] = Field(default_factory=dict)
    """Everything learned from the server's refusals so far; empty if this one taught nothing."""


class ModelReplied(EventBase):
    """A whole reply of the model."""

    kind: Literal["model.replied"] = "model.replied"
    step: int
    """Step number, from 1."""
    message: dict[str, Any]
    """The assistant message as sent back in the history."""
    reasoning: str | None = None
    """The reasoning; None if the server returned none."""
    usage: Usage | None = None
    """Tokens and cost of the reply; None if they are not known."""
    finish_reason: str | None = None
    """As the server sent it; `cut_off`: this reply and the next attempt broke off, and the server sent no reason."""
    model_time: float = 0.0
    """Seconds from the request to the whole reply."""
    response_id: str | None = None
    """The server's id of the reply."""
    response_model: str | None = None
    """The server's name of the model."""
    context_window: int | None = None
    """Tokens of the model's context, if known."""
    calls_from: Literal["text"] | None = None
    """`text`: the calls were parsed from the text of the reply."""
    raw_text: str | None = None
    """The text as received, if calls or reasoning were parsed from it."""


class ContextKnown(EventBase):
    """The size of a model's context, learned from its server, for all further requests to this model."""

    kind: Literal["context.known"] = "context.known"
    model: str
    """Name of the model."""
    tokens: int
    """Tokens of the model's context."""
    source: Literal["server", "refusal", "cut"]
    """`server`: asked. `refusal`: a request was too long. `cut`: the server left messages out silently."""


class ContextReduced(EventBase):
    """Older parts of the conversation are sent in a shorter form from now on. Earlier events keep the whole text.

    First each message of `shown` gets its new content, then the messages `removed_from` to `removed_to` are removed.
    """

    kind: Literal["context.reduced"] = "context.reduced"
    step: int
    """The first step with a shorter request."""
    how: Literal["mask", "summary"]
    """`mask`: old observations are shortened. `summary`: old messages are replaced by a summary."""
    shown: list[ShownInstead] = Field(default_factory=list)
    """Messages with a new content."""
    removed_from: int = 0
    """Index of the first removed message, from 0."""
    removed_to: int = 0
    """Index after the last removed message."""
    tokens_before: int = 0
    """Estimated tokens of the conversation before."""
    tokens_after: int = 0
    """Estimated tokens of the conversation afterwards."""
    limit: int = 0
    """Tokens of the model's context."""
    usage: Usage | None = None
    """Tokens and cost of the request for a summary."""


class CallProposed(EventBase):
    """A tool call of a reply."""

    kind: Literal["call.proposed"] = "call.proposed"
    step: int
    """Step number, from 1."""
    call_id: str
    """Id of the call."""
    tool: str
    """Name of the tool."""
    raw_arguments: str
    """The arguments as the model wrote them."""
    arguments: dict[str, Any] | None = None
    """The parsed arguments; None if `raw_arguments` could not be parsed."""


class CallStarted(EventBase):
    """A call begins to execute. Its tool and arguments differ from the proposal if a person edited the call."""

    kind: Literal["call.started"] = "call.started"
    step: int
    """Step number, from 1."""
    call_id: str
    """Id of the call."""
    tool: str
    """Name of the tool that is executed."""
    arguments: dict[str, Any]
    """The arguments that are executed."""


class CallOutput(EventBase):
    """Live output of a command. Transient."""

    kind: Literal["call.output"] = "call.output"
    call_id: str
    """Id of the call."""
    stream: Literal["stdout", "stderr"]
    """Stream of the output."""
    text: str
    """The next piece of output."""


class FileDiff(EventModel):
    """A path that a call changed."""

    path: str
    """Absolute path in the sandbox."""
    kind: Literal["added", "modified", "deleted"]
    """Kind of change."""
    size: int
    """Bytes of the file after the change; of a deleted file, before the deletion."""
    diff: str | None = None
    """Unified diff; None if a side is not text or is too large."""
    note: str = ""
    """Parts that `diff` lacks, or the reason for its absence."""
    size_before: int | None = None
    """Bytes before the change; None if not known."""
    lines: int | None = None
    """Lines after the change, counted for small text files, also if the diff is cut."""
    lines_before: int | None = None
    """Lines before the change."""


class CallFinished(EventBase):
    """The result of a tool call. Every call has exactly one."""

    kind: Literal["call.finished"] = "call.finished"
    step: int
    """Step number, from 1."""
    call_id: str
    """Id of the call."""
    observation: str
    """The text shown to the model: `before`, the result, `after`."""
    before: str = ""
    """Text before the result: a notice that a person changed the call."""
    after: str = ""
    """Text after the result: the remaining steps, and advice."""
    error: str | None = None
    """Short name of a fault of the call itself (`bad_arguments`, `interrupted`, ...)."""
    exit_code: int | None = None
    """Exit code of the command; None for other tools, or for a killed command."""
    timed_out: bool = False
    """True if the command was killed at its timeout."""
    stdout: Text = ""
    """Output of the command."""
    stderr: Text = ""
    """Errors of the command."""
    background: Text = ""
    """Output of background jobs since the call before."""
    raw_result: Text = ""
    """Result of a call of an MCP server as the server sent it, as JSON; empty for other calls."""
    truncated: bool = False
    """True if output was left out because of its size."""
    duration: float = 0.0
    """Seconds."""
    notice: str = ""
    """A sentence about the shell, such as a restart."""
    changes: list[FileDiff] = Field(default_factory=list)
    """Changed files."""
    changes_incomplete: str = ""
    """Reason why `changes` may lack some; empty if complete."""

    @property
    def failed(self) -> bool:
        """True if the call ended with an error, a nonzero exit code or a timeout. A call that never began is False."""
        return self.error not in ("skipped", "not_executed") and bool(
            self.error or self.timed_out or self.exit_code
        )

    @property
    def body(self) -> str:
        """The result of the tool, without `before` and `after`."""
        return self.observation.removeprefix(self.before).removesuffix(self.after)


class StepFacts(EventBase):
    """The summary of a step, written after the step has ended; a later summary of the same step replaces it.

    The facts belong to the event before them, on every branch that has this event. No event follows them.
    """

    kind: Literal["step.facts"] = "step.facts"
    step: int
    """Step number, from 1."""
    line: StepLine
    """The step in one line."""

    @field_serializer("line")
    def _short(self, line: StepLine) -> dict[str, Any]:
        return line.model_dump(exclude_defaults=True)


class Doubt(EventModel):
    """A reason to think that the result is wrong, and the step to look at."""

    rule: str
    """The name of a rule, or of a user's function."""
    step: int | None = None
    """The step to look at; None if the doubt is about the whole run."""
    until: int | None = None
    """The last step, if the doubt is about several."""
    text: str
    """The reason, in one sentence."""
    severity: Literal["high", "medium", "low"] = "medium"
    """Weight of the doubt."""

    @property
    def line(self) -> str:
        """The doubt with its step, as a person reads it."""
        if self.step is None:
            return self.text
        steps = f"{self.step}" if self.until in (None, self.step) else f"{self.step}-{self.until}"
        return f"{steps}: {self.text}"


class DoubtsFound(EventBase):
    """Doubts about a call, or with `final` all doubts about the run, the worst first, replacing the others.

    Like `step.facts`, they belong to the event before them, and no event follows them.
    """

    kind: Literal["doubts"] = "doubts"
    doubts: list[Doubt] = Field(default_factory=list)
    """The doubts."""
    final: bool = False
    """True if these are all doubts about the whole run."""


class ArtifactSaved(EventBase):
    """A file of the output folder was copied to the run's `files/` folder."""

    kind: Literal["artifact"] = "artifact"
    step: int | None = None
    """The step after which the file was saved."""
    path: str
    """Path relative to `files/`."""
    mime: str
    """Media type."""
    size: int
    """Bytes."""
    sha256: str
    """SHA-256 of the content, as hexadecimal digits."""
    blank: str = ""
    """Reason why the file shows nothing, if its content was checked: a picture of one colour, silence, no text."""


class ArtifactSkipped(EventBase):
    """A file in the output folder was not copied."""

    kind: Literal["artifact.skipped"] = "artifact.skipped"
    reason: str
    """A sentence with the file and the reason."""


class ArtifactRemoved(EventBase):
    """A file that had been copied to `files/` is gone from the output folder, so the copy is gone too."""

    kind: Literal["artifact.removed"] = "artifact.removed"
    step: int | None = None
    """The step after which the file was gone."""
    path: str
    """Path relative to `files/`."""


class ConnectionMade(EventBase):
    """A connection of a sandbox whose network is an allow-list has ended, was refused, or failed.

    The number of these events in a step is limited; the last one of the step counts the others in `more`.
    """

    kind: Literal["connection"] = "connection"
    step: int | None = None
    """The step during which the connection ended."""
    line: str
    """The connection in a few words."""
    host: str = ""
    """Name or address of the host."""
    port: int = 0
    """Port of the host."""
    decision: Literal["allowed", "refused", "failed"] = "allowed"
    """`refused`: by the list. `failed`: the server does not answer, or one side broke off."""
    reason: str = ""
    """Reason of a refusal or a failure."""
    rule: str = ""
    """The entry of the list that allowed the connection."""
    address: str = ""
    """IP address of the host."""
    secrets: list[str] = Field(default_factory=list)
    """Names of the secrets that were inserted; never a value."""
    sent: int = 0
    """Bytes sent to the host."""
    received: int = 0
    """Bytes received from the host."""
    duration: float = 0.0
    """Seconds."""
    more: int = 0
    """Number of further connections of the step without an event."""


class Noted(EventBase):
    """A note for the reader that changed nothing: a warning of the loop, a limit that is near."""

    kind: Literal["note"] = "note"
    text: str
    """The note."""


ControlAction = Literal["pause", "paused", "resume", "step", "say", "stop"]
"""A person's decision; `paused` is recorded by the run itself at a pause. `step`: resume until the next place
where a run can pause."""


class Controlled(EventBase):
    """A decision during the run."""

    kind: Literal["control"] = "control"
    action: ControlAction
    """The decision."""
    text: str | None = None
    """Text for the model, with `say`."""
    source: str = ""
    """Origin of the decision, such as `browser`."""


class CallHeld(EventBase):
    """The run waits for a person: before a call is executed, or before its observation is shown to the model.

    A `control` event `paused` follows.
    """

    kind: Literal["call.held"] = "call.held"
    step: int
    """Step number, from 1."""
    call_id: str
    """Id of the call."""
    at: Literal["call", "observation"]
    """`call`: before the call is executed. `observation`: before the model sees its observation."""
    reason: Literal["step", "breakpoint", "approval", "pause"]
    """Kind of rule that holds the call."""
    text: str = ""
    """The reason in words, such as the breakpoint that matched."""
    hosts: list[str] = Field(default_factory=list)
    """Hosts refused to the call by the allow-list, as HOST:PORT, so that a person can allow them."""


class CallDecided(EventBase):
    """A person's decision on a held call; the call was proposed in `call.proposed`."""

    kind: Literal["call.decided"] = "call.decided"
    step: int
    """Step number, from 1."""
    call_id: str
    """Id of the call."""
    action: Literal["run", "edit", "skip", "observe"]
    """`run`: as proposed. `edit`: `tool` and `arguments` instead. `skip`: not executed, the person wrote the result
    that follows. `observe`: already executed, the model is shown `observation` in place of `original`."""
    tool: str | None = None
    """Name of the tool to execute, with `edit`."""
    arguments: dict[str, Any] | None = None
    """Arguments to execute, with `edit`."""
    observation: str | None = None
    """Text shown to the model, with `observe`."""
    after: str = ""
    """Text after the person's text in `observation`, as in `call.finished`."""
    original: Text | None = None
    """The replaced observation, with `observe`."""
    source: str = ""
    """Origin of the decision, such as `browser`."""


class SettingsChanged(EventBase):
    """The model, sampling settings, limits, pause rules or allowed hosts change for the rest of the run.

    `settings`, `limits` and `halts` hold only changed values; never a key.
    """

    kind: Literal["settings.changed"] = "settings.changed"
    model: str | None = None
    """Name of the new model; None if unchanged."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Changed model settings."""
    limits: dict[str, Any] = Field(default_factory=dict)
    """Changed limits: steps, tokens, US dollars, seconds."""
    halts: dict[str, Any] = Field(default_factory=dict)
    """`breakpoints`: list of expressions; `approve`: ask, edits or auto."""
    network: dict[str, Any] = Field(default_factory=dict)
    """`allow`: further hosts that the sandbox may reach; `allow_once`: hosts that allow one connection each."""
    source: str = ""
    """Origin of the change, such as `browser`."""


class Checkpointed(EventBase):
    """The sandbox's files after a step are stored."""

    kind: Literal["checkpoint"] = "checkpoint"
    step: int | None = None
    """Step number; None or 0 before the first call."""
    checkpoint: str
    """Id of the checkpoint."""
    files: int = 0
    """Number of paths changed since the checkpoint before."""
    size: int = 0
    """Bytes that were newly stored."""
    duration: float = 0.0
    """Seconds."""
    incomplete: str = ""
    """Reason why files may be missing; empty if complete."""
    by_others: bool = False
    """True if a person, a program or another run made all changes since the checkpoint before, and no step did."""
    other_runs: list[str] = Field(default_factory=list)
    """The tasks of the runs that have used the sandbox since then; only with `by_others`."""


class RewindStarted(EventBase):
    """A rewind begins. Without the `rewound` that follows, the rewind did not happen."""

    kind: Literal["rewind.started"] = "rewind.started"
    to: str
    """Id of the event that HEAD moves to."""
    step: int
    """Number of the step at whose end HEAD will be; 0 before the first."""
    what: Literal["both", "files", "conversation"] = "both"
    """Parts that are rewound."""
    target: str | None = None
    """The checkpoint that is restored."""
    safety: str | None = None
    """The checkpoint made before the rewind, which `undo` restores."""
    other_runs: list[str] = Field(default_factory=list)
    """Tasks of the runs that have used the sandbox since this run's newest checkpoint."""


class Rewound(EventBase):
    """The rewind is done. Unless only files were restored, the next event has `to` as its parent."""

    kind: Literal["rewound"] = "rewound"
    to: str
    """Id of the event that HEAD moved to."""
    step: int
    """Number of the step at whose end HEAD is; 0 before the first."""
    what: Literal["both", "files", "conversation"] = "both"
    """Parts that were rewound."""
    target: str | None = None
    """The checkpoint that was restored."""
    safety: str | None = None
    """The checkpoint made before the rewind, which `undo` restores."""
    undo_of: str | None = None
    """Id of the rewind that this one undoes."""
    restored: int = 0
    """Number of paths that were restored; 0 if the run had no sandbox: the files are restored later."""


class Forked(EventBase):
    """Another run began from here."""

    kind: Literal["forked"] = "forked"
    run_id: str
    """Id of the new run."""
    folder: str
    """Name of the new run's folder, in the same parent folder as this run's."""
    step: int
    """Number of the last shared step."""
    checkpoint: str | None = None
    """The checkpoint that the new run began with."""


class Continued(EventBase):
    """A run that had ended, or was killed, resumes."""

    kind: Literal["continued"] = "continued"
    source: str = ""
    """Origin of the request to resume, such as `browser`."""


class CheckStarted(EventBase):
    """A check of the result begins."""

    kind: Literal["check.started"] = "check.started"
    number: int
    """Number of the check since the run began or was resumed, from 1."""
    what: str
    """The command, or the name of the function."""


class Checked(EventBase):
    """A check of the result has ended. A check after the end of the run is the score of a benchmark."""

    kind: Literal["checked"] = "checked"
    number: int
    """Number of the check since the run began or was resumed, from 1."""
    what: str
    """The command, or the name of the function."""
    verdict: Verdict
    """The verdict of the check."""
    score: float | None = None
    """The number that a function or a scorer returned."""
    exit_code: int | None = None
    """Exit code of the command."""
    timed_out: bool = False
    """True if the check was killed at its timeout."""
    duration: float = 0.0
    """Seconds."""
    output: Text = ""
    """Both streams of the command together, or the reason why the function failed."""
    left_out: list[str] = Field(default_factory=list)
    """A sentence for each of the model's files that the check did not get."""


class Rewarded(EventBase):
    """The reward of a rollout in training, recorded after the end of the run and of all other runs of the group."""

    kind: Literal["rewarded"] = "rewarded"
    training_step: int
    """Number of the training step."""
    group: str
    """The row of the data set on which the runs of the group worked."""
    reward: float | None = None
    """None if the run could not be scored and is left out of the training."""
    advantage: float | None = None
    """Advantage over the other runs of the group."""
    detail: str = ""
    """The scorer's explanation."""


class RunFinished(EventBase):
    """The end of a run. Only a score, a reward, or the event of a resume may follow."""

    kind: Literal["run.finished"] = "run.finished"
    stop_reason: StopReason
    """Reason of the end."""
    answer: str | None = None
    """The final answer."""
    error: str | None = None
    """The error message, if an error ended the run."""
    usage: Usage = Field(default_factory=Usage)
    """Tokens and cost of the run."""
    steps: int = 0
    """Number of steps."""
    wall_time: float = 0.0
    """Seconds."""
    without_answer: bool = False
    """True if the model submitted without a saved file and without an answer, in spite of a reminder."""
    check: Verdict | None = None
    """The verdict on this end; None if nothing was checked."""


class UnknownEvent(EventBase):
    """An event of a kind that this version does not know; preserved unchanged."""

    kind: str


KnownEvent = (
    RunStarted | SandboxReady | MessageAdded | ModelRequested | ModelDelta | ModelFailed | ModelReplied | ContextKnown
    | ContextReduced | CallProposed | CallStarted | CallOutput | CallFinished | StepFacts | DoubtsFound | ArtifactSaved
    | ArtifactSkipped | ArtifactRemoved | ConnectionMade | Noted | Controlled | CallHeld | CallDecided | SettingsChanged
    | Checkpointed | RewindStarted | Rewound | Forked | Continued | CheckStarted | Checked | Rewarded | RunFinished
)  # fmt: skip
Event = KnownEvent | UnknownEvent
Facts = StepFacts | DoubtsFound
"""Events about other events: no event follows them, and HEAD stays in place."""
TRANSIENT = frozenset({"model.delta", "call.output"})
"""Kinds that are shown live and not written: a later event carries the whole."""
_KINDS: dict[str, type[EventBase]] = {cls.model_fields["kind"].default: cls for cls in get_args(KnownEvent)}


def default_fields(kind: str) -> dict[str, Any]:
    """Return the defaults of the optional fields of an event kind, without `id` and `time`."""
    fields = _KINDS[kind].model_fields if kind in _KINDS else {}
    return {
        name: field.get_default(call_default_factory=True)
        for name, field in fields.items()
        if name not in ("id", "time") and not field.is_required()
    }


def is_transient(event: Event) -> bool:
    """Return True if the event is shown live and not written."""
    return event.kind in TRANSIENT


def _tag(value: Any) -> str:
    kind = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
    return kind if isinstance(kind, str) and kind in _KINDS else "unknown"


_TAGGED = (Annotated[cls, Tag(kind)] for kind, cls in {**_KINDS, "unknown": UnknownEvent}.items())
_UNION: Any = Annotated[Union[tuple(_TAGGED)], Discriminator(_tag)]  # noqa: UP007
_ADAPTER: TypeAdapter[Event] = TypeAdapter(_UNION, config=ConfigDict(defer_build=True))


def parse_event(line: str | bytes) -> Event:
    """Parse one event from one JSON text. Raises `pydantic.ValidationError` (a `ValueError`) for anything else."""
    return _ADAPTER.validate_json(line)


def dump_event(event: Event) -> str:
    """Return one event as one line of JSON, without the line end. Lone surrogates are replaced."""
    try:
        return event.model_dump_json(exclude_defaults=False)
    except PydanticSerializationError:
        return parse_python(clean_text(event.model_dump())).model_dump_json(exclude_defaults=False)


def parse_python(value: Any) -> Event:
    """Parse one event from a decoded JSON value. Raises `pydantic.ValidationError` for anything else."""
    return _ADAPTER.validate_python(value)


MAX_LEVELS = 100
"""Maximum levels of lists and objects in a value from outside: a journal with more than 190 could not be read again."""


def is_flat(value: object) -> bool:
    """Return True if lists and objects are nested at most `MAX_LEVELS` deep."""
    level = [value]
    for _ in range(MAX_LEVELS):
        level = [
            inner
            for outer in level
            for inner in (
                outer.values() if isinstance(outer, dict) else outer if isinstance(outer, list) else ()
            )
            if isinstance(inner, dict | list)
        ]
    return not level


def clean_text(value: Any) -> Any:
    r"""Return `value` with every lone surrogate in its texts replaced, ready for UTF-8.

    They are caused by `\ud800` in a model's JSON and by file names that are not UTF-8.
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
