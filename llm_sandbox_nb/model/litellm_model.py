"""Model behind LiteLLM: one streamed request for each reply, without retries.

LiteLLM is imported late, with all features off that connect to servers other than the model's server.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import gc
import importlib
import importlib.metadata
import logging
import os
import sys
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

import httpx

from llm_sandbox_nb.daemon_threads import in_daemon_thread
from llm_sandbox_nb.errors import LLMSandboxError
from llm_sandbox_nb.known_keys import KeyFilter, has_key
from llm_sandbox_nb.model.connection import SENDS_NEW_MESSAGES, Access, request_client
from llm_sandbox_nb.model.contract import (
    BROKEN_OFF,
    ContextLimit,
    DeltaCallback,
    ModelError,
    ModelSettings,
    Reply,
    ToolCall,
)
from llm_sandbox_nb.model.errors import (
    Target,
    broken_off,
    chain,
    examine,
    no_tools,
    refused_setting,
    to_model_error,
)
from llm_sandbox_nb.model.known_history import KnownHistories, SentHistories
from llm_sandbox_nb.model.message_form import SendReasoning, clean_messages, short_id
from llm_sandbox_nb.model.request import (
    SETTINGS,
    Route,
    assistant_message,
    find_route,
    reasoning_field,
    sampling,
)
from llm_sandbox_nb.model.served_context import served_context
from llm_sandbox_nb.model.server_habits import ServerHabits
from llm_sandbox_nb.model.server_lookup import Found, listed_text, look_up, name_there
from llm_sandbox_nb.model.server_replies import ReplyRewriter
from llm_sandbox_nb.model.stream import Assembly, is_json
from llm_sandbox_nb.trajectory.events import Usage

_ENVIRONMENT = {
    # Prices and header tables come from the installed package, never from the network.
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",
    "LITELLM_LOCAL_POLICY_TEMPLATES": "True",
    "LITELLM_LOCAL_BLOG_POSTS": "True",
    # 0: otherwise LiteLLM searches the whole history for pictures to shorten in an unused log.
    "MAX_BASE64_LENGTH_FOR_LOGGING": "0",
}
COMPROMISED = ("1.82.7", "1.82.8", "1.107.0")
"""Releases of LiteLLM that were published with malicious code; pyproject.toml excludes the same releases."""


def compromised_version() -> str:
    """Return a sentence with advice if a compromised release is installed; otherwise an empty text."""
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
    """Import and configure LiteLLM. The first call needs seconds: async code should call it in a thread.

    Raises:
        ImportError: if the installed release is known to be malicious.
    """
    if problem := compromised_version():
        raise ImportError(problem)
    os.environ.update(_ENVIRONMENT)
    # In other modes, LiteLLM reads a `.env` file of a parent folder.
    os.environ.setdefault("LITELLM_MODE", "PRODUCTION")
    collecting = gc.isenabled()
    gc.disable()  # the import makes millions of permanent objects: without the collector, it is a fifth faster
    try:
        litellm: Any = importlib.import_module("litellm")
    finally:
        if collecting:
            gc.enable()
    litellm.telemetry = False
    litellm.suppress_debug_info = True
    litellm.disable_hf_tokenizer_download = True
    # A line of a table has many equal pieces, in which LiteLLM sees an endless loop. Tokens are limited anyway.
    litellm.REPEATED_STREAMING_CHUNK_LIMIT = sys.maxsize
    for name in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy", "openai", "openai._base_client", "httpx"):
        logging.getLogger(name).addFilter(_KEY_FILTER)
    return litellm


async def _loaded() -> Any:
    """Return `backend()`, imported in a daemon thread, so that the import cannot delay the end of a run."""
    return (
        backend() if backend.cache_info().currsize else await in_daemon_thread(backend, name="import-litellm")
    )


_CACHE_POINTS = [{"location": "message", "role": "system"}, {"location": "message", "index": -1}]
"""Marks for Anthropic's prompt cache: everything sent before, which is most of an agent's request."""
_MAX_STORED_REASONINGS = 4096
_log = logging.getLogger(__name__)


class _ListenerError(LLMSandboxError):
    """Error of the callback for pieces, which is not the model's failure."""


DEFAULT_REPLY_TOKENS = 16_384
"""Default maximum tokens of one reply: without a limit, a local model may write until its context is full."""


class LiteLLMModel:
    """Model that LiteLLM connects to, made by `model_names.make_model`."""

    scripted = False

    def __init__(self, name: str, access: Access, *, send_reasoning: SendReasoning = "auto") -> None:
        self.name = name
        self._access = access
        self._send_reasoning = send_reasoning
        self._habits = ServerHabits()
        self._histories = SentHistories()
        self._known = KnownHistories()
        self._reasonings = ReasoningOfMessages()
        self._found: Found | None = None
        """Result of a search for the server's models, after a path or model was not found."""
        self._importing: asyncio.Future[Any] | None = None
        self._listed_name: str | None = None
        """Name of the model in the server's list, if it differs from `name`."""

    @property
    def api_base(self) -> str | None:
        """Address of the server, if given."""
        return self._access.api_base

    def prepare(self) -> None:
        """Start to import LiteLLM in a thread."""
        self._importing = asyncio.ensure_future(_loaded())
        # `reply` raises the error; the callback only marks the exception as retrieved.
        self._importing.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def prepared(self) -> None:
        """Wait until LiteLLM is imported."""
        with contextlib.suppress(ImportError):  # `reply` raises the error
            await _loaded()

    async def check(self) -> None:
        """Check that the provider is known and has a key.

        A well-known provider with a key needs no import of LiteLLM, which would need seconds.

        Raises:
            ModelError: if the provider is unknown, or has no key.
        """
        if self._access.api_base or self._access.has_known_key(self.name.partition("/")[0]):
            return
        litellm = await _loaded()
        route = find_route(litellm, self.name, None)
        self._access.check_key(litellm, route, self._access.target(litellm, route, self.name))

    def recall(
        self, learned: Mapping[str, Any], replies: Iterable[tuple[dict[str, Any], str | None, bool]]
    ) -> None:
        """Restore knowledge from another process; see `Recalls`."""
        self._habits.recall(learned)
        for message, reasoning, native in replies:
            self._reasonings.keep(message, reasoning or "")
            self._habits.calls_natively = self._habits.calls_natively or native

    async def context_limit(self) -> ContextLimit | None:
        """Return the limit that the server at the given address reports, otherwise the limit in LiteLLM's table."""
        try:
            litellm = await _loaded()
            route = find_route(litellm, self.name, self._access.api_base, self._listed_name)
        except (ImportError, ModelError):
            return None  # the request raises the error
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
        """Send one request and stream the reply. Cancelling closes the connection at once.

        Raises:
            ContextOverflowError: if the conversation does not fit.
            ModelError: after other failures.
        """
        litellm = await _loaded()
        route = find_route(litellm, self.name, self._access.api_base, self._listed_name)
        field = reasoning_field(route) if self._send_reasoning == "auto" else self._send_reasoning
        form = self._habits.form(field, openai_compatible=route.openai_compatible)
        if settings.max_tokens is None:
            settings = dataclasses.replace(settings, max_tokens=_reply_tokens(litellm, route))
        sent, left_out = sampling(litellm, route, settings, self._habits.refused)
        extra = {} if route.openai_compatible else sent.pop("extra_body", {})
        target = self._access.target(litellm, route, self.name, answered=self._habits.answered)
        assembly = Assembly()
        silence = _Silence(settings.timeout)
        rewriter = ReplyRewriter(
            self._habits, stream="stream" not in self._habits.refused, heard=silence.broken
        )
        whole = form.depends_on_others or _needs_whole_history(litellm, route)
        history = self._histories.next_request(messages, whole=whole)
        try:
            self._access.check_key(litellm, route, target)
            key = self._access.key(litellm, route)
            opening = request_client(route, self._access.api_base, key, history, rewriter, extra)
            async with silence.timer, opening as client:
                cleaned = clean_messages(history.new, form, self._reasonings.of)
                request = self._request(litellm, route, cleaned, tools)
                request["timeout"] = httpx.Timeout(settings.timeout, connect=min(settings.timeout, 30.0))
                await _stream(litellm, client | request | sent, assembly, on_delta, silence)
        except _ListenerError as error:
            raise error.args[0] from None
        except Exception as error:  # noqa: BLE001 - any failure becomes a ModelError
            failure = self._explain(error, target, sent, messages)
            if failure.kind == "not_found" and self._access.api_base:
                failure = await self._look_at_server(failure, route, self._access.key(litellm, route))
            # The cause may contain the key: then it is not shown.
            raise failure from (None if has_key(map(str, chain(error))) else error)
        self._habits.answered = True
        if not rewriter.ended if rewriter.used else route.openai_compatible and assembly.cut_short:
            raise broken_off(target)
        if route.openai_compatible and not self._habits.calls_natively:
            self._habits.calls_natively = assembly.has_calls
            if not assembly.has_calls:
                assembly.read_written_calls(tools)
        _tell(on_delta, assembly.late_text(), "")
        taken = self._known.read(messages).call_ids
        calls = assembly.calls(taken, short_id if form.short_ids else str)
        assembly.extra = [
            own | other
            for own, other in zip(assembly.extra, rewriter.unknown.of_calls(assembly.call_ids), strict=True)
        ]
        usage = _usage(litellm, route, assembly)
        if usage and not assembly.usage_reported:
            usage.prompt_tokens += history.known_tokens
        history.answered(usage.prompt_tokens if usage else 0)
        message = assistant_message(assembly, calls, form.reasoning, rewriter.unknown.message)
        self._reasonings.keep(message, assembly.reasoning)
        return Reply(
            message=message,
            text=assembly.text,
            reasoning=assembly.reasoning or None,
            calls=calls,
            usage=usage,
            finish_reason="length"
            if _cut_by_limit(assembly, calls, settings)
            else BROKEN_OFF
            if rewriter.cut
            else assembly.finish_reason,
            response_id=assembly.response_id,
            response_model=assembly.response_model,
            context_window=_context_window(litellm, route),
            left_out=left_out,
            written=assembly.written,
            raw_text=assembly.raw_text,
            refused_call=assembly.refused_call,
        )

    async def _look_at_server(self, failure: ModelError, route: Route, key: str | None) -> ModelError:
        """List the models of a server without the requested path or model, and correct the address and the name.

        The corrections apply to all further requests, and are made only once.
        """
        address = str(self._access.api_base)
        corrected = []
        if self._found is None:
            self._found = await look_up(address, key)
            if self._found is None:
                return ModelError(
                    f"{str(failure).rstrip('.')}; nothing lists models there (GET {address.rstrip('/')}/models): most "
                    "addresses end in /v1.",
                    kind="not_found",
                )
            if self._found.api_base != address.rstrip("/"):
                self._access = dataclasses.replace(self._access, api_base=self._found.api_base)
                corrected.append(f"the address is {self._found.api_base}, not {address}")
            name = name_there(self.name, route.sent_name, self._found.models)
            if name is not None and (name != route.sent_name or not route.openai_compatible):
                self._listed_name = name
                corrected.append(f"the model is called {name} there, not {route.sent_name}")
        if corrected:
            text = f"The server's list of models says that {' and that '.join(corrected)}: used from now on."
            return ModelError(text, kind="setting", retryable=True)
        return ModelError(
            f"{str(failure).rstrip('.')}; {route.sent_name} was sent, and the server has "
            f"{listed_text(self._found.models)}.",
            kind="not_found",
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
            # LiteLLM's table does not know every model with tools; the provider does.
            request |= {"tools": tools, "allowed_openai_params": ["tools"]}
        if route.provider == "anthropic":
            request["cache_control_injection_points"] = _CACHE_POINTS
        if self._access.api_base:
            request["api_base"] = self._access.api_base
        if key := self._access.key(litellm, route):
            request["api_key"] = key
        return request

    def _explain(
        self, error: Exception, target: Target, sent: dict[str, Any], messages: list[dict[str, Any]]
    ) -> ModelError:
        """Explain a failure in one sentence, and store knowledge about the server for all further requests."""
        settings = SETTINGS.intersection([*sent, *sent.get("extra_body", ())])
        if setting := refused_setting(
            error, (settings | {"stream", "stream_options"}) - self._habits.refused
        ):
            self._habits.refused.add(setting)
            return ModelError(
                f"{self.name} does not take the setting {setting}: it is left out from now on.",
                kind="setting",
                retryable=True,
                learned=self._habits.recorded(),
            )
        failure = examine(error)
        if learned := self._habits.learn(failure, messages):
            self._histories = SentHistories()  # all messages have to be converted again
            return ModelError(
                f"{self.name} {learned}.", kind="setting", retryable=True, learned=self._habits.recorded()
            )
        if self._habits.refuses_results(failure, messages):
            return no_tools(target, failure.detail)
        return to_model_error(error, target)


class _Silence:
    """Timer that ends a request after a number of seconds without data."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.timer = asyncio.timeout(seconds)

    def broken(self) -> None:
        """Restart the timer, because data arrived."""
        if not self.timer.expired():
            self.timer.reschedule(asyncio.get_running_loop().time() + self._seconds)


class ReasoningOfMessages:
    """Reasoning of the last replies, for servers that turn out to require reasoning in the history."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, str] = OrderedDict()

    def keep(self, message: dict[str, Any], reasoning: str) -> None:
        """Store the reasoning of a message."""
        if reasoning:
            self._kept[_message_key(message)] = reasoning
        while len(self._kept) > _MAX_STORED_REASONINGS:
            self._kept.popitem(last=False)

    def of(self, message: dict[str, Any]) -> str:
        """Return the reasoning of a message; empty if unknown."""
        return self._kept.get(_message_key(message), "")


def _message_key(message: dict[str, Any]) -> str:
    calls = message.get("tool_calls")
    return str(calls[0]["id"]) if calls else str(message.get("content"))


def _cut_by_limit(assembly: Assembly, calls: tuple[ToolCall, ...], settings: ModelSettings) -> bool:
    """Return True if the token limit cut off the last call, although the server reports a complete reply."""
    if not calls or not assembly.usage_reported or assembly.finish_reason == "length":
        return False
    written = getattr(assembly.usage, "completion_tokens", None) or 0
    return written >= (settings.max_tokens or sys.maxsize) and not is_json(calls[-1].arguments)


def _reply_tokens(litellm: Any, route: Route) -> int:
    """Return the default maximum tokens of one reply: at most half of the context, and the model's maximum."""
    info = litellm.model_cost.get(route.model) or litellm.model_cost.get(route.sent_name) or {}
    known = [info.get("max_output_tokens"), (_context_window(litellm, route) or 0) // 2]
    return min([DEFAULT_REPLY_TOKENS, *(limit for limit in known if isinstance(limit, int) and limit > 0)])


async def _stream(
    litellm: Any,
    request: dict[str, Any],
    assembly: Assembly,
    on_delta: DeltaCallback | None,
    silence: _Silence,
) -> None:
    stream = await litellm.acompletion(**request)
    if not request["stream"]:
        _tell(on_delta, *assembly.add(stream))
        _tell(on_delta, *assembly.close())
        return
    try:
        async for chunk in stream:
            silence.broken()
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
    """Return True if LiteLLM must see all messages: for its own conversion, or for callbacks that a person added."""
    lists = (litellm.callbacks, litellm.input_callback, litellm.success_callback, litellm.failure_callback)
    # LiteLLM's modules for Gemini add "cache" as a callback even without a cache.
    listening = {str(callback) for callbacks in lists for callback in callbacks} - (
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
    """Return the context limit in LiteLLM's table; None if the table does not know the model."""
    names = (route.model, route.sent_name)
    tokens = (litellm.model_cost.get(name, {}).get("max_input_tokens") for name in names)
    return next((found for found in tokens if isinstance(found, int) and found > 0), None)


def _cost(litellm: Any, route: Route, usage: Any) -> float | None:
    """Return the cost in US dollars by LiteLLM's table; None if the table does not know the model."""
    try:
        info = litellm.get_model_info(model=route.model)
        prompt, completion = litellm.cost_per_token(model=route.model, usage_object=usage)
    except Exception as error:  # noqa: BLE001 - LiteLLM raises bare Exceptions for unknown models
        _log.debug("no price for %s: %s", route.model, error)
        return None
    return float(prompt + completion) if info.get("input_cost_per_token") else None
