"""What makes a sentence of an answer a statement, for letters and for mathematics alike.

"The answer is 5" states something; "if the answer is 5" and "one might think the answer is 5" do not, and "wait,
that is wrong" retracts what stands before it.
"""

from __future__ import annotations

import re

WIDE = str.maketrans("：（）。，；！？＝", ":().,;!?=")
"""Marks as they are written in Chinese, and as everywhere else."""
_TAG = re.compile(
    r"<(?:(?:final_)?answer|choice)>([^<]{0,2000})</(?:(?:final_)?answer|choice)>?", re.IGNORECASE
)
_SUPPOSED = re.compile(
    r"\b(?:(?:if|suppose|supposing|assume|assuming|unless|whether)\s+(?:that\s+)?(?:(?:the|its|this|our)\s+)?(?:\w+\s+)?\Z"
    r"|(?:might|may|could|(?<!I\s)would|some|many|others|people|students?)\s+(?:be|think|say|guess|assume|suspect|expect|argue|claim)\b"
    r"|(?:tempting|unclear|not\s+sure|doubt|thought|according|neither|nor|both|statement|student|deny|(?:don['’]t|not)\s+think)\b)",
    re.IGNORECASE,
)
_RETRACTED = re.compile(
    r"(?<![^\W_])(?:no,|wait\b|actually\b|scratch\s+that|correction\b|on\s+second\s+thought|i\s+was\s+wrong"
    r"|that(?:['’]s|\s+is)\s+(?:wrong|incorrect|not\s+right))",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"[.!?;:](?=\s|\Z)|\n")
_LOOKED_BACK = 200
"""Characters before a place in which the beginning of its sentence is looked for."""


def tagged(text: str) -> str | None:
    """What stands in the last `<answer>`; None when there is none."""
    inner = None
    for match in _TAG.finditer(text):
        inner = match[1].strip()
    return inner


def closing_brace(text: str, start: int) -> int:
    """Where the brace that was opened before `start` is closed; the end when it is not."""
    depth = 1
    for place in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return place
    return len(text)


def is_supposed(text: str, place: int) -> bool:
    """Whether what stands at a place is a condition or a doubt: "if the answer is B"."""
    before = text[max(0, place - _LOOKED_BACK) : place]
    ends = [end.end() for end in _SENTENCE_END.finditer(before)]
    return _SUPPOSED.search(before, ends[-1] if ends else 0) is not None


def is_retracted(text: str, place: int) -> bool:
    """Whether something behind a place says that what stands before it is wrong."""
    return _RETRACTED.search(text, place) is not None
