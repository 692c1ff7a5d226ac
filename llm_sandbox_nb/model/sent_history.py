"""What was sent of each conversation, as JSON: each request has the whole history, but only new messages are converted.

LiteLLM and OpenAI's client walk through every message several times, which is most of the cost of a late request of a
long run. They change each message for itself, so they get the new ones only; the JSON of the others is put before
these when the body is made. The bytes sent are the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from llm_sandbox_nb.model.known_history import Message, PerConversation, same_beginning


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
