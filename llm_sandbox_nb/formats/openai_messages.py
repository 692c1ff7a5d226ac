"""Conversations as messages of OpenAI's chat completions API, which is the usual form of training data.

A run is written as an object with `messages` and `tools`. Plain lists of messages, and JSON lines with such objects,
can be read too. The format has no fields for other data of a run.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from llm_sandbox_nb.formats.entries import (
    CallResult,
    Message,
    ModelReply,
    Opening,
    RecordedCall,
    RecordEntry,
    WrittenRecord,
    conversation,
    first_task,
    implied_end,
)
from llm_sandbox_nb.formats.received import arguments, content_text, mapping, rows, text

_ROLES = ("system", "developer", "user", "assistant", "tool", "function")


def messages_of(content: Any) -> list[dict[str, Any]] | None:
    """Return the messages in parsed JSON: in a list, or in an object with `messages`. Return None for other values."""
    messages = content.get("messages") if isinstance(content, dict) else content
    if not isinstance(messages, list) or not messages:
        return None
    if not all(isinstance(message, dict) and message.get("role") in _ROLES for message in messages):
        return None
    return messages


def fits(content: Any) -> bool:
    """Return True if parsed JSON is a conversation. A conversation without calls may also be in Anthropic's format."""
    return messages_of(content) is not None


def write(entries: Sequence[RecordEntry], branch: str = "", copied: Collection[int] = ()) -> WrittenRecord:
    tools = next((entry.tools for entry in entries if isinstance(entry, Opening)), [])
    document: dict[str, Any] = {"messages": conversation(entries)}
    return WrittenRecord(document | ({"tools": tools} if tools else {}))


def read(content: Any) -> list[RecordEntry]:
    root = {"messages": content} if isinstance(content, list) else mapping(content, "the conversation")
    opening = Opening(tools=rows(root, "tools"), model=text(root, "model"))
    entries: list[RecordEntry] = [opening]
    waiting: list[str] = []
    for message in rows(root, "messages"):
        role, body = text(message, "role"), content_text(message.get("content"))
        if role == "assistant":
            calls = read_calls(message, len(entries)) or _function_call(message, len(entries))
            waiting = [call.id for call in calls]
            entries.append(
                ModelReply(body, text(message, "reasoning_content") or text(message, "reasoning"), calls)
            )
        elif role in ("tool", "function"):
            call_id = text(message, "tool_call_id") or next(iter(waiting), "")
            if call_id in waiting:
                waiting.remove(call_id)
                entries.append(CallResult(call_id, body))
            else:
                entries.append(Message("user", body))
        else:
            entries.append(Message(role, body))
    opening.task = first_task(entries)
    return [*entries, implied_end(entries)]


def read_calls(message: dict[str, Any], place: int) -> list[RecordedCall]:
    """Return the `tool_calls` of a message. A call without an id gets an id from `place`, the index of the entry."""
    calls = []
    for number, call in enumerate(rows(message, "tool_calls")):
        id = text(call, "id") or f"call_{place}_{number}"
        calls.append(_call(id, mapping(call.get("function"), "function")))
    return calls


def _function_call(message: dict[str, Any], place: int) -> list[RecordedCall]:
    """Return the call in the field `function_call`, an older form of the API, or an empty list."""
    function = message.get("function_call")
    return [] if function is None else [_call(f"call_{place}", mapping(function, "function_call"))]


def _call(id: str, function: dict[str, Any]) -> RecordedCall:
    given, raw = arguments(function.get("arguments"))
    return RecordedCall(id, text(function, "name"), given, raw)
