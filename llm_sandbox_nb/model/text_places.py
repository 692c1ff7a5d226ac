"""Search for code, quotes and results in a reply. A call that is written in such a place is only an illustration.

The given text must begin with a newline. The text is read once, from the beginning to the end.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import re
from collections.abc import Iterable
from typing import NamedTuple

from llm_sandbox_nb.model.text_formats import END_TOKENS, FORMATS, Format

MAX_MARK_LENGTH = 32


def _any_of(alternatives: Iterable[tuple[str, str]]) -> re.Pattern[str]:
    """Make a pattern that matches any of the alternatives.

    Each alternative is a regular expression, given as its first character and the rest. To keep the search fast, even
    for many `<` in a row, alternatives with the same first character are grouped, and `<` before `<` never matches.
    """
    rests: dict[str, list[str]] = {}
    for first, rest in alternatives:
        rests.setdefault("<(?!<)" if first == "<" else re.escape(first), []).append(rest)
    return re.compile("|".join(f"{first}(?:{'|'.join(rest)})" for first, rest in rests.items()))


def _split_mark(form: Format) -> tuple[str, str]:
    """Split a mark into its first character and the regular expression of the rest."""
    return form.hint[0] if form.mark[0] == "\\" else form.mark[0], form.mark.removeprefix("\\")[1:]


ANY_MARK = _any_of(map(_split_mark, FORMATS))
BY_GROUP = {f"f{number}": form for number, form in enumerate(FORMATS)}
_SHOWN_TAGS = (
    "tool_(?:response|result|output)", "observation", "results?", "output", "stdout", "file", "document", "example",
    "code", "pre", "quote", "blockquote", "function_results?",
)  # fmt: skip
"""Tags around text that a model only shows. Calls in such text do not count."""


def _at_line_start(mark: str) -> str:
    """Make a regular expression that matches directly after a mark at the beginning of a line.

    Up to three blanks may be in front of the mark.
    """
    return "(?:" + "|".join(f"(?<=\\n{blanks}{mark})" for blanks in ("", " ", "  ", "   ")) + ")"


_CODE = (
    ("`", f"``{_at_line_start('```')}(?P<fence>`*+[^\\n`]*+(?=\\n|\\Z))"),
    ("`", "``(?P<run>`*+)"),
    ("~", f"~~{_at_line_start('~~~')}(?P<tildes>~*+[^\\n`]*+(?=\\n|\\Z))"),
    ("<", "!(?P<comment>--)"),
    *(("<", rf"[{tag[0]}{tag[0].upper()}](?i:{tag[1:]})(?:\s[^<>\n]{{0,200}}+)?>") for tag in _SHOWN_TAGS),
)
_CLOSING = {
    mark: re.compile(rf"({mark * 3}{_at_line_start(mark * 3)}{mark}*+)[ \t]*+(?=\n|{END_TOKENS.pattern})")
    for mark in "`~"
}


@functools.lru_cache(maxsize=64)
def places_of(groups: tuple[str, ...]) -> re.Pattern[str]:
    """Make a pattern for fences, inline code, comments, results, and the marks of the forms with the names `groups`."""
    marks = [(name, *_split_mark(BY_GROUP[name])) for name in groups]
    return _any_of([*_CODE, *((first, _named(name, rest)) for name, first, rest in marks)])


def _named(group: str, rest: str) -> str:
    """Put a regular expression into a named group. For speed, a plain first character stays in front of the group."""
    plain = re.match(r"\w|\\\W|", rest)[0]  # type: ignore[index] # matches an empty text too
    return f"{plain}(?P<{group}>{rest[len(plain) :]})"


class Fence(NamedTuple):  # a fast class, because a text may have thousands of fences
    """Fenced code block. `info` is the text after the opening fence, such as `bash`, or `~` for a fence of tildes.

    If the block is not closed, `content` is empty and `info` ends with `unclosed`.
    """

    start: int
    end: int
    info: str
    content: str


_MAX_BACKTICK_RUNS = 10_000
_TICKS = re.compile(r"`++")
_CODE_LINE = re.compile(r" {4}| {0,3}[\t>]")


class Lines:
    """Search for indented code, a quote or inline code around a place. The places must come in ascending order."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._asked = 0
        self._quoted = False
        """True if the line of the newest place is code or a quote."""
        self._begin = 0
        """First place at which inline code of the current paragraph can begin."""
        self._end = 0
        """End of the paragraph whose backticks are known."""
        self._runs: list[int] = []
        """Places of the backtick runs in this paragraph."""
        self._same: dict[int, list[int]] = {}
        """Places of the runs, by the length of the run."""
        self._next = 0
        """Index of the first run that may begin the code around the newest place."""

    def end_of_code(self, place: int, floor: int) -> int:
        """Return the end of the code or quote that contains a place, or 0 if the place is in neither.

        `floor` is the end of the last block, comment or call. The code or quote around `place` begins after it.
        """
        text, known = self._text, max(self._asked, floor)
        if (line := text.rfind("\n", known, place)) >= 0:
            self._quoted = _CODE_LINE.match(text, line + 1) is not None
        elif floor > self._asked:
            self._quoted = False
        self._begin = max(self._begin, floor, text.rfind("\n\n", known, place))
        self._asked = place
        return after(text, "\n", place) - 1 if self._quoted else self._end_of_inline_code(place)

    def _end_of_inline_code(self, place: int) -> int:
        if place >= self._end:
            if self._text.find("`", self._begin, place) < 0:
                return 0
            self._read_runs(place)
        if len(self._runs) > _MAX_BACKTICK_RUNS:
            return self._end
        while self._next < len(self._runs) and (run := self._runs[self._next]) < place:
            length = _TICKS.match(self._text, run).end() - run  # type: ignore[union-attr] # a run is at this place
            same = self._same[length]
            following = bisect.bisect_right(same, run)
            if run < self._begin or following == len(same):  # a run without a matching end is text
                self._next += 1
                continue
            if (end := same[following] + length) > place:
                return end
            self._next = bisect.bisect_left(self._runs, end)
        return 0

    def _read_runs(self, place: int) -> None:
        """Find the backtick runs of the paragraph. A paragraph is enough: inline code cannot contain an empty line."""
        end = self._text.find("\n\n", place)
        self._end = len(self._text) if end < 0 else end
        self._runs, self._same, self._next = [], {}, 0
        runs = _TICKS.finditer(self._text, self._begin, self._end)
        for run in itertools.islice(runs, _MAX_BACKTICK_RUNS + 1):
            self._runs.append(run.start())
            self._same.setdefault(len(run[0]), []).append(run.start())


def read_fence(text: str, opening: re.Match[str]) -> Fence:
    """Read the code block that begins with the fence `opening`, a match of the pattern of `places_of`."""
    line, (start, end) = opening[0], opening.span()
    mark = line[0]
    info = line.lstrip(mark)
    length = len(line) - len(info)
    info = info.strip().lower() if mark == "`" else mark
    closing = _CLOSING[mark].search(text, end)
    while closing and len(closing[1]) < length:
        closing = _CLOSING[mark].search(text, closing.end())
    if closing is None:
        return Fence(start, len(text), f"{info} unclosed", "")
    content = text[end + 1 : text.rindex("\n", 0, closing.start())]
    if indent := start - text.rfind("\n", 0, start) - 1:  # the lines have the indent of the fence too
        content = re.sub(rf"^ {{1,{indent}}}", "", content, flags=re.MULTILINE)
    return Fence(start, closing.end(), info, content)


def after_run(text: str, run: re.Match[str]) -> int:
    """Return the place after the next run of backticks that is as long as `run`.

    Return 0 if no such run follows, or if `run` has `MAX_MARK_LENGTH` or more backticks.
    """
    if len(run[0]) >= MAX_MARK_LENGTH:
        return 0
    same = re.compile(f"(?<!`){run[0]}(?!`)").search(text, run.end())
    return same.end() if same else 0


def after(text: str, end: str, place: int) -> int:
    """Return the place after the next `end`, or the end of the text if no `end` follows."""
    found = text.find(end, place)
    return len(text) if found < 0 else found + len(end)
