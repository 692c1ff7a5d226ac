"""A streamed reply put together: text, reasoning, tool calls with ids that are unique.

A server that knows its model's chat template takes thinking (`<think>`) and calls (`<tool_call>`) out of the text. One
that does not, or is not told to, sends them as text: here they are taken out.
"""

from __future__ import annotations

import dataclasses
import json
import re
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from llm_sandbox_nb.model.contract import ToolCall
from llm_sandbox_nb.model.text_calls import begin_of_mark, read_text_calls

_THINKING = {"<think>": "</think>", "<thinking>": "</thinking>", "[THINK]": "[/THINK]"}
_MOST_THOUGHTS = 1000
"""Of one piece; those after them are left in the text."""
_LONE_END = re.compile(r"</think>[ \t]*(?:\n|\Z)|(?<=\n)</think>")


@dataclass
class ThinkingSplitter:
    """Tells the thinking at the beginning of a text from the rest, while the text comes."""

    _waiting: str = ""
    """What may be the beginning of a tag."""
    _end: str | None = field(default=None)
    """The tag that ends the thinking; empty in the text after it."""

    def add(self, piece: str) -> tuple[str, str]:
        """The text and the thinking that are known with one more piece."""
        if self._end == "":
            return piece, ""
        self._waiting += piece
        thoughts = list[str]()
        while True:  # more thinking may follow at once
            if self._end is None:
                begun = self._waiting.lstrip()
                if any(tag.startswith(begun) and tag != begun for tag in _THINKING):
                    return "", "".join(thoughts)
                tag = next((tag for tag in _THINKING if begun.startswith(tag)), None)
                if tag is None or len(thoughts) > _MOST_THOUGHTS:
                    self._end = ""
                    return self.rest()[0], "".join(thoughts)
                self._end, self._waiting = _THINKING[tag], begun.removeprefix(tag)
            thinking, end, text = self._waiting.partition(self._end)
            if not end:
                kept = _overlap(self._waiting, self._end)
                thoughts.append(self._waiting[: len(self._waiting) - kept])
                self._waiting = self._waiting[-kept:] * bool(kept)
                return "", "".join(thoughts)
            thoughts.append(thinking)
            self._end, self._waiting = None, text

    def rest(self) -> tuple[str, str]:
        """What still waits at the end of the text, as text and thinking."""
        waiting, self._waiting = self._waiting, ""
        return ("", waiting) if self._end else (waiting, "")


def _overlap(text: str, tag: str) -> int:
    """How many characters at the end of `text` may begin `tag`."""
    return next(
        (size for size in range(min(len(text), len(tag) - 1), 0, -1) if tag.startswith(text[-size:])), 0
    )


def split_lone_end(text: str) -> tuple[str, str]:
    """Text and thinking when a chat template began the thinking, so that only its end is in the text."""
    match = _LONE_END.search(text)
    return (text[match.end() :], text[: match.start()]) if match else (text, "")


@dataclass
class _OpenCall:
    id: str = ""
    name: str = ""
    arguments: str = ""
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass
class Assembly:
    """What has arrived of one reply."""

    text: str = ""
    reasoning: str = ""
    thinking_blocks: list[dict[str, Any]] = field(default_factory=list)
    """Thinking as Anthropic wants it back, with its signatures."""
    finish_reason: str | None = None
    usage: Any = None
    usage_reported: bool = True
    """Whether the provider told the usage; otherwise LiteLLM has counted."""
    cut_short: bool = False
    """The stream ended without the end that the provider announces."""
    call_ids: list[str] = field(default_factory=list)
    """The ids of the calls as the server gave them, in the order of `calls`; empty where it gave none."""
    extra: list[dict[str, Any]] = field(default_factory=list)
    """Fields of each call that OpenAI does not have, which go back with it."""
    response_id: str | None = None
    response_model: str | None = None
    written: bool = False
    """The calls were read out of the text."""
    raw_text: str | None = None
    """The text before calls or thoughts were taken out of it; None when none were."""
    refused_call: str = ""
    """Why a call that is written in the text does not count."""
    _calls: list[_OpenCall] = field(default_factory=list)
    _at_index: dict[int, _OpenCall] = field(default_factory=dict)
    _block_open: bool = False
    _splitter: ThinkingSplitter = field(default_factory=ThinkingSplitter)
    _shown: int = 0
    """Characters of the text that were returned: from what may be the mark of a call on, none until the end."""
    _late: str = ""

    def add(self, chunk: Any) -> tuple[str, str]:
        """Take one chunk in; returns the text and the reasoning it brought."""
        self.usage = getattr(chunk, "usage", None) or self.usage
        self.response_id = self.response_id or getattr(chunk, "id", None)
        self.response_model = self.response_model or getattr(chunk, "model", None)
        if not chunk.choices:
            return "", ""
        choice = chunk.choices[0]
        self.finish_reason = choice.finish_reason or self.finish_reason
        delta = getattr(choice, "delta", None) or choice.message
        text = getattr(delta, "content", None) or ""
        reasoning = getattr(delta, "reasoning_content", None) or getattr(delta, "reasoning", None) or ""
        text, thinking = self._splitter.add(text)
        reasoning += thinking
        self.text += text
        self.reasoning += reasoning
        for block in getattr(delta, "thinking_blocks", None) or ():
            self._add_block(dict(block))
        for call in getattr(delta, "tool_calls", None) or ():
            self._add_call(call)
        return self._visible(), reasoning

    def _visible(self, *, whole: bool = False) -> str:
        """The text that came since, up to what is the mark of a call or, unless `whole`, may become one."""
        end = begin_of_mark(self.text, self._shown, whole=whole)
        visible = self.text[self._shown : end]
        self._shown = max(self._shown, end)
        return visible

    def late_text(self) -> str:
        """The text that waited for the end of the reply and is no call; empty when it was one."""
        return "" if self.raw_text is not None else self._late

    def close(self) -> tuple[str, str]:
        """Nothing more comes; returns the text and the reasoning that still waited, but for what may be a call."""
        text, reasoning = self._splitter.rest()
        self.text += text
        self.reasoning += reasoning
        visible = self._visible(whole=True)
        self._late = self.text[self._shown :]
        if not self.reasoning:
            self.text, self.reasoning = split_lone_end(self.text)
        if self.reasoning:
            self.text = self.text.lstrip()
        return visible, reasoning

    @property
    def has_calls(self) -> bool:
        """Whether the reply has calls."""
        return bool(self._calls)

    def read_written_calls(self, tools: list[dict[str, Any]]) -> None:
        """Take the calls of these tools out of the text, where they are surely meant as calls."""
        found = read_text_calls(self.text, tools)
        if not found.calls and not found.text:  # some models do not end their thinking before a call
            thought = read_text_calls(self.reasoning, tools)
            if thought.calls:
                found, self.reasoning = dataclasses.replace(thought, text="", reasoning=""), thought.text
        if found.calls or found.reasoning:
            self.raw_text = self.text
            self.text = found.text
            self.reasoning = "\n\n".join(filter(None, (self.reasoning, found.reasoning)))
        self.refused_call = found.refused
        self.written = bool(found.calls)
        self._calls += [
            _OpenCall("", call.name, json.dumps(call.arguments, ensure_ascii=False)) for call in found.calls
        ]

    def calls(self, taken: Iterable[str] = (), written: Callable[[str], str] = str) -> tuple[ToolCall, ...]:
        """The calls, each with an id that is not `taken` and that no other call of this reply has.

        `written` puts an id of the server into the form in which it is sent.
        """
        taken = set(taken)
        calls = []
        self.call_ids, self.extra = [], []
        for call in [one for whole in self._calls for one in _separate(whole)]:
            identity = written(call.id) if call.id else ""
            identity = identity if identity and identity not in taken else uuid.uuid4().hex[:9]
            taken.add(identity)
            self.call_ids.append(call.id)
            self.extra.append(call.extra)
            # Some servers leave something of their model's chat template around the name.
            name = call.name.partition("<|")[0].strip().removeprefix("functions.")
            calls.append(ToolCall(identity, name, call.arguments))
        return tuple(calls)

    def add_whole_call(self, identity: str, name: str, arguments: str) -> None:
        """Take in a call that does not come in pieces."""
        self._calls.append(_OpenCall(identity, name, arguments))

    def _add_call(self, delta: Any) -> None:
        index = getattr(delta, "index", None)
        index = len(self._calls) - 1 if index is None else index
        function = delta.function
        call = self._at_index.get(index)
        if call is None or _is_another(call, delta.id, function.name):
            call = self._at_index[index] = _OpenCall()
            self._calls.append(call)
        call.id = call.id or delta.id or ""
        # Some servers send the name in two pieces, some whole with every piece of the arguments.
        piece = function.name or ""
        call.name = piece if piece.startswith(call.name) else call.name + piece
        call.arguments += function.arguments or ""
        if specific := getattr(delta, "provider_specific_fields", None):
            call.extra["provider_specific_fields"] = dict(specific)

    def _add_block(self, piece: dict[str, Any]) -> None:
        if piece.get("type") != "thinking":
            self.thinking_blocks.append(piece)
            self._block_open = False
            return
        if not self._block_open:
            self.thinking_blocks.append({"type": "thinking", "thinking": "", "signature": ""})
            self._block_open = True
        block = self.thinking_blocks[-1]
        if not (
            piece.get("signature") and block["thinking"]
        ):  # a signature may come with the whole text again
            block["thinking"] += piece.get("thinking") or ""
        if piece.get("signature"):
            block["signature"] = piece["signature"]
            self._block_open = False


def _is_another(call: _OpenCall, identity: str | None, name: str | None) -> bool:
    """Whether a delta with this id and name begins a new call although its index is that of `call`.

    Some servers give every call of a reply the index 0.
    """
    if identity and call.id and identity != call.id:
        return bool(name)
    return bool(name and call.name and not identity and is_json(call.arguments))


def _separate(call: _OpenCall) -> list[_OpenCall]:
    """The calls that a model wrote as one, with one JSON object of arguments after the other."""
    found, rest = [], call.arguments.strip()
    while rest.startswith("{"):
        try:
            _, end = json.JSONDecoder().raw_decode(rest)
        except (ValueError, RecursionError):
            return [call]
        found.append(_OpenCall(call.id, call.name, rest[:end]))
        rest = rest[end:].lstrip()
    return found if len(found) > 1 and not rest else [call]


def is_json(text: str) -> bool:
    """Whether the text is whole JSON."""
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
