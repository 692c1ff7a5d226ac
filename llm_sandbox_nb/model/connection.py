"""Connection to a model: its address, its key, and an HTTP client for each request.

LiteLLM caches connections beyond the life of event loops, and its HTTP client silently repeats a request when the
server hangs up. With a client for each request, no connection stays open after a run or goes stale during a long tool
call, cancelling closes the connection, and a request is sent once.
"""

from __future__ import annotations

import functools
import json as _json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import httpx

from llm_sandbox_nb.known_keys import KeyTextError, clean_key
from llm_sandbox_nb.model import proxies
from llm_sandbox_nb.model.contract import ModelError
from llm_sandbox_nb.model.errors import Target
from llm_sandbox_nb.model.known_history import NextRequest
from llm_sandbox_nb.model.request import Route
from llm_sandbox_nb.model.server_replies import ReplyRewriter

_NO_KEY = "no-key"
_WELL_KNOWN = frozenset({"anthropic", "deepseek", "gemini", "groq", "mistral", "openai", "openrouter", "xai"})
"""Providers that need a key, in the environment variable of their name."""
_LITELLM_HTTP = frozenset({"anthropic", "deepseek", "gemini", "hosted_vllm"})
"""Providers that accept a client of LiteLLM's HTTP class; all others use LiteLLM's client."""
SENDS_NEW_MESSAGES = frozenset({"openai", "hosted_vllm", "deepseek"})
"""Providers for which LiteLLM converts each message independently, so that it needs only the new messages."""


@dataclass(frozen=True)
class Access:
    """Address and key from the person. Without a key, `key` returns a typed key, or one from the environment."""

    api_base: str | None = None
    api_key: str | None = field(default=None, repr=False)

    def check(self) -> None:
        """Raise ModelError if the address or the key is malformed."""
        if self.api_key is not None:
            _checked_key(self.api_key, "The API key")
        if self.api_base is None:
            return
        try:
            url = httpx.URL(self.api_base)
        except httpx.InvalidURL:
            url = httpx.URL("")
        if url.scheme not in ("http", "https") or not url.host or not 0 < (url.port or 80) < 65536:
            raise ModelError(
                f"{self.api_base!r} is not the address of a model server: give it as http://host:port/v1.",
                kind="unreachable",
            )

    def key(self, litellm: Any, route: Route) -> str | None:
        """Return the key to send; None if LiteLLM should read the environment variable of the provider.

        Raises:
            ModelError: if the key has invalid characters.
        """
        provider = route.asked or route.provider
        if given := self.api_key or typed_key(provider):
            return _checked_key(given, "The API key")
        variable = f"{provider.upper()}_API_KEY"
        found = os.environ.get(variable) or None
        if found is not None:
            found = _checked_key(found, f"The environment variable {variable}")
        if route.provider != "openai":
            # LiteLLM itself reads the variable if cleaning has not changed the key.
            return found if found != os.environ.get(variable) else None
        if provider == "openai":
            found = litellm.api_key or litellm.openai_key or found
        # A private server often needs no key, but the client insists on one.
        return found or (_NO_KEY if self.api_base else None)

    def has_known_key(self, provider: str) -> bool:
        """Return True if a well-known provider has a key, which needs no import of LiteLLM."""
        return provider in _WELL_KNOWN and bool(
            self.api_key or typed_key(provider) or os.environ.get(f"{provider.upper()}_API_KEY")
        )

    def check_key(self, litellm: Any, route: Route, target: Target) -> None:
        """Raise ModelError if there is no key and LiteLLM would send a request without a key."""
        if target.has_key or self.api_base or litellm.api_key:
            return
        if not route.openai_compatible and route.provider != "anthropic":
            return
        if route.provider == "anthropic" and (
            litellm.anthropic_key or os.environ.get("ANTHROPIC_AUTH_TOKEN")
        ):
            return
        if not self.key(litellm, route):
            raise ModelError(f"No API key: {target.key_help}.", kind="authentication")

    def target(self, litellm: Any, route: Route, name: str, *, answered: bool = False) -> Target:
        """Return the target of error messages for the model `name`; `answered` is True after the first reply."""
        environment = litellm.validate_environment(model=route.model)
        missing = () if environment.get("keys_in_environment") else environment.get("missing_keys") or ()
        names = tuple(key for key in missing if key.endswith("_API_KEY"))
        return Target(
            model=name,
            api_base=self._shown(),
            has_key=self.api_key is not None
            or typed_key(route.asked or route.provider) is not None
            or not names,
            key_names=names or (f"{(route.asked or route.provider).upper()}_API_KEY",),
            answered=answered,
        )

    def _shown(self) -> str | None:
        """Return the address without passwords and tokens."""
        if self.api_base is None:
            return None
        return str(httpx.URL(self.api_base).copy_with(userinfo=b"", query=None, fragment=None))


def _checked_key(key: str, source: str) -> str:
    try:
        return clean_key(key, source)
    except KeyTextError as error:
        raise ModelError(f"{error}.", kind="authentication") from None


@asynccontextmanager
async def request_client(
    route: Route,
    api_base: str | None,
    api_key: str | None,
    request: NextRequest,
    rewriter: ReplyRewriter,
    extra: dict[str, Any],
) -> AsyncIterator[dict[str, Any]]:
    """Open a client for one request, and yield the keyword arguments that pass the client to LiteLLM.

    The client adds the known messages of `request` to the body, and the `extra` fields, if LiteLLM accepts a client;
    otherwise the keyword arguments contain the `extra` fields. Replies of OpenAI-compatible servers pass through
    `rewriter`.
    """
    client = _make_client(route, api_base, api_key, request, rewriter)
    if client is None:
        yield extra
        return
    if extra:
        client.extra = extra
    try:
        yield {"client": client}
    finally:
        await client.close()


def _make_client(
    route: Route, api_base: str | None, api_key: str | None, request: NextRequest, rewriter: ReplyRewriter
) -> Any:
    hooks: dict[str, Any] = {"response": [rewriter]} if route.openai_compatible else {}
    if route.provider == "openai":
        import openai

        # An httpx client even if OpenAI's client would use httpx2: replies are rewritten with httpx classes.
        address = api_base or os.environ.get("OPENAI_BASE_URL") or "https://api.openai.com/v1"
        http_client: Any = proxies.http_client(address, event_hooks=hooks, follow_redirects=True)
        build = http_client.build_request

        def build_whole(*args: Any, content: bytes | None = None, json: Any = None, **rest: Any) -> Any:
            body = json if content is None else _json.loads(content)
            return build(*args, content=request.whole_body(body), **rest)

        http_client.build_request = build_whole
        return openai.AsyncOpenAI(api_key=api_key, base_url=api_base, max_retries=0, http_client=http_client)
    proxies.check_certificates(api_base)
    proxies.proxy_for(
        api_base or "https://api.invalid"
    )  # raises an error with the name of an invalid variable
    if route.provider not in _LITELLM_HTTP:
        return None
    client = _once_only()(event_hooks=hooks)
    if api_base and proxies.is_loopback(httpx.URL(api_base).host):  # LiteLLM's client would use a proxy
        client.own = client.client = proxies.http_client(api_base, event_hooks=hooks, follow_redirects=True)
    client.request = request if route.provider in SENDS_NEW_MESSAGES else None
    return client


@functools.cache
def _once_only() -> type[Any]:
    from litellm.llms.custom_httpx.http_handler import AsyncHTTPHandler

    class OnceOnly(AsyncHTTPHandler):
        """HTTP client of LiteLLM without a second attempt, which adds extra fields and known messages to a body."""

        extra: Mapping[str, Any] = MappingProxyType({})
        request: NextRequest | None = None
        own: httpx.AsyncClient | None = None

        async def close(self) -> None:
            await super().close()  # type: ignore[no-untyped-call]
            if self.own is not None:
                await self.own.aclose()

        async def post(self, *args: Any, data: Any = None, **kwargs: Any) -> Any:
            if isinstance(data, str) and (self.extra or self.request):
                body = _merged(_json.loads(data), self.extra)
                data = self.request.whole_body(body, _json.dumps) if self.request else _json.dumps(body)
            return await super().post(*args, data=data, **kwargs)

        async def single_connection_post_request(self, *args: Any, **kwargs: Any) -> Any:
            # Called while the failure of the first attempt is being handled.
            raise

    return OnceOnly


def _merged(body: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the fields of `extra`, and of nested objects, into a body."""
    nested = {
        name: _merged(body[name], value)
        for name, value in extra.items()
        if isinstance(value, dict) and isinstance(body.get(name), dict)
    }
    return {**body, **extra, **nested}


_keys: dict[str, str] = {}
"""Keys that a person typed, by provider, only in memory: child processes inherit `os.environ`, and so do sandboxes of
the isolation `process`. Each request looks up its key, so that changes affect runs that have begun."""


def keep_key(provider: str, key: str) -> None:
    """Use this key for the models of a provider, even if the environment has another key."""
    _keys[provider] = key


def forget_keys(provider: str | None = None) -> list[str]:
    """Forget the key of a provider, or all keys. Return the providers whose keys were forgotten."""
    forgotten = [name for name in _keys if provider in (None, name)]
    for name in forgotten:
        del _keys[name]
    return forgotten


def typed_key(provider: str) -> str | None:
    """Return the key that was typed for a provider, such as `openai`."""
    return _keys.get(provider)


def typed_providers() -> list[str]:
    """Return the providers with a typed key."""
    return list(_keys)
