"""Replies of OpenAI-compatible servers with all kinds of habits, rewritten to the form that LiteLLM reads reliably.

Servers do not stream, omit fields, add others, or use other types. Each reply is read here and written again, piece by
piece, like OpenAI's own server would write it. docs/reference/model-servers.md lists the habits,
tests/server_variants.py has a server for each.
"""

from __future__ import annotations

import codecs
import io
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from llm_sandbox_nb.model.contract import ModelError
from llm_sandbox_nb.model.message_form import REASONING
from llm_sandbox_nb.model.server_habits import ServerHabits

_KNOWN = frozenset(
    {"role", "content", "tool_calls", "function_call", "refusal", "audio", "annotations", "name", *REASONING}
)
"""Fields of a message that are read here, or that OpenAI's server sends but refuses in the history."""
_KNOWN_OF_CALL = frozenset({"index", "id", "type", "function", "name", "arguments", "parameters"})
_MAX_UNKNOWN_LENGTH = 1_000_000
"""Maximum characters of unknown fields stored of one reply."""
_FINISHES = {
    "length": "length", "max_tokens": "length", "max_length": "length", "model_length": "length",
    "max_output_tokens": "length", "tool_calls": "tool_calls", "tool_call": "tool_calls", "tool_use": "tool_calls",
    "function_call": "tool_calls", "content_filter": "content_filter", "safety": "content_filter",
    "refusal": "content_filter",
}  # fmt: skip
_MAX_REPLY_BYTES = 256 * 1024**2
_MAX_LINE_LENGTH = 32 * 1024**2
"""Maximum characters of one line, or of one JSON text on many lines."""
_NOT_FINISHED = frozenset({"", "null", "none", "error", "abort"})
"""Values of `finish_reason` in a reply that has not ended."""


@dataclass
class ReplyRewriter:
    """Response hook of an HTTP client that replaces a server's reply by one that LiteLLM can read."""

    habits: ServerHabits
    stream: bool = True
    """True if LiteLLM expects a stream. LiteLLM then gets a stream even if the server does not stream."""
    used: bool = False
    """True once a reply arrived."""
    ended: bool = False
    """True if the reply has ended, or is accepted as complete because the previous attempt broke off too."""
    cut: bool = False
    """True if the reply is accepted without a mark of its end: it may be complete or cut off."""
    heard: Callable[[], None] = lambda: None
    """Function called when data arrives."""
    unknown: UnknownFields = field(default_factory=lambda: UnknownFields())
    """Values of fields outside of OpenAI's protocol."""

    async def __call__(self, response: httpx.Response) -> None:
        """Rewrite a successful reply.

        Raises:
            ModelError: if the reply is a web page.
        """
        if not response.is_success:
            return
        if response.headers.get("content-type", "").startswith("text/html"):
            raise ModelError(
                f"A web page answers at {response.url.host}, not a model server: check the address; most end in /v1.",
                kind="not_found",
            )
        self.used = self.habits.answered = True
        raw = httpx.Response(response.status_code, headers=response.headers, stream=response.stream)
        response.stream = _Rewritten(raw, self)
        for name in ("content-encoding", "content-length"):
            response.headers.pop(name, None)
        response.headers["content-type"] = "text/event-stream" if self.stream else "application/json"


class _Rewritten(httpx.AsyncByteStream):
    """Rewritten bytes of a reply."""

    def __init__(self, raw: httpx.Response, rewriter: ReplyRewriter) -> None:
        self._raw, self._rewriter = raw, rewriter

    async def __aiter__(self) -> AsyncIterator[bytes]:
        reply, pieces = _Reply(self._rewriter.unknown), list[dict[str, Any]]()
        async for found in _objects(self._raw, self._rewriter.heard):
            piece = reply.take(found)
            if piece and self._rewriter.stream:
                yield _event(piece)
            elif piece:
                pieces.append(piece)
            if reply.broken:
                break
        habits = self._rewriter.habits
        if reply.began and not reply.broken:
            habits.silent_ends = 0 if reply.ended else habits.silent_ends + 1
            self._rewriter.cut = habits.silent_ends > 1
            reply.ended = reply.ended or self._rewriter.cut
        self._rewriter.ended = reply.ended
        pieces += reply.last_pieces() if reply.ended else ()
        if not self._rewriter.stream:
            yield json.dumps(_completion(pieces)).encode()
            return
        for piece in pieces:
            yield _event(piece)
        if reply.ended:
            yield b"data: [DONE]\n\n"

    async def aclose(self) -> None:
        await self._raw.aclose()


def _event(piece: dict[str, Any]) -> bytes:
    return b"data: %s\n\n" % json.dumps(piece).encode()


def _completion(pieces: list[dict[str, Any]]) -> dict[str, Any]:
    """Join pieces to the reply of a request without a stream: the message, its end, and the usage."""
    whole: dict[str, Any] = {}
    for piece in pieces:
        whole |= piece | {"choices": [*whole.get("choices", ()), *piece.get("choices", ())]}
    choices = whole.pop("choices", [])
    message: dict[str, Any] = {"role": "assistant", "content": None}
    for choice in choices:
        message |= choice["delta"]
    finish = choices[-1]["finish_reason"] if choices else None
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return whole | {"object": "chat.completion", "choices": [choice]}


# --- from bytes to objects ---

_DONE: dict[str, Any] = {}
"""Object in place of the server's mark of the end."""
_BROKEN: dict[str, Any] = {}
"""Object in place of invalid or incomplete JSON."""


async def _objects(raw: httpx.Response, heard: Callable[[], None]) -> AsyncIterator[dict[str, Any]]:
    """Yield the JSON objects of a reply as they arrive: in events, on lines, or as one text over many lines."""
    text, is_event = _Text(), False
    async for line in _lines(raw, heard):
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
        """Return the objects and begin a new text; None while the text is incomplete."""
        if self._wasted > _MAX_LINE_LENGTH:  # too many attempts: wait for the end
            return None
        found = _parsed("\n".join(self._lines))
        self._wasted += self._length
        if found is not None:
            self._begin()
        return found

    def taken(self) -> list[dict[str, Any]] | None:
        """Return the objects, or None for invalid JSON, and begin a new text."""
        found = _parsed("\n".join(self._lines))
        self._begin()
        return found

    def _begin(self) -> None:
        self._lines, self._length, self._wasted = [], 0, 0


async def _lines(raw: httpx.Response, heard: Callable[[], None]) -> AsyncIterator[str]:
    """Yield lines that end with LF, CR LF or CR only: JSON strings may contain the other Unicode line ends."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
    ends = io.IncrementalNewlineDecoder(None, translate=True)
    rest: list[str] = []
    size = waiting = 0
    async for data in raw.aiter_bytes():
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
    """Raise ModelError for endless data, before the data fills the memory."""
    if length > limit:
        what = "a line" if limit == _MAX_LINE_LENGTH else "a reply"
        raise ModelError(
            f"The server sends {what} of more than {limit >> 20} MB, as no model server does: check the address.",
            kind="server",
        )


def _parsed(text: str) -> list[dict[str, Any]] | None:
    """Return the objects of a JSON text; None if the text is invalid or incomplete."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return [item for item in (found if isinstance(found, list) else [found]) if isinstance(item, dict)]


# --- from objects to pieces ---


class _Reply:
    """Reply while it arrives. The end and the usage are sent last, like OpenAI's server does."""

    def __init__(self, unknown: UnknownFields) -> None:
        self._unknown = unknown
        self.began = self.ended = self.broken = False
        self._said = self._called = self._refused = False
        self._finish: str | None = None
        self._usage: dict[str, Any] | None = None
        self._head: dict[str, Any] = {}

    def take(self, found: dict[str, Any]) -> dict[str, Any] | None:
        """Convert an object of the server to a piece; None if the object has no content."""
        if found is _DONE:
            self.ended = True
            return None
        if found is _BROKEN:
            self.broken, self.ended = True, False
            return None
        if error := found if found.get("object") == "error" else found.get("error"):
            self.broken, self.ended = True, False
            return {"error": error}
        self._usage = _usage(found.get("usage")) or self._usage
        self._head = self._head or {
            "id": str(found.get("id") or "reply"),
            "object": "chat.completion.chunk",
            "created": 0,
            "model": str(found.get("model") or ""),
        }
        choices = found.get("choices")
        if found.get("object") == "chat.completion" and not choices:  # a complete but empty reply
            self.began = self.ended = True
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            return None
        self.began = True
        choice = choices[0]
        self._finish = _finish(choice.get("finish_reason")) or self._finish
        self.ended = self.ended or self._finish is not None or "message" in choice
        message = choice.get("delta")
        if not isinstance(message, dict):
            # A complete message; some servers repeat the message after its pieces.
            message = None if self._said else choice.get("message") or {"content": choice.get("text")}
        delta = _delta(message) if isinstance(message, dict) else {}
        if isinstance(message, dict):
            self._unknown.take(message)
        if not delta:
            return None
        self._said = True
        self._called = self._called or "tool_calls" in delta
        self._refused = self._refused or bool(_text(message.get("refusal")) and not message.get("content"))  # type: ignore[union-attr] # a dict here
        return self._head | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}

    def last_pieces(self) -> Iterator[dict[str, Any]]:
        """Yield the end of the reply and the usage."""
        finish = self._finish or ("tool_calls" if self._called else "stop")
        if self._refused and not self._called:
            finish = "content_filter"
        yield self._head | {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}
        if self._usage:
            yield self._head | {"choices": [], "usage": self._usage}


class UnknownFields:
    """Fields of a reply outside of OpenAI's protocol, which the server requires in the history."""

    def __init__(self) -> None:
        self.message: dict[str, Any] = {}
        self._calls: dict[str, dict[str, Any]] = {}
        """Fields by the id of the call, or by its place for a call without an id."""
        self._ids: dict[str, str] = {}
        self._size = 0

    def take(self, message: Mapping[str, Any]) -> None:
        """Add the unknown fields of a piece."""
        self._add(self.message, {name: value for name, value in message.items() if name not in _KNOWN})
        calls = message.get("tool_calls")
        for place, call in enumerate(calls if isinstance(calls, list) else [calls]):
            if isinstance(call, dict):
                self._take_call(call, str(call.get("index", place)))

    def _take_call(self, call: Mapping[str, Any], index: str) -> None:
        if call.get("id"):
            self._ids[index] = str(call["id"])
        found = {name: value for name, value in call.items() if name not in _KNOWN_OF_CALL}
        function = call.get("function")
        if isinstance(function, dict):
            inside = {name: value for name, value in function.items() if name not in _KNOWN_OF_CALL}
            found |= {"function": inside} if any(map(_is_something, inside.values())) else {}
        if found:
            self._add(self._calls.setdefault(self._ids.get(index, f"#{index}"), {}), found)

    def of_calls(self, ids: Sequence[str]) -> list[dict[str, Any]]:
        """Return the fields of each call. `ids` are the server's ids, empty for calls without an id."""
        return [self._calls.get(identity or f"#{place}", {}) for place, identity in enumerate(ids)]

    def _add(self, kept: dict[str, Any], found: Mapping[str, Any]) -> None:
        for name, value in found.items():
            if _is_something(value) and (size := len(str(value))) + self._size <= _MAX_UNKNOWN_LENGTH:
                self._size += size
                kept[name] = _joined(kept.get(name), value)


def _is_something(value: object) -> bool:
    return value is not None and value not in ("", [], {})


def _joined(before: Any, value: Any) -> Any:
    """Join pieces of a field: append texts and lists, merge objects, replace any other value."""
    if before == value:
        return value
    match before, value:
        case str(), str():
            return before + value
        case list(), list():
            return [*before, *value]
        case dict(), dict():
            return before | {name: _joined(before.get(name), part) for name, part in value.items()}
    return value


def _finish(value: object) -> str | None:
    if value is None or str(value).lower() in _NOT_FINISHED:
        return None
    return _FINISHES.get(str(value).lower(), "stop")


def _delta(message: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a message or a piece to the fields of OpenAI, without empty fields."""
    parts = message.get("content")
    parts = parts if isinstance(parts, list) else [parts]
    content = "".join(_text(part) for part in parts if not _is_thinking(part)) or _text(
        message.get("refusal")
    )
    reasoning = next((text for name in REASONING if (text := _text(message.get(name)))), "")
    reasoning += "".join(_text(part) for part in parts if _is_thinking(part))
    calls = message.get("tool_calls")
    calls = [calls] if isinstance(calls, dict) else list(calls) if isinstance(calls, list) else []
    if message.get("function_call"):
        calls.append({"function": message["function_call"]})
    delta: dict[str, Any] = {"content": content} if content else {}
    delta |= {"reasoning_content": reasoning} if reasoning else {}
    delta |= {"tool_calls": [_call(call) for call in calls if isinstance(call, dict)]} if calls else {}
    return delta


def _is_thinking(part: object) -> bool:
    return isinstance(part, dict) and str(part.get("type")).startswith(("thinking", "reasoning"))


def _text(value: object) -> str:
    """Return the text of a value: a text, a content part, or a list of them."""
    match value:
        case str():
            return value
        case list():
            return "".join(map(_text, value))
        case {"text": inner} | {"thinking": inner} | {"summary": inner} | {"content": inner}:
            return _text(inner)
    return ""


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    function = function if isinstance(function, dict) else call
    arguments = function.get("arguments", function.get("parameters"))
    if not isinstance(arguments, str):
        arguments = "" if arguments is None else json.dumps(arguments)
    index, identity, name = str(call.get("index"))[:9], call.get("id"), function.get("name")
    return {
        "index": int(index) if index.isdecimal() else 0,
        "id": str(identity) if identity not in (None, "") else None,
        "type": "function",
        "function": {"name": name if name and isinstance(name, str) else None, "arguments": arguments},
    }


def _usage(found: object) -> dict[str, Any] | None:
    """Return the token counts; None if the server does not report both counts."""
    if not isinstance(found, dict):
        return None
    counts = _counts(found)
    if not {"prompt_tokens", "completion_tokens"} <= set(counts):
        return None
    details = {name: _counts(value) for name, value in found.items() if isinstance(value, dict)}
    total = counts["prompt_tokens"] + counts["completion_tokens"]
    return {"total_tokens": total} | counts | {name: some for name, some in details.items() if some}


def _counts(found: Mapping[str, Any]) -> dict[str, int]:
    return {
        name: int(value)
        for name, value in found.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 2**53
    }
