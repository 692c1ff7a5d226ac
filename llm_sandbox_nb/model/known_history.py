"""Caches for the histories of conversations, so that each request reads and converts only the new messages."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any, Generic, TypeVar

_T = TypeVar("_T")
_MAX_CONVERSATIONS = 64
"""Maximum number of conversations in a cache. If more runs share a model, some requests read all messages again."""

Message = dict[str, Any]


class PerConversation(Generic[_T]):
    """Cache with one value for each conversation of a model. The first message object identifies the conversation.

    Callers must not change messages in place.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[int, _T] = OrderedDict()

    def get(self, messages: Sequence[Message]) -> _T | None:
        """Return the value that was stored for this conversation, or None."""
        return self._kept.get(id(messages[0])) if messages else None

    def keep(self, messages: Sequence[Message], value: _T) -> None:
        """Store `value` under the `id` of the first message.

        The value must hold references to the messages. Otherwise, Python could give the `id` to another object later.
        """
        if messages:
            self._kept[id(messages[0])] = value
            self._kept.move_to_end(id(messages[0]))
        while len(self._kept) > _MAX_CONVERSATIONS:
            self._kept.popitem(last=False)


def same_beginning(old: list[Message], new: list[Message]) -> int:
    """Return the number of messages at the beginning that are equal in both lists."""
    shorter = min(len(old), len(new))
    # This is fast, because the comparison of lists skips the content of identical objects.
    if old[:shorter] == new[:shorter]:
        return shorter
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False)))


class KnownHistory:
    """Number of replies, number of characters, and call ids of one history."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self.replies = 0
        """Number of messages of the assistant."""
        self.characters = 0
        """Number of characters of all texts and calls."""
        self.call_ids: set[str] = set()

    def continues(self, messages: list[Message]) -> bool:
        """Return True if `messages` begin with all messages that `read` has counted."""
        return same_beginning(self._messages, messages) == len(self._messages)

    def read(self, messages: list[Message]) -> None:
        """Count the messages that `read` has not counted before. `messages` is the whole history."""
        for message in messages[len(self._messages) :]:
            content = message.get("content") or ""
            self.characters += len(content if isinstance(content, str) else str(content))
            self.replies += message["role"] == "assistant"
            for call in message.get("tool_calls") or ():
                self.characters += len(call["function"]["name"]) + len(call["function"]["arguments"])
                self.call_ids.add(call.get("id", ""))
        self._messages = list(messages)


class KnownHistories:
    """Cache of known histories, for the conversations of a model."""

    def __init__(self) -> None:
        self._known: PerConversation[KnownHistory] = PerConversation()

    def read(self, messages: list[Message]) -> KnownHistory:
        """Return the counts and call ids of `messages`."""
        known = self._known.get(messages)
        if known is None or not known.continues(messages):
            known = KnownHistory()
        known.read(messages)
        self._known.keep(messages, known)
        return known


def compact_json(value: Any) -> str:
    """Convert a value to JSON without spaces, as OpenAI's client and httpx do."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


class SentHistories:
    """Cache of messages that were already converted to JSON, for the conversations of a model."""

    def __init__(self) -> None:
        self._sent: PerConversation[tuple[list[Message], list[str]]] = PerConversation()

    def to_json(self, messages: list[Message], convert: Callable[[list[Message]], list[Message]]) -> str:
        """Return the messages, converted by `convert`, as a JSON list.

        `convert` is called with the new messages only, so it must convert each message independently of the others.
        """
        known, written = self._sent.get(messages) or ([], [])
        same = same_beginning(known, messages)
        written = [*written[:same], *map(compact_json, convert(messages[same:]))]
        self._sent.keep(messages, (list(messages), written))
        return f"[{','.join(written)}]"
