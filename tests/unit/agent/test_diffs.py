"""Diffs of changed files: what git understands, and bounded in size and time."""

from __future__ import annotations

import asyncio
import random
import subprocess
import time
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from support import examples

from llm_sandbox_nb.agent.tools.text_file import DIFF_CHARACTERS, file_diff, file_diffs
from llm_sandbox_nb.sandbox.contract import Changes, FileChange


def modified(before: bytes | None, after: bytes | None) -> FileChange:
    return FileChange("/testbed/file", "modified", len(after or b""), before, after)


def test_added_modified_deleted() -> None:
    added = file_diff(FileChange("f", "added", 2, None, b"a\n"))
    assert added.diff == "--- a/f\n+++ b/f\n@@ -0,0 +1 @@\n+a\n"
    deleted = file_diff(FileChange("f", "deleted", 0, b"a\n", None))
    assert deleted.diff == "--- a/f\n+++ b/f\n@@ -1 +0,0 @@\n-a\n"
    changed = file_diff(modified(b"a\nb\n", b"a\nc\n")).diff or ""
    assert changed.startswith("--- a/testbed/file\n+++ b/testbed/file\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n")


def test_what_has_no_diff_says_why() -> None:
    assert file_diff(modified(None, None)).note == "binary, or too large for a diff"
    assert file_diff(modified(b"a", b"\x00")).note == "binary"
    assert file_diff(modified(b"a" * 300_000, b"b" * 300_000)).note == "too large for a diff"
    assert file_diff(modified(b"a", b"b"), room=0).note == "too many changes for a diff of each"


def test_a_long_diff_is_cut_at_a_line() -> None:
    made = file_diff(FileChange("f", "added", 1, None, b"some line\n" * 20_000))
    assert made.note == "the diff is cut"
    assert made.diff is not None
    assert len(made.diff) <= DIFF_CHARACTERS
    assert made.diff.endswith("\n")


def test_hostile_files_do_not_take_long() -> None:
    dice = random.Random(5)
    kinds = [b"%d\n" % number for number in range(300)]
    pairs = [
        (b"".join(dice.choices(kinds, k=50_000)), b"".join(dice.choices(kinds, k=50_000))),
        (b"x\n" * 100_000, b"x\ny\n" * 50_000),
        (
            b"".join(b"%d\n" % n for n in range(20_000)),
            b"".join(b"%d\n" % (n * 7 % 20_011) for n in range(20_000)),
        ),
        (b"ab" * 100_000, b"ba" * 100_000),
    ]
    for before, after in pairs:
        started = time.process_time()
        file_diff(modified(before, after))
        assert time.process_time() - started < 3


def test_many_files_are_counted_not_named() -> None:
    files = tuple(FileChange(f"f{number}", "added", 1, None, b"x\n") for number in range(600))
    diffs, left_out = asyncio.run(file_diffs(Changes(files, "the scan took too long.")))
    assert len(diffs) == 500
    assert left_out == "the scan took too long. 100 more changed files are not named."
    assert sum(len(diff.diff or "") for diff in diffs) < 2 * DIFF_CHARACTERS


def test_a_path_that_no_file_has_is_counted_not_named() -> None:
    """A record with such a path could not be read again: its line would be too long."""
    files = tuple(FileChange(path, "added", 1, None, b"x\n") for path in ("a" * 5000, "b", "c" * 10**6))
    diffs, left_out = asyncio.run(file_diffs(Changes(files)))
    assert [diff.path for diff in diffs] == ["b"]
    assert left_out == "2 more changed files are not named."


@settings(max_examples=examples(60))
@given(st.text("ab\n\r\té\u2028", max_size=40), st.text("ab\n\r\té\u2028", max_size=40))
def test_git_makes_the_new_file_from_the_old(tmp_path_factory: object, before: str, after: str) -> None:
    if before == after:
        return
    folder = Path(tmp_path_factory.mktemp("diff"))  # type: ignore[attr-defined]
    made = file_diff(FileChange("file", "modified", 1, before.encode(), after.encode()))
    (folder / "file").write_bytes(before.encode())
    command = ["git", "apply", "--whitespace=nowarn", "-"]
    subprocess.run(command, input=(made.diff or "").encode(), cwd=folder, check=True)
    result = (folder / "file").read_bytes() if (folder / "file").exists() else b""
    assert result == after.encode()


def test_lines_and_sizes_tell_what_was_lost_also_where_the_diff_is_cut() -> None:
    lines = b"".join(b"%d,%d\n" % (number, number * 7) for number in range(9000))
    shrunk = file_diff(FileChange("f", "modified", 4, lines, b"0,0\n", size_before=len(lines)), room=200)
    assert shrunk.note == "the diff is cut"
    assert (shrunk.lines_before, shrunk.lines) == (9000, 1)
    assert (shrunk.size_before, shrunk.size) == (len(lines), 4)
    gone = file_diff(FileChange("f", "deleted", 5, b"a\nb\nc", None, size_before=5))
    assert (gone.lines_before, gone.lines) == (3, 0)
    made = file_diff(FileChange("f", "added", 0, None, b""))
    assert (made.size_before, made.lines_before, made.lines) == (None, 0, 0)
    large = file_diff(FileChange("f", "modified", 10, None, None, size_before=40_000_000))
    assert (large.size_before, large.lines_before, large.lines) == (40_000_000, None, None)
