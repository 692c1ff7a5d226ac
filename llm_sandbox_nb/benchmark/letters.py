"""The letter of a multiple choice, out of what a model wrote.

Only what states a choice counts: a letter alone, a boxed one, "the answer is C", `{"answer": "C"}`, or a text
that begins with an option ("(C) because A is wrong", "C. benzene"). A letter that merely occurs is none: not
the A of "N/A", not the article of "A guess". Two letters at once ("A or B") are none either.
"""

from __future__ import annotations

import re

_DECORATION = " \t\r\n*_`$#>\"'“”‘’"
_WRAPPED = r"[*_`\"'“(\[{$]*"
_STATED = re.compile(
    rf"""\b(?:answer|choice|option)\b["'*_`]*\s*(?:is|:|=|would\ be|must\ be|should\ be)\s*
        (?:(?:option|choice|answer|letter)\s*:?\s*)?(?P<letter>{_WRAPPED}[A-Za-z](?![A-Za-z0-9'’/]|-[A-Za-z]))""",
    re.IGNORECASE | re.VERBOSE,
)
_BOXED = re.compile(r"\\boxed\s*\{")
_INNER = re.compile(r"\\(?:text|textbf|mathrm|mathbf|rm|bf)\s*\{([^{}]*)\}")
_BEGINS = re.compile(
    r"^(?:\(([A-Za-z])\)|\[([A-Za-z])\]|([A-Z])\s*[.):](?=\s|$|\S)|([A-Z])\s*(?:\n|[-–—]\s))"
)
_ANOTHER = re.compile(r"^\W*(?:or|and|/|,|&|\+)\s*[(\[*]*([A-Z])(?![A-Za-z0-9])[)\]*]*", re.DOTALL)
_NEXT_WORD = re.compile(r"^\s+([a-z]+)")
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
    text = text.rpartition("</think>")[2].strip(_DECORATION)
    for found in (_alone(text), _boxed(text), _stated(text), _at_the_beginning(text)):
        if found is not None:
            return found if found and ord(found) - ord("A") < options else None
    return None


def _alone(text: str) -> str | None:
    bare = text.strip(_DECORATION + "()[]{}.:,;")
    return bare.upper() if len(bare) == 1 and bare.isascii() and bare.isalpha() else None


def _boxed(text: str) -> str | None:
    """The letter in the last box. A box that holds something else says that there is no letter."""
    places = [match.end() for match in _BOXED.finditer(text)]
    if not places:
        return None
    inner = text[places[-1] : closing_brace(text, places[-1])]
    inner = _INNER.sub(r"\1", inner).strip()
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
        letter, rest = match["letter"], text[match.end() :]
        wrapped = len(letter) > 1
        if letter[-1].islower() and not wrapped and rest.strip(_DECORATION + ".)"):
            continue  # "the answer is a guess"
        if not wrapped and letter[-1] in "AI" and (word := _NEXT_WORD.match(rest)) and word[1] not in _GO_ON:
            continue  # "Answer: A guess"
        found = "" if _ANOTHER.match(rest) else letter[-1].upper()
    return found


def _at_the_beginning(text: str) -> str | None:
    match = _BEGINS.match(text)
    if not match:
        return None
    letter = next(group for group in match.groups() if group)
    rest = text[match.end() :]
    return "" if _ANOTHER.match(rest) else letter.upper()
