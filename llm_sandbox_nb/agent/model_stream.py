"""A streamed reply put together: text, reasoning, tool calls with ids that are unique."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from llm_sandbox_nb.agent.model import ToolCall


@dataclass
class _OpenCall:
    id: str = ""
    name: str = ""
    arguments: str = ""


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
    response_id: str | None = None
    response_model: str | None = None
    _calls: list[_OpenCall] = field(default_factory=list)
    _at_index: dict[int, _OpenCall] = field(default_factory=dict)
    _block_open: bool = False

    def add(self, chunk: Any) -> tuple[str, str]:
        """Take one chunk in; returns the text and the reasoning it brought."""
        self.usage = getattr(chunk, "usage", None) or self.usage
        self.response_id = self.response_id or getattr(chunk, "id", None)
        self.response_model = self.response_model or getattr(chunk, "model", None)
        if not chunk.choices:
            return "", ""
        choice = chunk.choices[0]
        self.finish_reason = choice.finish_reason or self.finish_reason
        delta = choice.delta
        text = getattr(delta, "content", None) or ""
        reasoning = getattr(delta, "reasoning_content", None) or getattr(delta, "reasoning", None) or ""
        self.text += text
        self.reasoning += reasoning
        for block in getattr(delta, "thinking_blocks", None) or ():
            self._add_block(dict(block))
        for call in getattr(delta, "tool_calls", None) or ():
            self._add_call(call)
        return text, reasoning

    def calls(self, history: list[dict[str, Any]]) -> tuple[ToolCall, ...]:
        """The calls, each with an id that no call in `history` or in this reply has."""
        taken = set(_ids(history))
        calls = []
        for call in self._calls:
            identity = call.id if call.id and call.id not in taken else f"call_{uuid.uuid4().hex[:12]}"
            taken.add(identity)
            calls.append(ToolCall(identity, call.name, call.arguments))
        return tuple(calls)

    def _add_call(self, delta: Any) -> None:
        index = getattr(delta, "index", None)
        index = len(self._calls) - 1 if index is None else index
        function = delta.function
        call = self._at_index.get(index)
        if call is None or _is_another(call, delta.id, function.name):
            call = self._at_index[index] = _OpenCall()
            self._calls.append(call)
        call.id = call.id or delta.id or ""
        call.name = call.name or function.name or ""
        call.arguments += function.arguments or ""

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
    return bool(name and call.name and not identity and _is_json(call.arguments))


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _ids(history: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    for message in history:
        for call in message.get("tool_calls") or ():
            yield call.get("id", "")
