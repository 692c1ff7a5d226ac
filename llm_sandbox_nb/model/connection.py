"""The connection to a model: its address, its key, and an HTTP client for each request.

LiteLLM keeps connections in a cache that outlives event loops, and its HTTP client silently repeats a request when the
server hangs up. With one client for each request nothing stays open after a run, no request meets a connection that
went stale during a long tool call, cancelling closes the connection, and a request is sent once.
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
"""Providers whose requests LiteLLM sends with its own HTTP client; all others keep LiteLLM's client."""
SENDS_NEW_MESSAGES = frozenset({"openai", "hosted_vllm", "deepseek"})
"""Providers for which LiteLLM changes each message without a look at others: it gets the new ones only."""


@dataclass(frozen=True)
class Access:
    """Address and key as the person gave them; a typed key, then the environment, fills in what they left out."""

    api_base: str | None = None
    api_key: str | None = field(default=None, repr=False)

    def check(self) -> None:
        """Raise ModelError when the address is none, or the key no key."""
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
        """The key to send; None leaves it to LiteLLM, which knows the variable of each provider.

        Raises:
            ModelError: it has characters that no key has.
        """
        provider = route.asked or route.provider
        if given := self.api_key or typed_key(provider):
            return _checked_key(given, "The API key")
        variable = f"{provider.upper()}_API_KEY"
        found = os.environ.get(variable) or None
        if found is not None:
            found = _checked_key(found, f"The environment variable {variable}")
        if route.provider != "openai":
            # LiteLLM takes the variable as it is.
            return found if found != os.environ.get(variable) else None
        if provider == "openai":
            found = litellm.api_key or litellm.openai_key or found
        # A private server often needs no key, but the client insists on one.
        return found or (_NO_KEY if self.api_base else None)

    def has_known_key(self, provider: str) -> bool:
        """Whether there is a key for one of the providers that need no look into LiteLLM."""
        return provider in _WELL_KNOWN and bool(
            self.api_key or typed_key(provider) or os.environ.get(f"{provider.upper()}_API_KEY")
        )

    def check_key(self, litellm: Any, route: Route, target: Target) -> None:
        """Raise ModelError when there is no key and LiteLLM would ask the provider without one."""
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
        """What error messages say of the model `name`; `answered` says that its server has answered before."""
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
        """The address without a password or a token that stands in it."""
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
    """The keyword arguments that hand LiteLLM the client, which is closed at the end, and the `extra` fields.

    OpenAI's client sends what `request` adds to the messages that LiteLLM gets. Replies of OpenAI-compatible servers
    pass through `rewriter`. Where LiteLLM keeps its own client, it has to place the `extra` fields itself.
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

        # Of httpx also where OpenAI's client has one of httpx2: replies are rewritten with httpx's classes.
        address = api_base or os.environ.get("OPENAI_BASE_URL") or "https://api.openai.com/v1"
        http_client: Any = proxies.http_client(address, event_hooks=hooks, follow_redirects=True)
        build = http_client.build_request

        def build_whole(*args: Any, content: bytes | None = None, json: Any = None, **rest: Any) -> Any:
            body = json if content is None else _json.loads(content)
            return build(*args, content=request.whole_body(body), **rest)

        http_client.build_request = build_whole
        return openai.AsyncOpenAI(api_key=api_key, base_url=api_base, max_retries=0, http_client=http_client)
    proxies.check_certificates(api_base)
    proxies.proxy_for(api_base or "https://api.invalid")  # names a variable that cannot be used
    if route.provider not in _LITELLM_HTTP:
        return None
    client = _once_only()(event_hooks=hooks)
    if api_base and proxies.is_loopback(httpx.URL(api_base).host):  # LiteLLM's own would ask a proxy
        client.own = client.client = proxies.http_client(api_base, event_hooks=hooks, follow_redirects=True)
    client.request = request if route.provider in SENDS_NEW_MESSAGES else None
    return client


@functools.cache
def _once_only() -> type[Any]:
    from litellm.llms.custom_httpx.http_handler import AsyncHTTPHandler

    class OnceOnly(AsyncHTTPHandler):
        """LiteLLM's HTTP client without its second attempt; a body gets further fields and the known messages."""

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
    """The body with more fields; an object gets more fields of its own."""
    nested = {
        name: _merged(body[name], value)
        for name, value in extra.items()
        if isinstance(value, dict) and isinstance(body.get(name), dict)
    }
    return {**body, **extra, **nested}


_keys: dict[str, str] = {}
"""Keys that a person typed, by provider. They are in this process's memory only: in `os.environ`, every process that is
started here would get them, those of isolation `process` too. A key is looked up when a request is sent, so that one
that is typed or forgotten counts for runs that have begun."""


def keep_key(provider: str, key: str) -> None:
    """Use this key for the models of a provider, whatever the environment says."""
    _keys[provider] = key


def forget_keys(provider: str | None = None) -> list[str]:
    """Forget the key of a provider, or all keys. Gives the providers that had one."""
    forgotten = [name for name in _keys if provider in (None, name)]
    for name in forgotten:
        del _keys[name]
    return forgotten


def typed_key(provider: str) -> str | None:
    """The key that was typed for a provider, such as `openai`."""
    return _keys.get(provider)


def typed_providers() -> list[str]:
    """The providers that have one."""
    return list(_keys)
