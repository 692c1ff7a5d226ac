"""Read calls that a model has written as text: of any family, and only those that are surely meant as calls.

    reply = read_text_calls('<tool_call>{"name": "ls", "arguments": {"d": "."}}</tool_call>', tools)
    reply.calls  # (TextCall(name='ls', arguments={'d': '.'}),)

A text may also show a call: in an example, a thought, a file, the output of a command. So a call counts only if

1. it stands at the top level: outside of thoughts, fences, inline code, quotes, comments and results;
2. it begins a line, or follows a whole sentence, and the words before it do not announce an example;
3. it is whole, all names are tools that are offered, and the arguments fit their schemas;
4. nothing but white space follows the last call.

If one of several calls does not count, none does. JSON without a mark, or in a fence, counts only at the end of a
reply. The forms are in `text_formats.FORMATS`.
"""

from __future__ import annotations

import bisect
import functools
import html
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from llm_sandbox_nb.model.text_formats import (
    FORMATS,
    MOST_CALLS,
    Format,
    Written,
    WrittenCalls,
    after_space,
    python_calls,
    read_json_calls,
    read_python_calls,
    read_value,
)


@dataclass(frozen=True)
class TextCall:
    """A call that was written as text."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class TextReply:
    """A reply without its calls and thoughts."""

    text: str
    reasoning: str
    calls: tuple[TextCall, ...]
    refused: str = ""
    """Why a call that is written in the text does not count; empty when there is none, or all count."""


def read_text_calls(text: str, tools: Sequence[Mapping[str, Any]], bash_blocks: bool = False) -> TextReply:
    """Read the calls of these tools out of the final text of a reply.

    `tools` are in OpenAI's form. With `bash_blocks`, a reply that ends with its only ```bash block calls
    `execute_bash`. Takes time in proportion to the text, whatever is in it.
    """
    offered = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}
    body, reasoning = _without_thoughts(text.rstrip())
    channels = _harmony(text) or _kimi3(text)
    if channels:
        body, reasoning = channels.text, channels.reasoning
        found = _Found(channels.calls, channels.text, "text follows" if channels.more else "")
    else:
        found = _find(body, offered, bash_blocks)
    if not found.calls:
        return TextReply(body.strip(), reasoning, (), found.refused)
    if len(found.calls) >= MOST_CALLS:
        return TextReply(body.strip(), reasoning, (), f"it has {MOST_CALLS} calls or more")
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
_MOST_THOUGHTS = 1000
"""After these, the rest of a reply is a thought too."""


def _without_thoughts(text: str) -> tuple[str, str]:
    """The text, and the thoughts before it; a thought whose begin the chat template has written too."""
    place, thoughts = 0, list[str]()
    while True:
        begun = after_space(text, place)
        begin = next((begin for begin in _THOUGHTS if text.startswith(begin, begun)), None)
        if begin is None:
            break
        begun += len(begin)
        closed = text.find(_THOUGHTS[begin], begun)
        if closed < 0 or len(thoughts) == _MOST_THOUGHTS:
            thoughts.append(text[begun:].strip())
            return "", "\n\n".join(thoughts)
        thoughts.append(text[begun:closed].strip())
        place = closed + len(_THOUGHTS[begin])
    if not thoughts and (lone := _LONE_END.search(text)) and not _ANY_MARK.search(text, 0, lone.start()):
        return text[lone.end() :], text[: lone.start()].strip()
    return text[place:], "\n\n".join(filter(None, thoughts))


# --- places: what is code, a quote or a result, and where calls stand ---


def _any_of(alternatives: Iterable[tuple[str, str]]) -> re.Pattern[str]:
    """A pattern of regular expressions that are given as their first character and the rest.

    Those with one first character are put together, so that the search passes over all others quickly, and over many
    `<` in a row.
    """
    rests: dict[str, list[str]] = {}
    for first, rest in alternatives:
        rests.setdefault("<(?!<)" if first == "<" else re.escape(first), []).append(rest)
    return re.compile("|".join(f"{first}(?:{'|'.join(rest)})" for first, rest in rests.items()))


def _split_mark(form: Format) -> tuple[str, str]:
    """The first character of a mark, and the regular expression of its rest."""
    return form.hint[0] if form.mark[0] == "\\" else form.mark[0], form.mark.removeprefix("\\")[1:]


_ANY_MARK = _any_of(map(_split_mark, FORMATS))
_BY_GROUP = {f"f{number}": form for number, form in enumerate(FORMATS)}
_RESULTS = (
    "tool_(?:response|result|output)", "observation", "results?", "output", "stdout", "file", "document", "example",
    "code", "pre", "quote", "blockquote", "function_results?",
)  # fmt: skip
"""Tags whose content a model shows."""


def _at_line_start(mark: str) -> str:
    """A regular expression that matches after a mark with which a line begins; the text begins with a line end."""
    return "(?:" + "|".join(f"(?<=\\n{blanks}{mark})" for blanks in ("", " ", "  ", "   ")) + ")"


_CODE = (
    ("`", f"``{_at_line_start('```')}(?P<fence>`*+[^\\n`]*+(?=\\n|\\Z))"),
    ("`", "``(?P<run>`*+)"),
    ("~", f"~~{_at_line_start('~~~')}(?P<tildes>~*+[^\\n`]*+(?=\\n|\\Z))"),
    ("<", "!(?P<comment>--)"),
    *(("<", rf"[{tag[0]}{tag[0].upper()}](?i:{tag[1:]})(?:\s[^<>\n]{{0,200}}+)?>") for tag in _RESULTS),
)
_CLOSING = {
    mark: re.compile(rf"({mark * 3}{_at_line_start(mark * 3)}{mark}*+)[ \t]*+(?=\n|\Z)") for mark in "`~"
}


@functools.lru_cache(maxsize=64)
def _places_of(groups: tuple[str, ...]) -> re.Pattern[str]:
    """What matters for where a call stands: fences, comments, results, and the marks of these forms."""
    marks = [(name, *_split_mark(_BY_GROUP[name])) for name in groups]
    return _any_of([*_CODE, *((first, _named(name, rest)) for name, first, rest in marks)])


def _named(group: str, rest: str) -> str:
    """A regular expression as a group, which begins after its first character where that is a plain one."""
    plain = re.match(r"\w|\\\W|", rest)[0]  # type: ignore[index] # it matches nothing too
    return f"{plain}(?P<{group}>{rest[len(plain) :]})"


_END_TOKENS = re.compile(
    r"(?:\s|<\|im_end\|>|<\|eot_id\|>|<\|eom_id\|>|<\|end_of_text\|>|<\|endoftext\|>|</s>|<\|end\|>|<eos>|<end_of_turn>"
    r"|<turn\|>|<｜end▁of▁sentence｜>|<\|END_OF_TURN_TOKEN\|>|<\|observation\|>|<\|user\|>|\[e~\[|</tool_call>)*+\Z"
)
_ANNOUNCES = re.compile(
    r"\bfor (?:example|instance)\b|\bexamples?\b|\be\.?g\.|\bsuch as\b|\bsyntax\b|\b(?:format|form) (?:is|would)\b"
    r"|\blooks? like\b|\blike (?:this|so)\b|\binstead of\b|\b(?:wrote|printed|returned|quoted?|documented)\b"
    r"|\bwould (?:be|look|write|call|use|have)\b|\b(?:could|might|can) (?:write|call|use|look)\b"
    r"|\byou(?:'d| would| could| can| should| may| might)\b"
    r"|\b(?:do not|don't|never) (?:write|call|use|run|execute|send)\b"
    r"|\b(?:the )?(?:output|result|log|file|reply|message|document(?:ation)?|template)"
    r" (?:was|is|says?|said|contains?|shows?|reads?|showed)\b",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"[.!?…。！？)\]*\"'”’»\U0001F300-\U0001FAFF☀-➿]\s*\Z")
_MOST_FAILURES = 8
"""Marks without a call after them, until the text is taken for one about calls. Each may cost one reading of it."""
_MOST_PLACES = 20_000
"""Fences, comments, results and marks, until the text is taken for one about calls."""


@dataclass(frozen=True)
class _Found:
    calls: WrittenCalls
    rest: str
    """The text without the calls."""
    refused: str = ""


class _Fence(NamedTuple):  # a text may have thousands
    start: int
    end: int
    info: str
    content: str


def _find(text: str, offered: Mapping[str, Mapping[str, Any]], bash_blocks: bool) -> _Found:
    """The calls at the end of a text, in the first form that the text has: with marks, fenced, bare."""
    nothing = _Found([], text)
    end = _END_TOKENS.search(text, max(0, len(text) - 400)).start()  # type: ignore[union-attr] # matches nothing too
    groups = tuple(
        name for name, format in _BY_GROUP.items() if format.hint in text and re.search(format.mark, text)
    )
    ends_like_one = text[end - 1 : end] in tuple("`}])") and (
        bash_blocks or any(name in text for name in offered)
    )
    if not end or not (groups or ends_like_one):
        return nothing
    text = f"\n{text}"
    fences, found = _places(text, _places_of(groups))
    if found.calls or fences is None:
        return found
    if fences and not text[fences[-1].end : end + 1].strip():
        unmarked = _fenced(text, fences, offered, bash_blocks)
    else:
        unmarked = _bare(text, fences, end + 1)
    return unmarked if unmarked.calls or unmarked.refused else found


def _places(text: str, places: re.Pattern[str]) -> tuple[list[_Fence] | None, _Found]:
    """The fences, and the calls with marks; no fences when there are so many that the text was not read to its end."""
    lines = _Lines(text)
    fences: list[_Fence] = []
    calls: WrittenCalls = []
    rest: list[str] = []
    place = floor = done = failures = count = 0
    refused, unpaired = "", set[str]()
    while match := places.search(text, place):
        count += 1
        if failures == _MOST_FAILURES or count > _MOST_PLACES or len(calls) >= MOST_CALLS:
            break
        start, place = match.span()
        kind = match.lastgroup
        if kind in ("fence", "tildes"):
            fences.append(_read_fence(text, match))
            floor = place = fences[-1].end
        elif end := lines.end_of_code(start, floor):
            place = max(place, end)
        elif kind == "run":
            if match[0] not in unpaired and (end := _after_run(text, match)):
                floor = place = end
            else:
                unpaired.add(match[0])
        elif kind == "comment":
            floor = place = _after(text, "-->", place)
        elif kind is None:
            floor = place = _after(text, f"</{match[0][1:-1].split()[0]}>", place)
        elif kind in _BY_GROUP:
            found = _BY_GROUP[kind].read(text, start)
            if found is None:
                failures += 1
                continue
            read, after = found
            if not calls and (why := _announced(text, start)):
                refused = why
            rest.append(text[done:start])
            calls += read
            floor = place = done = after
    if not calls:
        return None if match else fences, _Found([], text, "the call is not whole" if failures else "")
    left = text[done:]
    if not refused and not _END_TOKENS.fullmatch(left) and not _cut_call(left):
        refused = "text follows the call"
    return fences, _Found(calls, "".join(rest), refused)


_MOST_RUNS = 10_000
_TICKS = re.compile(r"`++")
_CODE_LINE = re.compile(r" {4}| {0,3}[\t>]")


class _Lines:
    """Indented code, quotes and inline code: whether places, which are asked for in order, stand in them."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._asked = 0
        self._quoted = False
        """Whether the line of the newest place is code or a quote."""
        self._begin = 0
        """Where inline code of its paragraph may begin."""
        self._end = 0
        """The end of the paragraph whose backticks are known."""
        self._runs: list[int] = []
        """Where its runs of backticks are."""
        self._same: dict[int, list[int]] = {}
        """The same by their length."""
        self._next = 0
        """The first of them that may begin code at the place."""

    def end_of_code(self, place: int, floor: int) -> int:
        """The end of the code or quote in which a place stands; 0 when it stands in neither.

        `floor` is the end of what was read before.
        """
        text, known = self._text, max(self._asked, floor)
        if (line := text.rfind("\n", known, place)) >= 0:
            self._quoted = _CODE_LINE.match(text, line + 1) is not None
        elif floor > self._asked:
            self._quoted = False
        self._begin = max(self._begin, floor, text.rfind("\n\n", known, place))
        self._asked = place
        return _after(text, "\n", place) - 1 if self._quoted else self._end_of_inline_code(place)

    def _end_of_inline_code(self, place: int) -> int:
        if place >= self._end:
            if self._text.find("`", self._begin, place) < 0:
                return 0
            self._read_runs(place)
        if len(self._runs) > _MOST_RUNS:
            return self._end
        while self._next < len(self._runs) and (run := self._runs[self._next]) < place:
            length = _TICKS.match(self._text, run).end() - run  # type: ignore[union-attr] # backticks are there
            same = self._same[length]
            following = bisect.bisect_right(same, run)
            if run < self._begin or following == len(same):  # a run that no other ends is text
                self._next += 1
                continue
            if (end := same[following] + length) > place:
                return end
            self._next = bisect.bisect_left(self._runs, end)
        return 0

    def _read_runs(self, place: int) -> None:
        """Find the backticks of the paragraph: code does not reach beyond an empty line."""
        end = self._text.find("\n\n", place)
        self._end = len(self._text) if end < 0 else end
        self._runs, self._same, self._next = [], {}, 0
        for run in itertools.islice(_TICKS.finditer(self._text, self._begin, self._end), _MOST_RUNS + 1):
            self._runs.append(run.start())
            self._same.setdefault(len(run[0]), []).append(run.start())


_LONGEST_MARK = 32
_MARKS = tuple({mark for format in FORMATS for mark in format.begins})


def begin_of_mark(text: str, place: int, *, whole: bool = False) -> int:
    """Find a mark from `place` on, also a begun one unless `whole`; else the end of the text."""
    if mark := _ANY_MARK.search(text, place):
        return mark.start()
    if whole:
        return len(text)
    for start in range(max(place, len(text) - _LONGEST_MARK), len(text)):
        if text[start] in "<[f" and any(mark.startswith(text[start:]) for mark in _MARKS):
            return start
    return len(text)


def _cut_call(left: str) -> bool:
    """Whether what is left is the beginning of one more call, which the limit of tokens has cut."""
    match = _ANY_MARK.match(left.lstrip()) or re.match(
        rf"<(?:\|tool_call_begin\||{'｜tool▁call▁begin｜'})>|<[｜|‖]{{1,2}}DSML", left.lstrip()
    )
    return match is not None and "\n\n" not in left.strip()


def _announced(text: str, place: int) -> str:
    """Why a call that begins at `place` is shown and not made; else nothing."""
    line = text.rfind("\n", 0, place) + 1
    before = text[max(line, place - 500) : place]
    if before.strip() and not _SENTENCE_END.search(before):
        return "it stands in the middle of a line"
    if not before.strip():
        paragraph = text[max(0, line - 500) : line].rstrip()
        before = paragraph[paragraph.rfind("\n") + 1 :]
        # Only the last sentence announces what follows it.
        before = re.split(r"(?<=[.!?])\s", before)[-1]
    else:
        before = re.split(r"(?<=[.!?])\s", before.rstrip())[-1]
    return "the words before it announce an example" if _ANNOUNCES.search(before) else ""


def _read_fence(text: str, opening: re.Match[str]) -> _Fence:
    line, (start, end) = opening[0], opening.span()
    mark = line[0]
    info = line.lstrip(mark)
    length = len(line) - len(info)
    info = info.strip().lower() if mark == "`" else mark
    closing = _CLOSING[mark].search(text, end)
    while closing and len(closing[1]) < length:
        closing = _CLOSING[mark].search(text, closing.end())
    if closing is None:
        return _Fence(start, len(text), f"{info} unclosed", "")
    return _Fence(start, closing.end(), info, text[end + 1 : text.rindex("\n", 0, closing.start())])


def _after_run(text: str, run: re.Match[str]) -> int:
    """The place after the next run of as many backticks; 0 when there is none."""
    same = re.compile(f"(?<!`){run[0]}(?!`)").search(text, run.end()) if len(run[0]) < _LONGEST_MARK else None
    return same.end() if same else 0


def _after(text: str, end: str, place: int) -> int:
    found = text.find(end, place)
    return len(text) if found < 0 else found + len(end)


# --- without marks ---

_JSON_FENCES = frozenset({"", "json", "json5", "tool_call", "tool_calls", "tool_code", "tool", "xml+json"})
_BASH_FENCES = frozenset({"bash", "sh", "shell"})


def _fenced(
    text: str, fences: Sequence[_Fence], offered: Mapping[str, Mapping[str, Any]], bash_blocks: bool
) -> _Found:
    """Calls in the fence that ends a reply, and in those that stand directly before it."""
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
        if not content.strip():
            return _Found([], text, "the block is empty")
        return _Found([(tool[0], {tool[1]: content})], rest, _announced(text, group[0].start))
    calls: WrittenCalls = []
    for fence in group:
        found = _calls_in(fence) if fence.info in _JSON_FENCES else []
        if not found:
            return _Found([], text)
        calls += found
    if any(_calls_in(fence) for fence in before if fence.info in _JSON_FENCES):
        return _Found(calls, rest, "other calls stand before it, in the text")
    return _Found(calls, rest, _announced(text, group[0].start))


def _calls_in(fence: _Fence) -> WrittenCalls:
    content = fence.content.strip()
    if fence.info == "tool_code":
        return python_calls(content)
    calls = _json_sequence(content, 0, len(content))
    return calls or []


def _json_sequence(text: str, place: int, end: int) -> WrittenCalls | None:
    """JSON calls one after the other, up to `end`; None when anything else is between them."""
    calls: WrittenCalls = []
    while (place := _BETWEEN.match(text, place).end()) < end:  # type: ignore[union-attr] # it matches nothing too
        found = read_json_calls(text, place) if len(calls) < MOST_CALLS else None
        if found is None:
            return calls if len(calls) >= MOST_CALLS else None
        calls += found[0]
        place = found[1]
    return calls


_BETWEEN = re.compile(r"[\s;,]*+")
_LINE_BRACKETS = tuple(f"\n{blanks}{bracket}" for blanks in ("", " ", "  ", "   ") for bracket in "{[")


def _brackets(text: str, begin: int, end: int) -> list[int]:
    """The first places of brackets with which lines begin."""
    found: list[int] = []
    for mark in _LINE_BRACKETS:
        place = begin
        for _ in range(_MOST_FAILURES):
            if (place := text.find(mark, place, end)) < 0:
                break
            place += len(mark)
            found.append(place - 1)
    return sorted(found)[:_MOST_FAILURES]


def _bare(text: str, fences: Sequence[_Fence], end: int) -> _Found:
    """JSON calls that end a text, or a list of Python calls that is all of it."""
    after = fences[-1].end if fences else 0
    begin = len(text) - len(text.lstrip())
    if (
        text.startswith("[", begin)
        and (listed := read_python_calls(text, begin))
        and not text[listed[1] : end].strip()
    ):
        return _Found(listed[0], "")
    # What spans all that follows begins at the first bracket in the first column from which all is JSON.
    for bracket in _brackets(text, after, end):
        if calls := _json_sequence(text, bracket, end):
            before = text[: text.rindex("\n", 0, bracket)]
            why = "it stands in code" if _quoting(before[after:]) else _announced(text, bracket)
            return _Found(calls, before, why)
    return _Found([], text)


def _quoting(text: str) -> bool:
    """Whether a comment, a result or code is open at the end of a text."""
    tags = re.findall(
        r"<(/?)(tool_response|tool_result|tool_output|observation|output|file|document|example|code|pre)\b",
        text,
    )
    open_tags = sum(1 if not slash else -1 for slash, _ in tags)
    return open_tags > 0 or text.count("<!--") > text.count("-->")


def _bash_tool(offered: Mapping[str, Mapping[str, Any]]) -> tuple[str, str] | None:
    """The tool that a ```bash block calls, and its argument for the command."""
    for name in ("execute_bash", *offered):
        properties = offered.get(name, {}).get("properties", {})
        if "command" in properties and list(offered.get(name, {}).get("required", ["command"])) == [
            "command"
        ]:
            return name, "command"
    return None


# --- replies in channels ---


@dataclass(frozen=True)
class _Channels:
    text: str
    reasoning: str
    calls: WrittenCalls
    more: bool = False
    """Whether text follows the last call."""


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


def _harmony(text: str) -> _Channels | None:
    """gpt-oss: messages in channels; None when the text is not written so."""
    if not _HARMONY_BEGIN.match(text):
        return _harmony_without_marks(text)
    place, calls, more, failures = 0, WrittenCalls(), False, 0
    texts: list[str] = []
    thoughts: list[str] = []
    while place < len(text):
        header = _HARMONY_MESSAGE.match(text, place)
        if header is None:  # a header that is not whole: what follows the next one still counts
            following = _HARMONY_HEADER.search(text, place + 1)
            failures += 1
            if following is None or failures > _MOST_PLACES:
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
                return _Channels("\n".join(texts), "\n\n".join(thoughts), [], more)
            calls.append((name, value[0]))  # type: ignore[index] # `whole` says so
            more = False
        elif header["channel"] == "analysis":
            thoughts.append(content.strip())
        elif not recipient:
            texts.append(content.strip())
            more = bool(content.strip())
    return _Channels("\n".join(texts), "\n\n".join(thoughts), calls, more and bool(calls))


def _harmony_without_marks(text: str) -> _Channels | None:
    """What is left of such a reply when a server has taken its special tokens out."""
    if "to=functions." not in text:
        return None
    header = _STRIPPED.match(text.lstrip())
    if header is None:
        return None
    rest = text.lstrip()
    found = read_value(rest, header.end())
    if found is None or not isinstance(found[0], dict):
        return None
    more = bool(_END_TOKENS.fullmatch(rest[found[1] :]) is None)
    return _Channels("", (header["thought"] or "").strip(), [(header["name"], found[0])], more)


_OPEN = re.compile(r"<\|open\|>(think|response|tools|call|argument)((?: \w+=\"[^\"]{0,200}\")*)<\|sep\|>")
_ATTRIBUTE = re.compile(r" (\w+)=\"([^\"]*)\"")


def _kimi3(text: str) -> _Channels | None:
    """Kimi K3: elements with marks for their begin and end; the first of them may have been begun by the template."""
    begun = text.lstrip().startswith(("<|open|>", "<|close|>"))
    if not begun and not -1 < text.find("<|close|>think<|sep|>") < (text.find("<|open|>") % len(text or " ")):
        return None
    place = 0
    texts: list[str] = []
    thoughts: list[str] = []
    calls: WrittenCalls = []
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
        elif kind == "argument" and calls:
            end_mark = "<|close|>argument<|sep|>"
            end = text.find(end_mark, place)
            while end >= 0 and not re.match(
                r"\s*<\|(?:open\|>argument|close\|>call)",
                text[end + len(end_mark) : end + len(end_mark) + 60],
            ):
                end = text.find(end_mark, end + 1)
            if end < 0:
                calls.pop()
                break
            raw = text[place:end]
            calls[-1][1][html.unescape(attributes.get("key", ""))] = (
                raw if attributes.get("type") == "string" else Written(raw)
            )
            place = end + len(end_mark)
    closed = text.count("<|close|>call<|sep|>")
    left = text[text.rfind("<|sep|>") + len("<|sep|>") :] if calls else ""
    return _Channels(
        "".join(texts),
        "\n\n".join(filter(None, thoughts)),
        calls[:closed],
        _END_TOKENS.fullmatch(left) is None,
    )


# --- schemas ---

_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str, "integer": int, "number": (int, float), "boolean": bool, "array": list, "object": dict,
    "null": type(None),
}  # fmt: skip


def _types(schema: Mapping[str, Any]) -> list[str]:
    """The types that a schema names, also those of its alternatives; empty when it names none."""
    named = schema.get("type", [])
    types = [named] if isinstance(named, str) else [name for name in named if isinstance(name, str)]
    for key in ("anyOf", "oneOf", "allOf"):
        for alternative in schema.get(key, ()):
            types += _types(alternative) if isinstance(alternative, Mapping) else []
    if not types and isinstance(schema.get("enum"), list):
        types = [
            name for name, kind in _TYPES.items() if any(isinstance(value, kind) for value in schema["enum"])
        ]
    return types


def _typed(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with values of the types that the schema names, where they were written without quotes."""
    properties = schema.get("properties", {})
    return {key: _value(value, properties.get(key, {})) for key, value in arguments.items()}


def _value(value: Any, schema: Mapping[str, Any]) -> Any:
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
    """Why a call does not fit the tools; else nothing. Values that the tool converts itself, such as "30", fit."""
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
        types = _types(about) if isinstance(about, Mapping) else []
        if types and not isinstance(value, str) and not any(_is(value, kind) for kind in types):
            return f"{key} of {name} must be {' or '.join(types)}"
        if "enum" in about and not isinstance(value, list | dict) and value not in about["enum"]:
            return f"{key} of {name} must be one of {json.dumps(about['enum'])[:200]}"
    return ""
