"""Conversations as messages of Anthropic's API: `system`, `messages` with content blocks, and `tools`.

The format has no fields for other data of a run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from llm_sandbox_nb.formats.entries import (
    CallResult,
    Message,
    ModelReply,
    Opening,
    RecordedCall,
    RecordEntry,
    WrittenRecord,
    first_task,
    implied_end,
)
from llm_sandbox_nb.formats.openai_messages import messages_of
from llm_sandbox_nb.formats.received import arguments, content_text, mapping, rows, text

_BLOCKS = ("tool_use", "tool_result", "thinking", "redacted_thinking")


def fits(content: Any) -> bool:
    """Return True if parsed JSON is a conversation with a field `system`, or with a block type of this API alone."""
    messages = messages_of(content)
    if messages is None:
        return False
    blocks = [
        block
        for message in messages
        if isinstance(message.get("content"), list)
        for block in message["content"]
    ]
    has_own_block = any(isinstance(block, dict) and block.get("type") in _BLOCKS for block in blocks)
    return has_own_block or (isinstance(content, dict) and "system" in content)


def write(entries: Sequence[RecordEntry], branch: str = "", copied: Collection[int] = ()) -> WrittenRecord:
    """Write the document of a branch. All system messages are joined. Consecutive results become one user message."""
    system: list[str] = []
    messages: list[dict[str, Any]] = []
    tools: list[dict[str, Any]] = []
    for entry in entries:
        match entry:
            case Opening():
                tools = [_tool(tool) for tool in entry.tools]
            case Message(role="system" | "developer"):
                system.append(entry.content)
            case Message():
                _add(messages, "user", [{"type": "text", "text": entry.content}])
            case ModelReply():
                _add(messages, "assistant", list(_reply(entry)))
            case CallResult():
                block = {"type": "tool_result", "tool_use_id": entry.call_id, "content": entry.observation}
                failed = bool(entry.error or entry.timed_out)
                _add(messages, "user", [{**block, "is_error": True} if failed else block])
    document: dict[str, Any] = {"system": "\n\n".join(system), "messages": messages}
    return WrittenRecord(document | ({"tools": tools} if tools else {}))


def _add(messages: list[dict[str, Any]], role: str, blocks: list[dict[str, Any]]) -> None:
    """Add blocks to the last message if it has the same role, else to a new message. In this API, roles alternate."""
    if messages and messages[-1]["role"] == role:
        messages[-1]["content"] += blocks
    else:
        messages.append({"role": role, "content": blocks})


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    function = tool.get("function")
    function = function if isinstance(function, dict) else tool
    return {
        "name": function.get("name", ""),
        "description": function.get("description", ""),
        "input_schema": function.get("parameters", {"type": "object", "properties": {}}),
    }


def _reply(reply: ModelReply) -> Iterator[dict[str, Any]]:
    if reply.reasoning:
        yield {"type": "thinking", "thinking": reply.reasoning, "signature": ""}
    if reply.text or not reply.calls:
        yield {"type": "text", "text": reply.text}
    for call in reply.calls:
        yield {"type": "tool_use", "id": call.id, "name": call.tool, "input": call.arguments or {}}


def read(content: Any) -> list[RecordEntry]:
    root = {"messages": content} if isinstance(content, list) else mapping(content, "the conversation")
    opening = Opening(model=text(root, "model"), tools=[_read_tool(tool) for tool in rows(root, "tools")])
    entries: list[RecordEntry] = [opening]
    if system := content_text(root.get("system")):
        entries.append(Message("system", system))
    waiting: list[str] = []
    for message in rows(root, "messages"):
        given = message.get("content")
        blocks = [{"type": "text", "text": given}] if isinstance(given, str) else rows(message, "content")
        if message.get("role") == "assistant":
            entries.append(reply := _read_reply(blocks))
            waiting = [call.id for call in reply.calls]
        else:
            entries += _read_user(blocks, waiting)
    opening.task = first_task(entries)
    return [*entries, implied_end(entries)]


def _read_tool(tool: dict[str, Any]) -> dict[str, Any]:
    function = {"name": tool.get("name", ""), "description": tool.get("description", "")}
    return {"type": "function", "function": {**function, "parameters": tool.get("input_schema", {})}}


def _read_reply(blocks: list[dict[str, Any]]) -> ModelReply:
    reply = ModelReply()
    for block in blocks:
        match block.get("type"):
            case "thinking":
                reply.reasoning += text(block, "thinking")
            case "redacted_thinking":
                pass
            case "tool_use":
                given, raw = arguments(block.get("input"))
                reply.calls.append(RecordedCall(text(block, "id"), text(block, "name"), given, raw))
            case _:
                reply.text += content_text([block])
    return reply


def _read_user(blocks: list[dict[str, Any]], waiting: list[str]) -> Iterator[RecordEntry]:
    for block in blocks:
        if block.get("type") == "tool_result" and (call_id := text(block, "tool_use_id")) in waiting:
            waiting.remove(call_id)
            error = "failed" if block.get("is_error") is True else None
            yield CallResult(call_id, content_text(block.get("content")), error=error)
        else:
            content = block.get("content") if block.get("type") == "tool_result" else [block]
            yield Message("user", content_text(content))
