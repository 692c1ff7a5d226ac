"""Reading and writing of `.eval` logs with the package of Inspect AI: `pip install llm-sandbox-nb[inspect]`.

A run becomes a log with one sample. Checkpoints become anchors, a person's decisions on calls become approvals, and
each branch except HEAD's becomes a span with a branch event. Inspect's viewer shows anchors, approvals and spans. All
events of the journal can be read back in order.
"""

from __future__ import annotations

import io
import json
import tempfile
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from llm_sandbox_nb.formats.entries import (
    REST,
    CallResult,
    End,
    EntryCheck,
    Message,
    ModelReply,
    Opening,
    Place,
    RecordedCall,
    RecordEntry,
    add_rest,
    entries_of,
    events_of,
    first_task,
    implied_end,
    plain_event,
)
from llm_sandbox_nb.formats.received import (
    check_containers,
    content_text,
    count,
    iso_time,
    mapping,
    number,
    rows,
    seconds,
    text,
)
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.step_line import decided_how
from llm_sandbox_nb.trajectory.trajectory import Trajectory
from llm_sandbox_nb.version import __version__

NOT_INSTALLED = "Logs of Inspect need its package: install it with `pip install 'llm-sandbox-nb[inspect]'`."
MAX_UNPACKED_BYTES = 512 * 1024**2
"""Maximum total size of the unpacked files in a log."""
_MAX_FILES = 100_000
_MAX_BRANCH_MESSAGES = 200_000
"""Maximum number of messages of all branches of a run. A message that branches share is read for each of them, so it
counts several times."""
_CHUNK_BYTES = 1024**2
_ZSTANDARD_METHOD = 93
_MARKER_FILES = ("header.json", "_journal/start.json")
"""Names of files in a log. Every log has at least one of these files."""
_LIMITS: dict[str, ev.StopReason] = {
    "message": "steps", "turn": "steps", "token": "total_tokens", "context": "tokens", "time": "time",
    "working": "time", "cost": "cost", "operator": "interrupted",
}  # fmt: skip
_TO_LIMITS = {"steps": "message", "total_tokens": "token", "tokens": "context", "time": "time", "cost": "cost",
              "interrupted": "operator"}  # fmt: skip
_STOP_REASONS = {
    "tool_calls": "tool_calls",
    "length": "max_tokens",
    "cut_off": "max_tokens",
    "content_filter": "content_filter",
}


# --- reading ---


def is_log(data: bytes) -> bool:
    """Return True if `data` is a log of Inspect: a ZIP archive with a header, or JSON with `eval` and `version`."""
    if data.startswith(b"PK\x03\x04"):
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                return any(name in archive.NameToInfo for name in _MARKER_FILES)
        except (zipfile.BadZipFile, ValueError, NotImplementedError):
            return False
    return data[:1] == b"{" and b'"eval"' in data[:4096] and b'"version"' in data[:4096]


def read(data: bytes) -> list[tuple[str, list[ev.Event]]]:
    """Read the runs of a log. Return the name and the events of each sample.

    Raises:
        ValueError: if the package is missing, or the log is damaged or too large.
    """
    try:
        from inspect_ai.log import read_eval_log
    except ImportError as error:
        raise ValueError(NOT_INSTALLED) from error
    packed = data.startswith(b"PK")
    content = _repacked(data) if packed else _checked(data)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder, f"log.{'eval' if packed else 'json'}")
        path.write_bytes(content)
        try:
            log = read_eval_log(str(path), resolve_attachments=True)
            samples = [sample.model_dump(mode="json") for sample in log.samples or []]
        except (
            Exception
        ) as error:  # the log may come from anyone, so Inspect's package may raise any exception
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise ValueError(f"Inspect cannot read it: {reason[:200]}") from error
    found = []
    for sample in samples:
        epoch = f"-epoch-{sample['epoch']}" if sample.get("epoch", 1) != 1 else ""
        name = f"{sample.get('id')}{epoch}"
        found.append((name, sample_events(sample, log.eval.model, name)))
    if not found:
        raise ValueError("the log has no sample")
    return found


def _repacked(data: bytes) -> bytes:
    """Return an archive with the same files, but not compressed. Inspect's own reader does not limit what it unpacks.

    Raise ValueError if the archive is damaged, or if its unpacked files exceed a limit.
    """
    made = io.BytesIO()
    left, containers = MAX_UNPACKED_BYTES, 0
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive, zipfile.ZipFile(made, "w") as plain:
            members = archive.infolist()
            if len(members) > _MAX_FILES:
                raise ValueError(f"it holds more than {_MAX_FILES:,} files")
            if any(member.compress_type == _ZSTANDARD_METHOD for member in members):
                import zipfile_zstd  # noqa: F401 - makes zipfile read Zstandard; a dependency of Inspect
            for member in {member.filename: member for member in members}.values():
                content = _unpacked(archive, member, left)
                left -= len(content)
                containers = check_containers(content, containers)
                plain.writestr(member.filename, _checked(content))
    except ValueError:
        raise
    except Exception as error:  # each method of compression has errors of its own
        raise ValueError(f"it is a damaged ZIP archive ({str(error)[:100]})") from error
    return made.getvalue()


def _unpacked(archive: zipfile.ZipFile, member: zipfile.ZipInfo, limit: int) -> bytes:
    content = bytearray()
    with archive.open(member) as file:
        while part := file.read(_CHUNK_BYTES):
            content += part
            if len(content) > limit:
                raise ValueError(f"its files have more than {MAX_UNPACKED_BYTES:,} bytes")
    return bytes(content)


def _checked(content: bytes) -> bytes:
    """Return the content unchanged. Raise ValueError if its JSON is nested too deeply or has too many objects."""
    check_containers(content)
    try:
        json.loads(content or b"null")
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    return content


def sample_events(sample: dict[str, Any], model: str, name: str) -> list[ev.Event]:
    """Return the events of a sample.

    If this package wrote the sample, return the events of all branches in the order of the journal. Otherwise, derive
    the events from the messages of the sample.
    """
    own = mapping(mapping(sample.get("metadata"), "metadata").get(REST) or {}, REST)
    entries = read_sample(sample, model)
    events = list(events_of(entries, name))
    if not own:
        return events
    known = {event.id: event for event in events}
    spans = rows(own, "branches")
    if sum(count(span, "shared") + len(rows(span, "messages")) for span in spans) > _MAX_BRANCH_MESSAGES:
        raise ValueError(f"its branches have more than {_MAX_BRANCH_MESSAGES:,} messages")
    for span in spans:
        shared, messages = count(span, "shared"), rows(span, "messages")
        first = rows(sample, "messages")[: max(0, shared - 1)]
        rest = {REST: {"run_id": own.get("run_id"), "opening": span.get("opening"), "end": span.get("end")}}
        ended = mapping(span.get("ended"), "ended")
        branch = {**sample, **ended, "messages": [*first, *messages], "metadata": rest, "events": []}
        known = {event.id: event for event in events_of(read_sample(branch, model), name)} | known
    known |= {event.id: event for event in map(ev.parse_python, rows(own, "others"))}
    tree = own.get("tree")
    if not isinstance(tree, list):
        return events
    found: list[ev.Event] = []
    for row in tree:
        if not (isinstance(row, list) and len(row) == 2 and isinstance(row[0], str) and row[0] in known):
            raise ValueError(f"{REST}.tree names an event that is not there")
        found.append(known[row[0]].model_copy(update={"parent": row[1] if isinstance(row[1], str) else None}))
    return found


def read_sample(sample: dict[str, Any], model: str) -> list[RecordEntry]:
    """Read the entries of a sample from its messages. Times, token counts and tools are read from its events."""
    own = mapping(sample.get("metadata"), "metadata").get(REST)
    own = own if isinstance(own, dict) else {}
    opening = Opening(run_id=text(own, "run_id"), model=model, time=seconds(sample.get("started_at")))
    opening.rest = mapping(own.get("opening"), "opening").get(REST)
    given = sample.get("input")
    asked = given if isinstance(given, str) else ""
    events = _outside_branches(rows(sample, "events"))
    replies = {
        _message_id(event): event
        for event in events
        if event.get("event") == "model" and isinstance(event.get("output"), dict)
    }
    tools = {event.get("id"): event for event in events if event.get("event") == "tool"}
    if replies:
        for tool in rows(next(iter(replies.values())), "tools"):
            function = {key: tool.get(key) for key in ("name", "description", "parameters")}
            opening.tools.append({"type": "function", "function": function})
    entries: list[RecordEntry] = [opening]
    waiting: list[str] = []
    for message in rows(sample, "messages"):
        role, rest = text(message, "role"), mapping(message.get("metadata"), "metadata").get(REST)
        if role == "assistant":
            reply = _read_reply(message, replies.get(message.get("id"), {}))
            reply.rest = rest
            waiting = [call.id for call in reply.calls]
            entries.append(reply)
        elif role == "tool" and message.get("tool_call_id") in waiting:
            waiting.remove(message["tool_call_id"])
            entries.append(_read_result(message, tools.get(message["tool_call_id"], {}), rest))
        else:
            role = "user" if role == "tool" else role
            entries.append(Message(role, content_text(message.get("content")), rest=rest))
    opening.task = asked or first_task(entries)
    end = _read_end(sample, entries)
    end.rest = mapping(own.get("end"), "end").get(REST)
    return [*entries, end]


def _outside_branches(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the events that do not belong to the span of another branch."""
    spans = {
        event.get("id")
        for event in events
        if event.get("event") == "span_begin" and event.get("type") == "branch"
    }
    return [event for event in events if event.get("span_id") not in spans or event.get("span_id") is None]


def _message_id(event: dict[str, Any]) -> Any:
    choices = event["output"].get("choices")
    first = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    message = first.get("message")
    return message.get("id") if isinstance(message, dict) else None


def _read_reply(message: dict[str, Any], event: dict[str, Any]) -> ModelReply:
    given = message.get("content")
    parts = given if isinstance(given, list) else []
    thoughts = [
        str(part.get("reasoning") or "")
        for part in parts
        if isinstance(part, dict) and part.get("type") == "reasoning"
    ]
    texts = [part for part in parts if not (isinstance(part, dict) and part.get("type") == "reasoning")]
    calls = []
    for call in rows(message, "tool_calls"):
        raw = text(call, "parse_error") and json.dumps(call.get("arguments"))
        arguments = None if raw else mapping(call.get("arguments"), "arguments")
        calls.append(RecordedCall(text(call, "id"), text(call, "function"), arguments, raw))
    output = mapping(event.get("output"), "output")
    used = output.get("usage")
    usage = _read_usage(used) if isinstance(used, dict) else None
    return ModelReply(
        content_text(texts if parts else given), "".join(thoughts), calls, usage, text(message, "model") or None,
        seconds=number(event, "working_time") or 0.0, time=seconds(event.get("timestamp")),
    )  # fmt: skip


def _read_usage(used: dict[str, Any]) -> ev.Usage:
    return ev.Usage(
        prompt_tokens=count(used, "input_tokens") + count(used, "input_tokens_cache_read"),
        completion_tokens=count(used, "output_tokens"),
        cached_tokens=count(used, "input_tokens_cache_read"),
        reasoning_tokens=count(used, "reasoning_tokens"),
        cost=number(used, "total_cost"),
    )


def _read_result(message: dict[str, Any], event: dict[str, Any], rest: Any) -> CallResult:
    failed = message.get("error")
    kind = text(failed, "type") if isinstance(failed, dict) else ""
    observation = content_text(message.get("content"))
    if isinstance(failed, dict) and not observation:
        observation = text(failed, "message")
    return CallResult(
        text(message, "tool_call_id"), observation, timed_out=kind == "timeout",
        error=kind if kind and kind != "timeout" else None, seconds=number(event, "working_time") or 0.0,
        time=seconds(event.get("completed")), rest=rest,
    )  # fmt: skip


def _read_end(sample: dict[str, Any], entries: Sequence[RecordEntry]) -> End:
    end = implied_end(entries)
    limit, failed = sample.get("limit"), sample.get("error")
    if isinstance(failed, dict):
        end = End("error")
    elif isinstance(limit, dict):
        end = End(_LIMITS.get(text(limit, "type"), "interrupted"))
    end.time = end.time or seconds(sample.get("completed_at"))
    output = mapping(sample.get("output"), "output")
    if end.reason and not end.answer:
        end.answer = text(output, "completion") or None
    scores = sample.get("scores")
    if isinstance(scores, dict) and end.reason:
        end.checks = [_read_score(name, score) for name, score in scores.items() if isinstance(score, dict)]
    return end


def _read_score(name: str, score: dict[str, Any]) -> EntryCheck:
    value = score.get("value")
    summary = text(score, "explanation").partition("\n")[0][:200]
    if value in ("C", "I"):
        return EntryCheck(
            name[:100],
            "passed" if value == "C" else "failed",
            summary or ("correct" if value == "C" else "incorrect"),
        )
    given = number(score, "value")
    return EntryCheck(name[:100], "text" if given is None else "score", summary or str(value)[:100], given)


# --- writing ---


def write(branches: Sequence[Trajectory], folder: Path | None = None) -> bytes:
    """Write the log of a run. The first of `branches` is HEAD's branch.

    Raises:
        ValueError: if the package is missing.
    """
    try:
        from inspect_ai.log import EvalLog, write_eval_log
    except ImportError as error:
        raise ValueError(NOT_INSTALLED) from error
    with tempfile.TemporaryDirectory() as made, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(made, "log.eval")
        log = EvalLog.model_validate(ev.clean_text(log_content(branches, folder)))
        write_eval_log(log, str(path), format="eval")
        return path.read_bytes()


def log_content(branches: Sequence[Trajectory], folder: Path | None = None) -> dict[str, Any]:
    """Return the log as parsed JSON."""
    head = branches[0]
    start = head.start
    created = iso_time(start.time if start else None) or "1970-01-01T00:00:00+00:00"
    run_id, model = (start.run_id, start.model) if start else ("run", "")
    sample, entries = write_sample(head, folder)
    add_branches(sample, entries, branches, folder)
    ended = iso_time(head.finish.time) if head.finish else ""
    usage = {model: _usage(head.total_usage)}
    return {
        "version": 2,
        "status": "success" if head.finish else "cancelled",
        "eval": {
            "created": created, "task": "llm-sandbox-nb", "task_id": run_id, "run_id": run_id, "eval_id": run_id,
            "dataset": {"samples": 1, "sample_ids": [run_id]}, "model": model or "unknown",
            "packages": {"llm-sandbox-nb": __version__}, "config": {},
        },
        "stats": {"started_at": created, "completed_at": ended or "", "model_usage": usage},
        "samples": [sample],
    }  # fmt: skip


def write_sample(
    trajectory: Trajectory, folder: Path | None, *, with_events: bool = True
) -> tuple[dict[str, Any], list[RecordEntry]]:
    """Return the sample of a branch as parsed JSON, and the entries from which the sample was made."""
    entries = entries_of(trajectory, folder)
    opening, end = entries[0], entries[-1]
    assert isinstance(opening, Opening)
    assert isinstance(end, End)
    own: dict[str, Any] = {"run_id": opening.run_id}
    messages = [_message(entry, opening.run_id, place) for place, entry in enumerate(entries[1:-1], 1)]
    sample: dict[str, Any] = {
        "id": opening.run_id or "run", "epoch": 1, "input": opening.task, "target": "",
        "messages": messages, "metadata": {REST: own},
        "events": _sample_events(entries, messages, opening) if with_events else [],
        "started_at": iso_time(opening.time), "completed_at": iso_time(end.time),
    }  # fmt: skip
    if end.answer is not None:
        choice = _choice({"role": "assistant", "content": end.answer}, "stop")
        sample["output"] = {"model": opening.model, "choices": [choice], "completion": end.answer}
    if end.reason in _TO_LIMITS:
        sample["limit"] = {"type": _TO_LIMITS[end.reason], "limit": 0}
    elif end.reason in ("error", "model_error", "sandbox_lost"):
        why = trajectory.finish.error if trajectory.finish else None
        sample["error"] = {"message": why or end.reason, "traceback": "", "traceback_ansi": ""}
    if trajectory.checks:
        sample["scores"] = {check.what or "check": _score(check) for check in trajectory.checks}
    places = [Place(own, "opening"), *(Place(message, "metadata") for message in messages), Place(own, "end")]
    add_rest(entries, read_sample(sample, opening.model), places)
    return sample, entries


_ENDED = ("output", "limit", "error", "scores", "completed_at")
"""Names of the fields of a sample that describe the end of its branch."""


def add_branches(
    sample: dict[str, Any],
    entries: Sequence[RecordEntry],
    branches: Sequence[Trajectory],
    folder: Path | None,
) -> None:
    """Add the other branches of a run, and the order of all events, to the sample of HEAD's branch.

    `entries` are the entries of HEAD's branch, which is the first of `branches`.
    """
    own = sample["metadata"][REST]
    head = branches[0]
    known = {event.id for event in head.path}
    own["branches"] = []
    for number_, branch in enumerate(branches[1:], 1):
        other, its = write_sample(branch, folder, with_events=False)
        shared = _shared(entries, its, sample["messages"], other["messages"])
        own["branches"].append(
            {
                "shared": shared,
                "messages": other["messages"][max(0, shared - 1) :],
                "ended": {name: other.get(name) for name in _ENDED},
                "opening": other["metadata"][REST].get("opening"),
                "end": other["metadata"][REST].get("end"),
            }
        )
        known |= {event.id for event in branch.path}
        sample["events"] += _branch_span(number_, its, other, shared)
    written = [event for event in head.events if not isinstance(event, ev.StepFacts)]
    own["others"] = [plain_event(event) for event in written if event.id not in known]
    own["tree"] = [
        [event.id, head.parent(event.id) if not isinstance(event, ev.Facts) else event.parent]
        for event in written
    ]


def _shared(
    entries: Sequence[RecordEntry],
    others: Sequence[RecordEntry],
    messages: Sequence[dict[str, Any]],
    other_messages: Sequence[dict[str, Any]],
) -> int:
    """Return the number of entries at the beginning of two branches whose events and messages are equal."""
    place = 1
    while place <= min(len(messages), len(other_messages)):
        known = [[event.id for event in of[place].events] for of in (entries, others)]
        if known[0] != known[1] or messages[place - 1] != other_messages[place - 1]:
            break
        place += 1
    return place


def _message(entry: RecordEntry, run_id: str, place: int) -> dict[str, Any]:
    known = {"id": f"{run_id}-{place}-{entry.events[0].id if entry.events else ''}"}
    match entry:
        case Message():
            role = entry.role if entry.role in ("system", "user") else "user"
            return {"role": role, "content": entry.content, **known}
        case ModelReply():
            content: Any = entry.text
            if entry.reasoning:
                content = [
                    {"type": "reasoning", "reasoning": entry.reasoning},
                    {"type": "text", "text": entry.text},
                ]
            message = {
                "role": "assistant",
                "content": content,
                "model": entry.model,
                "source": "generate",
                **known,
            }
            return (
                {**message, "tool_calls": [_call(call) for call in entry.calls]} if entry.calls else message
            )
        case CallResult():
            message = {"role": "tool", "content": entry.observation, "tool_call_id": entry.call_id, **known}
            return (
                {**message, "error": {"type": "timeout", "message": entry.observation}}
                if entry.timed_out
                else message
            )
    raise TypeError(type(entry))


def _call(call: RecordedCall) -> dict[str, Any]:
    broken = {"parse_error": "The arguments are not a JSON object."} if call.arguments is None else {}
    return {
        "id": call.id,
        "function": call.tool,
        "type": "function",
        "arguments": call.arguments or {},
        **broken,
    }


def _choice(message: dict[str, Any], stop: str) -> dict[str, Any]:
    return {"message": message, "stop_reason": stop}


def _usage(usage: ev.Usage) -> dict[str, Any]:
    return {
        "input_tokens": max(0, usage.prompt_tokens - usage.cached_tokens), "output_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens, "input_tokens_cache_read": usage.cached_tokens,
        "reasoning_tokens": usage.reasoning_tokens, "total_cost": usage.cost,
    }  # fmt: skip


def _score(check: ev.Checked) -> dict[str, Any]:
    value: Any = {"passed": "C", "failed": "I"}.get(check.verdict.outcome, check.score)
    return {"value": 0.0 if value is None else value, "explanation": check.verdict.summary}


def _sample_events(
    entries: Sequence[RecordEntry], messages: Sequence[dict[str, Any]], opening: Opening, first: int = 1
) -> list[dict[str, Any]]:
    """Return events for Inspect's viewer: requests, calls, commands, decisions and checkpoints.

    Entries before the index `first` give no events.
    """
    tools = [_tool(tool) for tool in opening.tools]
    calls: dict[str, RecordedCall] = {}
    found: list[dict[str, Any]] = []
    for place, entry in enumerate(entries[1:-1], 1):
        if isinstance(entry, ModelReply):
            calls = {call.id: call for call in entry.calls}
        if place < first:
            continue
        if isinstance(entry, ModelReply):
            found.append(
                _model_event(entry, messages[: place - 1], messages[place - 1], opening.model, tools)
            )
        elif isinstance(entry, CallResult) and entry.call_id in calls:
            found += _tool_events(entry, calls[entry.call_id])
        found += [mark for event in entry.events for mark in _mark(event, calls)]
    return found


def _base(kind: str, when: float | None) -> dict[str, Any]:
    return {"event": kind, "timestamp": iso_time(when) or "1970-01-01T00:00:00+00:00", "working_start": 0.0}


def _model_event(
    reply: ModelReply,
    before: Sequence[dict[str, Any]],
    message: dict[str, Any],
    model: str,
    tools: list[dict[str, Any]],
) -> dict[str, Any]:
    stop = _STOP_REASONS.get(reply.finish_reason or "", "stop")
    output: dict[str, Any] = {
        "model": reply.model or model,
        "choices": [_choice(message, stop)],
        "completion": reply.text,
    }
    if reply.usage is not None:
        output["usage"] = _usage(reply.usage)
    return {
        **_base("model", reply.time), "model": model or "unknown", "input": list(before), "tools": tools,
        "tool_choice": "auto", "config": {}, "output": output, "working_time": reply.seconds,
    }  # fmt: skip


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    function = tool.get("function")
    function = function if isinstance(function, dict) else {}
    name = str(function.get("name", ""))
    return {"name": name, "description": str(function.get("description") or ""),
            "parameters": {"type": "object", "properties": {}}}  # fmt: skip


def _tool_events(result: CallResult, call: RecordedCall) -> Iterator[dict[str, Any]]:
    command = (call.arguments or {}).get("command")
    if result.exit_code is not None and isinstance(command, str):
        done = {"action": "exec", "cmd": command, "result": result.exit_code, "output": result.streams[0]}
        yield {**_base("sandbox", result.time), **done}
    yield {
        **_base("tool", result.time), "id": call.id, "function": call.tool, "arguments": call.arguments or {},
        "result": result.observation, "completed": iso_time(result.time), "working_time": result.seconds,
    }  # fmt: skip


_DECISIONS = {"run": "approve", "edit": "modify", "skip": "reject", "observe": "modify"}


def _mark(event: ev.Event, calls: dict[str, RecordedCall]) -> Iterator[dict[str, Any]]:
    match event:
        case ev.CallDecided() if event.call_id in calls:
            call = _call(calls[event.call_id])
            changed = {
                "modified": {**call, "function": event.tool or call["function"], "arguments": event.arguments}
            }
            decision = _DECISIONS[event.action]
            yield {
                **_base("approval", event.time), "message": "", "call": call, "decision": decision,
                "approver": "human" if decided_how(event) == event.action else event.source,
                "explanation": event.observation, **(changed if event.arguments is not None else {}),
            }  # fmt: skip
        case ev.Checkpointed():
            yield {
                **_base("anchor", event.time),
                "anchor_id": event.id,
                "source": f"checkpoint {event.checkpoint}",
            }


def _branch_span(
    number_: int, entries: Sequence[RecordEntry], sample: dict[str, Any], shared: int
) -> Iterator[dict[str, Any]]:
    opening = entries[0]
    assert isinstance(opening, Opening)
    last = entries[max(0, shared - 1)].events
    inside = _sample_events(entries, sample["messages"], opening, first=shared)
    if not inside or not last:
        return
    when, id = last[-1].time, f"branch-{number_}"
    yield {**_base("anchor", when), "anchor_id": f"{id}-from"}
    yield {**_base("span_begin", when), "id": id, "type": "branch", "name": f"branch {number_}"}
    yield {**_base("branch", when), "from_anchor": f"{id}-from", "span_id": id}
    for event in inside:
        yield {**event, "span_id": id}
    yield {**_base("span_end", entries[-2].time), "id": id}
