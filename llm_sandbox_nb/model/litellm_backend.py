"""LiteLLM, imported late and with everything turned off that talks to anybody but the model's server."""

from __future__ import annotations

import functools
import gc
import importlib.metadata
import os
import sys
from typing import Any

_ENVIRONMENT = {
    # Prices and header tables come from the installed package, never from the network.
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",
    "LITELLM_LOCAL_POLICY_TEMPLATES": "True",
    "LITELLM_LOCAL_BLOG_POSTS": "True",
    # 0: the whole history is not searched for pictures to shorten in a log that nobody keeps.
    "MAX_BASE64_LENGTH_FOR_LOGGING": "0",
}
COMPROMISED = ("1.82.7", "1.82.8", "1.107.0")
"""Releases of LiteLLM that were published with malicious code; pyproject.toml excludes the same."""


def compromised_version() -> str:
    """One sentence that says what to do when such a release is installed here; else empty."""
    version = importlib.metadata.version("litellm")
    if version not in COMPROMISED:
        return ""
    return (
        f"litellm {version} is installed, a release with malicious code: remove this environment, make a new one,"
        " and replace every key that was used in it."
    )


@functools.cache
def backend() -> Any:
    """The `litellm` module, set up. The first call takes seconds: call it in a thread from async code.

    Raises:
        ImportError: the release that is installed is known to be malicious.
    """
    if problem := compromised_version():
        raise ImportError(problem)
    os.environ.update(_ENVIRONMENT)
    # Outside of production mode a `.env` file of some parent folder would be read.
    os.environ.setdefault("LITELLM_MODE", "PRODUCTION")
    litellm = _imported()
    litellm.telemetry = False
    litellm.suppress_debug_info = True
    litellm.disable_hf_tokenizer_download = True
    # A line of a table is many equal pieces, which LiteLLM takes for a model in a circle. Tokens are limited anyway.
    litellm.REPEATED_STREAMING_CHUNK_LIMIT = sys.maxsize
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
