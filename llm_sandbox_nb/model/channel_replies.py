"""Reader of replies whose thoughts, answers and calls are in separate channels.

The model gpt-oss writes such replies in OpenAI's Harmony format. Some servers remove the special tokens of this format.
The model Kimi K3 writes elements between marks such as `<|open|>think<|sep|>` and `<|close|>think<|sep|>`.
"""

from __future__ import annotations

import html
import re
from dataclasses import dataclass

from llm_sandbox_nb.model.text_formats import END_TOKENS, Written, WrittenCalls, after_space, read_value

_MAX_BROKEN_HEADERS = 20_000
"""Number of incomplete channel headers after which the rest of a reply is ignored."""


def read_channels(text: str) -> ChannelReply | None:
    """Parse a reply in channels. Return None for any other text."""
    return _harmony(text) or _kimi3(text)


@dataclass(frozen=True)
class ChannelReply:
    """Text, reasoning and calls of a reply in channels."""

    text: str
    reasoning: str
    calls: WrittenCalls
    more: bool = False
    """True if text follows the last call."""


_HARMONY_BEGIN = re.compile(r"\s*+(?:<\|start\|>)?(?:assistant)?\s*+(?:to=[\w.]{1,200}\s*+)?<\|channel\|>")
_HARMONY_MESSAGE = re.compile(
    r"\s*+(?:<\|start\|>\s*+)?(?:assistant\s*+)?(?:to=(?P<role>[\w.-]{1,200})\s*+)?"
    r"(?:<\|channel\|>\s*+(?:(?P<channel>analysis|commentary|final)\s*+)?(?:to=(?P<to>[\w.-]{1,200})\s*+)?)?"
    r"(?:<\|constrain\|>\s*+)?(?:\w{1,20}\s*+)?<\|message\|>"
)
_HARMONY_END = re.compile(r"<\|(?:end|call|return)\|>\s*(?=<\|start\|>|\Z)|(?=<\|start\|>assistant)")
_HARMONY_HEADER = re.compile(r"<\|start\|>|<\|channel\|>")
_STRIPPED = re.compile(
    r"\A(?:analysis(?P<thought>.*?)(?:assistant|\Z))?\s*+(?:commentary\s*+)?to=functions\.(?P<name>[A-Za-z_]\w{0,127})\s*+"
    r"(?:commentary\s*+)?(?:json\s*+|code\s*+)?(?=\{)",
    re.DOTALL,
)


def _harmony(text: str) -> ChannelReply | None:
    """Parse a reply of gpt-oss, with or without special tokens. Return None for any other text."""
    if not _HARMONY_BEGIN.match(text):
        return _harmony_without_marks(text)
    place, calls, more, failures = 0, WrittenCalls(), False, 0
    texts: list[str] = []
    thoughts: list[str] = []
    while place < len(text):
        header = _HARMONY_MESSAGE.match(text, place)
        if header is None:  # an incomplete header: continue with the next one
            following = _HARMONY_HEADER.search(text, place + 1)
            failures += 1
            if following is None or failures > _MAX_BROKEN_HEADERS:
                break
            place = following.start()
            continue
        recipient = header["to"] or header["role"] or ""
        name = recipient.removeprefix("functions.") if recipient.startswith("functions.") else ""
        value = read_value(text, after_space(text, header.end())) if name else None
        end = _HARMONY_END.search(text, value[1] if value else header.end())
        content = text[header.end() : end.start() if end else len(text)]
        place = end.end() if end else len(text)
        if name:
            whole = (
                value is not None
                and isinstance(value[0], dict)
                and not text[value[1] : header.end() + len(content)].strip()
            )
            if not whole:
                return ChannelReply("\n".join(texts), "\n\n".join(thoughts), [], more)
            calls.append((name, value[0]))  # type: ignore[index] # checked by `whole`
            more = False
        elif header["channel"] == "analysis":
            thoughts.append(content.strip())
        elif not recipient:
            texts.append(content.strip())
            more = bool(content.strip())
    return ChannelReply("\n".join(texts), "\n\n".join(thoughts), calls, more and bool(calls))


def _harmony_without_marks(text: str) -> ChannelReply | None:
    """Parse a reply of gpt-oss from which the server has removed the special tokens."""
    if "to=functions." not in text:
        return None
    header = _STRIPPED.match(text.lstrip())
    if header is None:
        return None
    rest = text.lstrip()
    found = read_value(rest, header.end())
    if found is None or not isinstance(found[0], dict):
        return None
    more = bool(END_TOKENS.fullmatch(rest[found[1] :]) is None)
    return ChannelReply("", (header["thought"] or "").strip(), [(header["name"], found[0])], more)


_OPEN = re.compile(r"<\|open\|>(think|response|tools|call|argument)((?: \w+=\"[^\"]{0,200}\")*)<\|sep\|>")
_ATTRIBUTE = re.compile(r" (\w+)=\"([^\"]*)\"")


def _kimi3(text: str) -> ChannelReply | None:
    """Parse a reply of Kimi K3. Return None for any other text.

    The first begin mark may be missing, because the chat template writes this mark at the end of the prompt.
    """
    begun = text.lstrip().startswith(("<|open|>", "<|close|>"))
    if not begun and not -1 < text.find("<|close|>think<|sep|>") < (text.find("<|open|>") % len(text or " ")):
        return None
    place = 0
    texts: list[str] = []
    thoughts: list[str] = []
    calls: WrittenCalls = []
    end_of_calls = 0
    """Place after the newest argument, or after the beginning of a call without arguments."""
    for element in ("think", "response"):
        end = text.find(f"<|close|>{element}<|sep|>")
        if end >= 0 and "<|open|>" not in text[:end].replace(f"<|open|>{element}<|sep|>", ""):
            (thoughts if element == "think" else texts).append(text[:end].rpartition("<|sep|>")[2])
            place = end + len(f"<|close|>{element}<|sep|>")
            break
    while opening := _OPEN.search(text, place):
        kind, attributes = opening[1], dict(_ATTRIBUTE.findall(opening[2]))
        place = opening.end()
        if kind in ("think", "response"):
            end = text.find(f"<|close|>{kind}<|sep|>", place)
            content = text[place : end if end >= 0 else len(text)]
            (thoughts if kind == "think" else texts).append(content)
            place = len(text) if end < 0 else end
        elif kind == "call":
            calls.append((attributes.get("tool", ""), {}))
            end_of_calls = place
        elif kind == "argument" and calls:
            end_mark = "<|close|>argument<|sep|>"
            end = text.find(end_mark, place)
            while end >= 0 and not re.match(
                r"\s*<\|(?:open\|>argument|close\|>call)",
                text[end + len(end_mark) : end + len(end_mark) + 60],
            ):
                end = text.find(end_mark, end + 1)
            if end < 0:
                break
            raw = text[place:end]
            calls[-1][1][html.unescape(attributes.get("key", ""))] = (
                raw if attributes.get("type") == "string" else Written(raw)
            )
            place = end_of_calls = end + len(end_mark)
    if calls and text.find("<|close|>call<|sep|>", end_of_calls) < 0:
        calls.pop()  # the last call was cut off
    left = text[text.rfind("<|sep|>") + len("<|sep|>") :] if calls else ""
    return ChannelReply(
        "".join(texts),
        "\n\n".join(filter(None, thoughts)),
        calls,
        END_TOKENS.fullmatch(left) is None,
    )
