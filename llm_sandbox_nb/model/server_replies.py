"""Replies of OpenAI-compatible servers, whatever their habits, in the one form that LiteLLM surely reads.

Servers ignore that a stream was asked for, leave fields out, send others, or write them in another type. Each reply is
read here and written anew, piece by piece, as OpenAI's own server would write it. docs/reference/model-servers.md has
the list of habits, tests/server_variants.py a server for each.
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
"""Fields of a message that are read here, or that OpenAI's server sends and refuses in the history."""
_KNOWN_OF_CALL = frozenset({"index", "id", "type", "function", "name", "arguments", "parameters"})
_MOST_UNKNOWN = 1_000_000
"""Characters of unknown fields that are kept of one reply."""
_FINISHES = {
    "length": "length", "max_tokens": "length", "max_length": "length", "model_length": "length",
    "max_output_tokens": "length", "tool_calls": "tool_calls", "tool_call": "tool_calls", "tool_use": "tool_calls",
    "function_call": "tool_calls", "content_filter": "content_filter", "safety": "content_filter",
    "refusal": "content_filter",
}  # fmt: skip
_REPLY_MOST = 256 * 1024**2
"""Bytes of one reply that are read."""
_LINE_MOST = 32 * 1024**2
"""Characters of one line, or of one JSON text on many lines, that are read."""
_NOT_FINISHED = frozenset({"", "null", "none", "error", "abort"})
"""Values of `finish_reason` that a reply has which did not come to its end."""


@dataclass
class ReplyRewriter:
    """A response hook of an HTTP client. It puts a reply that LiteLLM reads in place of the one that came."""

    habits: ServerHabits
    stream: bool = True
    """Whether LiteLLM expects a stream. It gets one also when the server sends none."""
    used: bool = False
    """Whether a reply came."""
    ended: bool = False
    """Whether the reply came to its end, or is taken as it is because the one before broke off too."""
    cut: bool = False
    """Whether it is taken although the server sent no mark of its end: it may be whole, or be cut off."""
    heard: Callable[[], None] = lambda: None
    """Called when something comes."""
    unknown: UnknownFields = field(default_factory=lambda: UnknownFields())
    """What came in fields that OpenAI does not have."""

    async def __call__(self, response: httpx.Response) -> None:
        """Rewrite this reply, unless it is a failure.

        Raises:
            ModelError: a web page came.
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
    """The bytes of a reply, written anew."""

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
    """The reply to a request for no stream: one piece brought the message, the others its end and usage."""
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
"""Stands for the server's own mark of the end."""
_BROKEN: dict[str, Any] = {}
"""Stands for JSON that is cut or is none."""


async def _objects(raw: httpx.Response, heard: Callable[[], None]) -> AsyncIterator[dict[str, Any]]:
    """The JSON objects of a reply as they come: in events, on lines, or as one text over many lines."""
    text, is_event = _Text(), False
    async for line in _lines(raw, heard):
        if line.startswith("data:"):
            if text and not is_event:  # a JSON text of many lines is over
                for one in text.taken() or [_BROKEN]:
                    yield one
            data, is_event = line.removeprefix("data:").strip(), True
        elif (text and not is_event) or line.lstrip().startswith(("{", "[")):
            data, is_event = line.strip(), False
        elif not line and text:  # the end of an event
            if (found := text.taken()) is None:
                yield _BROKEN
                return
            for one in found:
                yield one
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
        # What is on many lines and in no event is read at its end: it would be read over and over.
        if (begun and not is_event) or (found := text.taken_when_whole()) is None:
            continue
        for one in found:
            yield one
    for one in (text.taken() or [_BROKEN]) if text else ():
        yield one


class _Text:
    """A JSON text that comes in lines."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._length = 0
        self._read = 0
        """Characters that were read in vain."""

    def __bool__(self) -> bool:
        return bool(self._lines)

    def add(self, line: str) -> None:
        """Add a line. Raises ModelError when it becomes too long."""
        self._lines.append(line)
        self._length += len(line) + 1
        _check_length(self._length, _LINE_MOST)

    def taken_when_whole(self) -> list[dict[str, Any]] | None:
        """Its objects, after which a new text begins; None while it is not whole."""
        if self._read > _LINE_MOST:  # it was read over and over: its end will tell
            return None
        found = _parsed("\n".join(self._lines))
        self._read += self._length
        if found is not None:
            self._begin()
        return found

    def taken(self) -> list[dict[str, Any]] | None:
        """Its objects, None when it is none; a new text begins."""
        found = _parsed("\n".join(self._lines))
        self._begin()
        return found

    def _begin(self) -> None:
        self._lines, self._length, self._read = [], 0, 0


async def _lines(raw: httpx.Response, heard: Callable[[], None]) -> AsyncIterator[str]:
    """Lines, which end in LF, CR LF or CR and nothing else: JSON may hold the other ends of lines as they are."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
    ends = io.IncrementalNewlineDecoder(None, translate=True)
    rest: list[str] = []
    size = waiting = 0
    async for data in raw.aiter_bytes():
        heard()
        size += len(data)
        _check_length(size, _REPLY_MOST)
        first, *lines = ends.decode(decoder.decode(data)).split("\n")
        rest.append(first)
        waiting += len(first)
        _check_length(waiting, _LINE_MOST)
        for line in lines:
            yield "".join(rest)
            rest, waiting = [line], len(line)
    yield "".join([*rest, ends.decode(decoder.decode(b"", True), True)])


def _check_length(length: int, most: int) -> None:
    """Refuse what never ends, before it fills the memory. Raises ModelError."""
    if length > most:
        what = "a line" if most == _LINE_MOST else "a reply"
        raise ModelError(
            f"The server sends {what} of more than {most >> 20} MB, as no model server does: check the address.",
            kind="server",
        )


def _parsed(text: str) -> list[dict[str, Any]] | None:
    """The objects of a JSON text; None when it is not whole."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return [one for one in (found if isinstance(found, list) else [found]) if isinstance(one, dict)]


# --- from objects to pieces ---


class _Reply:
    """One reply while it comes. The end and the usage are kept for last, where OpenAI has them."""

    def __init__(self, unknown: UnknownFields) -> None:
        self._unknown = unknown
        self.began = self.ended = self.broken = False
        self._said = self._called = self._refused = False
        self._finish: str | None = None
        self._usage: dict[str, Any] | None = None
        self._head: dict[str, Any] = {}

    def take(self, found: dict[str, Any]) -> dict[str, Any] | None:
        """The piece that an object brings, if it brings one."""
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
        if (
            found.get("object") == "chat.completion" and not choices
        ):  # a whole reply, in which nothing is said
            self.began = self.ended = True
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            return None
        self.began = True
        choice = choices[0]
        self._finish = _finish(choice.get("finish_reason")) or self._finish
        self.ended = self.ended or self._finish is not None or "message" in choice
        said = choice.get("delta")
        if not isinstance(said, dict):
            # A whole message; some servers send it after its pieces once more.
            said = None if self._said else choice.get("message") or {"content": choice.get("text")}
        delta = _delta(said) if isinstance(said, dict) else {}
        if isinstance(said, dict):
            self._unknown.take(said)
        if not delta:
            return None
        self._said = True
        self._called = self._called or "tool_calls" in delta
        self._refused = self._refused or bool(_text(said.get("refusal")) and not said.get("content"))  # type: ignore[union-attr] # it has a delta
        return self._head | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}

    def last_pieces(self) -> Iterator[dict[str, Any]]:
        """The end of the reply and its usage."""
        finish = self._finish or ("tool_calls" if self._called else "stop")
        if self._refused and not self._called:
            finish = "content_filter"
        yield self._head | {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}
        if self._usage:
            yield self._head | {"choices": [], "usage": self._usage}


class UnknownFields:
    """The fields of one reply that OpenAI does not have: its server wants them back with the message or the call."""

    def __init__(self) -> None:
        self.message: dict[str, Any] = {}
        self._calls: dict[str, dict[str, Any]] = {}
        """By the id of the call; by its place where it has none."""
        self._ids: dict[str, str] = {}
        self._size = 0

    def take(self, said: Mapping[str, Any]) -> None:
        """Take what one piece brings."""
        self._add(self.message, {name: value for name, value in said.items() if name not in _KNOWN})
        calls = said.get("tool_calls")
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
        """The fields of each call; `ids` are those of the server, empty where it gave none."""
        return [self._calls.get(one or f"#{place}", {}) for place, one in enumerate(ids)]

    def _add(self, kept: dict[str, Any], found: Mapping[str, Any]) -> None:
        for name, value in found.items():
            if _is_something(value) and (size := len(str(value))) + self._size <= _MOST_UNKNOWN:
                self._size += size
                kept[name] = _joined(kept.get(name), value)


def _is_something(value: object) -> bool:
    return value is not None and value not in ("", [], {})


def _joined(before: Any, value: Any) -> Any:
    """A field that comes in pieces: texts and lists grow, objects get more fields, all else is replaced."""
    if before == value:
        return value
    match before, value:
        case str(), str():
            return before + value
        case list(), list():
            return [*before, *value]
        case dict(), dict():
            return before | {name: _joined(before.get(name), one) for name, one in value.items()}
    return value


def _finish(value: object) -> str | None:
    if value is None or str(value).lower() in _NOT_FINISHED:
        return None
    return _FINISHES.get(str(value).lower(), "stop")


def _delta(said: Mapping[str, Any]) -> dict[str, Any]:
    """What is said, in the fields of OpenAI; without those that are empty."""
    parts = said.get("content")
    parts = parts if isinstance(parts, list) else [parts]
    content = "".join(_text(part) for part in parts if not _is_thinking(part)) or _text(said.get("refusal"))
    reasoning = next((text for name in REASONING if (text := _text(said.get(name)))), "")
    reasoning += "".join(_text(part) for part in parts if _is_thinking(part))
    calls = said.get("tool_calls")
    calls = [calls] if isinstance(calls, dict) else list(calls) if isinstance(calls, list) else []
    if said.get("function_call"):
        calls.append({"function": said["function_call"]})
    delta: dict[str, Any] = {"content": content} if content else {}
    delta |= {"reasoning_content": reasoning} if reasoning else {}
    delta |= {"tool_calls": [_call(call) for call in calls if isinstance(call, dict)]} if calls else {}
    return delta


def _is_thinking(part: object) -> bool:
    return isinstance(part, dict) and str(part.get("type")).startswith(("thinking", "reasoning"))


def _text(value: object) -> str:
    """The text of a value that has one: a text, a part, or a list of them."""
    match value:
        case str():
            return value
        case list():
            return "".join(map(_text, value))
        case {"text": said} | {"thinking": said} | {"summary": said} | {"content": said}:
            return _text(said)
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
    """The counts of tokens; None when the server does not tell both of them."""
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
