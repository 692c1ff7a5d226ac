"""Requests to a model through LiteLLM: one streamed request for each reply, without retries.

LiteLLM is imported only when it is needed. Its features that connect to servers other than the model's are turned off.
"""

from __future__ import annotations

import functools
import gc
import importlib
import importlib.metadata
import json
import logging
import os
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from types import MappingProxyType
from typing import Any

import httpx

from llm_sandbox_nb.daemon_threads import in_daemon_thread
from llm_sandbox_nb.known_keys import KeyFilter
from llm_sandbox_nb.model import proxies
from llm_sandbox_nb.model.connection import Access
from llm_sandbox_nb.model.contract import ModelError
from llm_sandbox_nb.model.errors import Target
from llm_sandbox_nb.model.route import Route
from llm_sandbox_nb.model.route_choice import litellm_route, needs_responses
from llm_sandbox_nb.model.stream import CallPiece, Piece
from llm_sandbox_nb.model.transport import ModelRequest
from llm_sandbox_nb.trajectory.events import Usage

_ENVIRONMENT = {
    # Prices and header tables come from the installed package, never from the network.
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",
    "LITELLM_LOCAL_POLICY_TEMPLATES": "True",
    "LITELLM_LOCAL_BLOG_POSTS": "True",
    # Otherwise, LiteLLM searches the whole history for pictures, to shorten them in a log that nobody uses.
    "MAX_BASE64_LENGTH_FOR_LOGGING": "0",
}
COMPROMISED = ("1.82.7", "1.82.8", "1.107.0")
"""Releases of LiteLLM that were published with malicious code. pyproject.toml excludes the same releases."""


def compromised_version() -> str:
    """Return a warning with advice if a compromised release is installed, and an empty text otherwise."""
    version = importlib.metadata.version("litellm")
    if version not in COMPROMISED:
        return ""
    return (
        f"litellm {version} is installed, a release with malicious code: remove this environment, make a new one,"
        " and replace every key that was used in it."
    )


_KEY_FILTER = KeyFilter()


@functools.cache
def backend() -> Any:
    """Import and configure LiteLLM. The first call needs seconds, so async code should call `loaded` instead.

    Raises:
        ImportError: if the installed release is known to be malicious.
    """
    if problem := compromised_version():
        raise ImportError(problem)
    os.environ.update(_ENVIRONMENT)
    # In other modes, LiteLLM reads a `.env` file in a parent folder.
    os.environ.setdefault("LITELLM_MODE", "PRODUCTION")
    collecting = gc.isenabled()
    # The import makes millions of permanent objects, and is a fifth faster without the garbage collector.
    gc.disable()
    try:
        litellm: Any = importlib.import_module("litellm")
    finally:
        if collecting:
            gc.enable()
    litellm.telemetry = False
    litellm.suppress_debug_info = True
    litellm.disable_hf_tokenizer_download = True
    # By default, LiteLLM stops a reply with many equal pieces in a row. But the line under a table's head may have as
    # many, and the token limit is enough to end a model's repetitions.
    litellm.REPEATED_STREAMING_CHUNK_LIMIT = sys.maxsize
    for name in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy", "openai", "openai._base_client"):
        logging.getLogger(name).addFilter(_KEY_FILTER)
    return litellm


async def loaded() -> Any:
    """Return LiteLLM's module. A daemon thread imports it, so that the import cannot delay the end of a run."""
    return (
        backend() if backend.cache_info().currsize else await in_daemon_thread(backend, name="import-litellm")
    )


_CACHE_POINTS = [{"location": "message", "role": "system"}, {"location": "message", "index": -1}]
"""Places up to which Anthropic caches a request: the system message and the last message. So the history is cached."""
_LITELLM_HTTP = frozenset({"anthropic", "gemini"})
"""Providers for which LiteLLM lets the caller choose the HTTP client. For all others, LiteLLM uses its own client."""
_log = logging.getLogger(__name__)


class LiteLLMTransport:
    """Sender of requests that go to a model through LiteLLM.

    LiteLLM's own HTTP client keeps connections even after their event loop has ended. It also silently repeats a
    request when the server hangs up. So each request gets a client of its own, if LiteLLM allows this for the provider.
    """

    def __init__(self, litellm: Any, name: str, access: Access) -> None:
        """Find the route of the model `name`. Raise ModelError if its provider is unknown."""
        self._litellm = litellm
        self._access = access
        self.route = litellm_route(litellm, name, access.api_base)

    def accepts(self, name: str, value: Any) -> bool:
        return _accepts(self._litellm, self.route, name, value)

    def target(self, name: str, *, answered: bool) -> Target:
        environment = self._litellm.validate_environment(model=self.route.model)
        missing = () if environment.get("keys_in_environment") else environment.get("missing_keys") or ()
        names = tuple(key for key in missing if key.endswith("_API_KEY"))
        return self._access.target(self.route, name, names, answered=answered)

    def check_key(self, target: Target) -> None:
        """Raise ModelError if there is no key and LiteLLM would send a request without a key."""
        litellm, route = self._litellm, self.route
        if target.has_key or self._access.api_base or litellm.api_key:
            return
        if route.provider == "anthropic" and (
            litellm.anthropic_key or os.environ.get("ANTHROPIC_AUTH_TOKEN")
        ):
            return
        if (route.openai_compatible or route.provider == "anthropic") and not self._access.key(route):
            raise ModelError(f"No API key: {target.key_help}.", kind="authentication")

    async def pieces(self, request: ModelRequest, heard: Callable[[], None]) -> AsyncGenerator[Piece, None]:
        settings = {**request.settings}
        extra = {} if self.route.openai_compatible else settings.pop("extra_body", {})
        client = _client(self.route, self._access.api_base, extra)
        try:
            arguments = {**settings, **({"client": client} if client else extra)}
            arguments |= self._arguments(request)
            if needs_responses(self.route, self._access.api_base, settings.get("extra_body", {})):
                # With this name each version of LiteLLM uses the Responses API. With other names each version follows
                # its own rules: 1.95 uses chat completions for gpt-5.4 and later.
                arguments["model"] = f"openai/responses/{self.route.sent_name.removeprefix('responses/')}"
            async for piece in self._answered(arguments, heard):
                yield piece
        finally:
            if client is not None:
                await client.close()

    def _arguments(self, request: ModelRequest) -> dict[str, Any]:
        arguments: dict[str, Any] = {
            "model": self.route.model,
            "messages": request.messages(),
            "stream": request.stream,
            "timeout": httpx.Timeout(request.timeout, connect=min(request.timeout, 30.0)),
            "num_retries": 0,
            "max_retries": 0,
            # Without this, LiteLLM 1.106 and later search for tools that they run themselves, which needs a package.
            "_skip_mcp_handler": True,
        }
        if request.stream_options:
            arguments["stream_options"] = request.stream_options
        if request.tools:
            # LiteLLM's table lacks some models that support tools. So tools are always sent, and the provider decides.
            arguments |= {"tools": request.tools, "allowed_openai_params": ["tools"]}
        if self.route.provider == "anthropic":
            arguments["cache_control_injection_points"] = _CACHE_POINTS
        if self._access.api_base:
            arguments["api_base"] = self._access.api_base
        key = self._access.key(self.route)
        if key != os.environ.get(self.route.key_variable):  # otherwise LiteLLM reads the variable
            arguments["api_key"] = key
        return arguments

    async def _answered(
        self, arguments: dict[str, Any], heard: Callable[[], None]
    ) -> AsyncGenerator[Piece, None]:
        answer = await self._litellm.acompletion(**arguments)
        if not arguments["stream"]:
            yield _piece(answer)
            yield Piece(usage=self._usage(getattr(answer, "usage", None), True), ended=True)
            return
        usage = None
        try:
            async for chunk in answer:
                heard()
                usage = getattr(chunk, "usage", None) or usage
                yield _piece(chunk)
            received = getattr(answer, "chunks", None)
            reported = not received or any(getattr(chunk, "usage", None) for chunk in received)
            cut_short = getattr(answer, "received_finish_reason", "unknown") is None
            yield Piece(
                usage=self._usage(usage, reported),
                usage_reported=reported,
                ended=not (cut_short and self.route.openai_compatible),
            )
        finally:
            await answer.aclose()

    def _usage(self, usage: Any, reported: bool) -> Usage | None:
        if usage is None:
            return None
        prompt = getattr(usage, "prompt_tokens_details", None)
        completion = getattr(usage, "completion_tokens_details", None)
        return Usage(
            prompt_tokens=usage.prompt_tokens or 0,
            completion_tokens=usage.completion_tokens or 0,
            cached_tokens=getattr(prompt, "cached_tokens", None) or 0,
            reasoning_tokens=getattr(completion, "reasoning_tokens", None) or 0,
            cost=_cost(self._litellm, self.route, usage) if reported else None,
        )


@functools.lru_cache(maxsize=256)
def _accepts(litellm: Any, route: Route, name: str, value: Any) -> bool:
    """Return True if LiteLLM allows the setting for the model. Nothing is sent for this check."""
    try:
        litellm.utils.get_optional_params(
            model=route.sent_name, custom_llm_provider=route.provider, **{name: value}
        )
    except litellm.exceptions.UnsupportedParamsError:
        return False
    return True


def _piece(chunk: Any) -> Piece:
    """Convert one chunk of LiteLLM's stream, or a whole reply of LiteLLM, to a piece."""
    head: dict[str, Any] = {
        "response_id": getattr(chunk, "id", None),
        "response_model": getattr(chunk, "model", None),
    }
    if not chunk.choices:
        return Piece(**head)
    choice = chunk.choices[0]
    delta = getattr(choice, "delta", None) or choice.message
    return Piece(
        text=getattr(delta, "content", None) or "",
        reasoning=getattr(delta, "reasoning_content", None) or getattr(delta, "reasoning", None) or "",
        calls=[_call(call) for call in getattr(delta, "tool_calls", None) or ()],
        thinking_blocks=getattr(delta, "thinking_blocks", None) or (),
        finish_reason=choice.finish_reason,
        **head,
    )


def _call(delta: Any) -> CallPiece:
    specific = getattr(delta, "provider_specific_fields", None)
    return CallPiece(
        index=getattr(delta, "index", None),
        id=delta.id or "",
        name=delta.function.name or "",
        arguments=delta.function.arguments or "",
        extra={"provider_specific_fields": dict(specific)} if specific else {},
    )


def _client(route: Route, api_base: str | None, extra: dict[str, Any]) -> Any:
    """Make an HTTP client for one request. Return None if LiteLLM must use its own client for the provider.

    The client adds the fields of `extra` to the body of the request.

    Raises:
        ModelError: if an environment variable is invalid. The message names the variable.
    """
    proxies.check_certificates(api_base)
    proxies.proxy_for(api_base or "https://api.invalid")
    if route.provider not in _LITELLM_HTTP:
        return None
    client = _once_only()()
    client.extra = extra
    if api_base and proxies.is_loopback(httpx.URL(api_base).host):  # LiteLLM's client would use a proxy
        client.own = client.client = proxies.http_client(api_base, follow_redirects=True)
    else:
        client.client.event_hooks["response"].append(proxies.check_redirect)
    return client


@functools.cache
def _once_only() -> type[Any]:
    from litellm.llms.custom_httpx.http_handler import AsyncHTTPHandler

    class OnceOnly(AsyncHTTPHandler):
        """HTTP client of LiteLLM that makes no second attempt, and adds the fields of `extra` to the body."""

        extra: Mapping[str, Any] = MappingProxyType({})
        own: httpx.AsyncClient | None = None

        async def close(self) -> None:
            await super().close()  # type: ignore[no-untyped-call]
            if self.own is not None:
                await self.own.aclose()

        async def post(self, *args: Any, data: Any = None, **kwargs: Any) -> Any:
            if isinstance(data, str) and self.extra:
                data = json.dumps(_merged(json.loads(data), self.extra))
            return await super().post(*args, data=data, **kwargs)

        async def single_connection_post_request(self, *args: Any, **kwargs: Any) -> Any:
            # LiteLLM calls this method for a second attempt, in the `except` block of the first failure. The bare
            # `raise` raises this first failure again.
            raise

    return OnceOnly


def _merged(body: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the fields of `extra` into a body. Nested objects are merged in the same way."""
    nested = {
        name: _merged(body[name], value)
        for name, value in extra.items()
        if isinstance(value, dict) and isinstance(body.get(name), dict)
    }
    return {**body, **extra, **nested}


def _cost(litellm: Any, route: Route, usage: Any) -> float | None:
    """Return the cost in US dollars from LiteLLM's price table, or None if the table has no price for the model."""
    try:
        info = litellm.get_model_info(model=route.model)
        prompt, completion = litellm.cost_per_token(model=route.model, usage_object=usage)
    except Exception as error:  # noqa: BLE001 - LiteLLM raises bare Exceptions for unknown models
        _log.debug("no price for %s: %s", route.model, error)
        return None
    return float(prompt + completion) if info.get("input_cost_per_token") else None
