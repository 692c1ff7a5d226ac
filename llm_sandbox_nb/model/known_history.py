"""What is known of a conversation: of the whole history in each request only the new messages are read and converted.

LiteLLM and OpenAI's client walk through every message several times, which is most of the cost of a late request of a
long run. They change each message for itself, so they get the new ones only; the JSON of the others is put before
these when the body is made. The bytes sent are the same.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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


def compact_json(value: Any) -> str:
    """As OpenAI's client and httpx write it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


@dataclass(frozen=True)
class _Sent:
    """What a server has answered to."""

    messages: list[Message] = field(default_factory=list)
    converted: list[str] = field(default_factory=list)
    """Each of them as JSON."""
    ends: list[tuple[int, int]] = field(default_factory=list)
    """After how many messages a request ended, and the tokens of these messages."""


class SentHistories:
    """The conversations that one model holds."""

    def __init__(self) -> None:
        self._sent: PerConversation[_Sent] = PerConversation()

    def next_request(self, messages: list[Message], *, whole: bool = False) -> NextRequest:
        """The request that sends `messages`; with `whole` as if none of them had been sent before."""
        sent = None if whole else self._sent.get(messages)
        return NextRequest(self._sent, messages, sent or _Sent())


class NextRequest:
    """One request: `new` is what LiteLLM is to get of its messages."""

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
        """The JSON of `body`, in which the known messages stand before the new ones.

        `to_json` writes a value as the client would that sends it, so that the bytes are those that it would send.
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
        """The server has taken the request, whose messages have so many tokens."""
        if len(self._converted) == len(self._messages):  # else they were not sent through us, or were merged
            ends = [*self._ends, (len(self._messages), prompt_tokens)]
            self._kept.keep(self._messages, _Sent(list(self._messages), self._converted, ends))
