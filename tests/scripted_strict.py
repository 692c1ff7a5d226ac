"""What strict providers reject in a request."""

from __future__ import annotations

import json
import re
from typing import Any


class StrictError(Exception):
    """The request breaks a rule; says which."""


_FIELDS = {
    "model", "messages", "tools", "tool_choice", "parallel_tool_calls", "stream", "stream_options",
    "temperature", "top_p", "max_tokens", "max_completion_tokens", "reasoning_effort", "stop",
}  # fmt: skip
_SAMPLING = {"top_k", "min_p", "repetition_penalty"}
_MESSAGE_FIELDS = {
    "system": {"role", "content"},
    "user": {"role", "content"},
    "assistant": {"role", "content", "tool_calls"},
    "tool": {"role", "content", "tool_call_id"},
}


def check_request(body: dict[str, Any], extra_fields: tuple[str, ...] = ()) -> None:
    """Raise StrictError when a strict OpenAI-compatible server would refuse the request."""
    if unknown := set(body) - _FIELDS - _SAMPLING - set(extra_fields):
        raise StrictError(f"Unrecognized request arguments supplied: {sorted(unknown)}")
    if not isinstance(body.get("model"), str) or not body.get("messages"):
        raise StrictError("model and messages are required")
    waiting: list[str] = []
    seen: set[str] = set()
    for message in body["messages"]:
        waiting = _check_message(message, waiting, seen, extra_fields)
    if waiting:
        raise StrictError(f"tool_call_ids did not have response messages: {waiting}")


def _check_message(
    message: dict[str, Any], waiting: list[str], seen: set[str], extra_fields: tuple[str, ...]
) -> list[str]:
    role = message.get("role")
    if role not in _MESSAGE_FIELDS:
        raise StrictError(f"unknown role {role!r}")
    if unknown := set(message) - _MESSAGE_FIELDS[role] - set(extra_fields):
        raise StrictError(f"property {sorted(unknown)} is unsupported in a {role} message")
    if not isinstance(message.get("content", ""), str | list | None):
        raise StrictError(f"content of a {role} message has the wrong type")
    if role == "tool":
        if message.get("tool_call_id") not in waiting:
            raise StrictError(f"tool message for {message.get('tool_call_id')!r}, which is not waited for")
        return [identity for identity in waiting if identity != message["tool_call_id"]]
    if waiting:
        raise StrictError(f"tool_call_ids did not have response messages: {waiting}")
    if role == "assistant" and not message.get("content") and not message.get("tool_calls"):
        raise StrictError("an assistant message has neither content nor tool_calls")
    return [_check_call(call, seen) for call in message.get("tool_calls") or ()]


def _check_call(call: dict[str, Any], seen: set[str]) -> str:
    function = call.get("function") or {}
    if set(call) != {"id", "type", "function"} or set(function) != {"name", "arguments"}:
        raise StrictError(f"tool call with the wrong fields: {sorted(call)} {sorted(function)}")
    if not call["id"] or call["id"] in seen:
        raise StrictError(f"tool call id {call['id']!r} is empty or was used before")
    if not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", function["name"]):
        raise StrictError(f"{function['name']!r} does not match the pattern of a function's name")
    try:
        arguments = json.loads(function["arguments"])
    except (TypeError, ValueError):
        arguments = None
    if not isinstance(arguments, dict):
        raise StrictError(
            f"arguments of a tool call are not the text of a JSON object: {function['arguments']!r}"
        )
    seen.add(call["id"])
    return str(call["id"])


_ANTHROPIC_FIELDS = {
    "model", "messages", "system", "tools", "tool_choice", "stream", "max_tokens", "temperature", "top_p",
    "top_k", "thinking", "metadata",
}  # fmt: skip


def check_anthropic_request(body: dict[str, Any]) -> None:
    if unknown := set(body) - _ANTHROPIC_FIELDS:
        raise StrictError(f"{sorted(unknown)}: Extra inputs are not permitted")
    waiting: set[str] = set()
    for message in body["messages"]:
        blocks = message["content"] if isinstance(message["content"], list) else []
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        if set(results) != waiting or len(results) != len(waiting):
            raise StrictError("`tool_use` ids were found without `tool_result` blocks immediately after")
        if any(block["type"] == "text" and not block["text"].strip() for block in blocks):
            raise StrictError("text content blocks must be non-empty")
        waiting = {block["id"] for block in blocks if block["type"] == "tool_use"}
    if waiting:
        raise StrictError("`tool_use` ids were found without `tool_result` blocks immediately after")
