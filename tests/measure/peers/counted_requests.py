"""Counts the requests that a peer makes through LiteLLM, and gives them the sampling of the measurement."""

from __future__ import annotations

import json
import os
from typing import Any

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

import litellm

_TOTAL = {"requests": 0, "prompt_tokens": 0, "completion_tokens": 0}


def counted(given: dict[str, Any]) -> None:
    ask = litellm.completion

    def completion(*args: Any, **kwargs: Any) -> Any:
        kwargs |= {name: given[name] for name in ("temperature", "top_p", "api_key")}
        kwargs |= {"max_tokens": given["reply_tokens"], "timeout": given["timeout"]}
        kwargs["extra_body"] = {**(kwargs.get("extra_body") or {}), "top_k": given["top_k"]}
        reply = ask(*args, **kwargs)
        _TOTAL["requests"] += 1
        _TOTAL["prompt_tokens"] += reply.usage.prompt_tokens
        _TOTAL["completion_tokens"] += reply.usage.completion_tokens
        return reply

    litellm.completion = completion


def report(**found: Any) -> None:
    print("\n" + json.dumps({**found, **_TOTAL}), flush=True)
