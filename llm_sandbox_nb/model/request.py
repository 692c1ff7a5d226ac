"""What is sent: a name that LiteLLM routes, the settings each provider takes, a history it accepts."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from llm_sandbox_nb.model.contract import ModelSettings, ToolCall
from llm_sandbox_nb.model.errors import no_provider
from llm_sandbox_nb.model.stream import Assembly

SendReasoning = Literal["auto", "none", "reasoning_content", "thinking_blocks"]
"""The field of an assistant message in which reasoning goes back to the provider."""

_STANDARD = ("temperature", "top_p", "max_tokens")
_EXTENDED = ("top_k", "min_p", "repetition_penalty")
SETTINGS = frozenset(_STANDARD + _EXTENDED)
"""Settings that are left out for a model that does not take them."""
# Providers with an API of their own: the extended settings they take, under the name LiteLLM passes on.
_OWN_API: dict[str, dict[str, str]] = {
    "anthropic": {"top_k": "top_k"},
    "bedrock": {"top_k": "top_k"},
    "gemini": {"top_k": "top_k"},
    "vertex_ai": {"top_k": "top_k"},
    "cohere": {"top_k": "k"},
    "cohere_chat": {"top_k": "k"},
    "ollama": {"top_k": "top_k", "min_p": "min_p", "repetition_penalty": "repeat_penalty"},
    "ollama_chat": {"top_k": "top_k", "min_p": "min_p", "repetition_penalty": "repeat_penalty"},
}
_WANTS_REASONING = frozenset({"deepseek", "moonshot", "zai", "minimax"})
_WANTS_BLOCKS = frozenset({"anthropic", "bedrock", "vertex_ai", "azure_ai"})
NOTHING_SAID = "(nothing)"
"""What goes back for a reply without text and calls: servers refuse a message without both."""
_KEPT = {
    "system": ("content",),
    "user": ("content",),
    "tool": ("tool_call_id", "content"),
    "assistant": ("content", "tool_calls"),
}


@dataclass(frozen=True)
class Route:
    """Where requests go: LiteLLM's name for the model, and its provider."""

    model: str
    provider: str
    openai_compatible: bool


def find_route(litellm: Any, name: str, api_base: str | None) -> Route:
    """The route for the model `name`.

    With an address and no known provider in front, the name is that of an OpenAI-compatible server.

    Raises:
        ModelError: no provider is known for the name.
    """
    api_base = api_base or os.environ.get("OPENAI_BASE_URL") or os.environ.get("OPENAI_API_BASE")
    providers = {str(getattr(provider, "value", provider)) for provider in litellm.provider_list}
    known = "/" in name and name.split("/", 1)[0] in providers
    model = name if known or not api_base else f"openai/{name}"
    try:
        _, provider, _, _ = litellm.get_llm_provider(model=model, api_base=api_base)
    except litellm.exceptions.BadRequestError as error:
        raise no_provider(name) from error
    compatible = provider not in _OWN_API and (
        provider in {"openai", "custom_openai", "hosted_vllm", "openrouter", "litellm_proxy"}
        or provider in litellm.openai_compatible_providers
    )
    return Route(model, provider, compatible)


def sampling(
    litellm: Any, route: Route, settings: ModelSettings, refused: Iterable[str] = ()
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The settings as LiteLLM takes them for this provider, and the names of those left out."""
    sent: dict[str, Any] = {}
    extra = dict(settings.extra_body)
    left_out = []
    for name in (*_STANDARD, *_EXTENDED):
        value = getattr(settings, name)
        if value is None:
            continue
        if name in refused or not _takes(litellm, route, name, value):
            left_out.append(name)
        elif name in _STANDARD:
            sent[name] = value
        elif route.openai_compatible:
            extra.setdefault(name, value)
        else:
            sent[_OWN_API.get(route.provider, {}).get(name, name)] = value
    if extra:
        sent["extra_body"] = extra
    return sent, tuple(left_out)


def _takes(litellm: Any, route: Route, name: str, value: Any) -> bool:
    if name in _STANDARD:
        return _standard_allowed(litellm, route, name, value)
    return route.openai_compatible or route.provider not in _OWN_API or name in _OWN_API[route.provider]


@functools.lru_cache(maxsize=256)
def _standard_allowed(litellm: Any, route: Route, name: str, value: Any) -> bool:
    """Whether LiteLLM's table lets this model have the setting; builds the request and sends nothing."""
    model = route.model.removeprefix(f"{route.provider}/")
    try:
        litellm.utils.get_optional_params(model=model, custom_llm_provider=route.provider, **{name: value})
    except litellm.exceptions.UnsupportedParamsError:
        return False
    return True


def clean_messages(messages: list[dict[str, Any]], way: SendReasoning) -> list[dict[str, Any]]:
    """The history with only the fields that the provider knows, reasoning in the way it wants it."""
    return [_clean(message, way) for message in messages]


def _clean(message: dict[str, Any], way: SendReasoning) -> dict[str, Any]:
    role = message["role"]
    cleaned = {"role": role} | {key: message[key] for key in _KEPT.get(role, ("content",)) if key in message}
    if role != "assistant":
        return cleaned
    if message.get(way):
        cleaned[way] = message[way]
    if not cleaned.get("content") and not cleaned.get("tool_calls"):
        cleaned["content"] = NOTHING_SAID
    return cleaned


def assistant_message(assembly: Assembly, calls: tuple[ToolCall, ...], way: SendReasoning) -> dict[str, Any]:
    """The reply as it goes back into the history, with reasoning only where the provider wants it."""
    message: dict[str, Any] = {"role": "assistant", "content": assembly.text}
    if calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in calls
        ]
    if way == "thinking_blocks" and assembly.thinking_blocks:
        message["thinking_blocks"] = assembly.thinking_blocks
    elif way == "reasoning_content" and assembly.reasoning:
        message["reasoning_content"] = assembly.reasoning
    return message


def reasoning_field(route: Route) -> SendReasoning:
    """The way in which the provider wants reasoning back."""
    if route.provider in _WANTS_BLOCKS:
        return "thinking_blocks"
    return "reasoning_content" if route.provider in _WANTS_REASONING else "none"
