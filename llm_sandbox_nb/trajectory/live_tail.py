"""Live text: the text so far of streamed replies and running commands. Later, a recorded event has the whole text.

Each piece of text has an offset `at`: the number of characters before the piece in its stream. So a reader can skip
text that it has received before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from llm_sandbox_nb.trajectory import events as ev

Json = dict[str, Any]
Key = tuple[str, str, str]
"""Key of a stream: the kind of its events, the step number or call id, and the name of the stream."""

MAX_STREAM_CHARACTERS = 64 * 1024
"""Number of characters at the end of each stream that are always kept."""


@dataclass
class _Stream:
    number: int
    event: Json
    start: int
    text: str

    @property
    def end(self) -> int:
        return self.start + len(self.text)


class LiveTail:
    """The ends of all text streams that still grow."""

    def __init__(self) -> None:
        self._streams: dict[Key, _Stream] = {}
        self._begun = 0

    def add(self, event: Mapping[str, Any]) -> bool:
        """Add the text of a transient event at its offset `at`, by default at the end. Return True if text is added."""
        added = [self._add(key, dict(event), text) for key, text in _texts(event)]
        return any(added)

    def follow(self, event: ev.Event) -> None:
        """Add the live text of an event, or remove the live text that the event replaces."""
        if event.kind in ev.TRANSIENT:
            self.add(event.model_dump())
        else:
            self.written(event.model_dump(include={"kind", "step", "call_id"}))

    def written(self, event: Mapping[str, Any]) -> None:
        """Remove the live text that a recorded event replaces."""
        kind = event.get("kind")
        if kind in ("model.requested", "model.replied", "model.failed"):
            self._forget("model.delta", str(event.get("step")))
        elif kind == "call.finished":
            self._forget("call.output", str(event.get("call_id")))
        elif kind == "run.finished":
            self._streams.clear()

    def since(self, seen: dict[int, int]) -> Iterator[Json]:
        """Yield events with the text that a reader has not seen yet, and update `seen`.

        `seen` maps the number of a stream to the number of characters that the reader has seen.
        """
        for gone in seen.keys() - {stream.number for stream in self._streams.values()}:
            del seen[gone]
        for key, stream in self._streams.items():
            begin = max(seen.get(stream.number, 0), stream.start)
            if begin < stream.end:
                seen[stream.number] = stream.end
                field = key[2] if key[0] == "model.delta" else "text"
                new = {"id": f"{stream.event.get('id')}-{begin}", field: stream.text[begin - stream.start :]}
                yield {**stream.event, **new, "at": begin}

    def _add(self, key: Key, event: Json, text: str) -> bool:
        stream = self._streams.get(key)
        if stream is None:
            self._begun += 1
            texts = ("text", "reasoning") if event.get("kind") == "model.delta" else ("text",)
            bare = {**event, **dict.fromkeys(texts, "")}
            self._streams[key] = _Stream(self._begun, bare, _at(event, 0), text)
        else:
            at = _at(event, stream.end)
            if at > stream.end:
                stream.start, stream.text = at, ""
            text = text[max(0, stream.end - at) :]
            stream.text += text
        stream = self._streams[key]
        if (over := len(stream.text) - MAX_STREAM_CHARACTERS) > MAX_STREAM_CHARACTERS:
            stream.start, stream.text = stream.start + over, stream.text[over:]
        return bool(text)

    def _forget(self, kind: str, owner: str) -> None:
        for key in [key for key in self._streams if key[:2] == (kind, owner)]:
            del self._streams[key]


def _texts(event: Mapping[str, Any]) -> Iterator[tuple[Key, str]]:
    if event.get("kind") == "call.output":
        yield ("call.output", str(event.get("call_id")), str(event.get("stream"))), str(event.get("text", ""))
    elif event.get("kind") == "model.delta":
        for field in ("reasoning", "text"):
            if text := event.get(field):
                yield ("model.delta", str(event.get("step")), field), str(text)


def _at(event: Json, default: int) -> int:
    at = event.get("at")
    return at if isinstance(at, int) and at >= 0 else default
