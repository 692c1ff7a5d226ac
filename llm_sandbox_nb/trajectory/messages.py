"""Functions that add, replace and shorten messages of a conversation.

The agent loop and the reader of a record use the same functions, so that a conversation is rebuilt exactly as sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llm_sandbox_nb.trajectory.events import ContextReduced


class ResultsMessage(dict[str, Any]):
    """A user message with the results of text calls, and with the user messages that followed these results.

    Text calls are calls that the model wrote as text.
    """

    def __init__(self, parts: dict[str, str]) -> None:
        super().__init__(role="user", content="\n\n".join(parts.values()))
        self.parts = parts
        """Parts of the message: results by their call ids, and texts of user messages by other keys."""


def is_one_result(message: Mapping[str, Any]) -> bool:
    """Return True if a message has the result of one text call, and nothing else."""
    return isinstance(message, ResultsMessage) and len(message.parts) == 1


def add_result(messages: list[dict[str, Any]], call_id: str, observation: str, *, in_text: bool) -> None:
    """Add the result of a call to a conversation. `in_text` is True if the call was written as text."""
    if not in_text:
        messages.append(tool_message(call_id, observation))
    elif messages and isinstance(last := messages[-1], ResultsMessage):
        messages[-1] = ResultsMessage({**last.parts, call_id: observation})
    else:
        messages.append(ResultsMessage({call_id: observation}))


def add_message(messages: list[dict[str, Any]], message: dict[str, Any]) -> None:
    """Add a message. A user message is joined with the results of text calls before it, which are a user message too.

    Some servers refuse two user messages in a row."""
    if message.get("role") == "user" and messages and isinstance(last := messages[-1], ResultsMessage):
        messages[-1] = ResultsMessage({**last.parts, f"said {len(last.parts)}": message_text(message)})
    else:
        messages.append(message)


def show_instead(messages: list[dict[str, Any]], call_id: str, observation: str) -> None:
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        if isinstance(message, ResultsMessage) and call_id in message.parts:
            messages[index] = ResultsMessage({**message.parts, call_id: observation})
            return
        if message.get("role") == "tool" and message.get("tool_call_id") == call_id:
            messages[index] = tool_message(call_id, observation)
            return


def reduced_messages(messages: Sequence[dict[str, Any]], event: ContextReduced) -> list[dict[str, Any]]:
    """Return the messages that are sent after `event`. Indexes that do not exist are ignored."""
    sent = list(messages)
    removed = sent[max(0, event.removed_from) : max(0, event.removed_to)]
    results_left_out = event.how == "repeats" and any(isinstance(one, ResultsMessage) for one in removed)
    for change in event.shown:
        if 0 <= change.at < len(sent):
            message = sent[change.at]
            # A message with results has this type, so that later user messages can be joined.
            if isinstance(message, ResultsMessage) or results_left_out:
                sent[change.at] = ResultsMessage({"shown": change.content})
            else:
                sent[change.at] = {**message, "content": change.content}
    if 0 <= event.removed_from <= event.removed_to:
        del sent[event.removed_from : event.removed_to]
    return sent


def tool_message(call_id: str, observation: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": observation}


def without_malformed_calls(reply: dict[str, Any]) -> dict[str, Any]:
    """Return a recorded reply without calls that cannot be sent again, because the record may come from anyone."""
    calls = reply.get("tool_calls")
    well_formed = _well_formed_calls(reply)
    if not calls or calls == well_formed:
        return reply
    others = {key: value for key, value in reply.items() if key != "tool_calls"}
    return {**others, "tool_calls": well_formed} if well_formed else others


def call_ids(message: dict[str, Any]) -> list[str]:
    """Return the ids of the calls in a reply. Malformed calls are skipped."""
    return [call["id"] for call in _well_formed_calls(message)]


def _well_formed_calls(reply: dict[str, Any]) -> list[dict[str, Any]]:
    calls = reply.get("tool_calls")
    return [call for call in calls if _is_well_formed(call)] if isinstance(calls, list) else []


def _is_well_formed(call: Any) -> bool:
    match call:
        case {"id": str(), "function": {"name": str(), "arguments": str()}}:
            return True
    return False


def message_text(message: dict[str, Any]) -> str:
    """Return the plain text of a message whose content is a string or a list of parts."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return "".join(text for text in texts if isinstance(text, str))
