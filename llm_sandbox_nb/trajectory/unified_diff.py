"""A unified diff of two texts, with limits of size and time."""

from __future__ import annotations

import difflib
from collections import Counter

COMPARED_BYTES = 512 * 1024
"""Maximum bytes of both texts together. No diff is made of larger texts."""
# difflib's time grows with the number of lines and with the number of pairs of equal lines. These limits keep the time
# at a few seconds.
_MAX_EQUAL_PAIRS = 300_000
_MAX_LINES = 20_000


def unified(path: str, before: str, after: str, max_characters: int) -> tuple[str | None, str]:
    """Return a unified diff and a note about missing parts. The diff is None if difflib would be too slow."""
    rows: list[str] = []
    old, new = _split(before), _split(after)
    if _costly(old, new):
        return None, "too many lines for a diff"
    name = path.lstrip("/")  # git writes such paths too, and `patch -p1` applies the diff at the root
    for row in difflib.unified_diff(old, new, f"a/{name}", f"b/{name}", n=3):
        max_characters -= len(row)
        if max_characters < 0:
            return "".join(rows), "the diff is cut"
        rows.append(row if row.endswith("\n") else f"{row}\n\\ No newline at end of file\n")
    return "".join(rows), ""


def _costly(old: list[str], new: list[str]) -> bool:
    """Return True if difflib would take many seconds."""
    if not old or not new:
        return False
    counts, others = Counter(old), Counter(new)
    # difflib ignores lines that occur more often than `popular` times
    popular = len(new) // 100 + 1 if len(new) >= 200 else len(new)
    pairs = sum(count * others[line] for line, count in counts.items() if others[line] <= popular)
    return pairs > _MAX_EQUAL_PAIRS or len(old) + len(new) > _MAX_LINES


def _split(text: str) -> list[str]:
    """Split a text into lines that include their line ends. Like diff and git, split only at LF."""
    return [line + "\n" for line in text.split("\n")[:-1]] + [last for last in text.split("\n")[-1:] if last]
