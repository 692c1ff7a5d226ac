"""Conversion of the history to the form that a server accepts: its message fields, roles and call ids."""

from __future__ import annotations

import functools
import hashlib
import re
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

SendReasoning = Literal["auto", "none", "reasoning_content", "thinking_blocks"]
"""Field of an assistant message in which reasoning is sent back to the provider. With `auto`, the field depends on the
provider. With `none`, no reasoning is sent back."""

REASONING = ("reasoning_content", "reasoning", "thinking", "reasoning_text", "reasoning_details")
"""Fields in which servers send reasoning. Only servers that need reasoning get it back: others refuse it."""
NOTHING_SAID = "(nothing)"
"""Content in the history for a reply that has no text and no calls, because servers refuse an empty message."""
_STANDARD_FIELDS = {
    "system": ("content",),
    "user": ("content",),
    "tool": ("tool_call_id", "content"),
    "assistant": ("content", "tool_calls"),
}
_NOT_SENT = frozenset(
    {
        "role", "content", "tool_calls", "function_call", "thinking_blocks", "provider_specific_fields", "refusal",
        "audio", "annotations", *REASONING,
    }
)  # fmt: skip
"""Known fields of a reply. `MessageForm.unknown_fields` does not apply to them: other code decides about each."""


@dataclass(frozen=True)
class MessageForm:
    """Form of the messages to one server. It depends on the provider, and on earlier refusals of the server."""

    reasoning: SendReasoning | str = "none"
    """Field in which reasoning is sent back."""
    unknown_fields: bool = False
    """True to send back those fields of the server's messages and calls that this package does not know."""
    short_ids: bool = False
    """True to send call ids as 9 letters and digits, which every server accepts."""
    dropped: frozenset[str] = frozenset()
    """Fields that the server refused."""
    wanted: frozenset[str] = frozenset()
    """Fields without which the server refused a request, such as `name` of a tool message, or `content`."""
    no_system: bool = False
    """True to move the system message into the first message of the user."""
    alternate: bool = False
    """True to merge consecutive messages of the same role."""

    @property
    def depends_on_others(self) -> bool:
        """True if the form of a message depends on other messages, so that all messages must be converted."""
        return self.no_system or self.alternate or "name" in self.wanted


ReasoningOf = Callable[[dict[str, Any]], str]
"""Function that returns the reasoning of an assistant message, even if the history does not contain the reasoning."""


def clean_messages(
    messages: list[dict[str, Any]], form: MessageForm, reasoning_of: ReasoningOf | None = None
) -> list[dict[str, Any]]:
    """Convert the history to the form that the server accepts."""
    names = _called_names(messages) if "name" in form.wanted else {}
    cleaned = [_clean(message, form, reasoning_of, names) for message in messages]
    if form.no_system:
        cleaned = _system_into_user(cleaned)
    return _alternating(cleaned) if form.alternate else cleaned


def _clean(
    message: dict[str, Any], form: MessageForm, reasoning_of: ReasoningOf | None, names: Mapping[str, str]
) -> dict[str, Any]:
    role = message["role"]
    cleaned = {"role": role} | {
        key: message[key] for key in _STANDARD_FIELDS.get(role, ("content",)) if key in message
    }
    if role == "tool":
        if "name" in form.wanted:
            cleaned["name"] = names.get(str(message.get("tool_call_id")), "tool")
        if form.short_ids and isinstance(cleaned.get("tool_call_id"), str):
            cleaned["tool_call_id"] = short_id(cleaned["tool_call_id"])
    if role != "assistant":
        return cleaned
    if message.get(form.reasoning):
        cleaned[form.reasoning] = message[form.reasoning]
    elif form.reasoning in form.wanted:
        cleaned[form.reasoning] = reasoning_of(message) if reasoning_of else ""
    if form.unknown_fields:
        cleaned |= {
            key: value for key, value in message.items() if key not in _NOT_SENT and key not in form.dropped
        }
    if calls := cleaned.get("tool_calls"):
        cleaned["tool_calls"] = [_clean_call(call, form) for call in calls]
        if "content" in form.wanted and not cleaned.get("content"):
            cleaned["content"] = ""
    elif not cleaned.get("content"):
        cleaned["content"] = NOTHING_SAID
    return cleaned


def _clean_call(call: dict[str, Any], form: MessageForm) -> dict[str, Any]:
    if form.unknown_fields:
        cleaned = {key: value for key, value in call.items() if key not in form.dropped}
    else:
        cleaned = {
            key: call[key] for key in ("id", "type", "function", "provider_specific_fields") if key in call
        }
    if form.short_ids and isinstance(cleaned.get("id"), str):
        cleaned["id"] = short_id(cleaned["id"])
    if "thought_signature" in form.wanted and not call.get("extra_content"):
        # Google documents this value for calls that were not made by a model of Google.
        cleaned["extra_content"] = {"google": {"thought_signature": "skip_thought_signature_validator"}}
    return cleaned


def _called_names(messages: list[dict[str, Any]]) -> dict[str, str]:
    """Return the tool name of each call, by call id."""
    calls = [call for message in messages for call in message.get("tool_calls") or ()]
    return {str(call.get("id")): call["function"]["name"] for call in calls}


_SHORT_ID = re.compile(r"[A-Za-z0-9]{9}|functions\.[\w-]+:\d+")
"""Matches call ids that are sent unchanged. The chat template of Kimi's models reads the tool name from the id."""
_LETTERS = string.ascii_letters + string.digits


@functools.lru_cache(maxsize=4096)
def short_id(identity: str) -> str:
    """Convert a call id to 9 letters and digits. The same id always gives the same result.

    An id that matches `_SHORT_ID` is returned unchanged.
    """
    if _SHORT_ID.fullmatch(identity):
        return identity
    number = int.from_bytes(hashlib.sha256(identity.encode("utf-8", "replace")).digest()[:16])
    return "".join(_LETTERS[number // len(_LETTERS) ** place % len(_LETTERS)] for place in range(9))


def _system_into_user(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Move the system text to the beginning of the first message of the user."""
    texts = [str(message["content"]) for message in messages if message["role"] == "system"]
    rest = [message for message in messages if message["role"] != "system"]
    if not texts:
        return rest
    first = next((place for place, message in enumerate(rest) if message["role"] == "user"), None)
    if first is None:
        return [{"role": "user", "content": "\n\n".join(texts)}, *rest]
    joined = "\n\n".join([*texts, str(rest[first]["content"])])
    return [*rest[:first], {**rest[first], "content": joined}, *rest[first + 1 :]]


def _alternating(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge consecutive messages of the same role, if they have no calls.

    A user message directly after a tool result is appended to this result.
    """
    found: list[dict[str, Any]] = []
    for message in messages:
        last = found[-1] if found else {}
        same = message["role"] == last.get("role") and message["role"] in ("user", "assistant")
        calls = message.get("tool_calls") or last.get("tool_calls")
        if (same and not calls) or (message["role"] == "user" and last.get("role") == "tool"):
            found[-1] = {**last, "content": f"{last.get('content') or ''}\n\n{message.get('content') or ''}"}
        else:
            found.append(message)
    return found
