"""The events of a run. The card, the score and the debugger of a run read nothing but its events.

An event is written once and never changed. `parent` is the id of the event before it. After a rewind, two events may
have the same parent, so the events form a tree. The steps of a run are built from its events by `trajectory.py` in
Python, and by `trajectory/fold.ts` in the browser. labextension/generate-events.py writes the TypeScript types of the
events.

A new event needs a class here and its name in `KnownEvent`. An action on the run also needs its kind in `MARKS`, or
else it makes a branch. Depending on the effect of the event, change these modules too:

- the steps: `trajectory.py` and `trajectory/fold.ts`
- the conversation: `Trajectory.messages`, `agent/conversation_state.py` and `trajectory/conversation.ts`
- the state of the run: `state.py` and `trajectory/status.ts`; in lists of runs `_END_KINDS` in `run_summary.py`
- the place of a rewind: `_ENDINGS` and `_EXECUTED` in `runs/rewind_points.py`
- the step of an event whose kind does not begin with `model.` or `call.`: `branches.py` and `trajectory/tree.ts`
- options that a resumed run has: `runs/recorded_spec.py` and `runs/resume.py`
- text that streams: `TRANSIENT`, `live_tail.py` and `live-tail.ts`
- the drawing: `view/step.ts` or `view/view.ts`, and `card/card.py`
- the output of the terminal: `cli/printer.py`, and `_PRINTED_EVENTS` in `cli/run_command.py`
- other formats, if the event may follow the end of a run: `_AFTER_END` in `formats/entries.py`
- spans of OpenTelemetry: `_mark` in `formats/opentelemetry.py`
- facts that other formats keep or lose: `FACTS` in tests/format_table.py, which writes docs/reference/formats.md
- a new class for a part of an event: `PARTS` in labextension/generate-events.py
- tests that compare Python and TypeScript, and lists of runs with whole runs: tests/random_runs.py
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
"""Version of the events that this package writes. Version 1 has no events `step.facts`, and its events `call.finished`
have no fields `before`, `after` and `background`. A reader adds the fields (see `older.py`) and the events (see
`facts.py`)."""

StopReason = Literal[
    "submitted", "answered", "steps", "tokens", "total_tokens", "cost", "time",
    "interrupted", "model_error", "sandbox_lost", "error", "no_answer", "refused", "repeated",
]  # fmt: skip
"""Reason of a run's end. `tokens`: the conversation reached its token limit. `total_tokens`: all requests together
reached the limit on tokens. `answered`: the model returned text without a tool call too often in a row.
`no_answer`: the model returned neither text nor a call. `refused`: the model or its provider refused to answer.
`repeated`: the same call failed too often in a row."""

STOP_REASONS: tuple[str, ...] = get_args(StopReason)
MAX_TIME_SECONDS = 1e11
"""Maximum time of an event in seconds since the epoch. Python has no calendar dates for much later times."""


def new_id() -> str:
    """Return a new event id, unique over all runs."""
    return uuid.uuid4().hex[:16]


class EventModel(BaseModel):
    """A part of an event. Fields that this version does not know are preserved."""

    # A process uses few kinds of events, so pydantic builds the validator of a kind at the first use of the kind.
    model_config = ConfigDict(
        extra="allow", ser_json_bytes="base64", val_json_bytes="base64", defer_build=True
    )


class EventBase(EventModel):
    """The fields of every event."""

    id: str = Field(default_factory=new_id)
    """16 hexadecimal digits, unique over all runs."""
    parent: str | None = None
    """Id of the event that this event follows. None stands for the event at HEAD, usually the newest event."""
    time: float = Field(default_factory=time.time, ge=0, le=MAX_TIME_SECONDS, allow_inf_nan=False)
    """Time of the event in seconds since the epoch."""


class Blob(EventModel):
    """Data in the file `blobs/<sha256>` next to the journal, because the data is too long or not UTF-8 text."""

    sha256: str
    """SHA-256 of the bytes, as hexadecimal digits."""
    size: int
    """Number of bytes."""
    preview: str = ""
    """The beginning and the end of the text."""


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
    """Cost in US dollars. None if the price is not known."""

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
    """A consequence of a step, in a few words: a failure, a person's decision, or a changed file."""

    text: str
    """The words on the chip."""
    kind: Literal["bad", "human", "plain"] = "plain"
    """`bad`: a failure. `human`: a person's decision. `plain`: anything else."""
    added: int = 0
    """Lines added to the file."""
    removed: int = 0
    """Lines removed from the file."""


class StepLine(EventModel):
    """The summary of a step in one line: the model's first sentence, the first call, consequences, tokens, seconds."""

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
    """Consequences of the step: first failures, then decisions, then files."""
    figures: str = ""
    """Tokens and seconds, as the line shows them."""


class Verdict(EventModel):
    """The verdict of a check, as shown in the state of a run."""

    outcome: Literal["passed", "failed", "score", "text", "error"]
    """`passed`, `failed`: the result of a command or a function. `score`: a function or a scorer returned a number.
    `text`: a function returned a remark. `error`: the check could not run."""
    summary: str
    """The verdict in a few words, such as `exit 1` or `0.8`."""
    protected: bool = True
    """False if the model's programs could have changed the check, as under the isolation `process`."""


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
    """A message whose content is replaced when the conversation is sent."""

    at: int
    """Index of the message in the conversation as it was before the event `context.reduced`, counted from 0."""
    content: str
    """The content that is sent instead."""


class RunStarted(EventBase):
    """First event of a journal."""

    kind: Literal["run.started"] = "run.started"
    schema_version: int = SCHEMA_VERSION
    """Schema version of the package that wrote the record. In a record of a later version, this package reads only the
    events that it knows."""
    run_id: str
    """Id of the run."""
    task: str
    """The text of the task that the person wrote."""
    model: str
    """Name of the model."""
    scripted: bool = False
    """True if the replies are read from a script."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Model settings, limits, prompt configuration and isolation, as far as they are known. Keys and secrets are never
    included."""
    tools: list[dict[str, Any]] = Field(default_factory=list)
    """Schemas of the tools, as they are sent to the model."""
    inputs: list[str] = Field(default_factory=list)
    """Names of the input files."""
    versions: dict[str, str] = Field(default_factory=dict)
    """Versions of this package and of its libraries, by name."""
    forked_from: ForkedFrom | None = None
    """The parent run, if the run began as a fork. The shared events are copies with the same ids."""

    @field_validator("schema_version", mode="before")
    @classmethod
    def _is_version(cls, value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{value!r:.40} is not the number of a version")
        return value

    @property
    def later_version(self) -> str:
        """A sentence for the reader if a later version made the record. Otherwise, the text is empty."""
        if self.schema_version <= SCHEMA_VERSION:
            return ""
        return f"Made by a later version ({self.schema_version}): parts may be missing."


class SandboxReady(EventBase):
    """The sandbox is open."""

    kind: Literal["sandbox.ready"] = "sandbox.ready"
    sandbox_id: str
    """Id of the sandbox."""
    protection: dict[str, Any]
    """The isolation, network and limits of the sandbox, as its engine reports them."""
    start_time: float
    """Seconds that the sandbox took to start."""
    root: str | None = None
    """The working directory in the sandbox."""


class MessageAdded(EventBase):
    """A system or user message was added to the conversation."""

    kind: Literal["message"] = "message"
    message: dict[str, Any]
    """The message, exactly as sent to the model."""


class ModelRequested(EventBase):
    """A request was sent to the model."""

    kind: Literal["model.requested"] = "model.requested"
    step: int
    """Step number, counted from 1."""
    attempt: int = 1
    """Number of the attempt at this step, counted from 1."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Sampling and other model settings of the request."""


class ModelDelta(EventBase):
    """A piece of a streamed reply."""

    kind: Literal["model.delta"] = "model.delta"
    step: int
    """Step number, counted from 1."""
    text: str = ""
    """The next piece of the text."""
    reasoning: str = ""
    """The next piece of the reasoning."""


class ModelFailed(EventBase):
    """A request to the model failed."""

    kind: Literal["model.failed"] = "model.failed"
    step: int
    """Step number, counted from 1."""
    attempt: int
    """Number of the attempt at this step, counted from 1."""
    error: str
    """Short name of the failure, such as `rate_limit`."""
    message: str
    """The error message."""
    retry_in: float | None = None
    """Seconds until the next attempt. None if no further attempt is made."""
    learned: dict[str, Any] = Field(default_factory=dict)
    """All limits and quirks of the server that its refusals have shown so far. Empty if this refusal showed nothing
    new."""


class ModelReplied(EventBase):
    """A whole reply of the model."""

    kind: Literal["model.replied"] = "model.replied"
    step: int
    """Step number, counted from 1."""
    message: dict[str, Any]
    """The reply as a message, in the form in which later requests send it."""
    reasoning: str | None = None
    """The reasoning of the model. None if the server returned no reasoning."""
    usage: Usage | None = None
    """Tokens and cost of the reply. None if they are not known."""
    finish_reason: str | None = None
    """The server's reason for the end of the reply. `cut_off`: the server sent no reason, because this reply broke off,
    and so did the next attempt."""
    model_time: float = 0.0
    """Seconds from the request to the end of the reply."""
    response_id: str | None = None
    """The id that the server gave the reply."""
    response_model: str | None = None
    """The name that the server gave the model."""
    context_window: int | None = None
    """Size of the model's context in tokens. None if the size is not known."""
    calls_from: Literal["text"] | None = None
    """`text`: the calls were parsed from the text of the reply."""
    raw_text: str | None = None
    """The received text, if calls or reasoning were parsed from this text."""


class ContextKnown(EventBase):
    """A model's context size was learned from its server. All further requests to this model use this size."""

    kind: Literal["context.known"] = "context.known"
    model: str
    """Name of the model."""
    tokens: int
    """Size of the model's context in tokens."""
    source: Literal["server", "refusal", "cut"]
    """`server`: the server was asked. `refusal`: the server refused a request that was too long. `cut`: the server
    silently left messages out."""


class ContextReduced(EventBase):
    """Older parts of the conversation are sent in a shorter form from now on. Earlier events keep the whole text.

    First, each message of `shown` gets its new content. Then the messages from `removed_from` up to, but not including,
    `removed_to` are removed.
    """

    kind: Literal["context.reduced"] = "context.reduced"
    step: int
    """The first step whose request is shorter."""
    how: Literal["mask", "summary", "repeats"]
    """`mask`: old observations are shortened. `summary`: old messages are replaced by a summary. `repeats`: the newest
    replies, which are equal, are replaced by a sentence and the newest observation, or by the newest nudge."""
    shown: list[ShownInstead] = Field(default_factory=list)
    """Messages with a new content."""
    removed_from: int = 0
    """Index of the first removed message, counted from 0."""
    removed_to: int = 0
    """Index of the first message after the removed messages."""
    tokens_before: int = 0
    """Estimated tokens of the conversation before the event."""
    tokens_after: int = 0
    """Estimated tokens of the conversation after the event."""
    limit: int = 0
    """Size of the model's context in tokens. 0 if it is unknown."""
    usage: Usage | None = None
    """Tokens and cost of the request for the summary, if a summary was made."""


class CallProposed(EventBase):
    """A tool call that the model proposes in a reply."""

    kind: Literal["call.proposed"] = "call.proposed"
    step: int
    """Step number, counted from 1."""
    call_id: str
    """Id of the call."""
    tool: str
    """Name of the tool."""
    raw_arguments: str
    """The arguments in the form in which the model wrote them."""
    arguments: dict[str, Any] | None = None
    """The parsed arguments. None if `raw_arguments` could not be parsed."""


class CallStarted(EventBase):
    """A call begins to execute. Its tool and arguments differ from the proposal if a person edited the call."""

    kind: Literal["call.started"] = "call.started"
    step: int
    """Step number, counted from 1."""
    call_id: str
    """Id of the call."""
    tool: str
    """Name of the tool that is executed."""
    arguments: dict[str, Any]
    """The arguments that are executed."""


class CallOutput(EventBase):
    """A piece of a command's live output."""

    kind: Literal["call.output"] = "call.output"
    call_id: str
    """Id of the call."""
    stream: Literal["stdout", "stderr"]
    """Stream of the output."""
    text: str
    """The next piece of the output."""


class FileDiff(EventModel):
    """A path that a call changed."""

    path: str
    """Absolute path in the sandbox."""
    kind: Literal["added", "modified", "deleted"]
    """Kind of change."""
    size: int
    """Size of the file in bytes after the change. For a deleted file, the size before the deletion."""
    diff: str | None = None
    """The change as a unified diff. None if the old or the new content is not text, or is too large."""
    note: str = ""
    """A remark on missing parts of `diff`, or the reason why there is no diff."""
    size_before: int | None = None
    """Size of the file in bytes before the change. None if the size is not known."""
    lines: int | None = None
    """Number of lines after the change, counted for small text files even if the diff is cut."""
    lines_before: int | None = None
    """Number of lines before the change."""


class CallFinished(EventBase):
    """The result of a tool call. Every call has exactly one result."""

    kind: Literal["call.finished"] = "call.finished"
    step: int
    """Step number, counted from 1."""
    call_id: str
    """Id of the call."""
    observation: str
    """The text that is shown to the model: `before`, the result, and `after`."""
    before: str = ""
    """Text before the result. The text says that a person changed the call."""
    after: str = ""
    """Text after the result: the number of remaining steps, and advice."""
    error: str | None = None
    """Short name of a fault of the call itself, such as `bad_arguments` or `interrupted`."""
    exit_code: int | None = None
    """Exit code of the command. None for a killed command, and for calls of other tools."""
    timed_out: bool = False
    """True if the command was killed at its timeout."""
    stdout: Text = ""
    """The command's standard output."""
    stderr: Text = ""
    """The command's standard error."""
    background: Text = ""
    """Output of background jobs since the preceding call."""
    raw_result: Text = ""
    """The JSON result that an MCP server sent. Empty for calls of other tools."""
    truncated: bool = False
    """True if output was left out because of its size."""
    duration: float = 0.0
    """Duration of the call in seconds."""
    notice: str = ""
    """A sentence for the model about the shell, such as that the shell was started again."""
    changes: list[FileDiff] = Field(default_factory=list)
    """Changed files."""
    changes_incomplete: str = ""
    """Reason why `changes` may lack some files. Empty if the list is complete."""

    @property
    def failed(self) -> bool:
        """True if the call ended with an error, a nonzero exit code or a timeout. False if the call never began."""
        return self.error not in ("skipped", "not_executed") and bool(
            self.error or self.timed_out or self.exit_code
        )

    @property
    def body(self) -> str:
        """The result of the tool, without `before` and `after`."""
        return self.observation.removeprefix(self.before).removesuffix(self.after)


class StepFacts(EventBase):
    """The summary of a step, written after the step has ended. A later summary of the step replaces an earlier one.

    The facts belong to their event `parent`, on every branch that has this event. No event has facts as its parent.
    """

    kind: Literal["step.facts"] = "step.facts"
    step: int
    """Step number, counted from 1."""
    line: StepLine
    """The summary of the step in one line."""

    @field_serializer("line")
    def _short(self, line: StepLine) -> dict[str, Any]:
        return line.model_dump(exclude_defaults=True)


class Doubt(EventModel):
    """A reason why the result may be wrong, with the step to look at."""

    rule: str
    """Name of the rule or user-defined function that found the doubt."""
    step: int | None = None
    """The step to look at. None if the doubt is about the whole run."""
    until: int | None = None
    """The last step to look at, if the doubt is about several steps."""
    text: str
    """The reason, in one sentence."""
    severity: Literal["high", "medium", "low"] = "medium"
    """Weight of the doubt."""

    @property
    def line(self) -> str:
        """The doubt in one line, with its step number."""
        if self.step is None:
            return self.text
        steps = f"{self.step}" if self.until in (None, self.step) else f"{self.step}-{self.until}"
        return f"{steps}: {self.text}"


class DoubtsFound(EventBase):
    """Doubts about a call, or all doubts about the run if `final` is True. Final doubts replace all earlier doubts.

    The first of the final doubts is the worst. Like `step.facts`, doubts belong to their event `parent`, and no event
    has doubts as its parent.
    """

    kind: Literal["doubts"] = "doubts"
    doubts: list[Doubt] = Field(default_factory=list)
    final: bool = False
    """True if `doubts` are all doubts about the whole run."""


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
    """Size in bytes."""
    sha256: str
    """SHA-256 of the content, as hexadecimal digits."""
    blank: str = ""
    """Reason why the file shows nothing, such as a picture of one colour, silence or no text. Empty if the file shows
    something or its content was not checked."""


class ArtifactSkipped(EventBase):
    """A file in the output folder was not copied."""

    kind: Literal["artifact.skipped"] = "artifact.skipped"
    reason: str
    """A sentence that names the file and the reason."""


class ArtifactRemoved(EventBase):
    """The copy of a file in `files/` was removed, because the file is gone from the output folder."""

    kind: Literal["artifact.removed"] = "artifact.removed"
    step: int | None = None
    """The step after which the file was gone."""
    path: str
    """Path relative to `files/`."""


class ConnectionMade(EventBase):
    """A connection out of the sandbox has ended, was refused, or failed.

    Connections are recorded only if the network of the sandbox is an allow-list. The number of these events in a step
    is limited. `more` of the last event counts the connections without an event.
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
    """`refused`: the list does not allow the host. `failed`: the host did not answer, or one side broke off."""
    reason: str = ""
    """Reason of the refusal or the failure."""
    rule: str = ""
    """The entry of the list that allowed the connection."""
    address: str = ""
    """IP address of the host."""
    secrets: list[str] = Field(default_factory=list)
    """Names, never values, of the secrets that were inserted into the connection."""
    sent: int = 0
    """Bytes sent to the host."""
    received: int = 0
    """Bytes received from the host."""
    duration: float = 0.0
    """Duration of the connection in seconds."""
    more: int = 0
    """Number of further connections in the step that have no event of their own."""


class Noted(EventBase):
    """A note for the reader, such as a warning or a limit that is near. A note does not affect the run."""

    kind: Literal["note"] = "note"
    text: str
    """The note."""


ControlAction = Literal["pause", "paused", "resume", "step", "say", "stop"]
"""A person's decision, except `paused`, which the run itself records at a pause. `step`: resume until the next point
at which a run can pause."""


class Controlled(EventBase):
    """A decision during the run."""

    kind: Literal["control"] = "control"
    action: ControlAction
    """The decision."""
    text: str | None = None
    """Text for the model, if the action is `say`."""
    source: str = ""
    """The place where the decision was made, such as `browser`."""


class CallHeld(EventBase):
    """The run waits for a person before a call is executed, or before its observation is shown to the model.

    A `control` event `paused` follows.
    """

    kind: Literal["call.held"] = "call.held"
    step: int
    """Step number, counted from 1."""
    call_id: str
    """Id of the call."""
    at: Literal["call", "observation"]
    """`call`: before the call is executed. `observation`: before the model sees its observation."""
    reason: Literal["step", "breakpoint", "approval", "pause"]
    """Kind of the rule that holds the call."""
    text: str = ""
    """The reason in words, such as the breakpoint that matched."""
    hosts: list[str] = Field(default_factory=list)
    """Hosts, as HOST:PORT, to which the call could not connect because of the allow-list. A person can allow them."""


class CallDecided(EventBase):
    """A person's decision on a held call. The call as the model proposed it is in the event `call.proposed`."""

    kind: Literal["call.decided"] = "call.decided"
    step: int
    """Step number, counted from 1."""
    call_id: str
    """Id of the call."""
    action: Literal["run", "edit", "skip", "observe"]
    """`run`: the call is executed as proposed. `edit`: `tool` and `arguments` are executed instead. `skip`: the call is
    not executed, and the person wrote the result that follows. `observe`: the call has been executed, and the model is
    shown `observation` instead of `original`."""
    tool: str | None = None
    """Name of the tool to execute, if the action is `edit`."""
    arguments: dict[str, Any] | None = None
    """Arguments to execute the tool with, if the action is `edit`."""
    observation: str | None = None
    """Text that is shown to the model, if the action is `observe`."""
    after: str = ""
    """The end of `observation` after the person's text: remaining steps and advice, like `after` in `call.finished`."""
    original: Text | None = None
    """The replaced observation, if the action is `observe`."""
    source: str = ""
    """The place where the decision was made, such as `browser`. `nobody`: no person could be asked. `mcp`: the outside
    agent withdrew the call."""


class SettingsChanged(EventBase):
    """The model, sampling settings, limits, pause rules or allowed hosts change for the rest of the run.

    `settings`, `limits` and `halts` hold only changed values. Keys of providers are never included.
    """

    kind: Literal["settings.changed"] = "settings.changed"
    model: str | None = None
    """Name of the new model. None if the model is unchanged."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Changed model settings."""
    limits: dict[str, Any] = Field(default_factory=dict)
    """Changed limits on steps, tokens, US dollars or seconds."""
    halts: dict[str, Any] = Field(default_factory=dict)
    """Changed pause rules. `breakpoints`: list of expressions. `approve`: ask, edits or auto. `step`: True or False.
    `break_when`: names of functions."""
    network: dict[str, Any] = Field(default_factory=dict)
    """`allow`: further hosts that the sandbox may reach. `allow_once`: hosts that the sandbox may connect to once."""
    source: str = ""
    """The place where the change was made, such as `browser`."""


class Checkpointed(EventBase):
    """The sandbox's files were stored after a step."""

    kind: Literal["checkpoint"] = "checkpoint"
    step: int | None = None
    """Step number. None or 0 if the files were stored before the first call."""
    checkpoint: str
    """Id of the checkpoint."""
    files: int = 0
    """Number of paths that have changed since the preceding checkpoint."""
    size: int = 0
    """Number of bytes that were added to the history."""
    duration: float = 0.0
    """Seconds that the checkpoint took."""
    incomplete: str = ""
    """Reason why files may be missing. Empty if the checkpoint is complete."""
    by_others: bool = False
    """True if no step made the changes since the preceding checkpoint, but a person, a program or another run did."""
    other_runs: list[str] = Field(default_factory=list)
    """Tasks of the other runs that have used the sandbox since the preceding checkpoint, if `by_others` is True."""
    after_step: str | None = None
    """Id of the checkpoint with the files at the end of `step`. None if `checkpoint` itself has these files. After a
    rewind of only the conversation, `checkpoint` has later files. Empty if the files at the end of `step` are not
    stored."""


class RewindStarted(EventBase):
    """A rewind begins. If no `rewound` event follows, the rewind did not happen."""

    kind: Literal["rewind.started"] = "rewind.started"
    to: str
    """Id of the event that HEAD moves to."""
    step: int
    """Number of the step at whose end HEAD will be. 0 stands for the time before the first step."""
    what: Literal["both", "files", "conversation"] = "both"
    """The parts of the run that are rewound."""
    target: str | None = None
    """Id of the checkpoint whose files are restored."""
    safety: str | None = None
    """Id of the checkpoint that was made before the rewind. `undo` restores the files of this checkpoint."""
    other_runs: list[str] = Field(default_factory=list)
    """Tasks of the other runs that have used the sandbox since this run's newest checkpoint."""


class Rewound(EventBase):
    """The rewind is done. If the conversation was rewound, the next event has `to` as its parent."""

    kind: Literal["rewound"] = "rewound"
    to: str
    """Id of the event that HEAD moved to."""
    step: int
    """Number of the step at whose end HEAD is. 0 stands for the time before the first step."""
    what: Literal["both", "files", "conversation"] = "both"
    """The parts of the run that were rewound."""
    target: str | None = None
    """Id of the checkpoint whose files were restored."""
    safety: str | None = None
    """Id of the checkpoint that was made before the rewind. `undo` restores the files of this checkpoint."""
    undo_of: str | None = None
    """Id of the rewind that this one undoes."""
    restored: int = 0
    """Number of paths that were restored. 0 if the run had no sandbox: the files are restored when it resumes."""


class Forked(EventBase):
    """Another run was forked from this one."""

    kind: Literal["forked"] = "forked"
    run_id: str
    """Id of the new run."""
    folder: str
    """Name of the new run's folder, which is in the same parent folder as this run's folder."""
    step: int
    """Number of the last shared step."""
    checkpoint: str | None = None
    """Id of the checkpoint with the files that the new run began with."""


class Continued(EventBase):
    """A run that had ended, or was killed, resumes."""

    kind: Literal["continued"] = "continued"
    source: str = ""
    """The place where a person asked to resume the run, such as `browser`."""


class CheckStarted(EventBase):
    """A check of the result begins."""

    kind: Literal["check.started"] = "check.started"
    number: int
    """Number of the check, counted from 1 since the run began or was resumed."""
    what: str
    """The command, or the name of the function."""


class Checked(EventBase):
    """A check of the result has ended. A check that is recorded after `run.finished` is the score of a benchmark."""

    kind: Literal["checked"] = "checked"
    number: int
    """Number of the check, counted from 1 since the run began or was resumed."""
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
    """Duration of the check in seconds."""
    output: Text = ""
    """Standard output and standard error of the command together, or the reason why the function failed."""
    left_out: list[str] = Field(default_factory=list)
    """For each of the model's files that the check did not get, a sentence with the reason."""


class Rewarded(EventBase):
    """The reward of the run in training, recorded after all runs of its group have ended."""

    kind: Literal["rewarded"] = "rewarded"
    training_step: int
    """Number of the training step."""
    group: str
    """The row of the data set with the task on which all runs of the group worked."""
    reward: float | None = None
    """The reward. None if the run could not be scored, so that the training leaves the run out."""
    advantage: float | None = None
    """The advantage of the run over the other runs of its group, computed from their rewards."""
    detail: str = ""
    """The scorer's explanation."""


class RunFinished(EventBase):
    """The end of a run. Later events are about the ended run: a score, a reward, a rewind, a fork or a resume."""

    kind: Literal["run.finished"] = "run.finished"
    stop_reason: StopReason
    answer: str | None = None
    """The final answer."""
    error: str | None = None
    """Message of the error that ended the run."""
    usage: Usage = Field(default_factory=Usage)
    """Tokens and cost of the run."""
    steps: int = 0
    wall_time: float = 0.0
    """Duration of the run in seconds. Parts before a resume are included, and pauses are not."""
    without_answer: bool = False
    """True if the model submitted without a saved file and without an answer, in spite of a reminder."""
    check: Verdict | None = None
    """The verdict on the result of the run. None if the result was not checked."""


class UnknownEvent(EventBase):
    """An event of a kind that this version does not know. The event is preserved unchanged."""

    kind: str


KnownEvent = (
    RunStarted | SandboxReady | MessageAdded | ModelRequested | ModelDelta | ModelFailed | ModelReplied | ContextKnown
    | ContextReduced | CallProposed | CallStarted | CallOutput | CallFinished | StepFacts | DoubtsFound | ArtifactSaved
    | ArtifactSkipped | ArtifactRemoved | ConnectionMade | Noted | Controlled | CallHeld | CallDecided | SettingsChanged
    | Checkpointed | RewindStarted | Rewound | Forked | Continued | CheckStarted | Checked | Rewarded | RunFinished
)  # fmt: skip
Event = KnownEvent | UnknownEvent
Facts = StepFacts | DoubtsFound
"""Events about other events. They are on no branch: no event has facts as its parent, and HEAD is never at facts."""
TRANSIENT = frozenset({"model.delta", "call.output"})
"""Kinds of events that are shown live and not written to the journal, because a later event has the complete text."""
MARKS = frozenset(
    {
        "checkpoint", "rewind.started", "rewound", "forked", "continued", "control", "note", "call.held", "rewarded",
        "check.started", "checked", "connection",
    }
)  # fmt: skip
"""Kinds of events that record an action on the run, such as a note. Such events alone do not make a branch."""
_KINDS: dict[str, type[EventBase]] = {cls.model_fields["kind"].default: cls for cls in get_args(KnownEvent)}


def default_fields(kind: str) -> dict[str, Any]:
    """Return the default values of an event kind's optional fields, except `id` and `time`."""
    fields = _KINDS[kind].model_fields if kind in _KINDS else {}
    return {
        name: field.get_default(call_default_factory=True)
        for name, field in fields.items()
        if name not in ("id", "time") and not field.is_required()
    }


def is_transient(event: Event) -> bool:
    """Return True if the event is shown live and not written to the journal."""
    return event.kind in TRANSIENT


def _tag(value: Any) -> str:
    kind = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
    return kind if isinstance(kind, str) and kind in _KINDS else "unknown"


_TAGGED = (Annotated[cls, Tag(kind)] for kind, cls in {**_KINDS, "unknown": UnknownEvent}.items())
_UNION: Any = Annotated[Union[tuple(_TAGGED)], Discriminator(_tag)]  # noqa: UP007
_ADAPTER: TypeAdapter[Event] = TypeAdapter(_UNION, config=ConfigDict(defer_build=True))


def parse_event(line: str | bytes) -> Event:
    """Parse an event from a JSON text. Raises `pydantic.ValidationError` (a `ValueError`) if the text is no event."""
    return _ADAPTER.validate_json(line)


def dump_event(event: Event) -> str:
    """Return an event as a line of JSON, without the line end. Lone surrogates are replaced."""
    try:
        return event.model_dump_json(exclude_defaults=False)
    except PydanticSerializationError:
        return parse_python(clean_text(event.model_dump())).model_dump_json(exclude_defaults=False)


def parse_python(value: Any) -> Event:
    """Parse an event from a decoded JSON value. Raises `pydantic.ValidationError` if the value is no event."""
    return _ADAPTER.validate_python(value)


MAX_LEVELS = 100
"""Maximum depth of nested lists and objects in a value from outside, for example in a call's arguments. If values were
deeper than 190 levels, their journal could not be read again."""


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
    r"""Return `value` with every lone surrogate in its texts replaced, so that UTF-8 can encode the texts.

    Lone surrogates are caused by `\ud800` in a model's JSON and by file names that are not UTF-8.
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
