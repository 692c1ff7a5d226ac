"""A record whose events change the branch again and again does not keep its reader for ever."""

from __future__ import annotations

import pytest

from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory import trajectory as module
from llm_sandbox_nb.trajectory.journal import JournalError
from llm_sandbox_nb.trajectory.trajectory import Trajectory


def turning(changes: int) -> list[ev.Event]:
    """A hundred events, then others that follow the last but one and the last in turn."""
    first: list[ev.Event] = [ev.Noted(id=f"n{number}", text="x") for number in range(100)]
    return first + [ev.Noted(id=f"m{n}", parent=f"n{99 - n % 2}", text="x") for n in range(changes)]


def test_branches_that_change_without_end_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_REREAD_EVENTS", 10_000)
    assert len(Trajectory(turning(90)).events) == 190
    with pytest.raises(JournalError, match="events would be read again"):
        Trajectory(turning(110))


def test_an_event_that_follows_itself_has_an_end() -> None:
    found = Trajectory([ev.Noted(id="a", parent="a", text="x"), ev.Noted(id="a", parent="a", text="y")])
    assert found.head == "a"
    assert len(found.branches) <= 1


def test_many_branches_at_the_end_of_a_long_one_are_listed_soon() -> None:
    """Each tip is not walked down to where it left the branch of HEAD."""
    trunk: list[ev.Event] = [ev.ModelRequested(id=f"r{n}", step=n + 1) for n in range(300)]
    tips = [ev.ModelRequested(id=f"t{n}", parent="r299", step=301) for n in range(300)]
    last = ev.ModelRequested(id="head", parent="r0", step=2)
    found = Trajectory([*trunk, *tips, last]).branches
    assert len(found) == 301
    assert {one.fork for one in found if not one.head} == {"r0"}
