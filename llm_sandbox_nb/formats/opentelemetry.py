"""Runs as OpenTelemetry spans with the names of the GenAI conventions, for example for Langfuse, Phoenix and Jaeger.

A run is a trace: the span `invoke_agent` contains a `chat` for each reply and an `execute_tool` for each call. Each
branch except HEAD's is a separate trace, with a link to the last step that it shares with HEAD's branch. The texts of
prompts, replies, calls and results are included only on request. The names of attributes come from version 1.45 of the
conventions.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import urllib.parse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from llm_sandbox_nb.formats.entries import (
    CallResult,
    Message,
    ModelReply,
    Opening,
    RecordedCall,
    RecordEntry,
    entries_of,
)
from llm_sandbox_nb.known_keys import public_address
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.trajectory import Trajectory
from llm_sandbox_nb.version import __version__

MAX_CONTENT_CHARACTERS = 100_000
"""Maximum number of characters of the messages in a span. The messages that do not fit are in earlier spans."""
_TIMEOUT_SECONDS = 60.0
_KIND_INTERNAL, _KIND_CLIENT = 1, 3
_STATUS_ERROR = 2
_FAILED_REASONS = ("error", "model_error", "sandbox_lost", "no_answer", "refused")
_HEADERS_VARIABLE = "OTEL_EXPORTER_OTLP_HEADERS"


def write(trajectory: Trajectory, folder: Path | None = None, *, content: bool = False) -> dict[str, Any]:
    """Return all branches as one OTLP/JSON request. With `content`, add the texts of prompts, replies and calls."""
    spans = list(_Trace(trajectory, folder, content).spans())
    for branch in trajectory.branches:
        if not branch.head:
            other = trajectory.at(branch.tip)
            spans += _Trace(other, folder, content, branch.tip, branch.step, _run_id(trajectory)).spans()
    resource = {"service.name": "llm-sandbox-nb", "service.version": __version__}
    scope = {"name": "llm_sandbox_nb", "version": __version__}
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes(resource)},
                "scopeSpans": [{"scope": scope, "spans": spans}],
            }
        ]
    }


def _run_id(trajectory: Trajectory) -> str:
    return trajectory.start.run_id if trajectory.start else "run"


def _id(length: int, *parts: object) -> str:
    return hashlib.sha256(repr(parts).encode("utf-8", "replace")).hexdigest()[: 2 * length]


def _attributes(values: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"key": key, "value": _value(value)} for key, value in values.items() if value not in (None, "", [])
    ]


def _value(value: Any) -> dict[str, Any]:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case list():
            return {"arrayValue": {"values": [_value(item) for item in value]}}
    return {"stringValue": str(value)}


_MAX_SECONDS = 1.8e10
"""Largest time, in seconds, that fits into 64 bits as a number of nanoseconds."""


def _nanoseconds(seconds: float) -> str:
    return str(int(min(max(seconds, 0.0), _MAX_SECONDS) * 1e9))


class _Trace:
    """Trace of a branch. `shared` is the number of the last step that the branch shares with HEAD's branch.

    `linked` is the id of the run, or empty for HEAD's branch, whose trace has no link.
    """

    def __init__(
        self,
        trajectory: Trajectory,
        folder: Path | None,
        content: bool,
        branch: str = "",
        shared: int = 0,
        linked: str = "",
    ) -> None:
        self.trajectory = trajectory
        self.entries = entries_of(trajectory, folder)
        self.content = content
        self.shared = shared
        self.run_id = _run_id(trajectory)
        self.trace = _id(16, self.run_id, branch)
        self.root = _id(8, self.run_id, branch, "root")
        self.linked = _id(16, linked, "") if linked else ""
        self.branch = branch
        opening = self.entries[0]
        assert isinstance(opening, Opening)
        self.opening = opening
        self.provider = opening.model.partition("/")[0] if "/" in opening.model else "unknown"

    def spans(self) -> Iterator[dict[str, Any]]:
        """Yield the span of the run, and the spans of the steps after `shared`."""
        yield self._run_span()
        step = 0
        calls: dict[str, RecordedCall] = {}
        for place, entry in enumerate(self.entries):
            if isinstance(entry, ModelReply):
                step += 1
                calls = {call.id: call for call in entry.calls}
            if step <= self.shared:
                continue
            if isinstance(entry, ModelReply):
                yield self._chat(step, entry, self.entries[:place])
            elif isinstance(entry, CallResult) and entry.call_id in calls:
                yield self._tool(step, entry, calls[entry.call_id])

    def _span(
        self, id: str, name: str, kind: int, times: tuple[float, float], values: dict[str, Any], **more: Any
    ) -> dict[str, Any]:
        begin, end = times
        return {
            "traceId": self.trace, "spanId": id, "name": name, "kind": kind, "startTimeUnixNano": _nanoseconds(begin),
            "endTimeUnixNano": _nanoseconds(max(begin, end)), "attributes": _attributes(values), **more,
        }  # fmt: skip

    def _run_span(self) -> dict[str, Any]:
        path, finish = self.trajectory.path, self.trajectory.finish
        times = (path[0].time if path else 0.0, path[-1].time if path else 0.0)
        usage = self.trajectory.usage
        values = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.provider.name": self.provider,
            "gen_ai.agent.name": "llm-sandbox-nb",
            "gen_ai.agent.version": __version__,
            "gen_ai.conversation.id": self.run_id,
            "gen_ai.request.model": self.opening.model,
            "gen_ai.usage.input_tokens": usage.prompt_tokens,
            "gen_ai.usage.output_tokens": usage.completion_tokens,
            "llm_sandbox_nb.stop_reason": finish.stop_reason if finish else None,
            "llm_sandbox_nb.steps": self.trajectory.steps_done,
            "llm_sandbox_nb.cost_usd": usage.cost,
            "llm_sandbox_nb.branch": self.branch,
        }
        if self.content:
            answer = [_text_message("assistant", finish.answer)] if finish and finish.answer else []
            values |= {
                "gen_ai.input.messages": _dumped([_text_message("user", self.opening.task)]),
                "gen_ai.output.messages": _dumped(answer),
                "gen_ai.tool.definitions": json.dumps(self.opening.tools),
            }
        bad = finish is not None and finish.stop_reason in _FAILED_REASONS
        status = (
            {"code": _STATUS_ERROR, "message": (finish.error or finish.stop_reason)} if bad and finish else {}
        )
        marks = [mark for event in path if self._is_own(event) for mark in _mark(event)]
        links = (
            [{"traceId": self.linked, "spanId": _id(8, _run_id(self.trajectory), "chat", self.shared)}]
            if self.linked and self.shared
            else []
        )
        return self._span(
            self.root, "invoke_agent llm-sandbox-nb", _KIND_INTERNAL, times, values,
            status=status, events=marks, links=links,
        )  # fmt: skip

    def _is_own(self, event: ev.Event) -> bool:
        if isinstance(event, ev.Facts) or not self.shared:  # facts have no place in the tree of events
            return True
        return self.trajectory.step_at(event.id) > self.shared

    def _chat(self, step: int, reply: ModelReply, before: Sequence[RecordEntry]) -> dict[str, Any]:
        end = reply.time or 0.0
        usage = reply.usage or ev.Usage()
        known = reply.usage is not None
        values: dict[str, Any] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": self.provider,
            "gen_ai.request.model": self.opening.model,
            "gen_ai.response.model": reply.model,
            "gen_ai.response.finish_reasons": [reply.finish_reason] if reply.finish_reason else [],
            "gen_ai.conversation.id": self.run_id,
            "gen_ai.usage.input_tokens": usage.prompt_tokens if known else None,
            "gen_ai.usage.output_tokens": usage.completion_tokens if known else None,
            "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens if known else None,
            "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens if known else None,
            "llm_sandbox_nb.cost_usd": usage.cost if known else None,
            "llm_sandbox_nb.step": step,
        }
        if self.content:
            values["gen_ai.input.messages"] = _dumped(_newest(before))
            values["gen_ai.output.messages"] = _dumped([_message(reply)])
        name = f"chat {self.opening.model}".strip()
        id = (
            _id(8, self.run_id, "chat", step)
            if not self.branch
            else _id(8, self.run_id, self.branch, "chat", step)
        )
        return self._span(id, name, _KIND_CLIENT, (end - reply.seconds, end), values, parentSpanId=self.root)

    def _tool(self, step: int, result: CallResult, call: RecordedCall) -> dict[str, Any]:
        end = result.time or 0.0
        begun = [event.time for event in result.events if isinstance(event, ev.CallStarted)]
        failed = result.error or ("timeout" if result.timed_out else "")
        changed = [
            change.path
            for event in result.events
            if isinstance(event, ev.CallFinished)
            for change in event.changes
        ]
        values: dict[str, Any] = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": call.tool,
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": call.id,
            "gen_ai.conversation.id": self.run_id,
            "process.exit.code": result.exit_code,
            "error.type": failed,
            "llm_sandbox_nb.step": step,
            "llm_sandbox_nb.changed_files": len(changed),
        }
        if self.content:
            values["gen_ai.tool.call.arguments"] = call.raw
            values["gen_ai.tool.call.result"] = result.observation
            values["llm_sandbox_nb.changed_paths"] = changed
        times = (begun[0] if begun else end - result.seconds, end)
        id = _id(8, self.run_id, self.branch, "tool", step, call.id)
        status = {"code": _STATUS_ERROR, "message": failed} if failed else {}
        return self._span(
            id,
            f"execute_tool {call.tool}",
            _KIND_INTERNAL,
            times,
            values,
            parentSpanId=self.root,
            status=status,
        )


def _mark(event: ev.Event) -> Iterator[dict[str, Any]]:
    """Yield a span event for a checkpoint, a person's decision or a verdict, and nothing for any other event."""
    values: dict[str, Any]
    match event:
        case ev.Checkpointed():
            name, values = "checkpoint", {"llm_sandbox_nb.checkpoint": event.checkpoint}
        case ev.CallDecided():
            name = "decision"
            values = {"llm_sandbox_nb.action": event.action, "gen_ai.tool.call.id": event.call_id}
        case ev.Checked():
            name = "gen_ai.evaluation.result"
            values = {
                "gen_ai.evaluation.name": event.what,
                "gen_ai.evaluation.score.value": event.score,
                "gen_ai.evaluation.score.label": event.verdict.outcome,
            }
        case _:
            return
    yield {"timeUnixNano": _nanoseconds(event.time), "name": name, "attributes": _attributes(values)}


def _text_message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "parts": [{"type": "text", "content": text}]}


def _message(entry: RecordEntry) -> dict[str, Any]:
    """Return an entry as a message in the form of the conventions."""
    match entry:
        case Message():
            return _text_message(entry.role, entry.content)
        case ModelReply():
            parts: list[dict[str, Any]] = []
            if entry.reasoning:
                parts.append({"type": "reasoning", "content": entry.reasoning})
            if entry.text:
                parts.append({"type": "text", "content": entry.text})
            for call in entry.calls:
                given = call.raw if call.arguments is None else call.arguments
                parts.append({"type": "tool_call", "id": call.id, "name": call.tool, "arguments": given})
            return {"role": "assistant", "parts": parts, "finish_reason": entry.finish_reason or "stop"}
        case CallResult():
            part = {"type": "tool_call_response", "id": entry.call_id, "response": entry.observation}
            return {"role": "tool", "parts": [part]}
    raise TypeError(type(entry))


def _newest(entries: Sequence[RecordEntry]) -> list[dict[str, Any]]:
    """Return the newest messages of a request, up to `MAX_CONTENT_CHARACTERS`.

    If earlier messages are left out, the first returned message says how many.
    """
    messages = [entry for entry in entries if isinstance(entry, Message | ModelReply | CallResult)]
    left, kept = MAX_CONTENT_CHARACTERS, list[dict[str, Any]]()
    for place in range(len(messages) - 1, -1, -1):
        message = _message(messages[place])
        left -= len(json.dumps(message, ensure_ascii=False))
        if left < 0 and kept:
            return [_text_message("system", f"[{place + 1} earlier messages are in the spans before]"), *kept]
        kept.insert(0, message)
    return kept


def _dumped(messages: list[dict[str, Any]]) -> str:
    return json.dumps(ev.clean_text(messages), ensure_ascii=False)


# --- sending ---


def send(content: dict[str, Any], address: str) -> str:
    """Send spans to a collector, and return a message for the user.

    The spans are sent as protobuf if `opentelemetry-proto` is installed, and as JSON otherwise. The environment
    variable OTEL_EXPORTER_OTLP_HEADERS sets headers, such as a key.

    Raises:
        ValueError: if the collector does not answer, or refuses the spans. The message names the problem.
    """
    import http.client
    import urllib.error
    import urllib.request

    class NoRedirects(urllib.request.HTTPRedirectHandler):
        """Handler that refuses redirects. urllib would follow a redirect with GET, and so would not send the spans."""

        def redirect_request(self, *_: Any) -> None:
            return None

    data, kind = _encoded(content)
    headers = {"Content-Type": kind, **_headers(address)}
    parts = urllib.parse.urlsplit(address)
    # urllib would take a user name and a password in the address for a part of the host's name. A header has them.
    asked = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    shown = public_address(address)
    request = urllib.request.Request(asked, data, headers, method="POST")
    try:
        with urllib.request.build_opener(NoRedirects).open(request, timeout=_TIMEOUT_SECONDS) as answer:
            answer.read(1024**2)
    except urllib.error.HTTPError as error:
        error.close()
        why = f"({error.code} {error.reason}).{_hint(error.code, kind)}"
        raise ValueError(f"The collector at {shown} refused the spans {why}") from error
    except (
        OSError,
        ValueError,
        http.client.HTTPException,
    ) as error:  # HTTPException comes from servers that do not speak HTTP/1, such as gRPC servers
        reason = getattr(error, "reason", None) or error
        raise ValueError(f"No collector answers at {shown} ({reason}): check the address.") from error
    spans = sum(
        len(scope["spans"]) for resource in content["resourceSpans"] for scope in resource["scopeSpans"]
    )
    return f"{spans} spans sent to {shown}"


def _hint(code: int, kind: str) -> str:
    if code in (401, 403):
        return f" Set its key in {_HEADERS_VARIABLE}."
    if code < 400:
        return " Give the address to which it redirects."
    if code == 404:
        return " The path is /v1/traces in most collectors, /api/public/otel/v1/traces in Langfuse."
    if code == 415 and kind == "application/json":
        return " It accepts only protobuf: `pip install 'llm-sandbox-nb[otlp]'`."
    return ""


def _headers(address: str) -> dict[str, str]:
    """Return a header for the user name and password in the address, or else the headers that the environment sets."""
    parts = urllib.parse.urlsplit(address)
    if parts.username:
        known = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
        return {"Authorization": f"Basic {base64.b64encode(known.encode()).decode()}"}
    pairs = (part.partition("=") for part in os.environ.get(_HEADERS_VARIABLE, "").split(","))
    return {key.strip(): urllib.parse.unquote(value.strip()) for key, _, value in pairs if key.strip()}


def _encoded(content: dict[str, Any]) -> tuple[bytes, str]:
    try:
        message = to_protobuf(content)
    except ImportError:
        return json.dumps(ev.clean_text(content)).encode(), "application/json"
    return message.SerializeToString(), "application/x-protobuf"


def to_protobuf(content: dict[str, Any]) -> Any:
    """Convert spans to a message of opentelemetry-proto. Raise ImportError if this package is not installed."""
    from google.protobuf.json_format import ParseDict
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    def in_base64(value: Any) -> Any:
        """Convert ids from hexadecimal, as in OTLP/JSON, to base64, as in protobuf's own JSON form."""
        if isinstance(value, list):
            return [in_base64(item) for item in value]
        if not isinstance(value, dict):
            return value
        ids = ("traceId", "spanId", "parentSpanId")
        return {
            key: base64.b64encode(bytes.fromhex(field)).decode() if key in ids else in_base64(field)
            for key, field in value.items()
        }

    return ParseDict(in_base64(ev.clean_text(content)), ExportTraceServiceRequest())
