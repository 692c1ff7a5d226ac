"""The model behind LiteLLM: one streamed request for each reply, and no retries."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

import httpx

from llm_sandbox_nb.agent.model import DeltaCallback, Model, ModelError, ModelSettings, Reply
from llm_sandbox_nb.agent.model_access import Access
from llm_sandbox_nb.agent.model_backend import SCRIPTED, backend
from llm_sandbox_nb.agent.model_client import request_client
from llm_sandbox_nb.agent.model_errors import Target, broken_off, refused_setting, to_model_error
from llm_sandbox_nb.agent.model_request import (
    SETTINGS,
    Route,
    SendReasoning,
    assistant_message,
    clean_messages,
    find_route,
    reasoning_field,
    sampling,
)
from llm_sandbox_nb.agent.model_script import Player, load_script
from llm_sandbox_nb.agent.model_stream import Assembly
from llm_sandbox_nb.trajectory.events import Usage

_CACHED = [{"location": "message", "role": "system"}, {"location": "message", "index": -1}]
"""Anthropic caches what is marked: here all that was sent before, which is most of what an agent sends."""
_log = logging.getLogger(__name__)


def make_model(
    name: str,
    *,
    api_base: str | None = None,
    api_key: str | None = None,
    send_reasoning: SendReasoning = "auto",
) -> Model:
    """The model `name`, as LiteLLM knows it: `openai/gpt-5`, `anthropic/...`, `hosted_vllm/...`.

    With `api_base` and no known provider in front, the name is that of a model of the OpenAI-compatible
    server there.
    `scripted/NAME` plays a packaged script, `scripted/PATH.yaml` one of your own (see `model_script`).
    `send_reasoning` says whether reasoning goes back in later requests; `auto` does what each provider wants,
    and a self-hosted server whose chat template wants it back needs `reasoning_content`.

    Nothing is imported or sent before the first reply.

    Raises:
        ModelError: there is no such script, or the name is empty.
    """
    if not name.strip():
        raise ModelError("No model is named: pass one with -m or --llm_name.", kind="not_found")
    access = Access(api_base or None, api_key or None)
    access.check()
    player = None
    if name.startswith(f"{SCRIPTED}/"):
        player = Player(load_script(name.removeprefix(f"{SCRIPTED}/")))
    return LiteLLMModel(name, access, send_reasoning=send_reasoning, player=player)


class _ListenerError(Exception):
    """The callback for pieces failed; that is not the model's failure."""


class LiteLLMModel:
    """A model that LiteLLM reaches; see `make_model`."""

    def __init__(
        self,
        name: str,
        access: Access,
        *,
        send_reasoning: SendReasoning = "auto",
        player: Player | None = None,
    ) -> None:
        self.name = name
        self.scripted = player is not None
        self._access = access
        self._send_reasoning = send_reasoning
        self._player = player
        self._refused: set[str] = set()

    async def reply(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]],
        settings: ModelSettings,
        on_delta: DeltaCallback | None = None,
    ) -> Reply:
        """One request, streamed. Cancelling closes the connection at once.

        Raises:
            ContextOverflowError: it does not fit.
            ModelError: anything else.
        """
        litellm = await asyncio.to_thread(backend)
        route = find_route(litellm, self.name, self._access.api_base)
        way = reasoning_field(route) if self._send_reasoning == "auto" else self._send_reasoning
        sent, left_out = sampling(litellm, route, settings, self._refused)
        target = self._access.target(litellm, route, self.name)
        assembly = Assembly()
        try:
            self._access.check_key(litellm, route, target)
            async with asyncio.timeout(settings.timeout), self._client(litellm, route) as client:
                request = self._request(litellm, route, clean_messages(messages, way), tools)
                request["timeout"] = httpx.Timeout(settings.timeout, connect=min(settings.timeout, 30.0))
                await _stream(litellm, request | sent | client, assembly, on_delta)
        except _ListenerError as error:
            raise error.args[0] from None
        except Exception as error:
            raise self._explain(error, target, sent) from error
        if route.openai_compatible and assembly.cut_short:
            raise broken_off(target)
        calls = assembly.calls(messages)
        return Reply(
            message=assistant_message(assembly, calls, way),
            text=assembly.text,
            reasoning=assembly.reasoning or None,
            calls=calls,
            usage=_usage(litellm, route, assembly),
            finish_reason=assembly.finish_reason,
            response_id=assembly.response_id,
            response_model=assembly.response_model,
            left_out=left_out,
        )

    def _request(
        self, litellm: Any, route: Route, messages: list[dict[str, Any]], tools: list[dict[str, Any]]
    ) -> dict[str, Any]:
        request: dict[str, Any] = {
            "model": route.model,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            "num_retries": 0,
            "max_retries": 0,
            # Tools that LiteLLM would run itself; from 1.106 on, looking for them needs another package.
            "_skip_mcp_handler": True,
        }
        if tools:
            # LiteLLM's table does not know every model that takes tools; the provider does.
            request |= {"tools": tools, "allowed_openai_params": ["tools"]}
        if route.provider == "anthropic":
            request["cache_control_injection_points"] = _CACHED
        if self._access.api_base:
            request["api_base"] = self._access.api_base
        if key := self._access.key(litellm, route):
            request["api_key"] = key
        return request

    def _client(self, litellm: Any, route: Route) -> AbstractAsyncContextManager[dict[str, Any]]:
        if self._player is not None:
            return nullcontext({"client": self._player})
        return request_client(route, self._access.api_base, self._access.key(litellm, route))

    def _explain(self, error: Exception, target: Target, sent: dict[str, Any]) -> ModelError:
        if setting := refused_setting(error, SETTINGS.intersection([*sent, *sent.get("extra_body", ())])):
            self._refused.add(setting)
            return ModelError(
                f"{self.name} does not take the setting {setting}: it is left out from now on.",
                kind="setting",
                retryable=True,
            )
        return to_model_error(error, target)


async def _stream(
    litellm: Any, request: dict[str, Any], assembly: Assembly, on_delta: DeltaCallback | None
) -> None:
    stream = await litellm.acompletion(**request)
    try:
        async for chunk in stream:
            text, reasoning = assembly.add(chunk)
            if on_delta and (text or reasoning):
                _tell(on_delta, text, reasoning)
        assembly.cut_short = getattr(stream, "received_finish_reason", "unknown") is None
        received = getattr(stream, "chunks", None)
        if received:
            assembly.usage_reported = any(getattr(chunk, "usage", None) for chunk in received)
    finally:
        await stream.aclose()


def _tell(on_delta: DeltaCallback, text: str, reasoning: str) -> None:
    try:
        on_delta(text, reasoning)
    except Exception as error:
        raise _ListenerError(error) from error


def _usage(litellm: Any, route: Route, assembly: Assembly) -> Usage | None:
    usage = assembly.usage
    if usage is None:
        return None
    prompt = getattr(usage, "prompt_tokens_details", None)
    completion = getattr(usage, "completion_tokens_details", None)
    return Usage(
        prompt_tokens=usage.prompt_tokens or 0,
        completion_tokens=usage.completion_tokens or 0,
        cached_tokens=getattr(prompt, "cached_tokens", None) or 0,
        reasoning_tokens=getattr(completion, "reasoning_tokens", None) or 0,
        cost=_cost(litellm, route, usage) if assembly.usage_reported else None,
    )


def _cost(litellm: Any, route: Route, usage: Any) -> float | None:
    """US dollars by LiteLLM's table; None when the table does not know the model."""
    if route.provider == SCRIPTED:
        return None
    try:
        info = litellm.get_model_info(model=route.model)
        prompt, completion = litellm.cost_per_token(model=route.model, usage_object=usage)
    except Exception as error:  # noqa: BLE001 - LiteLLM raises bare Exceptions for unknown models
        _log.debug("no price for %s: %s", route.model, error)
        return None
    return float(prompt + completion) if info.get("input_cost_per_token") else None
