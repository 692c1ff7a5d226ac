"""A connection of its own for each request.

LiteLLM keeps connections in a cache that outlives event loops, and its own HTTP client quietly sends a
request a second time when the server hangs up. With a client for each request nothing is left open after a
run, a connection that went stale during a long tool call is not met, cancelling closes it, and a request is
sent once.
"""

from __future__ import annotations

import functools
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from llm_sandbox_nb.agent.model_request import Route

_LITELLM_HTTP = frozenset({"anthropic", "deepseek", "gemini", "hosted_vllm"})
"""Providers whose requests LiteLLM sends with its own HTTP client; all others keep LiteLLM's client."""


@asynccontextmanager
async def request_client(
    route: Route, api_base: str | None, api_key: str | None
) -> AsyncIterator[dict[str, Any]]:
    """The keyword argument that hands LiteLLM the client; closed at the end. Empty for other providers."""
    client = _make_client(route, api_base, api_key)
    if client is None:
        yield {}
        return
    try:
        yield {"client": client}
    finally:
        await client.close()


def _make_client(route: Route, api_base: str | None, api_key: str | None) -> Any:
    if route.provider == "openai":
        import openai

        http_client = openai.DefaultAsyncHttpxClient(verify=_certificates())
        return openai.AsyncOpenAI(api_key=api_key, base_url=api_base, max_retries=0, http_client=http_client)
    return _once_only()() if route.provider in _LITELLM_HTTP else None


@functools.cache
def _certificates() -> ssl.SSLContext:
    """Loading the certificates is most of the cost of a client."""
    return httpx.create_ssl_context()


@functools.cache
def _once_only() -> type[Any]:
    from litellm.llms.custom_httpx.http_handler import AsyncHTTPHandler

    class OnceOnly(AsyncHTTPHandler):
        """LiteLLM's HTTP client without its second attempt."""

        async def single_connection_post_request(self, *args: Any, **kwargs: Any) -> Any:
            # Called while the failure of the first attempt is being handled.
            raise

    return OnceOnly
