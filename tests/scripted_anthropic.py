"""A script in the dialect of Anthropic's messages API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from llm_sandbox_nb.model.known_history import KnownHistories
from llm_sandbox_nb.model.scripted import Script, ScriptTurn, call_id


def as_openai_messages(body: dict[str, Any]) -> list[dict[str, Any]]:
    """The history with as many assistant messages as it has; that is what a script needs to know."""
    return [{"role": message["role"], "content": message["content"]} for message in body["messages"]]


def signature(number: int) -> str:
    """The signature of the thinking of a turn; it has to come back unchanged."""
    return f"signature-of-turn-{number + 1}=="


def anthropic_events(
    script: Script, number: int, turn: ScriptTurn, messages: list[dict[str, Any]]
) -> Iterator[str]:
    used = turn.usage_for(KnownHistories().read(messages).characters)
    usage = {
        "input_tokens": used.prompt_tokens - used.cached_tokens,
        "cache_read_input_tokens": used.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": 1,
    }
    message = {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": "claude",
        "content": [],
    }
    yield _event("message_start", message=message | {"stop_reason": None, "usage": usage})
    for index, block in enumerate(_blocks(script, number, turn)):
        start, deltas = block
        yield _event("content_block_start", index=index, content_block=start)
        for delta in deltas:
            yield _event("content_block_delta", index=index, delta=delta)
        yield _event("content_block_stop", index=index)
    reason = "tool_use" if turn.calls else "end_turn"
    yield _event(
        "message_delta", delta={"stop_reason": reason}, usage={"output_tokens": used.completion_tokens}
    )
    yield _event("message_stop")


def _blocks(
    script: Script, number: int, turn: ScriptTurn
) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    if turn.reasoning:
        deltas = [{"type": "thinking_delta", "thinking": piece} for piece in script.pieces(turn.reasoning)]
        deltas.append({"type": "signature_delta", "signature": signature(number)})
        yield {"type": "thinking", "thinking": "", "signature": ""}, deltas
    if turn.text:
        yield (
            {"type": "text", "text": ""},
            [{"type": "text_delta", "text": piece} for piece in script.pieces(turn.text)],
        )
    for index, call in enumerate(turn.calls):
        start = {"type": "tool_use", "id": call_id(number, index, call), "name": call.tool, "input": {}}
        yield (
            start,
            [{"type": "input_json_delta", "partial_json": piece} for piece in script.pieces(call.text)],
        )


def _event(kind: str, **fields: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n"
