"""Commands and requests that wait for the first scan or for a restore; files that vanish during a scan."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support import until

from llm_sandbox_nb.sandbox.client import MAX_CHANGES_BYTES
from llm_sandbox_nb.sandbox.executor import change_watcher
from llm_sandbox_nb.sandbox.executor.change_watcher import (
    MAX_REPORT_BYTES,
    MAX_REPORTED_CHANGES,
    ChangeTracker,
    ChangeWatcher,
)
from llm_sandbox_nb.sandbox.executor.main import Executor
from llm_sandbox_nb.sandbox.executor.mounts import CLOCK_MARGIN_NS
from llm_sandbox_nb.sandbox.executor.request import RESTORE


def test_the_end_of_the_first_scan_starts_no_command_during_a_restore() -> None:
    """The time-out of the first scan may expire in the middle of a restore."""
    begun: list[str] = []
    executor = Executor.__new__(Executor)
    executor.holds, executor.waiting = set(), []
    executor.shell = cast(Any, SimpleNamespace(next=lambda: begun.append("shell")))
    watcher = ChangeWatcher(executor)
    executor.hold_files(RESTORE)
    executor.when_files_ready(lambda: begun.append("exec"))
    watcher.first_look_over()
    assert begun == []
    executor.release_files(RESTORE)
    assert begun == ["shell", "exec"]


def test_the_first_scan_does_not_answer_a_later_request() -> None:
    """Commands stop waiting at a time-out, but the answer to a request comes from a scan that began after it."""
    executor = Executor.__new__(Executor)
    executor.holds, executor.waiting = set(), []
    executor.shell = cast(Any, SimpleNamespace(next=lambda: None))
    watcher = ChangeWatcher(executor)
    reading, watcher.requests_w = os.pipe()
    watcher.pid, watcher.looking = 1, True
    answers: list[tuple[str, object]] = []
    for name in ("first", "second"):
        request = SimpleNamespace(respond=lambda outcome, name=name: answers.append((name, outcome["of"])))
        watcher.first_look_over()  # by the clock
        watcher.ask(cast(Any, request))
    assert answers == []
    for outcome in ("look", "first changes", "second changes"):
        watcher.finish({"of": outcome})
    assert answers == [("first", "first changes"), ("second", "second changes")]
    assert os.read(reading, 9) == b"??"
    for fd in (reading, watcher.requests_w):
        os.close(fd)


def test_a_file_that_vanishes_during_a_scan_hides_no_other(tmp_path: Path) -> None:
    """Otherwise a program that renames files all the time makes others look deleted."""
    for number in range(20):
        (tmp_path / f"{number}").write_text("old")
    tracker = ChangeTracker(os.fsencode(tmp_path))
    tracker.start()
    real = change_watcher.file_signature

    def vanishing(info: os.stat_result) -> tuple[int, ...]:
        if info.st_size == 7:
            raise FileNotFoundError
        return real(info)

    reported: list[tuple[bytes, str]] = []
    (tmp_path / "7").write_text("7 bytes")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(change_watcher, "file_signature", vanishing)
        patch.setattr(
            tracker,
            "report",
            lambda path, old, new, *_: reported.append((path, "gone" if new is None else "there")),
        )
        tracker.report_changes()
    assert reported == [(os.fsencode(tmp_path / "7"), "gone")]


def reports(tracker: ChangeTracker, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Return the kind and name of each reported change."""
    lines: list[bytes] = []
    monkeypatch.setattr(change_watcher, "write_all", lambda _, line: lines.append(line))
    tracker.report_changes()
    return [(row[1], Path(row[0]).name) for row in map(json.loads, lines)]


def test_a_scan_that_ends_early_makes_no_file_look_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(6):
        (tmp_path / f"old{number}").touch()
    now = time.time_ns()
    until(lambda: time.time_ns() > now + 2 * CLOCK_MARGIN_NS)
    tracker = ChangeTracker(os.fsencode(tmp_path))
    most = change_watcher.MAX_WATCHED_FILES
    monkeypatch.setattr(change_watcher, "MAX_WATCHED_FILES", 3)
    tracker.start()
    monkeypatch.setattr(change_watcher, "MAX_WATCHED_FILES", most)
    (tmp_path / "new").touch()
    assert len(tracker.seen) == 3
    assert reports(tracker, monkeypatch) == [("added", "new")]
    assert tracker.incomplete == ""
    monkeypatch.setattr(change_watcher, "MAX_SCAN_SECONDS", -1.0)
    (tmp_path / "folder").mkdir()
    for number in range(6):
        (tmp_path / f"old{number}").rename(tmp_path / "folder" / f"old{number}")
    assert ("deleted", "old0") not in reports(tracker, monkeypatch)
    monkeypatch.setattr(change_watcher, "MAX_SCAN_SECONDS", 60.0)
    assert ("deleted", "old0") in reports(tracker, monkeypatch)


def test_deleted_files_are_reported_after_too_much_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "z").touch()
    tracker = ChangeTracker(os.fsencode(tmp_path))
    tracker.start()
    monkeypatch.setattr(change_watcher, "MAX_REPORT_BYTES", 3)
    (tmp_path / "a").write_text("more than three bytes")
    (tmp_path / "z").unlink()
    assert reports(tracker, monkeypatch) == [("added", "a"), ("deleted", "z")]
    assert "not all of it is shown" in tracker.incomplete


def test_the_longest_report_fits_into_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """In an answer, a byte of a path takes up to six, and three bytes of a text take four."""
    paths = min(MAX_REPORT_BYTES, MAX_REPORTED_CHANGES * 4096)
    texts = MAX_REPORT_BYTES - paths
    assert 6 * paths + 4 * texts // 3 + 256 * MAX_REPORTED_CHANGES < MAX_CHANGES_BYTES
    monkeypatch.setattr(change_watcher, "write_all", lambda *_: None)
    tracker = ChangeTracker(b"/")
    tracker.report(b"/" + b"x" * 99, None, (0, 0, 0, 0, 0), None, b"y")
    assert tracker.report_size == 101
