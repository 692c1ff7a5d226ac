"""Choice of the route for a model's requests, by the model's name, the given address and the environment.

The constants below contain the rules for single providers, by the provider's name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

import httpx

from llm_sandbox_nb.model.errors import no_provider
from llm_sandbox_nb.model.model_list import about, models_of_list, providers
from llm_sandbox_nb.model.route import Route

OPENAI = "https://api.openai.com/v1"
# For providers with an API of their own: the extended settings that they accept, with LiteLLM's name for each setting.
OWN_API: dict[str, dict[str, str]] = {
    "anthropic": {"top_k": "top_k"},
    "bedrock": {"top_k": "top_k"},
    "gemini": {"top_k": "top_k"},
    "vertex_ai": {"top_k": "top_k"},
    "cohere": {"top_k": "k"},
    "cohere_chat": {"top_k": "k"},
    "ollama": {"top_k": "top_k", "min_p": "min_p", "repetition_penalty": "repeat_penalty"},
    "ollama_chat": {"top_k": "top_k", "min_p": "min_p", "repetition_penalty": "repeat_penalty"},
}
_OWN_PROTOCOL = frozenset(
    {
        "anthropic", "azure", "azure_ai", "azure_text", "bedrock", "bedrock_mantle", "databricks", "gemini",
        "github_copilot", "huggingface", "oci", "replicate", "sagemaker", "sagemaker_chat", "sap", "snowflake",
        "triton", "vertex_ai", "vertex_ai_beta", "watsonx", "watsonx_text",
    }
)  # fmt: skip
"""Providers whose own protocol is used even if an address is given."""
_KEEPS_PROVIDER = frozenset(
    {"openai", "custom_openai", "hosted_vllm", "litellm_proxy", "openrouter", "deepseek"}
)
"""Providers with OpenAI's protocol. From the names of their models, LiteLLM removes only the provider."""
_DIRECT = frozenset({"openai", "hosted_vllm", "deepseek"})
"""Providers that are asked without LiteLLM."""
_VERSION = re.compile(r"gpt-(\d+)(?:\.(\d+))?(?:[.-]|$)")
"""Matches the name of an OpenAI model, with the version as groups."""


def find_route(name: str, api_base: str | None, listed_name: str | None = None) -> Route | None:
    """Return the route of a model that is asked without LiteLLM, or None if only LiteLLM knows the route.

    Args:
        name: name of the model.
        api_base: address of a server, or None. With an address, the text after the provider is sent unchanged, and a
            name without a provider belongs to an OpenAI-compatible server.
        listed_name: name of the model in the server's own list, or None if the list was not read.
    """
    first, slash, rest = name.partition("/")
    known = bool(slash) and first in providers()
    if listed_name is not None:
        return Route(f"openai/{listed_name}", "openai", True, first if known else "openai")
    if api_base and known and rest and _speaks_openai(first, api_base):
        return Route(f"openai/{rest}", "openai", True, first)
    if known:
        return Route(name, first, True) if first in _DIRECT else None
    if api_base or address_of_environment("openai"):
        return Route(f"openai/{name}", "openai", True)
    of_openai = models_of_list().get(name, {}).get("litellm_provider") == "openai"
    return Route(name, "openai", True) if of_openai else None


def address_of_environment(provider: str) -> str | None:
    """Return the address that the environment sets for a provider's server."""
    address = os.environ.get("OPENAI_BASE_URL") if provider == "openai" else None
    return address or os.environ.get(f"{provider.upper()}_API_BASE") or None


def litellm_route(litellm: Any, name: str, api_base: str | None) -> Route:
    """Return the route of a model that is asked through LiteLLM.

    Raises:
        ModelError: if the provider of the name is unknown.
    """
    try:
        _, provider, _, _ = litellm.get_llm_provider(model=name, api_base=api_base)
    except litellm.exceptions.BadRequestError as error:
        raise no_provider(name) from error
    compatible = provider not in OWN_API and (
        provider in {"openai", "custom_openai", "openrouter", "litellm_proxy"}
        or provider in litellm.openai_compatible_providers
    )
    return Route(name, provider, compatible)


def needs_responses(route: Route, api_base: str | None, extra_body: Mapping[str, Any]) -> bool:
    """Return True if an OpenAI model can call tools only over the Responses API. LiteLLM translates requests to it."""
    if route.provider != "openai":
        return False
    if route.sent_name.startswith("responses/") or about(route).get("mode") == "responses":
        return True
    version = _VERSION.match(route.sent_name.rpartition("/")[2])
    if version is None or (int(version[1]), int(version[2] or 0)) < (5, 4):
        return False
    effort = extra_body.get("reasoning_effort")
    if effort == "none" and about(route).get("supports_none_reasoning_effort") is not False:
        return False
    return effort is not None or is_openai_itself(api_base or address_of_environment("openai") or OPENAI)


def is_openai_itself(address: str) -> bool:
    """Return True if an address belongs to OpenAI itself, and not to another server with OpenAI's protocol."""
    try:
        return f".{httpx.URL(address).host}".endswith(".openai.com")
    except httpx.InvalidURL:  # the request raises the error
        return False


def _speaks_openai(provider: str, api_base: str) -> bool:
    """Return True if a server uses OpenAI's protocol although the model's name begins with another provider."""
    if provider in ("ollama", "ollama_chat"):  # Ollama's own protocol is at the root
        return api_base.rstrip("/").endswith("/v1")
    return provider not in _OWN_PROTOCOL and provider not in _KEEPS_PROVIDER
