"""Assembly of a streamed reply from its pieces: text, reasoning, and tool calls with unique ids.

Some servers extract the thinking (`<think>`) and the calls (`<tool_call>`) from the model's text. Other servers leave
both in the text, so this module extracts them.
"""

from __future__ import annotations

import dataclasses
import json
import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llm_sandbox_nb.model.contract import ModelError, ToolCall
from llm_sandbox_nb.model.text_calls import begin_of_mark, read_text_calls
from llm_sandbox_nb.model.text_formats import MAX_CALLS, after_space
from llm_sandbox_nb.trajectory.events import Usage, is_flat

_THINKING = {"<think>": "</think>", "<thinking>": "</thinking>", "[THINK]": "[/THINK]"}
_MAX_THOUGHTS = 1000
"""Maximum number of passages of thinking in one piece. Later passages stay in the text."""
_LONE_END = re.compile(r"</think>[ \t]*(?:\n|\Z)|(?<=\n)</think>")


@dataclass
class ThinkingSplitter:
    """Splitter that separates the thinking at the beginning of a streamed text from the rest."""

    _waiting: str = ""
    """Text that may be the beginning of a tag."""
    _end: str | None = field(default=None)
    """Tag that ends the current thinking. None before each passage of thinking, and empty after the last one."""

    def add(self, piece: str) -> tuple[str, str]:
        """Add a piece. Return the new text and the new thinking. Characters that may begin a tag are held back."""
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
    """Return the text and the thinking of a reply that has the end tag of thinking, but no begin tag.

    Chat templates may write the begin tag at the end of the prompt. For any other reply, the thinking is empty.
    """
    match = _LONE_END.search(text)
    if match is None or "<think>" in text[: match.start()]:  # an answer may also mention both tags
        return text, ""
    return text[match.end() :], text[: match.start()]


@dataclass(frozen=True)
class CallPiece:
    """Piece of a tool call."""

    index: int | None = None
    id: str = ""
    name: str = ""
    arguments: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Fields outside of OpenAI's protocol, which the server may require in the history."""


@dataclass(frozen=True)
class Piece:
    """Piece of a streamed reply. In the last piece, `ended` is True unless the reply broke off."""

    text: str = ""
    reasoning: str = ""
    calls: Sequence[CallPiece] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the message outside of OpenAI's protocol."""
    thinking_blocks: Sequence[Mapping[str, Any]] = ()
    finish_reason: str | None = None
    usage: Usage | None = None
    usage_reported: bool = True
    """False if the usage was estimated by LiteLLM."""
    response_id: str | None = None
    response_model: str | None = None
    ended: bool = False
    cut: bool = False
    """True if the reply is accepted although its end marker is missing. The reply may be complete or cut off."""


_MAX_EXTRA_LENGTH = 1_000_000
"""Maximum number of characters in the stored fields outside of OpenAI's protocol."""
_MAX_REPLY_CHARACTERS = 4_000_000
"""Maximum number of characters of a reply, about a million tokens.

The journal of a run stores a reply on one line of at most 64 MB, and may need 12 bytes for a character.
"""
_MAX_ID_CHARACTERS = 200
"""Maximum number of characters of a reply's id, and of its model's name."""


@dataclass
class _OpenCall:
    id: str = ""
    name: str = ""
    arguments: str = ""
    extra: dict[str, Any] = field(default_factory=dict)
    index: int = 0


@dataclass
class Assembly:
    """Reply that is being assembled from its pieces."""

    text: str = ""
    reasoning: str = ""
    thinking_blocks: list[dict[str, Any]] = field(default_factory=list)
    """Thinking with signatures, in the form that Anthropic requires in the history."""
    finish_reason: str | None = None
    usage: Usage | None = None
    usage_reported: bool = True
    ended: bool = False
    cut: bool = False
    message_extra: dict[str, Any] = field(default_factory=dict)
    """Message fields outside of OpenAI's protocol, which are kept in the history."""
    extra: list[dict[str, Any]] = field(default_factory=list)
    """Fields of each call outside of OpenAI's protocol, in the order in which the method `calls` returns the calls."""
    response_id: str | None = None
    response_model: str | None = None
    written: bool = False
    """True if the calls were found in the text that the model wrote."""
    raw_text: str | None = None
    """Text before calls or thoughts were removed from it. None if nothing was removed."""
    refused_call: str = ""
    """Reason why a call in the text is not executed. Empty if the text has no such call."""
    _calls: list[_OpenCall] = field(default_factory=list)
    _at_index: dict[int, _OpenCall] = field(default_factory=dict)
    _block_open: bool = False
    _splitter: ThinkingSplitter = field(default_factory=ThinkingSplitter)
    _shown: int = 0
    """Number of characters of `text` that were returned. Text from a possible mark of a call on is held back."""
    _late: str = ""
    _length: int = 0
    _extra_length: int = 0

    def add(self, piece: Piece) -> tuple[str, str]:
        """Add a piece and return its visible text and its reasoning. Raise ModelError for an endless reply."""
        self._count(piece)
        self.usage = piece.usage or self.usage
        self.usage_reported = piece.usage_reported
        self.response_id = self.response_id or (piece.response_id or "")[:_MAX_ID_CHARACTERS] or None
        self.response_model = self.response_model or (piece.response_model or "")[:_MAX_ID_CHARACTERS] or None
        self.finish_reason = piece.finish_reason or self.finish_reason
        self.ended, self.cut = piece.ended, piece.cut
        text, thinking = self._splitter.add(piece.text)
        reasoning = piece.reasoning + thinking
        self.text += text
        self.reasoning += reasoning
        self._add_extra(self.message_extra, piece.extra)
        for block in piece.thinking_blocks:
            self._add_block(dict(block))
        for call in piece.calls:
            self._add_call(call)
        return self._visible(), reasoning

    def _count(self, piece: Piece) -> None:
        calls = sum(len(call.id) + len(call.name) + len(call.arguments) for call in piece.calls)
        self._length += len(piece.text) + len(piece.reasoning) + calls
        if self._length > _MAX_REPLY_CHARACTERS:
            raise ModelError(
                f"The server sends a reply of more than {_MAX_REPLY_CHARACTERS // 1_000_000} million characters, as no "
                "model does: check the address.",
                kind="server",
            )

    def _visible(self, *, whole: bool = False) -> str:
        """Return the text that was not returned before, up to the next mark of a call, such as `<tool_call>`.

        Unless `whole` is True, the returned text also ends before characters that may be the beginning of a mark.
        """
        end = begin_of_mark(self.text, self._shown, whole=whole)
        visible = self.text[self._shown : end]
        self._shown = max(self._shown, end)
        return visible

    def late_text(self) -> str:
        """Return the text that was held back until the end of the reply, or an empty text if it was read as calls."""
        return "" if self.raw_text is not None else self._late

    def close(self) -> tuple[str, str]:
        """Finish the reply. Return the remaining text and reasoning, but hold back text that may be a call."""
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
        """Extract calls of `tools` from the text, if the text is certainly meant as calls."""
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
        """Return the calls with unique ids, which are not in `taken`.

        `written` converts an id of the server to the form in which later requests send ids.
        """
        taken = set(taken)
        calls = []
        self.extra = []
        in_order = sorted(self._calls, key=lambda call: call.index)  # pieces may arrive in another order
        for call in [part for whole in in_order for part in _separate(whole)][:MAX_CALLS]:
            identity = written(call.id) if call.id else ""
            identity = identity if identity and identity not in taken else uuid.uuid4().hex[:9]
            taken.add(identity)
            self.extra.append(call.extra)
            # Some servers leave parts of their model's chat template around the name.
            name = call.name.partition("<|")[0].strip().removeprefix("functions.")
            calls.append(ToolCall(identity, name, call.arguments))
        return tuple(calls)

    def add_whole_call(self, identity: str, name: str, arguments: str) -> None:
        """Add a complete call."""
        self._calls.append(_OpenCall(identity, name, arguments))

    def _add_call(self, piece: CallPiece) -> None:
        index = len(self._calls) - 1 if piece.index is None else piece.index
        call = self._at_index.get(index)
        if call is None or _is_another(call, piece):
            if len(self._calls) >= MAX_CALLS:
                return
            call = self._at_index[index] = _OpenCall(index=index)
            self._calls.append(call)
        call.id = call.id or piece.id
        # Some servers send the name in two pieces. Others repeat the full name with every piece of the arguments.
        call.name = piece.name if piece.name.startswith(call.name) else call.name + piece.name
        call.arguments += piece.arguments
        self._add_extra(call.extra, piece.extra)

    def _add_extra(self, stored: dict[str, Any], found: Mapping[str, Any]) -> None:
        for name, value in found.items():
            if not is_something(value) or not is_flat(value):
                continue
            if (size := len(str(value))) + self._extra_length <= _MAX_EXTRA_LENGTH:
                self._extra_length += size
                stored[name] = _joined(stored.get(name), value)

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


def _is_another(call: _OpenCall, piece: CallPiece) -> bool:
    """Return True if a piece begins a new call although the piece has the index of `call`.

    Some servers give every call of a reply the index 0.
    """
    if piece.id and call.id and piece.id != call.id:
        return bool(piece.name)
    new = piece.arguments or piece.name != call.name  # a last piece may repeat the name without arguments
    return bool(piece.name and call.name and not piece.id and new and is_json(call.arguments))


def is_something(value: object) -> bool:
    """Return True if a field has a value that is not empty."""
    return value is not None and value not in ("", [], {})


def _joined(before: Any, value: Any) -> Any:
    """Join two pieces of a field: append texts and lists, merge objects, and replace any other value."""
    if before == value:
        return value
    match before, value:
        case str(), str():
            return before + value
        case list(), list():
            return [*before, *value]
        case dict(), dict():
            return before | {name: _joined(before.get(name), part) for name, part in value.items()}
    return value


def _separate(call: _OpenCall) -> list[_OpenCall]:
    """Split a call whose arguments are several JSON objects into one call for each object."""
    text, found, place = call.arguments.strip(), list[_OpenCall](), 0
    while text.startswith("{", place) and len(found) <= MAX_CALLS:
        try:
            _, end = json.JSONDecoder().raw_decode(text, place)
        except (ValueError, RecursionError):
            return [call]
        found.append(_OpenCall(call.id, call.name, text[place:end], call.extra))
        place = after_space(text, end)
    return found if len(found) > 1 and place == len(text) else [call]


def is_json(text: str) -> bool:
    """Return True if the text is complete JSON."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
