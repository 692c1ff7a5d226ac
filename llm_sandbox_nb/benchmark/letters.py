"""The letter of a multiple choice, out of what a model wrote.

Only what states a choice counts: a letter alone, a boxed one, "the answer is C", `{"answer": "C"}`, or a text
that begins with an option ("(C) because A is wrong", "C. benzene"). A letter that merely occurs is none: not
the A of "N/A", not the article of "A guess". Several letters at once ("A or B", "A B C D") are none either, nor
is the first of a list of all options, nor one that is said to be wrong.

All patterns take time in proportion to the text: no two parts of one can share the same characters.
"""

from __future__ import annotations

import re

_DECORATION = " \t\r\n*_`$#>\"'“”‘’"
_MARKS = r"[\s:*_`\"'“‘(\[{$>#]*+"
_OPENING, _CLOSING = frozenset("*_`\"'“‘([{$"), frozenset(")]}*_`\"'”’$")
_WHOLE = r"(?![^\W_]|['’][^\W_])"
"""Behind a letter that is no part of a word."""
_STATED = re.compile(
    rf"""\b(?:answer|choice|option|(?:correct|right|best)\s+one)\b["'*_`]*\s*
        (?:(?:is|would\ be|must\ be|should\ be)\b|[:=]){_MARKS}
        (?:(?:option|choice|answer|letter)\b{_MARKS})?
        (?P<letter>[A-Za-z]){_WHOLE}(?!/|-[A-Za-z])""",
    re.IGNORECASE | re.VERBOSE,
)
_BOXED = re.compile(r"\\boxed\s*\{")
_STYLE = re.compile(r"\\(?:text|textbf|mathrm|mathbf|rm|bf)\s*\{([^{}]*)\}")
_MATHEMATICS = re.compile(r"\\[()\[\]]")
_BEGINS = re.compile(
    r"(?:\(([A-Za-z])\)|\[([A-Za-z])\]|([A-Z])\s*[.):]|([A-Z])\s*(?:\n|[-–—]\s)"
    r"|(?i:option|choice)\s+\(?([A-Z])(?:\)|\s*[.:]|\s*\n|\s*\Z))"
)
_NEXT = re.compile(
    rf"(?P<between>[\W_]*+(?:(?:or|and)\b[\W_]*+)?)(?P<letter>[A-Z]){_WHOLE}"
    rf"(?P<enumerated>[\W_]*+(?:(?:or|and)\b[\W_]*+)?(?:\Z|[A-J]{_WHOLE}))?"
)
_OPENS = re.compile(r"[.:)]\s|\s\(")
"""Between a letter and the text of its option, or a remark."""
_JOINING = re.compile(r"or|and|[/,&+]")
_LISTED = re.compile(
    rf"^(?:[^\w\n]|_)*+(?:(?i:option|choice)\s+\(?)?([A-J]){_WHOLE}(?:[^\S\n]*+(?:[.):\]|*_]|[-–—]\s|$))"
    rf"|(?<![^\s*_\"'“])\(([A-J])\)(?![\w(])",
    re.MULTILINE,
)
_REJECTED = re.compile(
    r"[\W_]*+(?:(?:is|was)\s+(?:\w+ly\s+)?(?:not|wrong|incorrect|false|excluded|eliminated|impossible|unlikely|ruled\s+out)"
    r"|isn['’]t|can\s+be\s+(?:excluded|eliminated|ruled\s+out)|cannot\s+be\s+(?:right|correct|true|the))\b",
    re.IGNORECASE,
)
_ONLY_MARKS = re.compile(r"[\s*_`$#>\"'“”‘’.)]*+\Z")
_NEXT_WORD = re.compile(r"\s+([a-z]+)")
_GO_ON = frozenset(
    [
        "because",
        "since",
        "as",
        "for",
        "and",
        "or",
        "which",
        "is",
        "with",
        "due",
        "given",
        "while",
        "but",
        "not",
        "the",
        "by",
        "from",
    ]
)


def find_letter(text: str, options: int = 10) -> str | None:
    """The chosen letter in capitals, or None when the text does not state one of the first `options`."""
    text = _plain(text.rpartition("</think>")[2]).strip(_DECORATION)
    for found in (_alone(text), _boxed(text), _stated(text), _at_the_beginning(text)):
        if found is not None:
            return found if found and ord(found) - ord("A") < options else None
    return None


def _plain(text: str) -> str:
    r"""The text without the TeX that letters are dressed in: `\(\mathbf{C}\)` is `$C$`."""
    for _ in range(2):
        text = _STYLE.sub(r"\1", text)
    return _MATHEMATICS.sub("$", text)


def _alone(text: str) -> str | None:
    bare = text.strip(_DECORATION + "()[]{}.:,;")
    return bare.upper() if len(bare) == 1 and bare.isascii() and bare.isalpha() else None


def _boxed(text: str) -> str | None:
    """The letter in the last box. A box that holds something else says that there is no letter."""
    places = [match.end() for match in _BOXED.finditer(text)]
    if not places:
        return None
    inner = text[places[-1] : closing_brace(text, places[-1])].strip()
    return _alone(inner) or _at_the_beginning(inner) or ""


def closing_brace(text: str, start: int) -> int:
    """Where the brace that was opened before `start` is closed; the end when it is not."""
    depth = 1
    for place in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return place
    return len(text)


def _stated(text: str) -> str | None:
    """The last letter that is said to be the answer; empty when the last statement names several."""
    found = None
    for match in _STATED.finditer(text):
        letter, end = match["letter"], match.end()
        wrapped = text[end - 2] in _OPENING and text[end : end + 1] in _CLOSING
        if letter.islower() and not wrapped and not _ONLY_MARKS.match(text, end):
            continue  # "the answer is a guess"
        if not wrapped and _is_a_word(letter, text, end):
            continue  # "Answer: A guess"
        found = "" if _several(letter.upper(), text, end) else letter.upper()
    return found


def _is_a_word(letter: str, text: str, end: int) -> bool:
    """Whether it is the article or the pronoun."""
    word = _NEXT_WORD.match(text, end) if letter in "AI" else None
    return word is not None and word[1] not in _GO_ON


def _several(letter: str, text: str, place: int) -> bool:
    """Whether another letter is named beside this one: "A or B", "A B C D". "C. A mixture" has one."""
    last = letter
    while match := _NEXT.match(text, place):
        other, place = match["letter"], match.end("letter")
        joined = _JOINING.search(match["between"]) and not _is_a_word(other, text, place)
        if not joined and _OPENS.search(match["between"]) and ord(other) != ord(last) + 1:
            return False  # the option's own text: "C. B > A", "C (A is wrong)"
        last = other
        if other != letter and (joined or match["enumerated"] is not None):
            return True
    return False


def _at_the_beginning(text: str) -> str | None:
    """The option that the text begins with; empty when it is one of several, or said to be wrong."""
    match = _BEGINS.match(text)
    if not match:
        return None
    group = next(number for number, found in enumerate(match.groups(), 1) if found)
    letter, end = match[group].upper(), match.end()
    listed = chr(ord(letter) + 1) in _listed(text, end)
    return "" if listed or _several(letter, text, match.end(group)) or _REJECTED.match(text, end) else letter


def _listed(text: str, start: int) -> set[str]:
    """The options that begin a line, or stand in parentheses in the first one: "(A) red (B) blue"."""
    line = text.find("\n", start)
    first = len(text) if line < 0 else line
    return {one[1] or one[2] for one in _LISTED.finditer(text, start) if one[1] or one.start() < first}
