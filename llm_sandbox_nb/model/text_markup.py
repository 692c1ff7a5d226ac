"""What servers leave in the text of a reply although it is none: thinking in `<think>`, calls in `<tool_call>`.

A server that knows its model's chat template takes both out. One that does not, or is not told to, sends them as text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

_THINKING = {"<think>": "</think>", "<thinking>": "</thinking>", "[THINK]": "[/THINK]"}
_LONE_END = re.compile(r"</think>[ \t]*(?:\n|\Z)|(?<=\n)</think>")
_CALL = re.compile(r"(?<!`)<tool_call>(.*?)(</tool_call>|(?=<tool_call>)|\Z)", re.DOTALL)
_MISTRAL = re.compile(r"\[TOOL_CALLS\]\s*(\[.*)", re.DOTALL)
_FUNCTION = re.compile(r"<function=([^>\s]+)>(.*?)</function>", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
_KEYED = re.compile(r"<arg_key>\s*(.*?)\s*</arg_key>\s*<arg_value>\n?(.*?)\n?</arg_value>", re.DOTALL)


@dataclass
class ThinkingSplitter:
    """Tells the thinking at the beginning of a text from the rest, while the text comes."""

    _waiting: str = ""
    """What may be the beginning of a tag."""
    _end: str | None = field(default=None)
    """The tag that ends the thinking; empty in the text after it."""

    def add(self, piece: str) -> tuple[str, str]:
        """The text and the thinking that are known with one more piece."""
        if self._end == "":
            return piece, ""
        self._waiting += piece
        if self._end is None:
            begun = self._waiting.lstrip()
            if any(tag.startswith(begun) and tag != begun for tag in _THINKING):
                return "", ""
            tag = next((tag for tag in _THINKING if begun.startswith(tag)), None)
            if tag is None:
                self._end = ""
                return self.rest()
            self._end, self._waiting = _THINKING[tag], begun.removeprefix(tag)
        thinking, end, text = self._waiting.partition(self._end)
        if not end:
            kept = _overlap(self._waiting, self._end)
            thinking, self._waiting = (
                self._waiting[: len(self._waiting) - kept],
                self._waiting[-kept:] * bool(kept),
            )
            return "", thinking
        self._end, self._waiting = None, ""  # more thinking may follow at once
        text, further = self.add(text)
        return text, thinking + further

    def rest(self) -> tuple[str, str]:
        """What still waits at the end of the text, as text and thinking."""
        waiting, self._waiting = self._waiting, ""
        return ("", waiting) if self._end else (waiting, "")


def _overlap(text: str, tag: str) -> int:
    """How many characters at the end of `text` may begin `tag`."""
    return next(
        (size for size in range(min(len(text), len(tag) - 1), 0, -1) if tag.startswith(text[-size:])), 0
    )


def split_lone_end(text: str) -> tuple[str, str]:
    """Text and thinking when a chat template began the thinking, so that only its end is in the text."""
    match = _LONE_END.search(text)
    return (text[match.end() :], text[: match.start()]) if match else (text, "")


Properties = Mapping[str, Mapping[str, Any]]
"""The arguments of each tool with their schemas, by the tool's name."""


def written_calls(text: str, tools: Mapping[str, Properties]) -> tuple[str, list[tuple[str, str]]]:
    """The text without the calls of these tools that are written in it; each call as name and arguments in JSON.

    A text that names another tool is left as it is: it may be about calls.
    """
    places: list[tuple[int, int]] = []
    calls: list[tuple[str, dict[str, Any]]] = []
    for match in [one] if (one := _MISTRAL.search(text)) else _CALL.finditer(text):
        if found := list(_in_block(match[1], closed=bool(match.lastindex and match[match.lastindex]))):
            places.append(match.span())
            calls += found
    if not calls or not all(name in tools for name, _ in calls):
        return text, []
    for start, end in reversed(places):
        text = text[:start] + text[end:]
    typed = [
        (name, {key: _value(value, tools[name].get(key, {})) for key, value in arguments.items()})
        for name, arguments in calls
    ]
    return text.strip(), [(name, json.dumps(arguments)) for name, arguments in typed]


def _in_block(block: str, *, closed: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """The calls between `<tool_call>` and its end, in any of the ways that models write them."""
    if block.lstrip().startswith(("{", "[")):
        yield from _in_json(block)
    elif "<function=" in block:
        for name, body in _FUNCTION.findall(block):
            yield name, {key: _Written(value) for key, value in _PARAMETER.findall(body)}
    elif closed:
        name = block.partition("<arg_key>")[0].strip()
        if name.isidentifier():
            yield name, {key: _Written(value) for key, value in _KEYED.findall(block)}


def _in_json(text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        found, _ = json.JSONDecoder().raw_decode(text.lstrip())
    except (ValueError, RecursionError):
        return
    for call in found if isinstance(found, list) else [found]:
        match call:
            case {"name": str(name), "arguments": dict(arguments)} | {
                "name": str(name),
                "parameters": dict(arguments),
            }:
                yield name, arguments
            case {"name": str(name)} if len(call) == 1:
                yield name, {}


class _Written(str):
    """A value that is written without quotes, so that only the schema tells a number from its digits."""

    __slots__ = ()


def _value(value: Any, schema: Mapping[str, Any]) -> Any:
    if not isinstance(value, _Written) or schema.get("type", "string") == "string":
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value
