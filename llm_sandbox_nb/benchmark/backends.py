"""The model and the sandboxes that the options ask for, made from values that can travel to a node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llm_sandbox_nb.benchmark.attempt import HowToAsk, Opener
from llm_sandbox_nb.benchmark.runner import make_opener
from llm_sandbox_nb.model.contract import ModelSettings
from llm_sandbox_nb.model.litellm_model import make_model

MODEL_VALUES = (
    "model", "api_base", "api_key", "temperature", "top_p", "top_k", "min_p", "repetition_penalty",
    "max_tokens_per_call", "extra_body", "command_timeout", "max_response_len", "save_litellm_response",
)  # fmt: skip
SANDBOX_VALUES = ("isolation", "profile", "image", "network", "ca_bundle", "index_url", "proxy")


def how_of(values: Mapping[str, Any]) -> HowToAsk:
    """The model that the values of `MODEL_VALUES` name, and how to ask it.

    Raises:
        ModelError: there is no such script, or an address or key is invalid.
    """
    same = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    settings = ModelSettings(
        **{name: values[name] for name in same},
        max_tokens=values["max_tokens_per_call"],
        extra_body=values["extra_body"] or {},
    )
    model = make_model(values["model"], api_base=values["api_base"], api_key=values["api_key"])
    return HowToAsk(
        model,
        settings,
        command_timeout=values["command_timeout"],
        reply_tokens=values["max_response_len"],
        save_responses=values["save_litellm_response"],
    )


def opener_of(values: Mapping[str, Any]) -> Opener:
    """Opens the sandboxes that the values of `SANDBOX_VALUES` ask for."""
    site = {name: values[name] for name in ("ca_bundle", "index_url", "proxy") if values[name]}
    return make_opener(
        values["isolation"],
        profile=values["profile"],
        image=values["image"],
        network=values["network"],
        **site,
    )
