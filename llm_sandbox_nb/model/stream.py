"""Assembly of a streamed reply: text, reasoning, tool calls with unique ids.

A server that knows its model's chat template extracts thinking (`<think>`) and calls (`<tool_call>`) from the text.
Other servers send them as text: then they are extracted here.
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
_MAX_THOUGHTS = 1000
"""Maximum number of thoughts in one piece; later ones stay in the text."""
_LONE_END = re.compile(r"</think>[ \t]*(?:\n|\Z)|(?<=\n)</think>")


@dataclass
class ThinkingSplitter:
    """Splitter of a streamed text into thinking at the beginning, and the rest."""

    _waiting: str = ""
    """Text that may be the beginning of a tag."""
    _end: str | None = field(default=None)
    """Tag that ends the thinking; empty after the thinking."""

    def add(self, piece: str) -> tuple[str, str]:
        """Add a piece. Return the text and the thinking that are certain now."""
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
                if tag is None or len(thoughts) > _MAX_THOUGHTS:
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
        """Return the remaining text and thinking at the end of the stream."""
        waiting, self._waiting = self._waiting, ""
        return ("", waiting) if self._end else (waiting, "")


def _overlap(text: str, tag: str) -> int:
    """Return the number of characters at the end of `text` that may begin `tag`."""
    return next(
        (size for size in range(min(len(text), len(tag) - 1), 0, -1) if tag.startswith(text[-size:])), 0
    )


def split_lone_end(text: str) -> tuple[str, str]:
    """Split text and thinking if the begin tag is in the chat template, so that the text has only the end tag."""
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
    """Parts of a reply that have arrived."""

    text: str = ""
    reasoning: str = ""
    thinking_blocks: list[dict[str, Any]] = field(default_factory=list)
    """Thinking with signatures, in the form that Anthropic requires in the history."""
    finish_reason: str | None = None
    usage: Any = None
    usage_reported: bool = True
    """True if the provider reported the usage, False if LiteLLM has counted."""
    cut_short: bool = False
    """True if the stream ended without the provider's mark of the end."""
    call_ids: list[str] = field(default_factory=list)
    """Server's ids of the calls, in the order of `calls`; empty for calls without an id."""
    extra: list[dict[str, Any]] = field(default_factory=list)
    """Fields of each call outside of OpenAI's protocol, which the history contains."""
    response_id: str | None = None
    response_model: str | None = None
    written: bool = False
    """True if the calls were read from the text."""
    raw_text: str | None = None
    """Text before calls or thoughts were removed; None if the text was not changed."""
    refused_call: str = ""
    """Reason why a call in the text does not count."""
    _calls: list[_OpenCall] = field(default_factory=list)
    _at_index: dict[int, _OpenCall] = field(default_factory=dict)
    _block_open: bool = False
    _splitter: ThinkingSplitter = field(default_factory=ThinkingSplitter)
    _shown: int = 0
    """Number of characters of the text that were returned, at most up to a possible mark of a call."""
    _late: str = ""

    def add(self, chunk: Any) -> tuple[str, str]:
        """Add a chunk and return its text and reasoning."""
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
        """Return the new text up to the mark of a call or, unless `whole`, up to the beginning of a possible mark."""
        end = begin_of_mark(self.text, self._shown, whole=whole)
        visible = self.text[self._shown : end]
        self._shown = max(self._shown, end)
        return visible

    def late_text(self) -> str:
        """Return the text that was held back until the end of the reply, unless it was a call."""
        return "" if self.raw_text is not None else self._late

    def close(self) -> tuple[str, str]:
        """Finish the reply. Return the remaining text and reasoning, except for a possible call."""
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
        """True if the reply has calls."""
        return bool(self._calls)

    def read_written_calls(self, tools: list[dict[str, Any]]) -> None:
        """Extract calls of these tools from the text, if the text certainly means calls."""
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
        """Return the calls with unique ids that are not in `taken`.

        `written` converts an id of the server to the form that is sent.
        """
        taken = set(taken)
        calls = []
        self.call_ids, self.extra = [], []
        for call in [part for whole in self._calls for part in _separate(whole)]:
            identity = written(call.id) if call.id else ""
            identity = identity if identity and identity not in taken else uuid.uuid4().hex[:9]
            taken.add(identity)
            self.call_ids.append(call.id)
            self.extra.append(call.extra)
            # Some servers leave parts of their model's chat template around the name.
            name = call.name.partition("<|")[0].strip().removeprefix("functions.")
            calls.append(ToolCall(identity, name, call.arguments))
        return tuple(calls)

    def add_whole_call(self, identity: str, name: str, arguments: str) -> None:
        """Add a complete call."""
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
        # Some servers send the name in two pieces, others repeat the full name with every piece of the arguments.
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
        if not (piece.get("signature") and block["thinking"]):  # a piece with a signature may repeat the text
            block["thinking"] += piece.get("thinking") or ""
        if piece.get("signature"):
            block["signature"] = piece["signature"]
            self._block_open = False


def _is_another(call: _OpenCall, identity: str | None, name: str | None) -> bool:
    """Return True if a delta with this id and name begins a new call although its index is that of `call`.

    Some servers give every call of a reply the index 0.
    """
    if identity and call.id and identity != call.id:
        return bool(name)
    return bool(name and call.name and not identity and is_json(call.arguments))


def _separate(call: _OpenCall) -> list[_OpenCall]:
    """Split a call with several JSON objects as arguments, which the model meant as several calls."""
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
    """Return True if the text is complete JSON."""
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
