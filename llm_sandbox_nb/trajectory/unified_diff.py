"""A unified diff of two texts, bounded in size and in work."""

from __future__ import annotations

import difflib
from collections import Counter

COMPARED_BYTES = 512 * 1024
"""Bytes of both sides together above which no diff is made."""
_PAIRS = 300_000
_LINES = 20_000


def unified(path: str, before: str, after: str, room: int) -> tuple[str | None, str]:
    """The diff, of at most about `room` characters, and a note on what it lacks; None when it is too costly."""
    rows: list[str] = []
    old, new = _split(before), _split(after)
    if _costly(old, new):
        return None, "too many lines for a diff"
    name = path.lstrip("/")  # as git writes it, so that `patch -p1` takes it at the root
    for row in difflib.unified_diff(old, new, f"a/{name}", f"b/{name}", n=3):
        room -= len(row)
        if room < 0:
            return "".join(rows), "the diff is cut"
        rows.append(row if row.endswith("\n") else f"{row}\n\\ No newline at end of file\n")
    return "".join(rows), ""


def _costly(old: list[str], new: list[str]) -> bool:
    """Whether difflib, whose work grows with lines and with pairs of equal ones, would take many seconds."""
    if not old or not new:
        return False
    counts, others = Counter(old), Counter(new)
    # difflib ignores lines that are more frequent than this.
    popular = len(new) // 100 + 1 if len(new) >= 200 else len(new)
    pairs = sum(count * others[line] for line, count in counts.items() if others[line] <= popular)
    return pairs > _PAIRS or len(old) + len(new) > _LINES


def _split(text: str) -> list[str]:
    """Lines with their ends, divided at LF alone, as diff and git do."""
    return [line + "\n" for line in text.split("\n")[:-1]] + [last for last in text.split("\n")[-1:] if last]
