"""LiteLLM's list of models with providers, context limits and prices. This module does not import LiteLLM."""

from __future__ import annotations

import functools
import importlib.util
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from llm_sandbox_nb.model.route import Route
from llm_sandbox_nb.trajectory.events import Usage

_LIST = "model_prices_and_context_window_backup.json"
_PROVIDER = re.compile(r'^    \w+ = "([^"]+)"', re.MULTILINE)
DEFAULT_REPLY_TOKENS = 16_384
"""Default token limit of one reply. Without a limit, a local model may write until its context is full."""


def _folder() -> Path:
    """Return the folder of LiteLLM. Raise OSError if LiteLLM is not installed."""
    found = importlib.util.find_spec("litellm")
    if found is None or not found.submodule_search_locations:
        raise FileNotFoundError("litellm")
    return Path(found.submodule_search_locations[0])


@functools.cache
def models_of_list() -> dict[str, dict[str, Any]]:
    """Return LiteLLM's list of models, or an empty dictionary if the list cannot be read."""
    try:
        listed: dict[str, dict[str, Any]] = json.loads((_folder() / _LIST).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return listed


@functools.cache
def providers() -> frozenset[str]:
    """Return the names of LiteLLM's providers. In a model's name, the provider is before the slash."""
    try:
        source = (_folder() / "types" / "utils.py").read_text("utf-8")
    except OSError:
        return frozenset()
    names = source.partition("class LlmProviders(")[2].partition("\nclass ")[0]
    return frozenset(_PROVIDER.findall(names))


def about(route: Route) -> Mapping[str, Any]:
    """Return the entry of a model in LiteLLM's list, or an empty mapping if the list lacks the model."""
    models = models_of_list()
    return models.get(route.model) or models.get(route.sent_name) or {}


def context_window(route: Route) -> int | None:
    """Return the context limit of a model in tokens, or None if the limit is unknown."""
    models = models_of_list()
    tokens = (models.get(name, {}).get("max_input_tokens") for name in (route.model, route.sent_name))
    return next((found for found in tokens if isinstance(found, int) and found > 0), None)


def reply_tokens(route: Route) -> int:
    """Return the token limit of one reply if the person set no limit.

    The result is the smallest of `DEFAULT_REPLY_TOKENS`, half of the context limit, and the model's own limit.
    """
    known = [about(route).get("max_output_tokens"), (context_window(route) or 0) // 2]
    return min([DEFAULT_REPLY_TOKENS, *(limit for limit in known if isinstance(limit, int) and limit > 0)])


def cost(route: Route, usage: Usage, now: datetime | None = None) -> float | None:
    """Return the cost in US dollars of a request that was sent without LiteLLM, or None if the price is unknown."""
    name = ":".join(route.sent_name.split(":")[:2]) if route.sent_name.startswith("ft:") else route.sent_name
    models = models_of_list()
    row = models.get(f"{route.provider}/{name}") or models.get(name) or {}
    if row.get("litellm_provider") != route.provider or not row.get("input_cost_per_token"):
        return None
    prices = dict(row)
    if _is_off_peak(row.get("off_peak_pricing"), now or datetime.now(UTC)):
        prices |= row["off_peak_pricing"]
    ending = _above(row, usage.prompt_tokens)

    def price(kind: str, otherwise: float = 0.0) -> float:
        found = prices.get(kind + ending, prices.get(kind))
        return float(found) if isinstance(found, int | float) else otherwise

    reading = price("input_cost_per_token")
    writing = price("output_cost_per_token")
    cached = min(usage.cached_tokens, usage.prompt_tokens)
    reasoning = min(usage.reasoning_tokens, usage.completion_tokens)
    return (
        (usage.prompt_tokens - cached) * reading
        + cached * price("cache_read_input_token_cost", reading)
        + (usage.completion_tokens - reasoning) * writing
        + reasoning * price("output_cost_per_reasoning_token", writing)
    )


def _above(row: Mapping[str, Any], tokens: int) -> str:
    """Return the ending of the names of the prices in `row` that apply to a prompt of `tokens` tokens.

    Some models have higher prices for long prompts, with endings such as `_above_272k_tokens`. The ending is empty for
    a short prompt.
    """
    bounds = (re.fullmatch(r"input_cost_per_token(_above_(\d+)(k?)_tokens)", name) for name in row)
    found = [(int(match[2]) * (1000 if match[3] else 1), match[1]) for match in bounds if match]
    return max(((bound, ending) for bound, ending in found if tokens > bound), default=(0, ""))[1]


def _is_off_peak(pricing: Any, now: datetime) -> bool:
    """Return True if `now`, a time in UTC, is in one of the time windows with lower prices."""
    if not isinstance(pricing, dict):
        return False
    return any(  # hours of `pricing` itself apply every day
        now.isoweekday() in window.get("weekdays", range(1, 8))
        and _is_in_hours(f"{now:%H:%M}", window.get("hours_utc"))
        for window in (pricing, *pricing.get("windows", ()))
    )


def _is_in_hours(time: str, listed: Any) -> bool:
    """Return True if the time is in one of the ranges. A range such as `22:00-06:00` passes over midnight."""
    for hours in [listed] if isinstance(listed, str) else listed or ():
        begin, _, end = hours.partition("-")
        if begin <= time < end or (end <= begin and (time >= begin or time < end)):
            return True
    return False
