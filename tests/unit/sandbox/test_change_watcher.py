"""Commands and requests that wait for the first scan or for a restore; files that vanish during a scan."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from llm_sandbox_nb.sandbox.executor import change_watcher
from llm_sandbox_nb.sandbox.executor.change_watcher import ChangeTracker, ChangeWatcher
from llm_sandbox_nb.sandbox.executor.main import Executor
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
