"""Content of a request: a name that LiteLLM routes, settings and a history that the provider accepts."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from llm_sandbox_nb.model.contract import ModelSettings, ToolCall
from llm_sandbox_nb.model.errors import no_provider
from llm_sandbox_nb.model.message_form import REASONING, SendReasoning
from llm_sandbox_nb.model.stream import Assembly

_STANDARD = ("temperature", "top_p", "max_tokens")
_EXTENDED = ("top_k", "min_p", "repetition_penalty")
SETTINGS = frozenset(_STANDARD + _EXTENDED)
"""Settings that are left out for a model that does not accept them."""
# Providers with an API of their own: the extended settings that they accept, with the names for LiteLLM.
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
_NEEDS_REASONING_TEXT = frozenset({"deepseek", "moonshot", "zai", "minimax"})
_OWN_PROTOCOL = frozenset(
    {
        "anthropic", "azure", "azure_ai", "azure_text", "bedrock", "bedrock_mantle", "databricks", "gemini",
        "github_copilot", "huggingface", "oci", "replicate", "sagemaker", "sagemaker_chat", "sap", "snowflake",
        "triton", "vertex_ai", "vertex_ai_beta", "watsonx", "watsonx_text",
    }
)  # fmt: skip
"""Providers whose own protocol is used even with an address; all others then use OpenAI's protocol."""
_KEEPS_PROVIDER = frozenset(
    {"openai", "custom_openai", "hosted_vllm", "litellm_proxy", "openrouter", "deepseek"}
)
"""Providers of OpenAI's protocol for which LiteLLM sends the complete rest of the name to the given address."""
_NEEDS_THINKING_BLOCKS = frozenset({"anthropic", "bedrock", "vertex_ai", "azure_ai"})


@dataclass(frozen=True)
class Route:
    """Route of requests: LiteLLM's name for the model, and the provider."""

    model: str
    provider: str
    openai_compatible: bool
    asked: str = ""
    """Provider in the name that the person gave, if the request is sent to the person's server in OpenAI's protocol."""

    @property
    def sent_name(self) -> str:
        """Name of the model in the request."""
        return self.model.removeprefix(f"{self.provider}/")


def find_route(litellm: Any, name: str, api_base: str | None, listed_name: str | None = None) -> Route:
    """Find the route for the model `name`.

    Args:
        litellm: the imported module.
        name: name of the model.
        api_base: address of a server. Then the name after a provider is sent unchanged, and a name without a provider
            belongs to an OpenAI-compatible server.
        listed_name: name of the model in the server's list, if known.

    Raises:
        ModelError: if the provider of the name is unknown.
    """
    first, slash, rest = name.partition("/")
    providers = {str(getattr(provider, "value", provider)) for provider in litellm.provider_list}
    known = bool(slash) and first in providers
    if listed_name is not None:
        return Route(f"openai/{listed_name}", "openai", True, first if known else "openai")
    if api_base and known and rest and _speaks_openai(first, api_base):
        return Route(f"openai/{rest}", "openai", True, first)
    api_base = api_base or os.environ.get("OPENAI_BASE_URL") or os.environ.get("OPENAI_API_BASE")
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


def _speaks_openai(provider: str, api_base: str) -> bool:
    """Return True if the address uses OpenAI's protocol although the name begins with another provider."""
    if provider in ("ollama", "ollama_chat"):  # Ollama's own protocol is at the root
        return api_base.rstrip("/").endswith("/v1")
    return provider not in _OWN_PROTOCOL and provider not in _KEEPS_PROVIDER


def sampling(
    litellm: Any, route: Route, settings: ModelSettings, refused: Iterable[str] = ()
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Convert the settings to arguments of LiteLLM for this provider. Also return the names of omitted settings."""
    sent: dict[str, Any] = {}
    extra = dict(settings.extra_body)
    left_out = []
    for name in (*_STANDARD, *_EXTENDED):
        value = getattr(settings, name)
        if value is None:
            continue
        if name in refused or not _accepts(litellm, route, name, value):
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


def _accepts(litellm: Any, route: Route, name: str, value: Any) -> bool:
    if name in _STANDARD:
        return _standard_allowed(litellm, route, name, value)
    return route.openai_compatible or route.provider not in _OWN_API or name in _OWN_API[route.provider]


@functools.lru_cache(maxsize=256)
def _standard_allowed(litellm: Any, route: Route, name: str, value: Any) -> bool:
    """Return True if LiteLLM's table allows the setting for this model, by building a request without sending it."""
    model = route.model.removeprefix(f"{route.provider}/")
    try:
        litellm.utils.get_optional_params(model=model, custom_llm_provider=route.provider, **{name: value})
    except litellm.exceptions.UnsupportedParamsError:
        return False
    return True


def assistant_message(
    assembly: Assembly,
    calls: tuple[ToolCall, ...],
    way: SendReasoning | str,
    unknown: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Make the history message of a reply, with reasoning only if the provider needs it.

    `unknown` are fields of the message outside of OpenAI's protocol; `assembly.extra` has such fields of each call.
    """
    message: dict[str, Any] = {**(unknown or {}), "role": "assistant", "content": assembly.text}
    if calls:
        message["tool_calls"] = [
            {**extra, "id": call.id, "type": "function", "function": _function(call, extra)}
            for call, extra in zip(calls, [*assembly.extra, *[{}] * len(calls)], strict=False)
        ]
    if way == "thinking_blocks" and assembly.thinking_blocks:
        message["thinking_blocks"] = assembly.thinking_blocks
    elif way in REASONING and assembly.reasoning:
        message[way] = assembly.reasoning
    return message


def _function(call: ToolCall, extra: Mapping[str, Any]) -> dict[str, Any]:
    more = extra.get("function")
    return {**(more if isinstance(more, dict) else {}), "name": call.name, "arguments": call.arguments}


def reasoning_field(route: Route) -> SendReasoning:
    """Return the field in which the provider needs reasoning."""
    if route.provider in _NEEDS_THINKING_BLOCKS:
        return "thinking_blocks"
    return "reasoning_content" if (route.asked or route.provider) in _NEEDS_REASONING_TEXT else "none"
