"""Small parts of the loop: a reply made fit for the history, output as it arrives, waiting for two things."""

from __future__ import annotations

import asyncio
import codecs
import dataclasses
import json
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from llm_sandbox_nb.agent.model import Reply, ToolCall
from llm_sandbox_nb.agent.schemas import ArgumentsError, parse_arguments
from llm_sandbox_nb.sandbox.contract import StreamName
from llm_sandbox_nb.trajectory import events as ev

_T = TypeVar("_T")


def well_formed(reply: Reply) -> Reply:
    """The reply with text that UTF-8 can hold, and with a history message that strict servers accept.

    Providers and chat templates parse the arguments of earlier calls again: those that are not a JSON object
    are wrapped in one in the message. The call itself keeps what the model wrote.
    """
    message = ev.clean_text(reply.message)
    for call in message.get("tool_calls") or ():
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
        parse_arguments(arguments)
    except ArgumentsError:
        return json.dumps({"not_json": arguments}, ensure_ascii=False)
    return arguments if arguments.strip() else "{}"


class LiveOutput:
    """Turns pieces of output into transient events. A character cut by a piece's end waits for the next."""

    def __init__(self, call_id: str, emit: Callable[[ev.Event], None]) -> None:
        self._call_id = call_id
        self._emit = emit
        decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders = {"stdout": decoder("replace"), "stderr": decoder("replace")}

    def __call__(self, stream: StreamName, data: bytes) -> None:
        """Take one piece, as the sandbox's `on_output`."""
        if text := self._decoders[stream].decode(data):
            self._emit(ev.CallOutput(call_id=self._call_id, stream=stream, text=text))


async def unless_failed(work: Coroutine[Any, Any, _T], other: asyncio.Future[Any]) -> _T:
    """The result of `work`, unless `other` fails first: then `work` is cancelled and that failure raised."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task, other}, return_when=asyncio.FIRST_COMPLETED)
        if other.done():
            other.result()
        return await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
