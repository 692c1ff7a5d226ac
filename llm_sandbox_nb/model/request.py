"""Content of a model request: the settings and the history in the form that the provider accepts.

The constants below contain the rules for single providers, by the provider's name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from llm_sandbox_nb.model.contract import ModelSettings, ToolCall
from llm_sandbox_nb.model.message_form import REASONING, SendReasoning
from llm_sandbox_nb.model.model_list import about
from llm_sandbox_nb.model.route import Route
from llm_sandbox_nb.model.route_choice import OWN_API
from llm_sandbox_nb.model.stream import Assembly

_STANDARD = ("temperature", "top_p", "max_tokens")
_EXTENDED = ("top_k", "min_p", "repetition_penalty")
SETTINGS = frozenset(_STANDARD + _EXTENDED)
"""Names of all settings that a request leaves out if the model does not accept them."""
_NEEDS_REASONING_TEXT = frozenset({"deepseek", "moonshot", "zai", "minimax"})
_NEEDS_THINKING_BLOCKS = frozenset({"anthropic", "bedrock", "vertex_ai", "azure_ai"})
_REASONS = re.compile(r"gpt-(5(?!-chat)|6)")
"""Matches the names of OpenAI's reasoning models, except for the o series such as `o3`."""


def sampling(
    route: Route,
    settings: ModelSettings,
    accepts: Callable[[str, Any], bool],
    refused: Iterable[str] = (),
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Convert the settings to arguments for the route's provider. Also return the names of the settings left out.

    `accepts` returns True if the model accepts a standard setting with this value. `refused` are the names of settings
    that the server has refused before.
    """
    sent: dict[str, Any] = {}
    extra = dict(settings.extra_body)
    left_out = []
    own = {} if route.openai_compatible else OWN_API.get(route.provider, dict.fromkeys(_EXTENDED))
    for name in (*_STANDARD, *_EXTENDED):
        value = getattr(settings, name)
        if value is None:
            continue
        known = accepts(name, value) if name in _STANDARD else route.openai_compatible or name in own
        if name in refused or not known:
            left_out.append(name)
        elif name in _STANDARD:
            sent[name] = value
        elif route.openai_compatible:
            extra.setdefault(name, value)
        else:
            sent[own[name] or name] = value
    if extra:
        sent["extra_body"] = extra
    return sent, tuple(left_out)


def reasons(route: Route) -> bool:
    """Return True for a reasoning model of OpenAI. Such models call the token limit `max_completion_tokens`."""
    if route.provider != "openai":
        return False
    is_o = re.match(r"o\d", route.sent_name) and about(route).get("litellm_provider") == "openai"
    return bool(is_o or _REASONS.search(route.sent_name))


def accepts_setting(route: Route, name: str, value: Any) -> bool:
    """Return True if a model that is asked without LiteLLM accepts a standard setting.

    The answer relies on the model's name and on LiteLLM's list of models.
    """
    if name == "max_tokens" or not reasons(route):
        return True
    row = about(route)
    if "search" in route.sent_name:
        return False
    if (
        row.get("default_reasoning_effort") == "none"
    ):  # the model reasons only if a request asks for reasoning
        return name == "temperature" or bool(row.get("supports_none_reasoning_effort"))
    return name == "temperature" and value == 1


def assistant_message(
    assembly: Assembly, calls: tuple[ToolCall, ...], way: SendReasoning | str
) -> dict[str, Any]:
    """Make the message that stands for a reply in the history. `way` is the field for its reasoning, or `none`."""
    message: dict[str, Any] = {**assembly.message_extra, "role": "assistant", "content": assembly.text}
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
    """Return the message field in which the provider needs reasoning, or `none` if the provider needs no reasoning."""
    if route.provider in _NEEDS_THINKING_BLOCKS:
        return "thinking_blocks"
    return "reasoning_content" if (route.asked or route.provider) in _NEEDS_REASONING_TEXT else "none"
