"""The model behind LiteLLM: one streamed request for each reply, and no retries.

LiteLLM is imported late, and with everything turned off that talks to anybody but the model's server.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import importlib.metadata
import logging
import os
import sys
from typing import Any

import httpx

from llm_sandbox_nb.model.connection import SENDS_NEW_MESSAGES, Access, request_client
from llm_sandbox_nb.model.contract import ContextLimit, DeltaCallback, ModelError, ModelSettings, Reply
from llm_sandbox_nb.model.errors import Target, broken_off, refused_setting, to_model_error
from llm_sandbox_nb.model.known_history import KnownHistories, SentHistories
from llm_sandbox_nb.model.request import (
    SETTINGS,
    Route,
    SendReasoning,
    assistant_message,
    clean_messages,
    find_route,
    reasoning_field,
    sampling,
)
from llm_sandbox_nb.model.served_context import served_context
from llm_sandbox_nb.model.server_replies import ReplyRewriter, ServerHabits
from llm_sandbox_nb.model.stream import Assembly
from llm_sandbox_nb.trajectory.events import Usage

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


_CACHED = [{"location": "message", "role": "system"}, {"location": "message", "index": -1}]
"""Anthropic caches what is marked: here all that was sent before, which is most of what an agent sends."""
_log = logging.getLogger(__name__)


class _ListenerError(Exception):
    """The callback for pieces failed; that is not the model's failure."""


class LiteLLMModel:
    """A model that LiteLLM reaches; `model_names.make_model` makes it."""

    scripted = False

    def __init__(self, name: str, access: Access, *, send_reasoning: SendReasoning = "auto") -> None:
        self.name = name
        self._access = access
        self._send_reasoning = send_reasoning
        self._habits = ServerHabits()
        self._histories = SentHistories()
        self._known = KnownHistories()

    def prepare(self) -> None:
        """Begin to import LiteLLM, in a thread."""
        importing = asyncio.get_running_loop().run_in_executor(None, backend)
        importing.add_done_callback(lambda done: done.cancelled() or done.exception())  # `reply` tells it

    async def check(self) -> None:
        """Find out whether the provider is known and there is a key, before anything is started.

        LiteLLM, which takes seconds to import, is not needed where the key of a well-known provider is there.

        Raises:
            ModelError: no provider is known for the name, or there is no key for it.
        """
        if self._access.api_base or self._access.has_known_key(self.name.partition("/")[0]):
            return
        litellm = await asyncio.to_thread(backend)
        route = find_route(litellm, self.name, None)
        self._access.check_key(litellm, route, self._access.target(litellm, route, self.name))

    async def context_limit(self) -> ContextLimit | None:
        """The tokens that fit, as the server at the given address tells, else as LiteLLM's table has it."""
        try:
            litellm = await asyncio.to_thread(backend)
            route = find_route(litellm, self.name, self._access.api_base)
        except (ImportError, ModelError):
            return None  # the request tells it
        if base := self._access.api_base:
            name = route.model.removeprefix(f"{route.provider}/")
            served = await served_context(base, name, self._access.key(litellm, route))
            if served is not None:
                return ContextLimit(served, True)
        listed = _context_window(litellm, route)
        return None if listed is None else ContextLimit(listed, False)

    async def reply(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]],
        settings: ModelSettings,
        on_delta: DeltaCallback | None = None,
    ) -> Reply:
        """One request, streamed. Cancelling closes the connection at once.

        Raises:
            ContextOverflowError: it does not fit.
            ModelError: anything else.
        """
        litellm = await asyncio.to_thread(backend)
        route = find_route(litellm, self.name, self._access.api_base)
        way = reasoning_field(route) if self._send_reasoning == "auto" else self._send_reasoning
        sent, left_out = sampling(litellm, route, settings, self._habits.refused)
        extra = {} if route.openai_compatible else sent.pop("extra_body", {})
        target = self._access.target(litellm, route, self.name)
        assembly = Assembly()
        rewriter = ReplyRewriter(self._habits, stream="stream" not in self._habits.refused)
        history = self._histories.next_request(messages, whole=_needs_whole_history(litellm, route))
        try:
            self._access.check_key(litellm, route, target)
            key = self._access.key(litellm, route)
            opening = request_client(route, self._access.api_base, key, history, rewriter, extra)
            async with asyncio.timeout(settings.timeout), opening as client:
                request = self._request(litellm, route, clean_messages(history.new, way), tools)
                request["timeout"] = httpx.Timeout(settings.timeout, connect=min(settings.timeout, 30.0))
                await _stream(litellm, client | request | sent, assembly, on_delta)
        except _ListenerError as error:
            raise error.args[0] from None
        except Exception as error:
            raise self._explain(error, target, sent) from error
        if not rewriter.ended if rewriter.used else route.openai_compatible and assembly.cut_short:
            raise broken_off(target)
        if route.openai_compatible and not self._habits.calls_natively:
            self._habits.calls_natively = assembly.has_calls
            if not assembly.has_calls:
                assembly.read_written_calls(tools)
        calls = assembly.calls(self._known.read(messages).call_ids)
        usage = _usage(litellm, route, assembly)
        if usage and not assembly.usage_reported:
            usage.prompt_tokens += history.known_tokens
        history.answered(usage.prompt_tokens if usage else 0)
        return Reply(
            message=assistant_message(assembly, calls, way),
            text=assembly.text,
            reasoning=assembly.reasoning or None,
            calls=calls,
            usage=usage,
            finish_reason=assembly.finish_reason,
            response_id=assembly.response_id,
            response_model=assembly.response_model,
            context_window=_context_window(litellm, route),
            left_out=left_out,
        )

    def _request(
        self, litellm: Any, route: Route, messages: list[dict[str, Any]], tools: list[dict[str, Any]]
    ) -> dict[str, Any]:
        request: dict[str, Any] = {
            "model": route.model,
            "messages": messages,
            "stream": "stream" not in self._habits.refused,
            "num_retries": 0,
            "max_retries": 0,
            # Tools that LiteLLM would run itself; from 1.106 on, looking for them needs another package.
            "_skip_mcp_handler": True,
        }
        if not self._habits.refused & {"stream", "stream_options"}:
            request["stream_options"] = {"include_usage": True}
        if tools:
            # LiteLLM's table does not know every model that takes tools; the provider does.
            request |= {"tools": tools, "allowed_openai_params": ["tools"]}
        if route.provider == "anthropic":
            request["cache_control_injection_points"] = _CACHED
        if self._access.api_base:
            request["api_base"] = self._access.api_base
        if key := self._access.key(litellm, route):
            request["api_key"] = key
        return request

    def _explain(self, error: Exception, target: Target, sent: dict[str, Any]) -> ModelError:
        settings = SETTINGS.intersection([*sent, *sent.get("extra_body", ())])
        if setting := refused_setting(
            error, (settings | {"stream", "stream_options"}) - self._habits.refused
        ):
            self._habits.refused.add(setting)
            return ModelError(
                f"{self.name} does not take the setting {setting}: it is left out from now on.",
                kind="setting",
                retryable=True,
            )
        return to_model_error(error, target)


async def _stream(
    litellm: Any, request: dict[str, Any], assembly: Assembly, on_delta: DeltaCallback | None
) -> None:
    stream = await litellm.acompletion(**request)
    if not request["stream"]:
        _tell(on_delta, *assembly.add(stream))
        _tell(on_delta, *assembly.close())
        return
    try:
        async for chunk in stream:
            _tell(on_delta, *assembly.add(chunk))
        _tell(on_delta, *assembly.close())
        assembly.cut_short = getattr(stream, "received_finish_reason", "unknown") is None
        received = getattr(stream, "chunks", None)
        if received:
            assembly.usage_reported = any(getattr(chunk, "usage", None) for chunk in received)
    finally:
        await stream.aclose()


def _tell(on_delta: DeltaCallback | None, text: str, reasoning: str) -> None:
    if not on_delta or not (text or reasoning):
        return
    try:
        on_delta(text, reasoning)
    except Exception as error:
        raise _ListenerError(error) from error


def _needs_whole_history(litellm: Any, route: Route) -> bool:
    """Whether LiteLLM writes the body itself, or shows the messages to functions that a person has added to it."""
    lists = (litellm.callbacks, litellm.input_callback, litellm.success_callback, litellm.failure_callback)
    # LiteLLM's modules for Gemini enter its cache there, also when there is none.
    listening = {str(one) for listed in lists for one in listed} - (
        {"cache"} if litellm.cache is None else set()
    )
    return route.provider not in SENDS_NEW_MESSAGES or bool(listening)


def _usage(litellm: Any, route: Route, assembly: Assembly) -> Usage | None:
    usage = assembly.usage
    if usage is None:
        return None
    prompt = getattr(usage, "prompt_tokens_details", None)
    completion = getattr(usage, "completion_tokens_details", None)
    return Usage(
        prompt_tokens=usage.prompt_tokens or 0,
        completion_tokens=usage.completion_tokens or 0,
        cached_tokens=getattr(prompt, "cached_tokens", None) or 0,
        reasoning_tokens=getattr(completion, "reasoning_tokens", None) or 0,
        cost=_cost(litellm, route, usage) if assembly.usage_reported else None,
    )


def _context_window(litellm: Any, route: Route) -> int | None:
    """Tokens, by LiteLLM's table; None when the table does not know the model."""
    names = (route.model, route.model.removeprefix(f"{route.provider}/"))
    tokens = (litellm.model_cost.get(name, {}).get("max_input_tokens") for name in names)
    return next((found for found in tokens if isinstance(found, int) and found > 0), None)


def _cost(litellm: Any, route: Route, usage: Any) -> float | None:
    """US dollars by LiteLLM's table; None when the table does not know the model."""
    try:
        info = litellm.get_model_info(model=route.model)
        prompt, completion = litellm.cost_per_token(model=route.model, usage_object=usage)
    except Exception as error:  # noqa: BLE001 - LiteLLM raises bare Exceptions for unknown models
        _log.debug("no price for %s: %s", route.model, error)
        return None
    return float(prompt + completion) if info.get("input_cost_per_token") else None
