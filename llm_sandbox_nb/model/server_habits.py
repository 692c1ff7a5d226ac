"""Habits of a model's server, which are learned from refused requests and applied to all further requests.

Code for a new quirk of a provider often belongs in another module:

- a setting that a provider refuses: `remote_model.py` and `errors.refused_setting`
- a rule for one provider, by its name: `request.py`; the library that sends its requests: `route_choice.py`
- the protocol and the headers: `direct_transport.py` and `litellm_transport.py`
- an unusual form of replies: `server_replies.py` for servers without LiteLLM, else `litellm_transport.py`
- calls in pieces without ids or in odd order: `stream.py`; invalid JSON in arguments: `agent/tools/arguments.py`
- calls that are written as text: `text_formats.py`
- the fields and roles of messages: `message_form.py`
- the error for a full context: `context_overflow.py`; the size of the context: `served_context.py`
"""

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
    """Knowledge about a model's server."""

    refused: set[str] = field(default_factory=set)
    """Names of request fields that the server refuses."""
    silent_ends: int = 0
    """Number of replies in a row without an end marker. If there is only one, the connection may have been cut."""
    calls_natively: bool = False
    """True if the server has returned a native tool call."""
    answered: bool = False
    """True if the server has answered a request."""
    dropped: set[str] = field(default_factory=set)
    """Names of fields that the server itself sends in replies but refuses in the history."""
    wanted: set[str] = field(default_factory=set)
    """Names of message fields without which the server refused a request."""
    no_system: bool = False
    """True if the server does not accept a system message."""
    alternate: bool = False
    """True if messages of user and assistant have to alternate."""

    def recorded(self) -> dict[str, Any]:
        """Return the knowledge from refusals as JSON values."""
        names = {"refused": self.refused, "dropped": self.dropped, "wanted": self.wanted}
        flags = {"no_system": self.no_system, "alternate": self.alternate}
        known = {name: sorted(value) for name, value in names.items() if value}
        return known | {name: True for name, value in flags.items() if value}

    def recall(self, recorded: Mapping[str, Any]) -> None:
        """Restore the knowledge in a record. Implausible values are skipped, because a stranger may have made them."""
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
        """Return the form of the history for this server.

        `reasoning` is the message field for reasoning, unless the server has demanded another field.
        """
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
        """Learn from a refusal of `messages`. Return the new knowledge as a text, or None if there is nothing new.

        The text continues a sentence that begins with the model's name.
        """
        if failure.status not in _STATUSES:
            return None
        text = failure.text
        if self._takes_no_system(text, messages):
            self.no_system = True
            self.alternate = self.alternate or bool(_ALTERNATE.search(text))
            return "does not accept a system message: its text is put into the first message of the user from now on"
        if _ALTERNATE.search(text) and not self.alternate and not _has_results(messages, text):
            self.alternate = True
            return "wants user and assistant to alternate: messages in a row are merged from now on"
        if failure.status == 500:
            return None
        return self._learn_field(text, messages)

    def refuses_results(self, failure: Failure, messages: list[dict[str, Any]]) -> bool:
        """Return True if the server refuses tool results because messages of user and assistant have to alternate."""
        return (
            failure.status in _STATUSES
            and bool(_ALTERNATE.search(failure.text))
            and _has_results(messages, failure.text)
        )

    def _takes_no_system(self, text: str, messages: list[dict[str, Any]]) -> bool:
        if self.no_system or not any(message["role"] == "system" for message in messages):
            return False
        if _NO_SYSTEM.search(text):
            return True
        # A chat template that requires alternating roles may complain because the system message comes first.
        return (
            bool(_ALTERNATE.search(text))
            and not _SYSTEM_MAY_BE.search(text)
            and not _has_results(messages, "")
        )

    def _learn_field(self, text: str, messages: list[dict[str, Any]]) -> str | None:
        if _REFUSED.search(text):
            for name in sorted(_unknown_names(messages) - self.dropped):
                if _names(name, text):
                    self.dropped.add(name)
                    return f"refuses the field {name} of its own replies: it is left out from now on"
        if _MISSING.search(text):
            for name in _CAN_BE_WANTED:
                if name not in self.wanted and _names(name, text) and _could_miss(name, text):
                    self.wanted.add(name)
                    return f"wants the field {name} back: it is sent from now on"
        return None


def _names(name: str, text: str) -> bool:
    return re.search(rf"(?<![A-Za-z0-9_]){re.escape(name)}(?![A-Za-z0-9_])", text) is not None


def _could_miss(name: str, text: str) -> bool:
    """Return True if an error text uses `name` as the name of a message field, and not as a common word."""
    if name not in ("name", "content", "reasoning", "thinking"):
        return True
    return (
        re.search(
            rf"messages?[\[.\s]{{0,4}}\d{{0,9}}[\].\s]{{0,4}}\S{{0,100}}\.?{name}\b|[`'\"]{name}[`'\"]", text
        )
        is not None
    )


def _has_results(messages: list[dict[str, Any]], text: str) -> bool:
    """Return True if the messages contain tool results, which cannot be merged with other messages.

    Return False if the server's error text says that tool results may stand between other messages.
    """
    excepted = re.search(r"except for tool|after role ['\"`]?tool", text, re.IGNORECASE)
    return not excepted and any(message["role"] == "tool" for message in messages)


def _unknown_names(messages: list[dict[str, Any]]) -> set[str]:
    """Return the names of message and call fields that are outside of OpenAI's protocol."""
    found: set[str] = set()
    for message in messages:
        if message["role"] == "assistant":
            found |= message.keys() - {"role", "content", "tool_calls"}
            for call in message.get("tool_calls") or ():
                found |= call.keys() - {"id", "type", "function"}
    return found
