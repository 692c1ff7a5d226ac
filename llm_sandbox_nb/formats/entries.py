"""Entries of a branch: the messages, replies, results and end that the formats of other projects have in common.

The writer of a format turns entries into a document, and the reader turns a document into entries. Many formats have a
field for other programs' data. `add_rest` reads a written document back and compares it with the journal. It stores
each difference in this field, under the key `llm_sandbox_nb`. So such a format loses nothing.
docs/reference/formats.md lists the losses of all other formats.

    entries = entries_of(trajectory)
    trajectory = Trajectory(events_of(entries, "name"))
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple

from llm_sandbox_nb.formatting import clip
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.journal import first_problem, load_text
from llm_sandbox_nb.trajectory.messages import add_message, add_result, call_ids, message_text
from llm_sandbox_nb.trajectory.trajectory import Trajectory

REST = "llm_sandbox_nb"
"""Key for the data of a journal for which a format has no field."""
MAX_TEXT_CHARACTERS = 1024**2
"""Maximum number of characters of an output. The middle of a longer output is left out."""
_AFTER_END = (ev.Checked, ev.CheckStarted, ev.Rewarded, ev.Forked, ev.Noted, ev.StepFacts, ev.DoubtsFound,
              ev.ArtifactSaved, ev.ArtifactSkipped, ev.ArtifactRemoved, ev.Checkpointed, ev.Controlled)  # fmt: skip


@dataclass
class RecordedCall:
    """Call in a reply. `raw` is the text of the arguments. `arguments` is None if this text is not a JSON object."""

    id: str
    tool: str
    arguments: dict[str, Any] | None
    raw: str = ""

    def __post_init__(self) -> None:
        self.raw = self.raw or json.dumps(self.arguments or {}, ensure_ascii=False)

    def message(self) -> dict[str, Any]:
        """Return the call in the form of the chat completions API."""
        return {"id": self.id, "type": "function", "function": {"name": self.tool, "arguments": self.raw}}


@dataclass(kw_only=True)
class RecordEntry:
    """Base class of entries. `time` is in seconds since 1970 (Unix time), or None if the format records no times."""

    time: float | None = None
    rest: Any = None
    """Value of the key `llm_sandbox_nb`: a list of events, each with the fields that the format cannot express."""
    events: list[ev.Event] = field(default_factory=list)
    """Events of a journal from which the entry was made. Empty if the entry was read from another format."""


@dataclass
class Opening(RecordEntry):
    """Beginning of a run."""

    run_id: str = ""
    task: str = ""
    model: str = ""
    tools: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Message(RecordEntry):
    """System or user message."""

    role: str
    content: str


@dataclass
class ModelReply(RecordEntry):
    """Reply of the model."""

    text: str = ""
    reasoning: str = ""
    calls: list[RecordedCall] = field(default_factory=list)
    usage: ev.Usage | None = None
    model: str | None = None
    finish_reason: str | None = None
    seconds: float = 0.0


@dataclass
class CallResult(RecordEntry):
    """Result of a call in the preceding reply. `streams` contains stdout and stderr. They are empty if not known."""

    call_id: str
    observation: str
    exit_code: int | None = None
    streams: tuple[str, str] = ("", "")
    timed_out: bool = False
    error: str | None = None
    seconds: float = 0.0


class EntryCheck(NamedTuple):
    """Check of a run's result, with its verdict and score."""

    name: str
    outcome: Literal["passed", "failed", "score", "text"]
    summary: str
    score: float | None = None


@dataclass
class End(RecordEntry):
    """End of a run, always the last entry. `reason` is None if the document does not show how the run ended."""

    reason: ev.StopReason | None = None
    answer: str | None = None
    usage: ev.Usage = field(default_factory=ev.Usage)
    steps: int = 0
    checks: list[EntryCheck] = field(default_factory=list)


# --- from a journal ---


def entries_of(trajectory: Trajectory, folder: Path | None = None) -> list[RecordEntry]:
    """Return the entries of HEAD's branch. Long outputs are read from `folder`, which is the run's folder.

    If `folder` is None, entries contain only the previews of long outputs.
    """
    path = [_whole_texts(event, folder) for event in trajectory.path if not isinstance(event, ev.StepFacts)]
    last = _end_place(path)
    entries: list[RecordEntry] = [Opening()]
    for place, event in enumerate(path):
        here = entries[-1].events
        match event:
            case ev.MessageAdded():
                role, content = str(event.message.get("role")), message_text(event.message)
                entries.append(Message(role, content, time=event.time, events=[event]))
            case ev.ModelReplied():
                begun = _since(here, ev.ModelRequested, step=event.step)
                entries.append(_reply(event, [*begun, event]))
            case ev.CallProposed() if (reply := _reply_before(entries)) is not None:
                call = RecordedCall(event.call_id, event.tool, event.arguments, event.raw_arguments)
                reply.calls.append(call)
                here.append(event)
            case ev.CallFinished() if _is_answer(entries, event):
                begun = _since(here, ev.CallStarted, call_id=event.call_id)
                entries.append(_result(event, [*begun, event]))
            case ev.CallDecided(action="observe", observation=str() as shown) if _is_result(
                entries[-1], event.call_id
            ):
                entries[-1].observation = shown  # type: ignore[attr-defined]
                here.append(event)
            case ev.RunFinished() if place == last:
                end = End(event.stop_reason, event.answer, event.usage, event.steps, time=event.time)
                end.events.append(event)
                entries.append(end)
            case _:
                here.append(event)
    if last is None:
        entries.append(End())
    opening = entries[0]
    assert isinstance(opening, Opening)
    if trajectory.start:
        opening.time, opening.run_id = trajectory.start.time, trajectory.start.run_id
        opening.task, opening.model = trajectory.start.task, trajectory.start.model
        opening.tools = trajectory.start.tools
    return entries


def _is_result(entry: RecordEntry, call_id: str) -> bool:
    return isinstance(entry, CallResult) and entry.call_id == call_id


def _since(events: list[ev.Event], kind: type[ev.Event], **ids: object) -> list[ev.Event]:
    """Remove from `events` the first event of the class `kind` with these `ids`, and all events after this event.

    Return the removed events. The list is empty if there is no such event.
    """

    def begins(event: ev.Event) -> bool:
        return isinstance(event, kind) and all(getattr(event, name) == id for name, id in ids.items())

    place = next((place for place, event in enumerate(events) if begins(event)), len(events))
    taken = events[place:]
    del events[place:]
    return taken


def _is_answer(entries: Sequence[RecordEntry], result: ev.CallFinished) -> bool:
    """Return True for the first result of a call in the newest reply, if only results follow this reply."""
    reply = _reply_before(entries)
    if reply is None or [call.id for call in reply.calls].count(result.call_id) != 1:
        return False
    place = next(place for place, entry in enumerate(entries) if entry is reply)
    return not any(_is_result(entry, result.call_id) for entry in entries[place:])


def _reply_before(entries: Sequence[RecordEntry]) -> ModelReply | None:
    """Return the newest reply if only results follow this reply, and None otherwise."""
    for entry in reversed(entries):
        if isinstance(entry, ModelReply):
            return entry
        if not isinstance(entry, CallResult):
            return None
    return None


def _reply(event: ev.ModelReplied, events: list[ev.Event]) -> ModelReply:
    return ModelReply(
        message_text(event.message), event.reasoning or "", [], event.usage, event.response_model, event.finish_reason,
        event.model_time, time=event.time, events=events,
    )  # fmt: skip


def _result(event: ev.CallFinished, events: list[ev.Event]) -> CallResult:
    streams = tuple(text if isinstance(text, str) else text.preview for text in (event.stdout, event.stderr))
    return CallResult(
        event.call_id, event.observation, event.exit_code, (streams[0], streams[1]), event.timed_out, event.error,
        event.duration, time=event.time, events=events,
    )  # fmt: skip


def _end_place(path: Sequence[ev.Event]) -> int | None:
    """Return the index of the event that ends the run, or None if the run has no end or was continued after its end."""
    for place in range(len(path) - 1, -1, -1):
        if isinstance(path[place], ev.RunFinished):
            return place
        if not isinstance(path[place], _AFTER_END):
            return None
    return None


def _whole_texts(event: ev.Event, folder: Path | None) -> ev.Event:
    """Return the event with the full texts of long outputs, which are in separate files of `folder`."""
    blobs = {name: value for name, value in event if isinstance(value, ev.Blob)}
    return event.model_copy(update={name: _text(blob, folder) for name, blob in blobs.items()})


def _text(blob: ev.Blob, folder: Path | None) -> str:
    if folder is None:
        return blob.preview
    try:
        return clip(load_text(folder, blob), MAX_TEXT_CHARACTERS)
    except FileNotFoundError:
        return blob.preview


# --- from the fields of entries ---


def implied_events(entries: Sequence[RecordEntry]) -> list[list[ev.Event]]:
    """Return a list for each entry, with the events that can be derived from the fields of the entry."""
    step, now, calls = 0, 0.0, dict[str, RecordedCall]()
    implied: list[list[ev.Event]] = []
    for entry in entries:
        now = now if entry.time is None else entry.time
        made: list[ev.Event]
        match entry:
            case Opening():
                made = [
                    ev.RunStarted(run_id=entry.run_id, task=entry.task, model=entry.model, tools=entry.tools)
                ]
            case Message():
                made = [ev.MessageAdded(message={"role": entry.role, "content": entry.content})]
            case ModelReply():
                step += 1
                calls = {call.id: call for call in entry.calls}
                made = _reply_events(step, entry)
            case CallResult():
                made = _result_events(step, entry, calls.get(entry.call_id))
            case End():
                made = _end_events(step, entry)
            case _:
                raise TypeError(type(entry))
        for event in made:
            event.time = now
        implied.append(made)
    prefix = _digest(entries)
    for number, event in enumerate(event for made in implied for event in made):
        event.id = f"{prefix}{number:06x}"
    return implied


def _digest(entries: Sequence[RecordEntry]) -> str:
    """Return a digest of the entries. Event ids begin with it, so that each reading of a file gives the same ids."""
    digest = hashlib.sha256()
    for entry in entries:
        values = [
            getattr(entry, field.name) for field in fields(entry) if field.name not in ("rest", "events")
        ]
        digest.update(repr(values).encode("utf-8", "replace"))
    return digest.hexdigest()[:10]


def _reply_message(reply: ModelReply) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.text}
    return {**message, "tool_calls": [call.message() for call in reply.calls]} if reply.calls else message


def _reply_events(step: int, reply: ModelReply) -> list[ev.Event]:
    replied = ev.ModelReplied(
        step=step, message=_reply_message(reply), reasoning=reply.reasoning or None, usage=reply.usage,
        response_model=reply.model, finish_reason=reply.finish_reason, model_time=reply.seconds,
    )  # fmt: skip
    proposed = [
        ev.CallProposed(
            step=step, call_id=call.id, tool=call.tool, raw_arguments=call.raw, arguments=call.arguments
        )
        for call in reply.calls
    ]
    return [ev.ModelRequested(step=step), replied, *proposed]


def _result_events(step: int, result: CallResult, call: RecordedCall | None) -> list[ev.Event]:
    finished = ev.CallFinished(
        step=step, call_id=result.call_id, observation=result.observation, exit_code=result.exit_code,
        stdout=result.streams[0], stderr=result.streams[1], timed_out=result.timed_out, error=result.error,
        duration=result.seconds,
    )  # fmt: skip
    if call is None or call.arguments is None:
        return [finished]
    begun = ev.CallStarted(step=step, call_id=call.id, tool=call.tool, arguments=call.arguments)
    return [begun, finished]


def _end_events(step: int, end: End) -> list[ev.Event]:
    if end.reason is None:
        return []
    finished = ev.RunFinished(
        stop_reason=end.reason, answer=end.answer, usage=end.usage, steps=end.steps or step
    )
    checks = [
        ev.Checked(
            number=number, what=check.name, score=check.score,
            verdict=ev.Verdict(outcome=check.outcome, summary=check.summary),
        )
        for number, check in enumerate(end.checks, 1)
    ]  # fmt: skip
    return [finished, *checks]


# --- data without a field in the format ---


def add_rest(entries: Sequence[RecordEntry], read: Sequence[RecordEntry], places: Sequence[Place]) -> None:
    """Store the data of `entries` that the document does not contain.

    `read` are the entries that were read back from the document. `places` has, for each entry, the place in the
    document for its missing data.
    """
    for entry, implied, place in zip(entries, implied_events(read), places, strict=True):
        rest = _difference(entry.events, implied)
        if len(rest) != len(implied) or any(len(values) > 1 for values in rest):
            place.holder[place.name] = {**place.holder.get(place.name, {}), REST: rest}


def _difference(actual: Sequence[ev.Event], implied: Sequence[ev.Event]) -> list[dict[str, Any]]:
    """Return a dictionary for each event of `actual`: its kind, and those of its fields that differ from `implied`.

    Each event is compared with the next event of its kind in `implied`. If no such event is left, the event is compared
    with the default values.
    """
    waiting = [plain_event(event) for event in implied]
    rest = []
    for line in map(plain_event, actual):
        known = _take(waiting, line["kind"])
        if known is None:
            known = ev.default_fields(line["kind"])
        rest.append({name: value for name, value in line.items()
                     if name == "kind" or name not in known or known[name] != value})  # fmt: skip
    return rest


def plain_event(event: ev.Event) -> dict[str, Any]:
    """Return an event in the form of a line of the journal, as JSON values, but without the id of its parent."""
    value: dict[str, Any] = json.loads(ev.dump_event(event))
    del value["parent"]
    return value


def _take(waiting: list[dict[str, Any]], kind: str) -> dict[str, Any] | None:
    """Remove the first event of a kind from `waiting` and return it. Return None if there is no such event."""
    place = next((place for place, known in enumerate(waiting) if known["kind"] == kind), None)
    return None if place is None else waiting.pop(place)


def events_of(entries: Sequence[RecordEntry], name: str) -> Iterator[ev.Event]:
    """Yield the events of a run with a single branch. `name` is the run's id if the format has no ids.

    Raises:
        ValueError: if the value under `llm_sandbox_nb` is not a list of events.
    """
    parent: str | None = None
    for entry, implied in zip(entries, implied_events(entries), strict=True):
        events = implied if entry.rest is None else _with_rest(implied, entry.rest)
        for event in events:
            if isinstance(event, ev.RunStarted) and not event.run_id:
                event.run_id = name
            event.parent = parent
            if not isinstance(event, ev.Facts):
                parent = event.id
            yield event


def _with_rest(implied: Iterable[ev.Event], rest: Any) -> Iterator[ev.Event]:
    if not isinstance(rest, list) or not all(
        isinstance(stored, dict) and isinstance(stored.get("kind"), str) for stored in rest
    ):
        raise ValueError(f"the value under {REST} is not a list of events")
    waiting = [plain_event(event) for event in implied]
    for fields_of_event in rest:
        known = _take(waiting, fields_of_event["kind"]) or {}
        try:
            yield ev.parse_python({**known, **fields_of_event, "parent": None})
        except ValueError as error:
            raise ValueError(
                f"{REST} holds something that is not an event ({first_problem(error)})"
            ) from error


# --- shared by readers and writers ---

_SUBMIT_TOOLS = ("submit", "finish", "mark_task_complete", "complete_task")
"""Names of the tools with which agents end a run."""


class Place(NamedTuple):
    """Place in a document for other programs' data: an object, and the name of its field."""

    holder: dict[str, Any]
    name: str


@dataclass
class WrittenRecord:
    """Written document. `places` has a place for each entry, for the entry's data that has no field in the format.

    `places` is empty if the format has no fields for other programs' data.
    """

    content: Any
    places: Sequence[Place] = ()


def first_task(entries: Iterable[RecordEntry]) -> str:
    """Return the first message of the user. It counts as the task if a format has no field for tasks."""
    return next(
        (entry.content for entry in entries if isinstance(entry, Message) and entry.role == "user"), ""
    )


def implied_end(entries: Sequence[RecordEntry]) -> End:
    """Return the end of a run in a format that does not record ends.

    A run has ended if its last reply calls one of `_SUBMIT_TOOLS`, or if its last entry is a reply without a call.
    """
    replies = [entry for entry in entries if isinstance(entry, ModelReply)]
    if not replies:
        return End()
    called = [call.tool for call in replies[-1].calls]
    if any(tool in _SUBMIT_TOOLS for tool in called):
        return End("submitted", time=replies[-1].time)
    if not called and entries[-1] is replies[-1]:
        return End("answered", replies[-1].text or None, time=replies[-1].time)
    return End()


def conversation(entries: Iterable[RecordEntry]) -> list[dict[str, Any]]:
    """Return all messages of a run, in the form of the chat completions API.

    The run may have left out old messages in its later requests. Here they are included.
    """
    messages: list[dict[str, Any]] = []
    in_text = False
    for entry in entries:
        match entry:
            case Message():
                made = [event.message for event in entry.events if isinstance(event, ev.MessageAdded)]
                add_message(messages, made[0] if made else {"role": entry.role, "content": entry.content})
            case ModelReply():
                recorded = [event for event in entry.events if isinstance(event, ev.ModelReplied)]
                in_text = (
                    bool(recorded) and recorded[0].calls_from == "text" and not call_ids(recorded[0].message)
                )
                message = recorded[0].message if recorded else _reply_message(entry)
                thoughts = {"reasoning_content": entry.reasoning} if entry.reasoning else {}
                messages.append({**thoughts, **message})
            case CallResult():
                add_result(messages, entry.call_id, entry.observation, in_text=in_text)
    return messages
