"""What a model's server turned out to want or to refuse: learned from its refusals, kept for all further requests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from llm_sandbox_nb.model.errors import Failure
from llm_sandbox_nb.model.message_form import REASONING, MessageForm
from llm_sandbox_nb.model.request import SETTINGS


def _pattern(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE)


_NO_SYSTEM = _pattern(
    r"system[ _](?:role|message|prompt|instruction)s?[^.]{0,40}(?:not|un)[ ]?(?:supported|allowed|enabled|valid)",
    r"does(?: not|n't) support (?:the )?['\"`]?system", r"developer instruction is not enabled",
    r"only user and assistant roles", r"'system' found using 'role'",
    r"(?:unknown|unexpected|invalid|unsupported)(?: message)? role:? *['\"`]?system",
)  # fmt: skip
_ALTERNATE = _pattern(
    r"roles? must alternate", r"must alternate (?:user|between)", r"alternating (?:user|roles)",
    r"unexpected role ['\"`]?user['\"`]? after role ['\"`]?tool",
    r"(?:consecutive|successive) (?:user|assistant|messages)",
)  # fmt: skip
_SYSTEM_MAY_BE = _pattern(r"after the optional system message")
_MISSING = _pattern(
    r"\bmissing\b", r"\brequired\b", r"must be (?:passed|sent|provided|included|returned|present)",
    r"must (?:have|include|contain)",
    r"(?:has|have|needs?) to be passed", r"\bnot (?:provided|found|present|passed)\b", r"should be a valid string",
)  # fmt: skip
_REFUSED = _pattern(
    r"(?:unsupported|unrecognized|unknown|invalid)[_ ](?:name|parameter|request argument|argument|field|property|key)",
    r"extra_forbidden|extra (?:inputs|fields) (?:are )?not permitted|was unexpected|additional properties",
    r"is (?:not (?:supported|allowed|permitted)|unsupported)|does not support|cannot find field",
)
_CAN_BE_REFUSED = SETTINGS | {"stream", "stream_options"}
_DROPPABLE = re.compile(r"(?!(?:role|content|tool_calls|id|type|function)\Z)[\w.-]{1,100}", re.ASCII)
_CAN_BE_WANTED = (*REASONING, "thought_signature", "name", "content")
_STATUSES = (400, 404, 422, 500)


@dataclass
class ServerHabits:
    """What was learned about a model's server."""

    refused: set[str] = field(default_factory=set)
    """Names of fields of a request that it does not take."""
    silent_ends: int = 0
    """How many replies in a row had no mark of their end. One alone may be a connection that was cut."""
    calls_natively: bool = False
    """Whether its model has made a call that is none of text."""
    answered: bool = False
    """Whether it has answered a request."""
    dropped: set[str] = field(default_factory=set)
    """Names of fields of its own replies that it refuses in the history."""
    wanted: set[str] = field(default_factory=set)
    """Names of fields of messages that it missed."""
    no_system: bool = False
    """Whether it takes no system message."""
    alternate: bool = False
    """Whether messages of user and assistant have to alternate."""

    def recorded(self) -> dict[str, Any]:
        """What refusals have taught, as JSON."""
        names = {"refused": self.refused, "dropped": self.dropped, "wanted": self.wanted}
        flags = {"no_system": self.no_system, "alternate": self.alternate}
        known = {name: sorted(value) for name, value in names.items() if value}
        return known | {name: True for name, value in flags.items() if value}

    def recall(self, recorded: Mapping[str, Any]) -> None:
        """Know again what was recorded, as far as it can be true: whoever made the record may be anybody."""
        for name, known in (
            ("refused", _CAN_BE_REFUSED),
            ("wanted", frozenset(_CAN_BE_WANTED)),
            ("dropped", None),
        ):
            listed = recorded.get(name)
            for value in listed if isinstance(listed, list) else ():
                fits = isinstance(value, str) and (value in known if known else _DROPPABLE.fullmatch(value))
                if fits:
                    getattr(self, name).add(value)
        self.no_system = self.no_system or recorded.get("no_system") is True
        self.alternate = self.alternate or recorded.get("alternate") is True

    def form(self, reasoning: str, *, openai_compatible: bool) -> MessageForm:
        """How it wants the history. `reasoning` is the field for reasoning before anything was learned."""
        missed = next((name for name in REASONING if name in self.wanted), None)
        return MessageForm(
            reasoning=missed or reasoning,
            unknown_fields=openai_compatible,
            short_ids=openai_compatible,
            dropped=frozenset(self.dropped),
            wanted=frozenset(self.wanted),
            no_system=self.no_system,
            alternate=self.alternate,
        )

    def learn(self, failure: Failure, messages: list[dict[str, Any]]) -> str | None:
        """Learn what a refusal says of the messages; returns it in words, or None when there is nothing new."""
        if failure.status not in _STATUSES:
            return None
        said = failure.text
        if self._takes_no_system(said, messages):
            self.no_system = True
            self.alternate = self.alternate or bool(_ALTERNATE.search(said))
            return "takes no system message: its text goes into the first message of the user from now on"
        if _ALTERNATE.search(said) and not self.alternate and not _has_results(messages, said):
            self.alternate = True
            return "wants user and assistant to alternate: messages in a row become one from now on"
        if failure.status == 500:
            return None
        return self._learn_field(said, messages)

    def refuses_results(self, failure: Failure, messages: list[dict[str, Any]]) -> bool:
        """Whether the server takes no messages with the results of calls, because roles have to alternate."""
        return (
            failure.status in _STATUSES
            and bool(_ALTERNATE.search(failure.text))
            and _has_results(messages, failure.text)
        )

    def _takes_no_system(self, said: str, messages: list[dict[str, Any]]) -> bool:
        if self.no_system or not any(message["role"] == "system" for message in messages):
            return False
        if _NO_SYSTEM.search(said):
            return True
        # The template of such a model takes the system message for the one that is not the user's.
        return (
            bool(_ALTERNATE.search(said))
            and not _SYSTEM_MAY_BE.search(said)
            and not _has_results(messages, "")
        )

    def _learn_field(self, said: str, messages: list[dict[str, Any]]) -> str | None:
        if _REFUSED.search(said):
            for name in sorted(_unknown_names(messages) - self.dropped):
                if _names(name, said):
                    self.dropped.add(name)
                    return f"refuses the field {name} of its own replies: it is left out from now on"
        if _MISSING.search(said):
            for name in _CAN_BE_WANTED:
                if name not in self.wanted and _names(name, said) and _could_miss(name, said):
                    self.wanted.add(name)
                    return f"wants the field {name} back: it is sent from now on"
        return None


def _names(name: str, said: str) -> bool:
    return re.search(rf"(?<![A-Za-z0-9_]){re.escape(name)}(?![A-Za-z0-9_])", said) is not None


def _could_miss(name: str, said: str) -> bool:
    """Whether a common word is the name of a field of a message here."""
    if name not in ("name", "content", "reasoning", "thinking"):
        return True
    return re.search(rf"messages?[\[.\s]*\d*[\].\s]*\S*\.?{name}\b|[`'\"]{name}[`'\"]", said) is not None


def _has_results(messages: list[dict[str, Any]], said: str) -> bool:
    """Whether the messages have results of calls, which no merging makes alternate; some servers except them."""
    excepted = re.search(r"except for tool|after role ['\"`]?tool", said, re.IGNORECASE)
    return not excepted and any(message["role"] == "tool" for message in messages)


def _unknown_names(messages: list[dict[str, Any]]) -> set[str]:
    """Names of fields of messages and calls that OpenAI does not have."""
    found: set[str] = set()
    for message in messages:
        if message["role"] == "assistant":
            found |= message.keys() - {"role", "content", "tool_calls"}
            for call in message.get("tool_calls") or ():
                found |= call.keys() - {"id", "type", "function"}
    return found
