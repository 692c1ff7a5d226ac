"""What waits for the first look at the files, and for a restore of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from llm_sandbox_nb.sandbox.inside.watching import Watcher


def test_a_look_that_is_over_lets_nothing_into_a_restore() -> None:
    """The clock of the first look may run out in the middle of one."""
    begun: list[str] = []
    history = SimpleNamespace(restoring=True)
    shell = SimpleNamespace(next=lambda: begun.append("shell"))
    watcher = Watcher(cast(Any, SimpleNamespace(history=history, shell=shell)))
    watcher.when_looked(lambda: begun.append("exec"))
    watcher.first_look_over()
    assert begun == []
    history.restoring = False
    watcher.first_look_over()
    assert begun == ["shell", "exec"]
