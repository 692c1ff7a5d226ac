"""Two attempts differ in the files whose content differs, not in those that were written anew."""

from __future__ import annotations

from llm_sandbox_nb.sandbox.history.diff import differing_contents, differing_paths
from llm_sandbox_nb.sandbox.history.manifest import FILE, LINK, Entry

ONE, OTHER = ((0, 1, b"a"),), ((0, 1, b"b"),)


def test_other_times_alone_do_not_count() -> None:
    before = {
        "/same": Entry(FILE, mtime_ns=1, size=1, chunks=ONE),
        "/other": Entry(FILE, mtime_ns=1, size=1, chunks=ONE),
        "/rights": Entry(FILE, mode=0o600, mtime_ns=1, size=1, chunks=ONE),
        "/not-kept": Entry(FILE, mtime_ns=1, size=1),
        "/link": Entry(LINK, mtime_ns=1, target="a"),
        "/gone": Entry(FILE, mtime_ns=1, size=1, chunks=ONE),
    }
    after = {
        "/same": Entry(FILE, mtime_ns=2, size=1, chunks=ONE),
        "/other": Entry(FILE, mtime_ns=2, size=1, chunks=OTHER),
        "/rights": Entry(FILE, mode=0o644, mtime_ns=2, size=1, chunks=ONE),
        "/not-kept": Entry(FILE, mtime_ns=2, size=1),
        "/link": Entry(LINK, mtime_ns=2, target="a"),
    }
    assert len(differing_paths(before, after)) == 6
    assert sorted(differing_contents(before, after)) == ["/gone", "/not-kept", "/other", "/rights"]
