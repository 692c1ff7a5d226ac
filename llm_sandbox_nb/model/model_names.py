"""Names of models: which model a name means, and the names that a person may mean. Nothing here imports LiteLLM."""

from __future__ import annotations

import functools
import importlib.util
import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from llm_sandbox_nb.model.connection import Access
from llm_sandbox_nb.model.contract import Model, ModelError
from llm_sandbox_nb.model.litellm_model import LiteLLMModel
from llm_sandbox_nb.model.request import SendReasoning
from llm_sandbox_nb.model.script import load_script
from llm_sandbox_nb.model.scripted import ScriptedModel

_LIST = "model_prices_and_context_window_backup.json"
_KEYS = {
    "anthropic": "ANTHROPIC_API_KEY", "deepseek": "DEEPSEEK_API_KEY", "gemini": "GEMINI_API_KEY",
    "groq": "GROQ_API_KEY", "mistral": "MISTRAL_API_KEY", "openai": "OPENAI_API_KEY",
    "openrouter": "OPENROUTER_API_KEY", "xai": "XAI_API_KEY",
}  # fmt: skip
"""Providers that are offered without being begun, with the variables of their keys."""


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
    `scripted/NAME` plays a packaged script, `scripted/PATH.yaml` one of your own (see `model/script.py`): without
    LiteLLM, and without asking any model.
    `send_reasoning` says whether reasoning goes back in later requests; `auto` does what each provider wants,
    and a self-hosted server whose chat template wants it back needs `reasoning_content`.

    Nothing is imported or sent before the first reply.

    Raises:
        ModelError: there is no such script, or the name is empty.
    """
    if not name.strip():
        raise ModelError("No model is named: pass one with -m or --model.", kind="not_found")
    access = Access(api_base or None, api_key or None)
    access.check()
    if name.startswith("scripted/"):
        return ScriptedModel(name, load_script(name.removeprefix("scripted/")))
    return LiteLLMModel(name, access, send_reasoning=send_reasoning)


def model_names(begun: str, environment: Mapping[str, str]) -> list[str]:
    """Names that begin with `begun`.

    Before the slash these are scripts of the package and providers, or only those providers whose keys are set, if
    there are any. After it these are the provider's models that call tools.
    """
    scripts = [f"scripted/{name}" for name in script_names()]
    provider, slash, _ = begun.partition("/")
    if not slash:
        offered = [f"{name}/" for name in _with_key(environment) or _KEYS]
        return [name for name in (*offered, *scripts) if name.startswith(begun)]
    found = scripts if provider == "scripted" else list(provider_models(provider))
    return [name for name in found if name.startswith(begun)]


def configured_models(environment: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """The models of the providers whose keys are set, by provider."""
    return {provider: provider_models(provider) for provider in _with_key(environment)}


def _with_key(environment: Mapping[str, str]) -> list[str]:
    return [name for name, variable in _KEYS.items() if environment.get(variable)]


def script_names() -> list[str]:
    """The names of the scripts that come with the package."""
    folder = Path(str(files("llm_sandbox_nb.model") / "scripts"))
    return sorted(path.stem for path in folder.glob("*.yaml"))


@functools.cache
def provider_models(provider: str) -> tuple[str, ...]:
    """The provider's models that call tools, as LiteLLM's list names them, with the provider before a slash."""
    try:
        listed = json.loads(_list_file().read_text("utf-8"))
    except (OSError, ValueError):
        return ()
    found = {
        name if name.startswith(f"{provider}/") else f"{provider}/{name}"
        for name, about in listed.items()
        if about.get("litellm_provider") == provider
        and about.get("mode") == "chat"
        and about.get("supports_function_calling")
        and not name.startswith("ft:")
    }
    return tuple(sorted(found))


def _list_file() -> Path:
    """LiteLLM's list. Raises OSError when LiteLLM is not installed."""
    found = importlib.util.find_spec("litellm")
    if found is None or not found.submodule_search_locations:
        raise FileNotFoundError("litellm")
    return Path(found.submodule_search_locations[0]) / _LIST
