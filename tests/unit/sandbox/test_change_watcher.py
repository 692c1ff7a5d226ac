"""What waits for the first look at the files, and for a restore of them."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any, cast

from llm_sandbox_nb.sandbox.executor.change_watcher import ChangeWatcher
from llm_sandbox_nb.sandbox.executor.main import Executor
from llm_sandbox_nb.sandbox.executor.request import RESTORE


def test_a_look_that_is_over_lets_nothing_into_a_restore() -> None:
    """The clock of the first look may run out in the middle of one."""
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


def test_a_slow_first_look_is_no_answer_to_a_request() -> None:
    """Commands stop waiting after a while, but what is reported comes after the look."""
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
