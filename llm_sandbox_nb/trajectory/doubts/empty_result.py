"""The rule about empty results."""

from __future__ import annotations

import re
from collections.abc import Iterator

from llm_sandbox_nb.trajectory.doubts.evidence import (
    PROGRAMS,
    Evidence,
    Version,
    ending_of,
    name_of,
)
from llm_sandbox_nb.trajectory.doubts.table_columns import TABLES, cells_of
from llm_sandbox_nb.trajectory.events import Doubt

_PLACEHOLDER = re.compile(
    r"(?s:(?=.{0,1000}\Z))^\W*(?:todo|tbd|tba|fixme|xxx+|placeholder|lorem ipsum\b.*|n/?a|nan|none|null|undefined|"
    r"insert .{1,40} here|your .{1,30} here|"
    r"<[a-z _-]+>|\[(?:insert|your|placeholder)[^\]]*\]|coming soon|not implemented|dummy|sample text|"
    r"example output|\.\.\.|result goes here|"
    r"(?:this is )?a? ?placeholder.{0,60})\W*$",
    re.IGNORECASE,
)
_MARKER = re.compile(
    r"\b(?:lorem ipsum|TODO: |PLACEHOLDER|\[insert |your text here|to be (?:filled|written|completed))",
    re.IGNORECASE,
)
_KEEPS = frozenset(
    {"__init__.py", ".gitkeep", ".keep", ".nojekyll", "py.typed", "done", "success", "_success", ".gitignore"}
)


def empty_result(evidence: Evidence) -> Iterator[Doubt]:
    """A result is empty or a placeholder, such as a file of 0 bytes, a picture of one colour, or silence."""
    asked = re.search(
        r"\b(?:empty|placeholder|blank|silen\w+|one colou?r|plain colou?r|touch|template)\b",
        evidence.task,
        re.IGNORECASE,
    )
    blank = {
        f"{evidence.output}/{saved.path}": saved.blank for saved in evidence.trajectory.artifacts.values()
    }
    for version in evidence.results:
        name = name_of(version.path)
        if asked or name.lower() in _KEEPS or version.change is None:
            continue
        reason = _empty(version) or blank.get(version.path, "")
        if reason:
            yield Doubt(
                rule="empty or placeholder result",
                step=version.step,
                text=f"{name} {reason}",
                severity="high",
            )
    known = {version.path for version in evidence.results}
    for saved in evidence.trajectory.artifacts.values():
        if (
            (saved.blank or not saved.size)
            and f"{evidence.output}/{saved.path}" not in known
            and not asked
            and saved.step
        ):
            reason = saved.blank or "is empty"
            yield Doubt(
                rule="empty or placeholder result",
                step=saved.step,
                text=f"{saved.path} {reason}",
                severity="high",
            )
    answer = evidence.answer
    if answer is not None and evidence.answer_version is None and _PLACEHOLDER.match(answer.strip()):
        yield Doubt(
            rule="empty or placeholder result",
            step=evidence.last_step,
            text=f"the answer is {answer.strip()[:20]!r}",
            severity="high",
        )


def _empty(version: Version) -> str:
    change, ending = version.change, ending_of(version.path)
    assert change is not None
    if change.size == 0:
        return "is empty"
    text = version.text
    if text is None or ending in PROGRAMS:
        return ""
    stripped = text.strip()
    if not stripped:
        return "is empty"
    if (
        ending in TABLES
        and stripped.count("\n") == 0
        and len(cells_of(stripped)) > 1
        and not re.search(r"\d", stripped)
    ):
        return "has a header and no rows"
    if ending in ("json", "geojson", "jsonl") and stripped in ("[]", "{}", "null", '""', "NaN"):
        return f"holds nothing but {stripped}"
    if _PLACEHOLDER.match(stripped):
        return f"holds nothing but {stripped[:30]!r}"
    if ending in ("txt", "md", "html", "csv", "json") and (found := _MARKER.search(stripped)):
        return f"holds a placeholder: {found[0].strip()!r}"
    return ""
