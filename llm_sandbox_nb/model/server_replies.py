"""Reader of the replies of OpenAI-compatible servers. It converts all variants of replies to pieces of one form.

Some servers do not stream, omit fields, add other fields, or use other types. docs/reference/model-servers.md lists
these habits, and tests/server_variants.py has a server for each of them. `stream.py` puts the pieces together.

Replies through LiteLLM are read in `litellm_transport.py`. Broken JSON in the arguments of a call is repaired in
`agent/tools/arguments.py`, and calls in the text are read in `text_formats.py`. `server_habits.py` lists the modules of
all other habits.
"""

from __future__ import annotations

import codecs
import io
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from llm_sandbox_nb.model.contract import ModelError
from llm_sandbox_nb.model.errors import ServerError, error_object
from llm_sandbox_nb.model.message_form import REASONING
from llm_sandbox_nb.model.server_habits import ServerHabits
from llm_sandbox_nb.model.stream import CallPiece, Piece, is_something
from llm_sandbox_nb.model.text_formats import MAX_CALLS
from llm_sandbox_nb.trajectory.events import Usage

_KNOWN = frozenset(
    {"role", "content", "tool_calls", "function_call", "refusal", "audio", "annotations", "name", *REASONING}
)
"""Message fields that this module reads, or that OpenAI's server sends but refuses in the history."""
_KNOWN_OF_CALL = frozenset({"index", "id", "type", "function", "name", "arguments", "parameters"})
_FINISHES = {
    "length": "length", "max_tokens": "length", "max_length": "length", "model_length": "length",
    "max_output_tokens": "length", "tool_calls": "tool_calls", "tool_call": "tool_calls", "tool_use": "tool_calls",
    "function_call": "tool_calls", "content_filter": "content_filter", "safety": "content_filter",
    "refusal": "content_filter",
}  # fmt: skip
_MAX_REPLY_BYTES = 256 * 1024**2
_MAX_LINE_LENGTH = 32 * 1024**2
"""Maximum number of characters of one line, or of one JSON text on many lines."""
_NOT_FINISHED = frozenset({"", "null", "none", "error", "abort"})
"""Values of `finish_reason` in a reply that has not ended."""


async def read_reply(
    response: httpx.Response, habits: ServerHabits, heard: Callable[[], None] = lambda: None
) -> AsyncGenerator[Piece, None]:
    """Yield the pieces of a successful reply as they arrive. `heard` is called when data arrives.

    The last piece contains the usage, and its `ended` is True. If the reply broke off, this last piece is missing.

    A finish reason or `[DONE]` marks the end of a reply. If two replies in a row have no end marker, the server
    probably never sends one. So the second of them and the next ones count as complete.

    Raises:
        ServerError: if the reply contains an error.
        ModelError: if the reply is a web page, or larger than `_MAX_REPLY_BYTES`, or has a line longer than
            `_MAX_LINE_LENGTH`.
    """
    if response.headers.get("content-type", "").startswith("text/html"):
        raise ModelError(
            f"A web page answers at {response.url.host}, not a model server: check the address; most end in /v1.",
            kind="not_found",
        )
    habits.answered = True
    # Concurrent replies that break off together count once, because the number is read before the reply.
    silent_before = habits.silent_ends
    reply = _Reply()
    async for found in _objects(response, heard):
        if found is _BROKEN:
            return
        if piece := reply.take(found):
            yield piece
    if not reply.began and error_object(reply.other):  # some servers report an error with status 200
        raise ServerError(reply.other)
    if reply.began:
        habits.silent_ends = 0 if reply.ended else silent_before + 1
    cut = reply.began and not reply.ended and silent_before > 0
    if reply.ended or cut:
        yield reply.last_piece(cut=cut)


# --- from bytes to objects ---

_DONE: dict[str, Any] = {}
"""Object that stands for the end marker `[DONE]`."""
_BROKEN: dict[str, Any] = {}
"""Object that stands for invalid or incomplete JSON."""


async def _objects(response: httpx.Response, heard: Callable[[], None]) -> AsyncIterator[dict[str, Any]]:
    """Yield the JSON objects of a reply as they arrive.

    Servers send the objects as events, one on each line, or as one JSON text over many lines.
    """
    text, is_event = _Text(), False
    async for line in _lines(response, heard):
        if line.startswith("data:"):
            if text and not is_event:  # the end of a JSON text on many lines
                for item in text.taken() or [_BROKEN]:
                    yield item
            data, is_event = line.removeprefix("data:").strip(), True
        elif (text and not is_event) or line.lstrip().startswith(("{", "[")):
            data, is_event = line.strip(), False
        elif not line and text:  # the end of an event
            if (found := text.taken()) is None:
                yield _BROKEN
                return
            for item in found:
                yield item
            continue
        else:
            continue
        if data == "[DONE]":
            yield _DONE
            return
        if not text and not data.startswith(("{", "[")):
            continue
        begun = bool(text)
        text.add(data)
        # A text on many lines outside of events is parsed only at its end, to avoid parsing it for every line.
        if (begun and not is_event) or (found := text.taken_when_whole()) is None:
            continue
        for item in found:
            yield item
    for item in (text.taken() or [_BROKEN]) if text else ():
        yield item


class _Text:
    """JSON text that arrives in lines."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._length = 0
        self._wasted = 0
        """Number of characters parsed without success."""

    def __bool__(self) -> bool:
        return bool(self._lines)

    def add(self, line: str) -> None:
        """Add a line. Raise ModelError if the text becomes too long."""
        self._lines.append(line)
        self._length += len(line) + 1
        _check_length(self._length, _MAX_LINE_LENGTH)

    def taken_when_whole(self) -> list[dict[str, Any]] | None:
        """Return the objects and begin a new text. Return None while the text is incomplete."""
        if self._wasted > _MAX_LINE_LENGTH:  # too many attempts: wait for the end
            return None
        found = _parsed("\n".join(self._lines))
        self._wasted += self._length
        if found is not None:
            self._begin()
        return found

    def taken(self) -> list[dict[str, Any]] | None:
        """Return the objects and begin a new text. Return None if the text is invalid JSON."""
        found = _parsed("\n".join(self._lines))
        self._begin()
        return found

    def _begin(self) -> None:
        self._lines, self._length, self._wasted = [], 0, 0


async def _lines(response: httpx.Response, heard: Callable[[], None]) -> AsyncIterator[str]:
    """Yield the lines of a reply. Only LF, CR LF and CR end a line: JSON may contain other Unicode line ends."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
    ends = io.IncrementalNewlineDecoder(None, translate=True)
    rest: list[str] = []
    size = waiting = 0
    async for data in response.aiter_bytes():
        heard()
        size += len(data)
        _check_length(size, _MAX_REPLY_BYTES)
        first, *lines = ends.decode(decoder.decode(data)).split("\n")
        rest.append(first)
        waiting += len(first)
        _check_length(waiting, _MAX_LINE_LENGTH)
        for line in lines:
            yield "".join(rest)
            rest, waiting = [line], len(line)
    yield "".join([*rest, ends.decode(decoder.decode(b"", True), True)])


def _check_length(length: int, limit: int) -> None:
    """Raise ModelError if `length` exceeds `limit`, so that endless data cannot fill the memory."""
    if length > limit:
        what = "a line" if limit == _MAX_LINE_LENGTH else "a reply"
        raise ModelError(
            f"The server sends {what} of more than {limit >> 20} MB, as no model server does: check the address.",
            kind="server",
        )


def _parsed(text: str) -> list[dict[str, Any]] | None:
    """Return the objects of a JSON text, or None if the text is invalid or incomplete."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return [item for item in (found if isinstance(found, list) else [found]) if isinstance(item, dict)]


# --- from objects to pieces ---


@dataclass
class _Reply:
    """State of a reply that is arriving."""

    began: bool = False
    ended: bool = False
    other: dict[str, Any] = field(default_factory=dict)
    """Newest object that is no part of a reply."""
    _has_content: bool = False
    _has_calls: bool = False
    _refused: bool = False
    _finish: str | None = None
    _usage: Usage | None = None
    _id: str = ""
    _model: str = ""

    def take(self, found: dict[str, Any]) -> Piece | None:
        """Convert an object of the server to a piece. Return None if the object has no part of the message.

        Raises:
            ServerError: if the object is an error.
        """
        if found is _DONE:
            self.ended = True
            return None
        if error := found if found.get("object") == "error" else found.get("error"):
            raise ServerError(error)
        self._usage = _usage(found.get("usage")) or self._usage
        self._id = self._id or str(found.get("id") or "reply")
        self._model = self._model or str(found.get("model") or "")
        choices = found.get("choices")
        if found.get("object") == "chat.completion" and not choices:  # a complete but empty reply
            self.began = self.ended = True
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            self.other = found
            return None
        self.began = True
        choice = choices[0]
        self._finish = _finish(choice.get("finish_reason")) or self._finish
        self.ended = self.ended or self._finish is not None or "message" in choice
        message = choice.get("delta")
        whole = not isinstance(message, dict)
        if whole:
            # Some servers send a complete message after the pieces, with the same content. It is ignored then.
            message = None if self._has_content else choice.get("message") or {"content": choice.get("text")}
        if not isinstance(message, dict):
            return None
        text, reasoning, calls = _content(message)
        if whole:  # the calls of a complete message may have no index, and all the same id
            calls = [replace(call, index=place) for place, call in enumerate(calls)]
        if text or reasoning or calls:
            self._has_content = True
        self._has_calls = self._has_calls or bool(calls)
        self._refused = self._refused or bool(_text(message.get("refusal")) and not message.get("content"))
        return Piece(
            text=text,
            reasoning=reasoning,
            calls=calls,
            extra=_unknown(message, _KNOWN),
            response_id=self._id,
            response_model=self._model,
        )

    def last_piece(self, *, cut: bool) -> Piece:
        """Return the last piece of the reply, with the finish reason and the usage."""
        finish = self._finish or "stop"
        if self._has_calls:
            finish = "tool_calls" if finish == "stop" else finish
        elif self._refused:
            finish = "content_filter"
        return Piece(
            finish_reason=finish,
            usage=self._usage,
            response_id=self._id,
            response_model=self._model,
            ended=True,
            cut=cut,
        )


def _finish(value: object) -> str | None:
    if value is None or str(value).lower() in _NOT_FINISHED:
        return None
    return _FINISHES.get(str(value).lower(), "stop")


def _content(message: Mapping[str, Any]) -> tuple[str, str, list[CallPiece]]:
    """Return the text, the reasoning and the calls in a message or a piece of a message."""
    parts = message.get("content")
    parts = parts if isinstance(parts, list) else [parts]
    text = "".join(_text(part) for part in parts if not _is_thinking(part)) or _text(message.get("refusal"))
    reasoning = next(filter(None, (_text(message.get(name)) for name in REASONING)), "")
    reasoning += "".join(_text(part) for part in parts if _is_thinking(part))
    calls = message.get("tool_calls")
    calls = [calls] if isinstance(calls, dict) else list(calls) if isinstance(calls, list) else []
    if message.get("function_call"):
        calls.append({"function": message["function_call"]})
    return text, reasoning, [_call(call) for call in calls[:MAX_CALLS] if isinstance(call, dict)]


def _unknown(message: Mapping[str, Any], known: frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in message.items() if name not in known and is_something(value)}


def _is_thinking(part: object) -> bool:
    return isinstance(part, dict) and str(part.get("type")).startswith(("thinking", "reasoning"))


def _text(value: object) -> str:
    """Return the text in a value, which is a text, a content part, or a list of these."""
    match value:
        case str():
            return value
        case list():
            return "".join(map(_text, value))
        case {"text": inner} | {"thinking": inner} | {"summary": inner} | {"content": inner}:
            return _text(inner)
    return ""


def _call(call: Mapping[str, Any]) -> CallPiece:
    function = call.get("function")
    extra = _unknown(call, _KNOWN_OF_CALL)
    if isinstance(function, dict):
        extra |= {"function": inside} if (inside := _unknown(function, _KNOWN_OF_CALL)) else {}
    else:
        function = call
    arguments = function.get("arguments", function.get("parameters"))
    if not isinstance(arguments, str):
        arguments = "" if arguments is None else json.dumps(arguments)
    index, identity, name = str(call.get("index"))[:9], call.get("id"), function.get("name")
    return CallPiece(
        index=int(index) if index.isdecimal() else 0,
        id="" if identity is None else str(identity),
        name=name if isinstance(name, str) else "",
        arguments=arguments,
        extra=extra,
    )


def _usage(found: object) -> Usage | None:
    """Return the token counts, or None if the server does not report both prompt and completion tokens."""
    if not isinstance(found, dict):
        return None
    prompt, completion = _count(found.get("prompt_tokens")), _count(found.get("completion_tokens"))
    if prompt is None or completion is None:
        return None
    prompt_details, completion_details = (
        found.get("prompt_tokens_details"),
        found.get("completion_tokens_details"),
    )
    cached = _count(prompt_details.get("cached_tokens")) if isinstance(prompt_details, dict) else None
    reasoning = (
        _count(completion_details.get("reasoning_tokens")) if isinstance(completion_details, dict) else None
    )
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        cached_tokens=cached
        or _count(found.get("prompt_cache_hit_tokens"))
        or 0,  # DeepSeek calls this number `prompt_cache_hit_tokens`
        reasoning_tokens=reasoning or 0,
    )


def _count(value: object) -> int | None:
    fits = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 2**53
    return int(value) if fits else None  # type: ignore[call-overload] # a number here
