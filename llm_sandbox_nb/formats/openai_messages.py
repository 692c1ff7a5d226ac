"""A conversation as the messages of OpenAI's chat completions API: what a model is trained on.

It is written as an object with `messages` and `tools`; a list of messages, and such an object in a line of its own
(JSON lines), are read too. There is no room for anything else of a run.
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
    """The messages of a list, or of an object with them; None where it holds something else."""
    messages = content.get("messages") if isinstance(content, dict) else content
    if not isinstance(messages, list) or not messages:
        return None
    if not all(isinstance(one, dict) and one.get("role") in _ROLES for one in messages):
        return None
    return messages


def fits(content: Any) -> bool:
    """Whether JSON is such a conversation. One without calls has this form and Anthropic's."""
    return messages_of(content) is not None


def write(entries: Sequence[RecordEntry], branch: str = "", copied: Collection[int] = ()) -> WrittenRecord:
    """The document of a branch."""
    tools = next((entry.tools for entry in entries if isinstance(entry, Opening)), [])
    document: dict[str, Any] = {"messages": conversation(entries)}
    return WrittenRecord(document | ({"tools": tools} if tools else {}))


def read(content: Any) -> list[RecordEntry]:
    """The entries of a document. Raises ValueError where a part is of another kind."""
    root = {"messages": content} if isinstance(content, list) else mapping(content, "the conversation")
    opening = Opening(tools=rows(root, "tools"), model=text(root, "model"))
    entries: list[RecordEntry] = [opening]
    waiting: list[str] = []
    for message in rows(root, "messages"):
        role, said = text(message, "role"), content_text(message.get("content"))
        if role == "assistant":
            calls = _calls(message, len(entries))
            waiting = [call.id for call in calls]
            entries.append(
                ModelReply(said, text(message, "reasoning_content") or text(message, "reasoning"), calls)
            )
        elif role in ("tool", "function"):
            call_id = text(message, "tool_call_id") or next(iter(waiting), "")
            if call_id in waiting:
                waiting.remove(call_id)
                entries.append(CallResult(call_id, said))
            else:
                entries.append(Message("user", said))
        else:
            entries.append(Message(role, said))
    opening.task = first_task(entries)
    return [*entries, implied_end(entries)]


def _calls(message: dict[str, Any], place: int) -> list[RecordedCall]:
    found = []
    for number, call in enumerate(rows(message, "tool_calls")):
        function = mapping(call.get("function"), "function")
        given, raw = arguments(function.get("arguments"))
        found.append(
            RecordedCall(text(call, "id") or f"call_{place}_{number}", text(function, "name"), given, raw)
        )
    older = message.get("function_call")
    if older is not None and not found:
        function = mapping(older, "function_call")
        given, raw = arguments(function.get("arguments"))
        found.append(RecordedCall(f"call_{place}", text(function, "name"), given, raw))
    return found
