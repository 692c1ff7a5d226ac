"""Model on a server. Requests go directly to most servers with OpenAI's protocol, and through LiteLLM to all others."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import math
import os
import sys
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from contextlib import aclosing
from types import MappingProxyType
from typing import Any

from llm_sandbox_nb.errors import LLMSandboxError
from llm_sandbox_nb.known_keys import has_key, public_address
from llm_sandbox_nb.model.connection import Access
from llm_sandbox_nb.model.contract import (
    BROKEN_OFF,
    ContextLimit,
    DeltaCallback,
    ModelError,
    ModelSettings,
    Reply,
    ToolCall,
)
from llm_sandbox_nb.model.direct_transport import DirectTransport
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
from llm_sandbox_nb.model.litellm_transport import LiteLLMTransport, loaded
from llm_sandbox_nb.model.message_form import MessageForm, SendReasoning, clean_messages, short_id
from llm_sandbox_nb.model.model_list import context_window, reply_tokens
from llm_sandbox_nb.model.request import (
    SETTINGS,
    assistant_message,
    reasoning_field,
    sampling,
)
from llm_sandbox_nb.model.route import Route
from llm_sandbox_nb.model.route_choice import find_route, needs_responses
from llm_sandbox_nb.model.served_context import served_context
from llm_sandbox_nb.model.server_habits import ServerHabits
from llm_sandbox_nb.model.server_lookup import Found, listed_text, look_up, name_there
from llm_sandbox_nb.model.stream import Assembly, is_json
from llm_sandbox_nb.model.transport import ModelRequest, ModelTransport
from llm_sandbox_nb.trajectory.events import Usage

_MAX_STORED_REASONINGS = 4096
_CHARACTERS_PER_TOKEN = 4
_REPORT_SECONDS = 60.0
"""Seconds for which a context limit that the server reported is reused. A benchmark needs the limit for each task, and
`served_context` may send six requests to get it."""


class _ListenerError(LLMSandboxError):
    """Wrapper of an error that the callback `on_delta` raised. Such an error is not a failure of the model."""


class RemoteModel:
    """Model on a server. The function `model_names.make_model` makes such models."""

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
        """Server that `look_up` found after an answer "not found". While this is None, each such answer causes a new
        lookup, because a person may have corrected the server since the previous lookup."""
        self._reported: tuple[float, bool, int | None] = (-_REPORT_SECONDS, False, None)
        """Newest report of the context limit: the time of the report, True if the server had replied before it, and the
        limit in tokens."""
        self._asking: tuple[object, asyncio.Future[int | None] | None] = None, None
        """Newest lookup of the context limit, which may still run, after what it depends on."""
        self._importing: asyncio.Future[Any] | None = None
        self._listed_name: str | None = None
        """Name from the server's list, which is sent instead of `name`. None if `name` needs no correction."""

    @property
    def api_base(self) -> str | None:
        """Address of the server, or None if the person gave no address."""
        return self._access.api_base

    def prepare(self) -> None:
        """Start to import LiteLLM in a thread, if the model is asked through LiteLLM."""
        if self._direct_route() is None:
            self._importing = asyncio.ensure_future(loaded())
            # `reply` raises the error. The callback only reads the exception, so that asyncio logs no warning about it.
            self._importing.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def prepared(self) -> None:
        """Wait until LiteLLM is imported, if the model is asked through LiteLLM."""
        if self._direct_route() is None:
            with contextlib.suppress(ImportError):  # `reply` raises the error
                await loaded()

    def _direct_route(self, extra_body: Mapping[str, Any] = MappingProxyType({})) -> Route | None:
        """Return the route for requests without LiteLLM, or None if LiteLLM is needed."""
        address = self._access.api_base
        route = find_route(self.name, address, self._listed_name)
        return None if route is None or needs_responses(route, address, extra_body) else route

    async def _transport(self, extra_body: Mapping[str, Any] = MappingProxyType({})) -> ModelTransport:
        if route := self._direct_route(extra_body):
            return DirectTransport(route, self._access, self._habits)
        found = find_route(self.name, self._access.api_base, self._listed_name)
        return LiteLLMTransport(await loaded(), found.model if found else self.name, self._access)

    async def check(self) -> None:
        """Check that the provider is known and has a key. If the person gave an address, check nothing.

        Importing LiteLLM needs seconds. So LiteLLM is not imported for a well-known provider with a key, or for
        Anthropic without a key.

        Raises:
            ModelError: if the provider is unknown, or has no key.
        """
        provider, slash, _ = self.name.partition("/")
        if self._access.api_base or self._access.has_known_key(provider):
            return
        # A program can also set a key in LiteLLM's module, but only after it has imported this module.
        if slash and provider == "anthropic" and "litellm" not in sys.modules:
            if os.environ.get("ANTHROPIC_AUTH_TOKEN"):
                return
            route = Route(self.name, provider, False)
            target = self._access.target(route, self.name, (route.key_variable,))
            raise ModelError(f"No API key: {target.key_help}.", kind="authentication")
        transport = await self._transport()
        transport.check_key(transport.target(self.name, answered=False))

    def recall(
        self, learned: Mapping[str, Any], replies: Iterable[tuple[dict[str, Any], str | None, bool]]
    ) -> None:
        """Restore facts about the server and earlier replies; see `Recalls`."""
        self._habits.recall(learned)
        for message, reasoning, native in replies:
            self._reasonings.keep(message, reasoning or "")
            self._habits.calls_natively = self._habits.calls_natively or native

    async def context_limit(self) -> ContextLimit | None:
        """Return the limit that the server at the given address reports, or the limit in LiteLLM's list.

        LiteLLM's list is used if the person gave no address, or if the server reports no limit.
        """
        try:
            route = (await self._transport()).route
            key = self._access.key(route)
        except (ImportError, ModelError):
            return None  # the request raises the error
        if base := self._access.api_base:
            reported, replied, served = self._reported
            # Some servers load the model only for the first reply, and report the context limit only after it.
            if replied != self._habits.answered or time.monotonic() - reported >= _REPORT_SECONDS:
                served = await self._ask_for_context(base, route.sent_name, key)
            if served is not None:
                return ContextLimit(served, True)
        listed = context_window(route)
        return None if listed is None else ContextLimit(listed, False)

    async def _ask_for_context(self, base: str, name: str, key: str | None) -> int | None:
        """Ask the server for the context limit. Simultaneous runs of an event loop share one lookup."""
        answered = self._habits.answered
        same = base, name, key, answered, asyncio.get_running_loop()

        async def ask() -> int | None:
            served = await served_context(base, name, key)
            self._reported = time.monotonic(), answered, served
            return served

        earlier, asking = self._asking
        if earlier != same or asking is None or asking.done():
            asking = asyncio.ensure_future(ask())
            self._asking = same, asking
        return await asyncio.shield(asking)  # if one run is cancelled, the others still need the limit

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
        transport = await self._transport(settings.extra_body)
        route = transport.route
        field = reasoning_field(route) if self._send_reasoning == "auto" else self._send_reasoning
        form = self._habits.form(field, openai_compatible=route.openai_compatible)
        if settings.max_tokens is None:
            settings = dataclasses.replace(settings, max_tokens=reply_tokens(route))
        sent, left_out = sampling(route, settings, transport.accepts, self._habits.refused)
        target = transport.target(self.name, answered=self._habits.answered)
        known_server = self._known_server()
        assembly = Assembly()
        silence = _Silence(settings.timeout)
        try:
            transport.check_key(target)
            request = self._request(messages, form, tools, sent, settings.timeout)
            async with silence.timer, aclosing(transport.pieces(request, silence.broken)) as pieces:
                async for piece in pieces:
                    _tell(on_delta, *assembly.add(piece))
            _tell(on_delta, *assembly.close())
        except _ListenerError as error:
            raise error.args[0] from None
        except Exception as error:  # noqa: BLE001 - any failure becomes a ModelError
            failure = self._explain(error, target, sent, messages)
            if failure.kind == "not_found" and self._access.api_base:
                failure = await self._look_at_server(failure, route)
            if not failure.retryable and self._known_server() != known_server:
                failure = ModelError(
                    f"{self.name} is asked again, because the answer to another request has shown what its server "
                    "accepts.",
                    kind="setting",
                    retryable=True,
                    learned=self._habits.recorded(),
                )
            # The cause is not shown if it may contain the key. An error cannot be its own cause.
            raise failure from (None if failure is error or has_key(map(str, chain(error))) else error)
        self._habits.answered = True
        if not assembly.ended:
            raise broken_off(target)
        if route.openai_compatible and not self._habits.calls_natively:
            self._habits.calls_natively = assembly.has_calls
            if not assembly.has_calls:
                assembly.read_written_calls(tools)
        _tell(on_delta, assembly.late_text(), "")
        known = self._known.read(messages)
        calls = assembly.calls(known.call_ids, short_id if form.short_ids else str)
        message = assistant_message(assembly, calls, form.reasoning)
        self._reasonings.keep(message, assembly.reasoning)
        return Reply(
            message=message,
            text=assembly.text,
            reasoning=assembly.reasoning or None,
            calls=calls,
            usage=_usage(assembly, calls, known.characters),
            finish_reason="length"
            if _cut_by_limit(assembly, calls, settings)
            else BROKEN_OFF
            if assembly.cut
            else assembly.finish_reason,
            response_id=assembly.response_id or None,
            response_model=assembly.response_model or None,
            context_window=context_window(route),
            left_out=left_out,
            written=assembly.written,
            raw_text=assembly.raw_text,
            refused_call=assembly.refused_call,
        )

    def _known_server(self) -> object:
        """Return the facts about the server that decide the form of a request.

        A refusal of any request can change these facts, because concurrent requests share them.
        """
        return self._access, self._listed_name, self._habits.recorded()

    def _request(
        self,
        messages: list[dict[str, Any]],
        form: MessageForm,
        tools: list[dict[str, Any]],
        settings: dict[str, Any],
        timeout: float,
    ) -> ModelRequest:
        def convert(some: list[dict[str, Any]]) -> list[dict[str, Any]]:
            return clean_messages(some, form, self._reasonings.of)

        histories = SentHistories() if form.depends_on_others else self._histories
        counts = not self._habits.refused & {"stream", "stream_options"}
        return ModelRequest(
            messages=lambda: convert(messages),
            messages_json=lambda: histories.to_json(messages, convert),
            tools=tools,
            settings=settings,
            stream="stream" not in self._habits.refused,
            stream_options={"include_usage": True} if counts else {},
            timeout=timeout,
        )

    async def _look_at_server(self, failure: ModelError, route: Route) -> ModelError:
        """Correct the address and the model's name by the server's list of models, after an answer "not found".

        The corrections apply to all further requests. They are made only once. Return the error to raise: `retryable`
        after a correction, otherwise the explained `failure`.
        """
        address = str(self._access.api_base)
        shown = public_address(address)
        corrected = []
        if self._found is None:
            self._found = await look_up(address, self._access.key(route))
            if self._found is None:
                return ModelError(
                    f"{str(failure).rstrip('.')}; no server lists its models there (GET {shown.rstrip('/')}/models): "
                    "most addresses end in /v1.",
                    kind="not_found",
                )
            if self._found.api_base != address.rstrip("/"):
                self._access = dataclasses.replace(self._access, api_base=self._found.api_base)
                corrected.append(f"the address is {public_address(self._found.api_base)}, not {shown}")
            name = name_there(self.name, route.sent_name, self._found.models)
            if name is not None and (name != route.sent_name or not route.openai_compatible):
                self._listed_name = name
                corrected.append(f"the model is called {name} there, not {route.sent_name}")
        if corrected:
            text = f"The server's list of models says that {' and that '.join(corrected)}: this is used from now on."
            return ModelError(text, kind="setting", retryable=True)
        return ModelError(
            f"{str(failure).rstrip('.')}; {route.sent_name} was sent, but the server has "
            f"{listed_text(self._found.models)}.",
            kind="not_found",
        )

    def _explain(
        self, error: Exception, target: Target, sent: dict[str, Any], messages: list[dict[str, Any]]
    ) -> ModelError:
        """Return the error that explains a failure. Store new facts about the server for all further requests."""
        settings = SETTINGS.intersection([*sent, *sent.get("extra_body", ())])
        if setting := refused_setting(
            error, (settings | {"stream", "stream_options"}) - self._habits.refused
        ):
            self._habits.refused.add(setting)
            return ModelError(
                f"{self.name} does not accept the setting {setting}: it is left out from now on.",
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
    """Store for the reasoning of the newest replies. It is needed if the server refuses a history without reasoning."""

    def __init__(self) -> None:
        self._kept: OrderedDict[bytes, str] = OrderedDict()

    def keep(self, message: dict[str, Any], reasoning: str) -> None:
        """Store the reasoning of a message."""
        if reasoning:
            self._kept[_message_key(message)] = reasoning
        while len(self._kept) > _MAX_STORED_REASONINGS:
            self._kept.popitem(last=False)

    def of(self, message: dict[str, Any]) -> str:
        """Return the reasoning of a message, or an empty text if the reasoning is unknown."""
        return self._kept.get(_message_key(message), "")


def _message_key(message: dict[str, Any]) -> bytes:
    """Return a hash that identifies a message. A call id does not, because servers reuse ids in other conversations."""
    whole = f"{message.get('content')}\n{message.get('tool_calls')}"
    return hashlib.sha256(whole.encode("utf-8", "replace")).digest()


def _cut_by_limit(assembly: Assembly, calls: tuple[ToolCall, ...], settings: ModelSettings) -> bool:
    """Return True if the token limit cut off the last call, although the server reports a complete reply."""
    if not calls or not assembly.usage or not assembly.usage_reported or assembly.finish_reason == "length":
        return False
    written = assembly.usage.completion_tokens
    return written >= (settings.max_tokens or sys.maxsize) and not is_json(calls[-1].arguments)


def _usage(assembly: Assembly, calls: tuple[ToolCall, ...], prompt_characters: int) -> Usage:
    """Return the token counts of a reply. Estimate counts that the server did not report. An estimate has no cost."""
    usage = assembly.usage
    reasoning = math.ceil(len(assembly.reasoning) / _CHARACTERS_PER_TOKEN)
    if usage is None:
        written = sum(len(call.name) + len(call.arguments) for call in calls) + len(assembly.text)
        return Usage(
            prompt_tokens=math.ceil(prompt_characters / _CHARACTERS_PER_TOKEN),
            completion_tokens=math.ceil(written / _CHARACTERS_PER_TOKEN) + reasoning,
            reasoning_tokens=reasoning,
        )
    usage.reasoning_tokens = usage.reasoning_tokens or min(reasoning, usage.completion_tokens)
    return usage


def _tell(on_delta: DeltaCallback | None, text: str, reasoning: str) -> None:
    if not on_delta or not (text or reasoning):
        return
    try:
        on_delta(text, reasoning)
    except Exception as error:
        raise _ListenerError(error) from error
