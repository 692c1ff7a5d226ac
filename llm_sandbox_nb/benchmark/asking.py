"""The model and the sandboxes that the options ask for; on this machine, or on a node that got the values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llm_sandbox_nb.agent.model import ModelSettings
from llm_sandbox_nb.agent.model_litellm import make_model
from llm_sandbox_nb.benchmark.attempt import HowToAsk, Opener
from llm_sandbox_nb.benchmark.runner import make_opener

MODEL_VALUES = (
    "llm_name", "llm_base_url", "api_key", "temperature", "top_p", "top_k", "min_p", "repetition_penalty",
    "max_tokens_per_call", "extra_body",
)  # fmt: skip
SANDBOX_VALUES = ("isolation", "profile", "docker_image", "network", "ca_bundle", "index_url", "proxy")


def how_of(values: Mapping[str, Any]) -> HowToAsk:
    """The model that the values of `MODEL_VALUES` name, and how it is asked.

    Raises:
        ModelError: there is no such script, or an address or key cannot be one.
    """
    same = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    settings = ModelSettings(
        **{name: values[name] for name in same},
        max_tokens=values["max_tokens_per_call"],
        extra_body=values["extra_body"] or {},
    )
    model = make_model(values["llm_name"], api_base=values["llm_base_url"], api_key=values["api_key"])
    return HowToAsk(model, settings)


def opener_of(values: Mapping[str, Any]) -> Opener:
    """Opens the sandboxes that the values of `SANDBOX_VALUES` ask for."""
    site = {name: values[name] for name in ("ca_bundle", "index_url", "proxy") if values[name]}
    return make_opener(
        values["isolation"],
        profile=values["profile"],
        image=values["docker_image"],
        network=values["network"],
        **site,
    )
