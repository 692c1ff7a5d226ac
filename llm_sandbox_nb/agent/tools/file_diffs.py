"""Unified diffs of what a call changed, bounded."""

from __future__ import annotations

import asyncio

from llm_sandbox_nb.agent.tools.text_file import NotTextError, decode_text
from llm_sandbox_nb.sandbox.contract import Changes, FileChange
from llm_sandbox_nb.trajectory.events import FileDiff, clean_text
from llm_sandbox_nb.trajectory.unified_diff import COMPARED_BYTES, unified

DIFF_CHARACTERS = 64 * 1024
"""Characters of one diff, and of all diffs of a call."""
CHANGED_FILES = 500
"""Files of one call that are named."""
_AT_ONCE = 32 * 1024


async def file_diffs(changes: Changes) -> tuple[list[FileDiff], str]:
    """The changes as they are recorded, and a text about those left out. Long work runs in a thread."""
    files = changes.files[:CHANGED_FILES]
    if sum(len(file.before or b"") + len(file.after or b"") for file in files) <= _AT_ONCE:
        diffs = _all(files)
    else:
        diffs = await asyncio.to_thread(_all, files)
    more = len(changes.files) - len(files)
    left_out = f"{more} more changed files are not named." if more else ""
    return diffs, " ".join(filter(None, (changes.incomplete, left_out)))


def _all(files: tuple[FileChange, ...]) -> list[FileDiff]:
    room, diffs = DIFF_CHARACTERS, []
    for file in files:
        diffs.append(diff := file_diff(file, room))
        room -= len(diff.diff or "")
    return diffs


def file_diff(change: FileChange, room: int = DIFF_CHARACTERS) -> FileDiff:
    """One changed file, with a unified diff when both sides are text of a sensible size."""
    made = FileDiff(
        path=clean_text(change.path), kind=change.kind, size=change.size, size_before=change.size_before
    )
    before = b"" if change.kind == "added" else change.before
    after = b"" if change.kind == "deleted" else change.after
    made.lines_before, made.lines = _lines(before), _lines(after)
    if before is None or after is None:
        made.note = "binary, or too large for a diff"
    elif len(before) + len(after) > COMPARED_BYTES:
        made.note = "too large for a diff"
    elif room <= 0:
        made.note = "too many changes for a diff of each"
    else:
        try:
            made.diff, made.note = unified(made.path, _text(before), _text(after), room)
        except NotTextError:
            made.note = "binary"
    return made


def _lines(data: bytes | None) -> int | None:
    return None if data is None else data.count(b"\n") + (data[-1:] not in (b"", b"\n"))


def _text(data: bytes) -> str:
    return str(clean_text(decode_text(data).text))
