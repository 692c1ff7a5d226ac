"""Creation of models from their names, and completion of model names.

This module does not import LiteLLM.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from llm_sandbox_nb.known_keys import PROVIDERS, key_variable, remember_environment
from llm_sandbox_nb.model.connection import Access, typed_key, typed_providers
from llm_sandbox_nb.model.contract import Model, ModelError
from llm_sandbox_nb.model.local.local_model import LocalModel
from llm_sandbox_nb.model.local.source import PREFIX as LOCAL
from llm_sandbox_nb.model.local.table import MODELS
from llm_sandbox_nb.model.message_form import SendReasoning
from llm_sandbox_nb.model.model_list import models_of_list, providers
from llm_sandbox_nb.model.remote_model import RemoteModel
from llm_sandbox_nb.model.scripted import ScriptedModel, load_script


def make_model(
    name: str,
    *,
    api_base: str | None = None,
    api_key: str | None = None,
    send_reasoning: SendReasoning = "auto",
) -> Model:
    """Make a model from its name in LiteLLM, such as `openai/gpt-5`, `anthropic/...` or `hosted_vllm/...`.

    This function neither imports LiteLLM nor sends a request.

    Args:
        name: name of the model. With `api_base`, a name without a known provider belongs to the OpenAI-compatible
            server at this address. `local/NAME` is a model on this machine (see `model/local/source.py`). The first
            `check` or the first request fetches this model's file and starts its server. `scripted/NAME` plays a
            packaged script, and `scripted/PATH.yaml` plays your own script (see `model/scripted.py`).
        api_base: address of the model's server.
        api_key: key for the server or the provider.
        send_reasoning: message field in which later requests send the reasoning of earlier replies back to the server.
            `auto` chooses the field by provider. Choose `reasoning_content` for your own server if its chat template
            needs the reasoning.

    Raises:
        ModelError: if the script or local model does not exist, or the name is empty.
    """
    if not name.strip():
        raise ModelError("No model is named: name a model with -m or --model.", kind="not_found")
    if name.startswith("scripted/"):
        return ScriptedModel(name, load_script(name.removeprefix("scripted/")))
    if name.startswith(LOCAL):
        if api_base:
            raise ModelError(
                f"{name} is a model on this machine and needs no api_base: leave out {api_base}, or write "
                f"openai/{name} for a model of that server.",
                kind="setup",
            )
        return LocalModel(name, send_reasoning=send_reasoning)
    access = Access(api_base or None, api_key or None)
    access.check()
    remember_environment()
    return RemoteModel(name, access, send_reasoning=send_reasoning)


def model_names(begun: str, environment: Mapping[str, str]) -> list[str]:
    """Return the model names that begin with `begun`, for tab completion.

    If `begun` has no slash, the names are providers, local models and packaged scripts. If any provider has a key, only
    providers with a key are offered. If `begun` has a slash, the names are the provider's models that can call tools.
    """
    scripts = [*local_names(), *(f"scripted/{name}" for name in script_names())]
    provider, slash, _ = begun.partition("/")
    if not slash:
        offered = [f"{name}/" for name in _with_key(environment) or PROVIDERS]
        return [name for name in (*offered, *scripts) if name.startswith(begun)]
    found = scripts if provider in ("scripted", "local") else list(provider_models(provider))
    return [name for name in found if name.startswith(begun)]


def configured_models(environment: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return the models of the providers that have a key, by provider."""
    return {provider: provider_models(provider) for provider in _with_key(environment)}


def _with_key(environment: Mapping[str, str]) -> list[str]:
    typed = typed_providers()
    set_here = [name for name in PROVIDERS if environment.get(key_variable(name)) or name in typed]
    return [*set_here, *(name for name in typed if name not in set_here)]


def local_names() -> list[str]:
    """Return the names of the local models in the table."""
    return [f"{LOCAL}{name}" for name in MODELS]


def script_names() -> list[str]:
    """Return the names of the scripts in the package."""
    folder = Path(str(files("llm_sandbox_nb.model") / "scripts"))
    return sorted(path.stem for path in folder.glob("*.yaml"))


@functools.cache
def provider_models(provider: str) -> tuple[str, ...]:
    """Return the provider's models that can call tools, with names such as `openai/gpt-5`, from LiteLLM's list."""
    found = {
        name if name.startswith(f"{provider}/") else f"{provider}/{name}"
        for name, about in models_of_list().items()
        if about.get("litellm_provider") == provider
        and about.get("mode") == "chat"
        and about.get("supports_function_calling")
        and not name.startswith("ft:")
    }
    return tuple(sorted(found))


def typed_key_of(model: str, api_base: str | None = None) -> str | None:
    """Return the key that was typed for the provider of a model, or None if no key was typed."""
    return typed_key(provider_of(model, api_base)) if typed_providers() else None


def provider_of(model: str, api_base: str | None = None) -> str:
    """Return the provider of a model, or an empty text if the provider is unknown. LiteLLM is not imported.

    With `api_base`, a name without a provider belongs to the OpenAI-compatible server at this address, as in
    `route_choice.find_route`.
    """
    first, slash, _ = model.partition("/")
    if slash and first in providers():
        return first
    return "openai" if api_base else str(models_of_list().get(model, {}).get("litellm_provider", ""))
