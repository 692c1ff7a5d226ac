"""Reading and writing of mini-swe-agent's trajectories.

Version 1.1 is written. Versions 1 and 1.1, and plain lists of messages, can be read. The messages have the form of the
chat completions API, with an additional field `extra`. A model that makes no tool calls writes commands as blocks of
shell code in its replies. The user message after such a reply contains the result.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from llm_sandbox_nb.formats.entries import (
    REST,
    CallResult,
    End,
    Message,
    ModelReply,
    Opening,
    Place,
    RecordedCall,
    RecordEntry,
    WrittenRecord,
    first_task,
)
from llm_sandbox_nb.formats.openai_messages import read_calls
from llm_sandbox_nb.formats.received import content_text, count, mapping, number, rows, seconds, text
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.version import __version__

VERSION = "mini-swe-agent-1.1"
_BLOCK = re.compile(r"```(?:mswea_bash_command|bash)[ \t]*\n(.*?)\n?```", re.DOTALL)
_OWN_BLOCK = "```mswea_bash_command"
_CODE = re.compile(r"<returncode>(-?\d{1,9})</returncode>")
_SUBMIT_COMMAND = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
_STATUS: dict[str, ev.StopReason] = {
    "Submitted": "submitted",
    "LimitsExceeded": "steps",
    "TimeExceeded": "time",
    "UserInterruption": "interrupted",
    "ContextWindowExceededError": "tokens",
}
"""Stop reasons by mini-swe-agent's exit status. Any other status is the name of an exception."""
_TO_STATUS = {reason: status for status, reason in _STATUS.items()}


def fits(content: Any) -> bool:
    if isinstance(content, dict):
        named = str(content.get("trajectory_format")).startswith("mini-swe-agent-")
        return named or (isinstance(content.get("info"), dict) and isinstance(content.get("messages"), list))
    if not isinstance(content, list):
        return False
    return any(isinstance(part, dict) and _OWN_BLOCK in str(part.get("content")) for part in content)


def write(entries: Sequence[RecordEntry], branch: str = "", copied: Collection[int] = ()) -> WrittenRecord:
    messages: list[dict[str, Any]] = []
    places: list[Place] = []
    info: dict[str, Any] = {}
    cost, calls = 0.0, 0
    for entry in entries:
        match entry:
            case Opening():
                config = {"agent": {"task": entry.task}, "model": {"model_name": entry.model}}
                info |= {"config": config, "mini_version": f"llm-sandbox-nb {__version__}"}
                places.append(Place(info, "extra"))
                continue
            case Message():
                role = "user" if entry.role == "exit" else entry.role  # `exit` is the end of a run
                messages.append({"role": role, "content": entry.content, "extra": _dated(entry)})
            case ModelReply():
                messages.append(_reply(entry))
                calls += 1
                cost += entry.usage.cost or 0.0 if entry.usage else 0.0
            case CallResult():
                messages.append(_result(entry))
            case End():
                messages.append(_exit(entry))
        places.append(Place(messages[-1], "extra"))
    status = messages[-1]["extra"]
    info |= {
        "model_stats": {"instance_cost": cost, "api_calls": calls},
        "exit_status": status.get("exit_status", ""),
        "submission": status.get("submission", ""),
    }
    return WrittenRecord({"info": info, "messages": messages, "trajectory_format": VERSION}, places)


def _dated(entry: RecordEntry) -> dict[str, Any]:
    return {} if entry.time is None else {"timestamp": entry.time}


def _reply(reply: ModelReply) -> dict[str, Any]:
    actions = [
        {"command": str((call.arguments or {}).get("command", call.raw)), "tool_call_id": call.id}
        for call in reply.calls
    ]
    message: dict[str, Any] = {"role": "assistant", "content": reply.text}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.calls:
        message["tool_calls"] = [call.message() for call in reply.calls]
    extra: dict[str, Any] = {"actions": actions, **_dated(reply), "response": _response(reply)}
    if reply.usage and reply.usage.cost is not None:
        extra["cost"] = reply.usage.cost
    return {**message, "extra": extra}


def _response(reply: ModelReply) -> dict[str, Any]:
    """Return the recorded parts of the server's answer, in the form of the chat completions API."""
    response: dict[str, Any] = {"model": reply.model, "choices": [{"finish_reason": reply.finish_reason}]}
    if reply.usage is not None:
        response["usage"] = {
            "prompt_tokens": reply.usage.prompt_tokens,
            "completion_tokens": reply.usage.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": reply.usage.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": reply.usage.reasoning_tokens},
        }
    return response


def _result(result: CallResult) -> dict[str, Any]:
    extra = {"raw_output": "".join(result.streams), "returncode": result.exit_code, **_dated(result)}
    if result.error:
        extra["exception_info"] = result.error
    return {"role": "tool", "tool_call_id": result.call_id, "content": result.observation, "extra": extra}


def _exit(end: End) -> dict[str, Any]:
    status = "" if end.reason is None else _TO_STATUS.get(end.reason, end.reason)
    extra = {"exit_status": status, "submission": end.answer or "", **_dated(end)}
    return {"role": "exit", "content": end.answer or status, "extra": extra}


def read(content: Any) -> list[RecordEntry]:
    root = {"messages": content} if isinstance(content, list) else mapping(content, "the trajectory")
    info = mapping(root.get("info"), "info")
    config = mapping(info.get("config"), "config")
    opening = Opening(
        task=text(mapping(config.get("agent"), "agent"), "task"),
        model=text(mapping(config.get("model"), "model"), "model_name"),
        rest=mapping(info.get("extra"), "extra").get(REST),
    )
    entries: list[RecordEntry] = [opening]
    waiting: list[RecordedCall] = []
    end: End | None = None
    for message in rows(root, "messages"):
        extra = mapping(message.get("extra"), "extra")
        dated: dict[str, Any] = {"time": seconds(extra.get("timestamp")), "rest": extra.get(REST)}
        body = content_text(message.get("content"))
        role = text(message, "role")
        if message.get("object") == "response":
            message, role = _response_message(message), "assistant"
            body = message["content"]
        elif message.get("type") == "function_call_output":
            role, body = "tool", content_text(message.get("output"))
            message = {"tool_call_id": message.get("call_id")}
        if role == "exit" or "exit_status" in extra:
            end = _read_exit(extra, dated)
        elif role == "assistant":
            entries.append(reply := _read_reply(message, extra, body, len(entries), dated))
            waiting = list(reply.calls)
        elif role == "tool" or (role == "user" and waiting and "interrupt_type" not in extra):
            entries += _read_result(message, extra, body, waiting, dated)
        else:
            entries.append(Message(role, body, **dated))
    opening.task = opening.task or first_task(entries)
    return [*entries, end or _implied_exit(entries, text(info, "exit_status"), text(info, "submission"))]


def _response_message(response: dict[str, Any]) -> dict[str, Any]:
    """Convert a reply of the responses API to a message of the chat completions API."""
    body, thoughts, calls = "", "", []
    for item in rows(response, "output"):
        match item.get("type"):
            case "message":
                body += content_text(item.get("content"))
            case "reasoning":
                thoughts += content_text(item.get("summary"))
            case "function_call":
                function = {"name": item.get("name"), "arguments": item.get("arguments")}
                calls.append({"id": item.get("call_id"), "function": function})
    return {"content": body, "reasoning_content": thoughts, "tool_calls": calls}


def _read_reply(
    message: dict[str, Any], extra: dict[str, Any], body: str, place: int, dated: dict[str, Any]
) -> ModelReply:
    calls = read_calls(message, place)
    if not calls:
        commands = [text(action, "command") for action in rows(extra, "actions")] or _BLOCK.findall(body)
        calls = [
            RecordedCall(f"call_{place}_{n}", "bash", {"command": command})
            for n, command in enumerate(commands)
        ]
    response = extra.get("response")
    response = response if isinstance(response, dict) else {}
    choices = rows(response, "choices") or [{}]
    finish = choices[0].get("finish_reason")
    return ModelReply(
        body, text(message, "reasoning_content"), calls, _usage(response, extra),
        text(response, "model") or None, finish if isinstance(finish, str) else None, **dated,
    )  # fmt: skip


def _usage(response: dict[str, Any], extra: dict[str, Any]) -> ev.Usage | None:
    used, cost = response.get("usage"), number(extra, "cost")
    if used is None and cost is None:
        return None
    used = mapping(used, "usage")
    return ev.Usage(
        prompt_tokens=count(used, "prompt_tokens"),
        completion_tokens=count(used, "completion_tokens"),
        cached_tokens=count(mapping(used.get("prompt_tokens_details"), "usage"), "cached_tokens"),
        reasoning_tokens=count(mapping(used.get("completion_tokens_details"), "usage"), "reasoning_tokens"),
        cost=cost,
    )


def _read_result(
    message: dict[str, Any],
    extra: dict[str, Any],
    body: str,
    waiting: list[RecordedCall],
    dated: dict[str, Any],
) -> Iterator[RecordEntry]:
    call_id = text(message, "tool_call_id") or (waiting[0].id if waiting else "")
    call = next((call for call in waiting if call.id == call_id), None)
    if call is None:
        yield Message("user", body, **dated)
        return
    waiting.remove(call)
    shown, code = _CODE.search(body), number(extra, "returncode")
    code = float(shown[1]) if code is None and shown else code
    output, end, _ = body.partition("<output>")[2].rpartition("</output>")
    raw = text(extra, "raw_output") or (output.removeprefix("\n") if end else "")
    error = text(extra, "exception_info") or None
    yield CallResult(call.id, body, None if code is None else int(code), (raw, ""), error=error, **dated)


def _read_exit(extra: dict[str, Any], dated: dict[str, Any]) -> End:
    status, submission = text(extra, "exit_status"), text(extra, "submission")
    return End(_reason(status), submission or None, **dated)


def _reason(status: str) -> ev.StopReason | None:
    if status in ev.STOP_REASONS:
        return status  # type: ignore[return-value]
    return _STATUS.get(status, "error") if status else None


def _implied_exit(entries: Sequence[RecordEntry], status: str, submission: str) -> End:
    if not status:
        commands = [call.raw for entry in entries if isinstance(entry, ModelReply) for call in entry.calls]
        status = "Submitted" if commands and _SUBMIT_COMMAND in commands[-1] else ""
    return End(_reason(status), submission or None)
