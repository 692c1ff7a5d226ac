"""The scripted model: a custom provider of LiteLLM that streams the turns of a script. Imports litellm."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
from litellm.llms.custom_llm import CustomLLM, CustomLLMError
from litellm.types.utils import (
    ChatCompletionDeltaToolCall,
    Delta,
    Function,
    ModelResponseStream,
    StreamingChoices,
    Usage,
)

from llm_sandbox_nb.agent.model_script import Player, Script, ScriptError, Turn, call_id, load_script


class ScriptedError(CustomLLMError):
    """An error of the script, with the status and headers a server would send."""

    def __init__(self, error: ScriptError) -> None:
        super().__init__(  # type: ignore[no-untyped-call]
            status_code=error.status, message=error.message
        )
        self.scripted = error
        headers = {} if error.retry_after is None else {"retry-after": f"{error.retry_after:g}"}
        request = httpx.Request("POST", "http://scripted.invalid")
        self.response = httpx.Response(error.status, headers=headers, request=request)


class ScriptedProvider(CustomLLM):
    """Plays the `Player` handed over as `client`, or the script that the model's name says."""

    async def astreaming(  # type: ignore[override]
        self, model: str, messages: list[dict[str, Any]], *args: Any, client: Any = None, **kwargs: Any
    ) -> AsyncIterator[ModelResponseStream]:
        """The pieces of one reply."""
        player = client if isinstance(client, Player) else Player(load_script(model))
        number, turn, error = player.next_turn(messages)
        if error:
            raise ScriptedError(error)
        await asyncio.sleep(turn.delay)
        first = True
        for delta in _deltas(player.script, number, turn):
            if not first:
                await asyncio.sleep(player.script.delay)
            first = False
            yield _chunk(delta)
        yield _usage_chunk(turn, messages)
        yield _chunk(Delta(), "tool_calls" if turn.calls else "stop")


def _deltas(script: Script, number: int, turn: Turn) -> list[Delta]:
    deltas = [Delta(reasoning_content=piece) for piece in script.pieces(turn.reasoning)]
    deltas += [Delta(content=piece) for piece in script.pieces(turn.text)]
    for index, call in enumerate(turn.calls):
        deltas.append(_call_delta(index, call_id(number, index, call), call.tool, ""))
        deltas += [_call_delta(index, None, None, piece) for piece in script.pieces(call.text)]
    return deltas


def _call_delta(index: int, identity: str | None, name: str | None, arguments: str) -> Delta:
    function = Function(name=name, arguments=arguments)
    call = ChatCompletionDeltaToolCall(id=identity, index=index, function=function, type="function")
    return Delta(tool_calls=[call])


def _chunk(delta: Delta, finish_reason: str | None = None) -> ModelResponseStream:
    return ModelResponseStream(choices=[StreamingChoices(index=0, delta=delta, finish_reason=finish_reason)])


def _usage_chunk(turn: Turn, messages: list[dict[str, Any]]) -> ModelResponseStream:
    used = turn.usage_for(messages)
    chunk = _chunk(Delta())
    usage = Usage(
        prompt_tokens=used.prompt_tokens,
        completion_tokens=used.completion_tokens,
        total_tokens=used.prompt_tokens + used.completion_tokens,
        reasoning_tokens=used.reasoning_tokens,
        prompt_tokens_details={"cached_tokens": used.cached_tokens},
    )
    chunk.usage = usage
    return chunk
