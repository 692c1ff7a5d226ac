"""Texts in parts, cut where a reader would: at a heading, else between paragraphs, sentences, words."""

from __future__ import annotations

import re
from collections.abc import Iterator

_BORDERS = (
    re.compile(r"\n+(?=#{1,6} |(?:chapter|book|part|act|scene|section) [\divxlc]+\b)", re.IGNORECASE),
    re.compile(r"\n\s*\n+"),
    re.compile(r"[.!?][\"'”’)]*\s+"),
    re.compile(r"\s+"),
)
"""The best first. A part ends behind a match."""


def split_text(text: str, size: int) -> Iterator[str]:
    """Parts of at most `size` characters, which together are the text.

    A part ends at the best border of its second half, so that parts are not much smaller than they may be.
    """
    if size < 2:
        raise ValueError(f"size must be at least 2, not {size}")
    start = 0
    while len(text) - start > size:
        end = start + _cut(text[start : start + size])
        yield text[start:end]
        start = end
    if start < len(text):
        yield text[start:]


def _cut(window: str) -> int:
    half = len(window) // 2
    for border in _BORDERS:
        ends = [match.end() for match in border.finditer(window, half) if match.end() < len(window)]
        if ends:
            return ends[-1]
    return len(window)
