"""Known parts of conversations, so that each request reads and converts only the new messages.

LiteLLM and OpenAI's client read every message several times, which is most of the cost of a late request of a long
run. They convert each message independently, so they get only the new messages; the JSON of the known messages is
added when the body is made. The bytes sent are the same.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Generic, TypeVar

_T = TypeVar("_T")
_MAX_CONVERSATIONS = 64
"""Maximum number of stored conversations, which is also the number of runs that can share a model efficiently."""

Message = dict[str, Any]


class PerConversation(Generic[_T]):
    """Cache of a value for each conversation of a model. Messages are never changed in place."""

    def __init__(self) -> None:
        self._kept: OrderedDict[int, _T] = OrderedDict()

    def get(self, messages: Sequence[Message]) -> _T | None:
        """Return the value of the conversation that `messages` may continue."""
        return self._kept.get(id(messages[0])) if messages else None

    def keep(self, messages: Sequence[Message], value: _T) -> None:
        """Store `value`, which must hold a reference to `messages`: the key is the id of the first message."""
        if messages:
            self._kept[id(messages[0])] = value
            self._kept.move_to_end(id(messages[0]))
        while len(self._kept) > _MAX_CONVERSATIONS:
            self._kept.popitem(last=False)


def same_beginning(old: list[Message], new: list[Message]) -> int:
    """Return the number of equal messages at the beginning of both lists."""
    shorter = min(len(old), len(new))
    # Fast: comparing lists skips the content of identical objects.
    if old[:shorter] == new[:shorter]:
        return shorter
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False)))


class KnownHistory:
    """Counts and ids of one history."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self.replies = 0
        """Number of messages of the assistant."""
        self.characters = 0
        """Number of characters of all texts and calls."""
        self.call_ids: set[str] = set()

    def continues(self, messages: list[Message]) -> bool:
        """Return True if `messages` begin with all messages that were read."""
        return same_beginning(self._messages, messages) == len(self._messages)

    def read(self, messages: list[Message]) -> None:
        """Read the new messages in `messages`."""
        for message in messages[len(self._messages) :]:
            content = message.get("content") or ""
            self.characters += len(content if isinstance(content, str) else str(content))
            self.replies += message["role"] == "assistant"
            for call in message.get("tool_calls") or ():
                self.characters += len(call["function"]["name"]) + len(call["function"]["arguments"])
                self.call_ids.add(call.get("id", ""))
        self._messages = list(messages)


class KnownHistories:
    """Known histories of the conversations of a model."""

    def __init__(self) -> None:
        self._known: PerConversation[KnownHistory] = PerConversation()

    def read(self, messages: list[Message]) -> KnownHistory:
        """Return the counts and ids of `messages`."""
        known = self._known.get(messages)
        if known is None or not known.continues(messages):
            known = KnownHistory()
        known.read(messages)
        self._known.keep(messages, known)
        return known


def compact_json(value: Any) -> str:
    """Write JSON exactly like OpenAI's client and httpx."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


@dataclass(frozen=True)
class _Sent:
    """Messages that a server has answered."""

    messages: list[Message] = field(default_factory=list)
    converted: list[str] = field(default_factory=list)
    """JSON of each message."""
    ends: list[tuple[int, int]] = field(default_factory=list)
    """Number of messages of each request, and the tokens of these messages."""


class SentHistories:
    """Sent messages of the conversations of a model."""

    def __init__(self) -> None:
        self._sent: PerConversation[_Sent] = PerConversation()

    def next_request(self, messages: list[Message], *, whole: bool = False) -> NextRequest:
        """Make the request that sends `messages`; `whole` converts all messages, including known ones."""
        sent = None if whole else self._sent.get(messages)
        return NextRequest(self._sent, messages, sent or _Sent())


class NextRequest:
    """Request in which LiteLLM gets only the messages in `new`."""

    def __init__(self, kept: PerConversation[_Sent], messages: list[Message], sent: _Sent) -> None:
        self._kept = kept
        self._messages = messages
        most = min(same_beginning(sent.messages, messages), len(messages) - 1)
        self._ends = list(sent.ends)
        while self._ends and self._ends[-1][0] > most:
            self._ends.pop()
        known, self.known_tokens = self._ends[-1] if self._ends else (0, 0)
        self.new = messages[known:]
        self._converted = sent.converted[:known]

    def whole_body(self, body: Mapping[str, Any], to_json: Callable[[Any], str] = compact_json) -> bytes:
        """Return the JSON of `body` with the known messages before the new ones.

        `to_json` writes a value exactly like the client that sends the body.
        """
        self._converted += map(to_json, body["messages"])
        comma, colon = (to_json([0, 0])[2:-2], to_json({"": 0})[3:-2])
        messages = f"[{comma.join(self._converted)}]"
        fields = (
            to_json(name) + colon + (messages if name == "messages" else to_json(value))
            for name, value in body.items()
        )
        return f"{{{comma.join(fields)}}}".encode()

    def answered(self, prompt_tokens: int) -> None:
        """Store the messages of an accepted request, which have `prompt_tokens` tokens."""
        if len(self._converted) == len(
            self._messages
        ):  # otherwise another client sent them, or they were merged
            ends = [*self._ends, (len(self._messages), prompt_tokens)]
            self._kept.keep(self._messages, _Sent(list(self._messages), self._converted, ends))
