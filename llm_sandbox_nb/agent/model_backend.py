"""LiteLLM, imported late and with everything turned off that talks to anybody but the model's server."""

from __future__ import annotations

import functools
import gc
import os
from typing import Any

_ENVIRONMENT = {
    # Prices and header tables come from the installed package, never from the network.
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",
    "LITELLM_LOCAL_POLICY_TEMPLATES": "True",
    "LITELLM_LOCAL_BLOG_POSTS": "True",
}
SCRIPTED = "scripted"
"""Name of the provider that plays scripts."""


@functools.cache
def backend() -> Any:
    """The `litellm` module, set up. The first call takes seconds: call it in a thread from async code."""
    os.environ.update(_ENVIRONMENT)
    # Outside of production mode a `.env` file of some parent folder would be read.
    os.environ.setdefault("LITELLM_MODE", "PRODUCTION")
    litellm = _imported()
    litellm.telemetry = False
    litellm.suppress_debug_info = True
    litellm.disable_hf_tokenizer_download = True
    _add_scripted_provider(litellm)
    return litellm


def _imported() -> Any:
    """LiteLLM makes millions of objects that stay: not looking through them over and over saves a fifth of the time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        import litellm
    finally:
        if collecting:
            gc.enable()
    return litellm


def _add_scripted_provider(litellm: Any) -> None:
    from llm_sandbox_nb.agent.model_scripted import ScriptedProvider

    if not any(item["provider"] == SCRIPTED for item in litellm.custom_provider_map):
        litellm.custom_provider_map.append({"provider": SCRIPTED, "custom_handler": ScriptedProvider()})
    from litellm.utils import custom_llm_setup

    custom_llm_setup()  # type: ignore[no-untyped-call]
