"""Request of a reply, with retries. Attempts are recorded. The reply is adapted so that all servers accept it later."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from llm_sandbox_nb.agent.errors import StopRun
from llm_sandbox_nb.agent.recorder import Recorder, public_settings
from llm_sandbox_nb.agent.tools.arguments import ArgumentsError, parse_arguments
from llm_sandbox_nb.model.contract import (
    ContextOverflowError,
    Model,
    ModelError,
    ModelSettings,
    Reply,
    ToolCall,
)
from llm_sandbox_nb.model.retries import RetryPolicy, reply_with_retries
from llm_sandbox_nb.model.stream import is_json
from llm_sandbox_nb.trajectory import events as ev

_T = TypeVar("_T")
_INVALID_NAME_CHARACTER = re.compile(r"[^a-zA-Z0-9_-]")
_MAX_NAME_LENGTH = 64  # limit of OpenAI and Anthropic


async def call_model(
    model: Model,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]],
    settings: ModelSettings,
    retries: RetryPolicy,
    recorder: Recorder,
    step: int,
    on_overflow: Callable[[ContextOverflowError], None] | None = None,
) -> Reply:
    """Request a reply. Record the attempts, streamed text and failures, but leave the reply to the caller.

    `on_overflow` is called with each refusal of a request that was too long, even if a shorter request succeeds later.

    Raises:
        StopRun: if the model failed.
        ContextOverflowError: if the conversation does not fit into the context of the model.
    """

    def on_attempt(attempt: int, sent: ModelSettings) -> None:
        recorder.emit(ev.ModelRequested(step=step, attempt=attempt, settings=recorded_settings(sent)))

    def on_delta(text: str, reasoning: str) -> None:
        recorder.emit(ev.ModelDelta(step=step, text=ev.clean_text(text), reasoning=ev.clean_text(reasoning)))

    def on_failure(attempt: int, error: ModelError, wait: float | None) -> None:
        recorder.emit(
            ev.ModelFailed(
                step=step,
                attempt=attempt,
                error=error.kind,
                message=str(error),
                retry_in=wait,
                learned=error.learned,
            )
        )
        if on_overflow and isinstance(error, ContextOverflowError):
            on_overflow(error)

    try:
        reply = await reply_with_retries(
            model,
            messages,
            tools,
            settings,
            policy=retries,
            on_delta=on_delta,
            on_attempt=on_attempt,
            on_failure=on_failure,
        )
    except ContextOverflowError:
        raise
    except ModelError as error:
        raise StopRun("model_error", str(error)) from error
    return well_formed(reply)


def recorded_settings(sent: ModelSettings) -> dict[str, Any]:
    """Return a request's settings for the record, without settings that have no value, and with secrets replaced."""
    values = {name: value for name, value in dataclasses.asdict(sent).items() if value not in (None, {})}
    made: dict[str, Any] = public_settings(values)
    return made


def well_formed(reply: Reply) -> Reply:
    """Return a reply with texts that UTF-8 can encode, and with a message that strict servers accept in the history.

    Providers and chat templates parse the arguments of earlier calls again, and refuse some characters in tool names.
    So, in the message, these characters are replaced by `_`, and arguments that are not a JSON object become a value in
    a JSON object. `Reply.calls` still has names and arguments as the model wrote them.
    """
    message = ev.clean_text(reply.message)
    for call in message.get("tool_calls") or ():
        call["function"]["name"] = (
            _INVALID_NAME_CHARACTER.sub("_", call["function"]["name"])[:_MAX_NAME_LENGTH] or "unknown"
        )
        call["function"]["arguments"] = _as_object(call["function"]["arguments"])
    return dataclasses.replace(
        reply,
        message=message,
        text=ev.clean_text(reply.text),
        reasoning=ev.clean_text(reply.reasoning),
        calls=tuple(
            ToolCall(call.id, *map(ev.clean_text, (call.name, call.arguments))) for call in reply.calls
        ),
    )


def _as_object(arguments: str) -> str:
    try:
        found = parse_arguments(arguments)
    except ArgumentsError:
        return json.dumps({"not_json": arguments}, ensure_ascii=False)
    whole = arguments.lstrip().startswith("{") and is_json(arguments)
    return arguments if whole else json.dumps(found, ensure_ascii=False)


async def unless_failed(work: Coroutine[Any, Any, _T], other: asyncio.Future[Any]) -> _T:
    """Return the result of `work`. If `other` fails first, cancel `work` and raise the exception of `other`."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task, other}, return_when=asyncio.FIRST_COMPLETED)
        if other.done():
            other.result()
        return await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
