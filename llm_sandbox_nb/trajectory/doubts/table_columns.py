"""Columns and keys that a changed table has lost, and the model's words about the change."""

from __future__ import annotations

import csv
import json
import re

from llm_sandbox_nb.trajectory.doubts.evidence import (
    Action,
    Evidence,
    Version,
    ending_of,
    name_of,
)

_SAYS_COLUMNS = re.compile(
    r"\bcolumns?\b|\bheaders?\b|\bfields?\b|\brenam\w+|\bschema\b|\bpivot\w*|\btranspos\w+|\breshap\w+|"
    r"\bmelt\w*|\bformat\b|\binstead\b|"
    r"\baggregat\w+|\bgroup\w*|\bsummar\w+|\bkeys?\b|\blayout\b|\bstructure\b|\bdelimiter\b|\bwide\b|\blong\b",
    re.IGNORECASE,
)
TABLES = frozenset({"csv", "tsv", "tab", "psv"})
"""Suffixes of files that have a header and rows."""


def says(action: Action, words: re.Pattern[str]) -> bool:
    """Return True if `words` matches the model's text in the step of an action, or a comment in the command."""
    if words not in action.known:
        comments = (line for line in action.command.splitlines() if line.lstrip().startswith("# "))
        action.known[words] = bool(words.search(action.said) or any(words.search(line) for line in comments))
    found: bool = action.known[words]
    return found


def version_before(version: Version) -> Version | None:
    """Return the version before `version`. If the file had been removed, return the version before the removal."""
    before = version.before
    return before.before if before is not None and before.deleted else before


def other_columns(evidence: Evidence, action: Action, version: Version) -> str:
    """Describe the columns or keys that a table has lost. Empty if none were lost, or the model mentions the loss."""
    ending = ending_of(version.path)
    if ending in TABLES or (ending == "txt" and version.change and version.change.diff):
        gone = _columns_gone(version)
    elif ending in ("json", "jsonl", "ndjson"):
        gone = _keys_gone(version)
    else:
        return ""
    if (
        not gone
        or says(action, _SAYS_COLUMNS)
        or any(column in action.said for column in gone if len(column) > 3)
    ):
        return ""
    edited = any(
        _SAYS_COLUMNS.search(other.said)
        for other in evidence.actions[max(0, action.number - 2) : action.number]
    )
    if edited and not evidence.given(version.path):
        return ""
    names = ", ".join(gone[:3]) + (f" and {len(gone) - 3} more" if len(gone) > 3 else "")
    return f"{name_of(version.path)} has lost the {'column' if len(gone) == 1 else 'columns'} {names}"


def _columns_gone(version: Version) -> list[str]:
    diff = version.change.diff if version.change else None
    if not diff:
        return []
    rows = diff.split("\n", 200)
    start = next(
        (place for place, row in enumerate(rows) if row.startswith(("@@ -1,", "@@ -1 "))),
        None,
    )
    if start is None:
        return []
    body = rows[start + 1 :]
    first = next((row for row in body if row[:1] in ("-", " ")), "")
    last = next((row for row in body if row[:1] in ("+", " ")), "")
    if not first.startswith("-"):
        return []
    old, new = cells_of(first[1:]), cells_of(last[1:])
    if len(old) < 2 or any(re.fullmatch(r"[-+]?[\d.]+%?", cell) for cell in old):
        return []
    if len(new) >= 2 and [cell.lower().replace(" ", "_") for cell in old] == [
        cell.lower().replace(" ", "_") for cell in new
    ]:
        return []
    return [cell for cell in old if cell not in new]


def cells_of(line: str) -> list[str]:
    """Split a row of a table into cells at its most frequent delimiter. Ignore text after a carriage return."""
    line = line.partition("\r")[0]
    delimiter = max(",;\t|", key=line.count)
    if delimiter not in line:
        return [line.strip()]
    row = next(csv.reader([line[:5_000]], delimiter=delimiter), [])
    return [cell.strip() for cell in row]


def _keys_gone(version: Version) -> list[str]:
    before = version_before(version)
    old, new = (_keys(table.text) if table is not None else None for table in (before, version))
    return [key for key in old if key not in new] if old and new else []


def _keys(text: str | None) -> list[str] | None:
    if not text or len(text) > 64_000:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        try:
            value = json.loads(text.partition("\n")[0])
        except (ValueError, RecursionError):
            return None
    if isinstance(value, list):
        value = value[0] if value else None
    return [str(key) for key in value] if isinstance(value, dict) and len(value) <= 40 else None
