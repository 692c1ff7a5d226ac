"""Reader of tool calls that a model wrote as text. A text counts only if the text is certainly meant as a call.

    reply = read_text_calls('<tool_call>{"name": "ls", "arguments": {"d": "."}}</tool_call>', tools)
    reply.calls  # (TextCall(name='ls', arguments={'d': '.'}),)

A text may also only show a call: in an example, a thought, a file, or the output of a command. So a call counts only if

1. the call is at the top level: outside of thoughts, fenced code blocks, inline code, quotes, comments and results;
2. the call begins a line or follows a complete sentence, and the words before do not announce an example;
3. the call is complete, all names are offered tools, and the arguments fit their schemas;
4. after the last complete call, the text has only white space, end tokens or a call that the token limit has cut off.

If one of several calls does not count, no call counts. At the end of a reply, JSON calls also count in a fenced code
block, and without a begin mark such as `<tool_call>`. The marks of all model families are in `text_formats.FORMATS`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llm_sandbox_nb.model.announced_examples import why_announced
from llm_sandbox_nb.model.channel_replies import read_channels
from llm_sandbox_nb.model.text_formats import (
    END_TOKENS,
    FORMATS,
    MAX_CALLS,
    Written,
    WrittenCalls,
    after_space,
    python_calls,
    read_json_calls,
    read_python_calls,
    read_value,
)
from llm_sandbox_nb.model.text_places import (
    ANY_MARK,
    BY_GROUP,
    MAX_MARK_LENGTH,
    Fence,
    Lines,
    after,
    after_run,
    places_of,
    read_fence,
)


@dataclass(frozen=True)
class TextCall:
    """Call that was written as text."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class TextReply:
    """Reply, split into its text, its thoughts and its calls."""

    text: str
    reasoning: str
    calls: tuple[TextCall, ...]
    refused: str = ""
    """Reason why a call in the text does not count. Empty if there is no such call."""


def read_text_calls(text: str, tools: Sequence[Mapping[str, Any]], bash_blocks: bool = False) -> TextReply:
    """Read the calls of the given tools from the complete text of a reply, in time that is linear in its length.

    `tools` are in OpenAI's form. With `bash_blocks`, a fenced ```bash, ```sh or ```shell block at the end of the reply
    is read as a call of the tool for shell commands, if the reply has no other fenced block.
    """
    offered = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}
    text = text.lstrip("\ufeff")
    body, reasoning = _without_thoughts(text.rstrip())
    channels = read_channels(text)
    if channels:
        body, reasoning = channels.text, channels.reasoning
        found = _Found(channels.calls, channels.text, "text follows" if channels.more else "")
    else:
        found = _find(body, offered, bash_blocks)
    if not found.calls:
        return TextReply(body.strip(), reasoning, (), found.refused)
    if len(found.calls) >= MAX_CALLS:
        return TextReply(body.strip(), reasoning, (), f"it has {MAX_CALLS} calls or more")
    refused = found.refused or next(
        (problem for name, arguments in found.calls if (problem := _misfit(name, arguments, offered))), ""
    )
    if refused:
        return TextReply(body.strip(), reasoning, (), refused)
    calls = tuple(TextCall(name, _typed(arguments, offered[name])) for name, arguments in found.calls)
    return TextReply(found.rest.strip(), reasoning, calls)


# --- thoughts ---

_THOUGHTS = {
    "<think>": "</think>",
    "<thinking>": "</thinking>",
    "<seed:think>": "</seed:think>",
    "[THINK]": "[/THINK]",
    "<|channel>thought": "<channel|>",
    "<|START_THINKING|>": "<|END_THINKING|>",
}
_LONE_END = re.compile(r"</(?:seed:)?think>(?<!`</think>)(?<!`</seed:think>)(?!`)")
_MAX_THOUGHTS = 1000
"""Number of thoughts after which the rest of a reply counts as a thought too."""


def _without_thoughts(text: str) -> tuple[str, str]:
    """Split a reply into its text and the thoughts before the text.

    The begin tag of a thought may be missing, because chat templates may write it at the end of the prompt.
    """
    place, thoughts = 0, list[str]()
    while True:
        begun = after_space(text, place)
        begin = next((begin for begin in _THOUGHTS if text.startswith(begin, begun)), None)
        if begin is None:
            break
        begun += len(begin)
        closed = text.find(_THOUGHTS[begin], begun)
        if closed < 0 or len(thoughts) == _MAX_THOUGHTS:
            thoughts.append(text[begun:].strip())
            return "", "\n\n".join(thoughts)
        thoughts.append(text[begun:closed].strip())
        place = closed + len(_THOUGHTS[begin])
    if not thoughts and (lone := _LONE_END.search(text)) and not ANY_MARK.search(text, 0, lone.start()):
        return text[lone.end() :], text[: lone.start()].strip()
    return text[place:], "\n\n".join(filter(None, thoughts))


# --- calls with marks: their places ---

_MAX_FAILURES = 8
"""Number of marks without a complete call after which the search ends. Each of them may cost a pass over the text."""
_OTHER_TURN = re.compile(
    r"<\|(?:im_start|start_header_id)\|>\s*+(?:user|system|tool|ipython)|<start_of_turn>user|\[INST\]|<\|user\|>"
)
"""Matches the begin mark of a user's, system's or tool's turn. A model that writes such a mark invents the turn."""
_MAX_PLACES = 20_000
"""Number of fences, pieces of inline code, comments, results and marks after which the search ends."""


@dataclass(frozen=True)
class _Found:
    calls: WrittenCalls
    rest: str
    """Text without the calls."""
    refused: str = ""
    broken: bool = False
    """True if a call with a mark is incomplete."""


def _find(text: str, offered: Mapping[str, Mapping[str, Any]], bash_blocks: bool) -> _Found:
    """Find calls with marks. If there are none, find calls without marks at the end of the text."""
    nothing = _Found([], text)
    end = END_TOKENS.search(text, max(0, len(text) - 400)).start()  # type: ignore[union-attr] # matches an empty text too
    groups = tuple(
        name for name, format in BY_GROUP.items() if format.hint in text and re.search(format.mark, text)
    )
    ends_like_one = text[end - 1 : end] in tuple("`}])") and (
        bash_blocks or any(name in text for name in offered)
    )
    if not end or not (groups or ends_like_one):
        return nothing
    text = f"\n{text}"
    fences, found = _places(text, places_of(groups))
    if found.calls or found.broken or fences is None:
        return found
    if fences and not text[fences[-1].end : end + 1].strip():
        unmarked = _fenced(text, fences, offered, bash_blocks)
    else:
        unmarked = _bare(text, fences, end + 1)
    return unmarked if unmarked.calls or unmarked.refused else found


def _places(text: str, places: re.Pattern[str]) -> tuple[list[Fence] | None, _Found]:
    """Find the fenced blocks, and the calls with marks.

    The list of fenced blocks is None if the search found no call and gave up before the end of the text.
    """
    lines = Lines(text)
    fences: list[Fence] = []
    calls: WrittenCalls = []
    rest: list[str] = []
    place = floor = done = failures = count = 0
    refused, broken, unpaired = "", False, set[str]()
    while match := places.search(text, place):
        count += 1
        if failures == _MAX_FAILURES or count > _MAX_PLACES or len(calls) >= MAX_CALLS:
            break
        start, place = match.span()
        kind = match.lastgroup
        if kind in ("fence", "tildes"):
            fences.append(read_fence(text, match))
            floor = place = fences[-1].end
        elif end := lines.end_of_code(start, floor):
            place = max(place, end)
        elif kind == "run":
            if match[0] not in unpaired and (end := after_run(text, match)):
                floor = place = end
            else:
                unpaired.add(match[0])
        elif kind == "comment":
            floor = place = after(text, "-->", place)
        elif kind is None:
            floor = place = after(text, f"</{match[0][1:-1].split()[0]}>", place)
        elif kind in BY_GROUP:
            found = BY_GROUP[kind].read(text, start)
            why = "" if calls and not text[done:start].strip() else why_announced(text, start)
            if found is None:
                failures += 1
                broken = broken or _BROKEN.match(text, text.rfind("\n", 0, start)) is not None
                continue
            read, end = found
            why = why or (
                "another turn is before it" if not calls and _OTHER_TURN.search(text, 0, start) else ""
            )
            refused = refused or why or ("another call is not whole" if broken else "")
            rest.append(text[done:start])
            calls += read
            floor = place = done = end
    if not calls:
        return None if match else fences, _Found(
            [], text, "the call is not whole" if failures else "", broken
        )
    left = text[done:]
    if not refused and not END_TOKENS.fullmatch(left) and not _cut_call(left):
        refused = "text follows the call"
    return fences, _Found(calls, "".join(rest), refused)


_MARKS = tuple({mark for format in FORMATS for mark in format.begins})


def begin_of_mark(text: str, place: int, *, whole: bool = False) -> int:
    """Return the place of the next mark from `place` on, or the length of the text if no mark follows.

    Unless `whole` is True, the beginning of a mark at the end of the text counts as a mark.
    """
    if mark := ANY_MARK.search(text, place):
        return mark.start()
    if whole:
        return len(text)
    for start in range(max(place, len(text) - MAX_MARK_LENGTH), len(text)):
        if text[start] in "<[f" and any(mark.startswith(text[start:]) for mark in _MARKS):
            return start
    return len(text)


_BROKEN = re.compile(
    rf"\n[ \t]*+(?:{ANY_MARK.pattern})\s*+"
    r"(?:[{\[]|<function=|<arg_key>|<(?:steptml:)?invoke|<｜|<\||call:|\w{1,128}\s*+<arg_key>)"
)
"""Matches a line with a mark and the beginning of a call after the mark. It does not match a mark in a sentence."""
_WHOLE_END = re.compile(
    r"</(?:\w+:)?tool_calls?>|<tool_call\|>|<\|tool_call_end\|>|<｜tool▁call▁end｜>|</[｜|‖]{1,2}DSML"
)


def _cut_call(left: str) -> bool:
    """Return True if the rest of the text is the beginning of another call that the token limit cut off."""
    match = ANY_MARK.match(left.lstrip()) or re.match(
        rf"<(?:\|tool_call_begin\||{'｜tool▁call▁begin｜'})>|<[｜|‖]{{1,2}}DSML", left.lstrip()
    )
    return match is not None and "\n\n" not in left.strip() and not _WHOLE_END.search(left)


# --- without marks ---

_JSON_FENCES = frozenset({"", "json", "json5", "tool_call", "tool_calls", "tool_code", "tool", "xml+json"})
_BASH_FENCES = frozenset({"bash", "sh", "shell"})


def _fenced(
    text: str, fences: Sequence[Fence], offered: Mapping[str, Mapping[str, Any]], bash_blocks: bool
) -> _Found:
    """Read the calls in the fenced block at the end of a reply, and in the blocks directly before it."""
    last = len(fences) - 1
    while last and not text[fences[last - 1].end : fences[last].start].strip():
        last -= 1
    group, before = fences[last:], fences[:last]
    rest = text[: group[0].start]
    if bash_blocks and any(fence.info.split(" ")[0] in _BASH_FENCES for fence in fences):
        tool = _bash_tool(offered)
        if len(fences) != 1 or tool is None or group[0].info not in _BASH_FENCES:
            return _Found([], text, "more than one block, or a block that is not closed")
        content = group[0].content
        if ANY_MARK.match(content.lstrip()):
            return _Found([], text, "it is in a block of shell commands")
        if not content.strip():
            return _Found([], text, "the block is empty")
        if content.lstrip().startswith("$ "):
            return _Found([], text, "the block shows a session with its prompt: write the commands alone")
        return _Found([(tool[0], {tool[1]: content})], rest, why_announced(text, group[0].start))
    calls: WrittenCalls = []
    for fence in group:
        found = _calls_in(fence) if fence.info in _JSON_FENCES else []
        if not found:
            return _Found([], text)
        calls += found
    if any(_calls_in(fence) for fence in before if fence.info in _JSON_FENCES):
        return _Found(calls, rest, "other calls are before it, in the text")
    return _Found(calls, rest, why_announced(text, group[0].start))


def _calls_in(fence: Fence) -> WrittenCalls:
    content = fence.content.strip()
    if fence.info == "tool_code":
        return python_calls(content)
    calls = _json_sequence(content, 0, len(content))
    return calls or []


def _json_sequence(text: str, place: int, end: int) -> WrittenCalls | None:
    """Read consecutive JSON calls up to `end`. Return None if there is other text between the calls."""
    calls: WrittenCalls = []
    while (place := _BETWEEN.match(text, place).end()) < end:  # type: ignore[union-attr] # matches an empty text too
        found = read_json_calls(text, place) if len(calls) < MAX_CALLS else None
        if found is None:
            return calls if len(calls) >= MAX_CALLS else None
        calls += found[0]
        place = found[1]
    return calls


_BETWEEN = re.compile(r"[\s;,]*+")
_LINE_BRACKETS = tuple(f"\n{blanks}{bracket}" for blanks in ("", " ", "  ", "   ") for bracket in "{[")


def _brackets(text: str, begin: int, end: int) -> list[int]:
    """Return the sorted places of the first `{` and `[` that begin a line."""
    found: list[int] = []
    for mark in _LINE_BRACKETS:
        place = begin
        for _ in range(_MAX_FAILURES):
            if (place := text.find(mark, place, end)) < 0:
                break
            place += len(mark)
            found.append(place - 1)
    return sorted(found)[:_MAX_FAILURES]


def _bare(text: str, fences: Sequence[Fence], end: int) -> _Found:
    """Read the JSON calls at the end of a text, or a list of Python calls that is the complete text."""
    last = fences[-1].end if fences else 0
    begin = len(text) - len(text.lstrip())
    if (
        text.startswith("[", begin)
        and (listed := read_python_calls(text, begin))
        and not text[listed[1] : end].strip()
    ):
        return _Found(listed[0], "")
    # The calls begin at the first bracket after which all text up to the end consists of JSON calls.
    for bracket in _brackets(text, last, end):
        if calls := _json_sequence(text, bracket, end):
            before = text[: text.rindex("\n", 0, bracket)]
            why = "it is in code" if _quoting(before[last:]) else why_announced(text, bracket)
            return _Found(calls, before, why)
    return _Found([], text)


def _quoting(text: str) -> bool:
    """Return True if a comment, or a tag such as `<output>` or `<code>`, is still open at the end of a text."""
    tags = re.findall(
        r"<(/?)(tool_response|tool_result|tool_output|observation|output|file|document|example|code|pre)\b",
        text,
    )
    open_tags = sum(1 if not slash else -1 for slash, _ in tags)
    return open_tags > 0 or text.count("<!--") > text.count("-->")


def _bash_tool(offered: Mapping[str, Mapping[str, Any]]) -> tuple[str, str] | None:
    """Return the name of the tool for shell commands, and the name of its argument for the command.

    Return None if there is no tool whose only required argument is `command`.
    """
    for name in ("execute_bash", *offered):
        properties = offered.get(name, {}).get("properties", {})
        if "command" in properties and list(offered.get(name, {}).get("required", ["command"])) == [
            "command"
        ]:
            return name, "command"
    return None


# --- schemas ---

_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str, "integer": int, "number": (int, float), "boolean": bool, "array": list, "object": dict,
    "null": type(None),
}  # fmt: skip


def _types(schema: object) -> list[str]:
    """Return the names of the JSON types in a schema and its alternatives, or an empty list if any type is allowed."""
    if not isinstance(schema, Mapping):  # the schema `true` allows any value
        return []
    named = schema.get("type")
    types = [name for name in (named if isinstance(named, list) else [named]) if isinstance(name, str)]
    for key in ("anyOf", "oneOf", "allOf"):
        alternatives = schema.get(key)  # MCP servers write null for a key that is not used
        for alternative in alternatives if isinstance(alternatives, list) else ():
            types += _types(alternative)
    if not types and isinstance(schema.get("enum"), list):
        types = [
            name for name, kind in _TYPES.items() if any(isinstance(value, kind) for value in schema["enum"])
        ]
    return types


def _typed(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Convert arguments that were written without quotes to the types in the schema."""
    properties = schema.get("properties", {})
    return {key: _value(value, properties.get(key, {})) for key, value in arguments.items()}


def _value(value: Any, schema: object) -> Any:
    if not isinstance(value, Written):
        return value
    types = _types(schema)
    if (
        types
        and set(types) <= {"string", "null"}
        and not ("null" in types and value.strip() in ("null", "None"))
    ):
        return str(value)
    decoded = read_value(value.strip(), 0)
    word = {"True": True, "true": True, "False": False, "false": False, "None": None, "null": None}
    if value.strip() in word:
        found: Any = word[value.strip()]
    elif decoded and decoded[1] == len(value.strip()):
        found = decoded[0]
    else:
        return str(value)
    if not types:
        return found
    return found if any(_is(found, name) for name in types) else str(value)


def _is(value: Any, name: str) -> bool:
    kind = _TYPES.get(name)
    if kind is None:
        return True
    if isinstance(value, bool):
        return name == "boolean"
    if name == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, kind)


def _misfit(name: str, arguments: Mapping[str, Any], offered: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the reason why a call does not fit the tools, or an empty text for a call that fits.

    A text fits any type: for example, "30" may be meant as a number.
    """
    if name not in offered:
        return f"there is no tool {json.dumps(name[:80])}"
    schema = offered[name]
    properties = schema.get("properties", {})
    for key in schema.get("required", ()):
        if key not in arguments:
            return f"{name} needs {key}"
    if schema.get("additionalProperties") is False:
        for key in arguments:
            if key not in properties:
                return f"{name} has no argument {json.dumps(key[:80])}"
    for key, value in _typed(arguments, schema).items():
        about = properties.get(key, {})
        types, listed = _types(about), about.get("enum") if isinstance(about, Mapping) else None
        if types and not isinstance(value, str) and not any(_is(value, kind) for kind in types):
            return f"{key} of {name} must be {' or '.join(types)}"
        if isinstance(listed, list) and not isinstance(value, list | dict) and value not in listed:
            return f"{key} of {name} must be one of {json.dumps(listed)[:200]}"
    return ""
