"""Formatting of prices, sizes, durations, counts, failures and long texts, the same in every interface.

`labextension/src/formatting.ts` implements the same rules. The cases in tests/data/formatting.json test both files.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def format_cost(cost: float | None) -> str:
    """Format US dollars: with four decimals between zero and one dollar, else with two. None is an unknown cost."""
    if cost is None or not math.isfinite(cost):
        return "cost unknown"
    if 0 < cost < 0.0001:
        return "under $0.0001"
    return f"${_decimal(cost, 4 if 0 < cost < 1 else 2)}"


def format_spent(cost: float | None, budget: float | None) -> str:
    """Format the spent US dollars and the budget, or only the spent US dollars if `budget` is None.

    If there is a budget, both amounts have two decimals, or four below one cent.
    """
    if budget is None:
        return format_cost(cost)
    if cost is None or not math.isfinite(cost):
        return f"{format_cost(cost)}, budget {_cents(budget)}"
    return f"{_cents(cost)} of {_cents(budget)}"


def _cents(dollars: float) -> str:
    return format_cost(dollars) if 0 < dollars < 0.01 else f"${_decimal(dollars, 2)}"


def format_size(size: float) -> str:
    """Return a number of bytes with its unit. 1 KB is 1024 bytes."""
    if size < 1024:
        return f"{size:.0f} B"
    value = float(size)
    for unit in ("KB", "MB", "GB", "TB"):
        value /= 1024
        if value < 1024 or unit == "TB":
            break
    return f"{_decimal(value, 1)} {unit}"


def format_duration(seconds: float) -> str:
    """Return a duration in at most two units: `3.2 s`, `45 s`, `2 min 5 s`, `1 h 30 min`."""
    if not math.isfinite(seconds):
        return "unknown time"
    seconds = max(0.0, seconds)
    if seconds < 9.95:
        return f"{_decimal(seconds, 1)} s"
    whole = _rounded(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return _two_units(whole // 60, "min", whole % 60, "s")
    minutes = _rounded(seconds / 60)
    return _two_units(minutes // 60, "h", minutes % 60, "min")


def format_count(count: int) -> str:
    """Return a whole number with thousands separators."""
    return f"{count:,}"


def plural(count: int, noun: str, nouns: str | None = None) -> str:
    """Return a count with its noun: `plural(1, "step")`, `plural(2, "reply", "replies")`."""
    return f"{format_count(count)} {noun if count == 1 else nouns or noun + 's'}"


def format_short(count: int) -> str:
    """Return a short form of a token count: `99`, `0.7k`, `2.5M`."""
    if count < 100:
        return str(count)
    return f"{_decimal(count / 1000, 1)}k" if count < 999_950 else f"{_decimal(count / 1_000_000, 1)}M"


def format_clock(seconds: float) -> str:
    """Return seconds as a clock shows them: `1:05`, or `2:01:05` with hours."""
    whole = max(0, math.floor(seconds))
    minutes = (
        f"{whole // 60 % 60}:{whole % 60:02}" if whole < 3600 else f"{whole // 60 % 60:02}:{whole % 60:02}"
    )
    return minutes if whole < 3600 else f"{whole // 3600}:{minutes}"


MODEL_FAILURES = {
    "authentication": "key refused",
    "quota": "quota used up",
    "rate_limit": "too many requests",
    "not_found": "model not found",
    "unreachable": "no server answers",
    "connection": "connection lost",
    "timeout": "no answer in time",
    "context": "conversation too long",
    "content_policy": "refused by the provider's rules",
    "bad_request": "request refused",
    "server": "the provider failed",
    "setup": "not set up",
}


def format_model_failure(kind: str) -> str:
    """Return in a few words why a request to a model failed. The text is empty if `kind` is unknown."""
    return MODEL_FAILURES.get(kind, "")


CALL_FAILURES = {
    "editor": "Edit refused",
    "bad_arguments": "Arguments not valid",
    "malformed_json": "Arguments not valid",
    "unknown_tool": "Unknown tool",
    "cut_off": "Call cut off",
    "skipped": "Denied",
    "not_executed": "Not executed",
    "interrupted": "Interrupted",
    "cut_short": "Not finished",
}


def format_call_failure(kind: str) -> str:
    """Return in a few words why a tool call failed. An unknown `kind` is returned as words."""
    return CALL_FAILURES.get(kind, sentence_case(kind))


def format_percent(share: float) -> str:
    """Return a number from 0 to 1, such as a score, as a percentage without the percent sign."""
    return f"{100 * share:.1f}"


def format_number(value: float) -> str:
    """Return a number with three significant digits. From 100 on, the number is rounded to a whole number."""
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def sentence_case(name: str) -> str:
    """Return a name as words: `model_error` as `Model error`."""
    return (name[:1].upper() + name[1:]).replace("_", " ")


def _two_units(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large} {large_unit} {small} {small_unit}" if small else f"{large} {large_unit}"


def _rounded(value: float) -> int:
    """Round halves up, as JavaScript does. Python's `round` would round a half to the even number."""
    return math.floor(value + 0.5)


def _decimal(value: float, digits: int) -> str:
    scale = 10**digits
    return f"{_rounded(value * scale) / scale:,.{digits}f}"


def shorten(text: str, most: int, mark: str = "...") -> str:
    """Return `text`. If it has more than `most` characters, replace its end by `mark`, so that it has `most`."""
    return text if len(text) <= most else f"{text[: most - len(mark)]}{mark}"


TAIL_LINES = 20
"""Number of lines that `clip` shows from the end of a text, where errors usually are."""
_MIN_TAIL_LINE_CHARACTERS = 80
"""Number of characters that `clip` allows for each line at the end. If `limit` is too low for `TAIL_LINES` such lines,
`clip` shows fewer lines."""


def clip(text: str, limit: int) -> str:
    """Shorten `text` to about `limit` characters: its beginning, the number of hidden lines, and its end.

    The last `TAIL_LINES` lines are shown, or fewer if `limit` is low. If these lines are too long, the middle of the
    long lines is left out.
    """
    if len(text) <= limit:
        return text
    start = _tail_start(text, max(1, min(TAIL_LINES, limit // _MIN_TAIL_LINE_CHARACTERS)))
    room = limit - limit // 4 if start else limit
    tail = text[start:] if len(text) - start <= room else _shortened(text[start:], room)
    head = text[: min(start, max(0, limit - len(tail)))]
    hidden = text.count("\n", len(head), start)
    if whole := head.rfind("\n") + 1:
        head = head[:whole]
    elif hidden:
        head, hidden = f"{head} …\n", hidden - 1
    return f"{head}... {plural(hidden, 'line')} hidden ...\n{tail}" if hidden else head + tail


def _tail_start(text: str, lines: int) -> int:
    end = len(text.rstrip("\n"))
    for _ in range(lines):
        end = text.rfind("\n", 0, end)
        if end < 0:
            return 0
    return end + 1


def _shortened(text: str, room: int) -> str:
    """Shorten `text` to about `room` characters. Long lines share the space that short lines do not need."""
    lines = text.split("\n")
    share, left = 0, room
    for place, size in enumerate(sorted(map(len, lines))):
        share = left // (len(lines) - place)
        left -= min(size, share)
    return "\n".join(_without_middle(line, max(share, 2)) for line in lines)


def _without_middle(line: str, room: int) -> str:
    if len(line) <= room:
        return line
    half = room // 2
    hidden = plural(len(line) - 2 * half, "character")
    return f"{line[:half]} … {hidden} left out … {line[-half:]}"


def text_table(rows: Sequence[Sequence[str]], left: int | None = None) -> str:
    """Return `rows` as a text table with a line for each row.

    The first `left` columns are left-aligned, the others right-aligned. If `left` is None, all are left-aligned.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]

    def aligned(place: int, cell: str) -> str:
        return cell.ljust(widths[place]) if left is None or place < left else cell.rjust(widths[place])

    return "\n".join("  ".join(map(aligned, range(len(row)), row)).rstrip() for row in rows)
