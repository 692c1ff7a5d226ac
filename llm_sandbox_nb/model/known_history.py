"""What a model has to know of a whole history. Each request brings all of it, and only its new messages are read."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, Generic, TypeVar

_T = TypeVar("_T")
_KEPT = 64
"""Conversations that are kept: one for each of the runs that share a model at the same time."""

Message = dict[str, Any]


class PerConversation(Generic[_T]):
    """Something for each of the conversations that a model holds. Messages are never changed in place."""

    def __init__(self) -> None:
        self._kept: OrderedDict[int, _T] = OrderedDict()

    def get(self, messages: Sequence[Message]) -> _T | None:
        """What was kept for the conversation that `messages` may continue."""
        return self._kept.get(id(messages[0])) if messages else None

    def keep(self, messages: Sequence[Message], value: _T) -> None:
        """Keep `value`; it has to hold on to `messages`, by whose first one it is found."""
        if messages:
            self._kept[id(messages[0])] = value
            self._kept.move_to_end(id(messages[0]))
        while len(self._kept) > _KEPT:
            self._kept.popitem(last=False)


def same_beginning(old: list[Message], new: list[Message]) -> int:
    """How many messages both begin with. Lists compare the same objects without looking into them."""
    shorter = min(len(old), len(new))
    if old[:shorter] == new[:shorter]:
        return shorter
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False)))


class KnownHistory:
    """What was read of one history."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self.replies = 0
        """Messages of the assistant."""
        self.characters = 0
        """Of all texts and calls."""
        self.call_ids: set[str] = set()

    def continues(self, messages: list[Message]) -> bool:
        """Whether `messages` are those that were read, and perhaps more."""
        return same_beginning(self._messages, messages) == len(self._messages)

    def read(self, messages: list[Message]) -> None:
        """Read what is new in `messages`."""
        for message in messages[len(self._messages) :]:
            content = message.get("content") or ""
            self.characters += len(content if isinstance(content, str) else str(content))
            self.replies += message["role"] == "assistant"
            for call in message.get("tool_calls") or ():
                self.characters += len(call["function"]["name"]) + len(call["function"]["arguments"])
                self.call_ids.add(call.get("id", ""))
        self._messages = list(messages)


class KnownHistories:
    """The histories of the conversations that a model holds."""

    def __init__(self) -> None:
        self._known: PerConversation[KnownHistory] = PerConversation()

    def read(self, messages: list[Message]) -> KnownHistory:
        """What is to know of `messages`."""
        known = self._known.get(messages)
        if known is None or not known.continues(messages):
            known = KnownHistory()
        known.read(messages)
        self._known.keep(messages, known)
        return known
