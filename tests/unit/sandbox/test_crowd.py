"""Hundreds of processes that never sleep: the executor stops them while it works."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from llm_sandbox_nb.sandbox.executor.event_loop import EventLoop
from llm_sandbox_nb.sandbox.executor.processes import Crowd, kill_all


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[int]]:
    """Signals to all processes, in a namespace with 512 processes that want to run."""
    sent: list[int] = []
    load = tmp_path / "loadavg"
    load.write_text("190.07 80.10 41.44 512/900 10044\n")
    monkeypatch.setattr(os, "getpid", lambda: 1)
    monkeypatch.setattr(Crowd, "signal_all", sent.append)
    monkeypatch.setattr(Crowd, "load", os.open(load, os.O_RDONLY))
    yield sent
    os.close(Crowd.load)


@pytest.mark.parametrize(
    ("running", "names", "crowd"), [(512, 5, True), (99, 5, False), (99, 300, True), (0, 300, True)]
)
def test_a_crowd_is_one_that_runs_or_one_that_is_listed(
    running: int, names: int, crowd: bool, signals: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "loadavg").write_text(f"0.07 0.10 0.44 {running}/900 10044\n")
    monkeypatch.setattr(os, "listdir", lambda _: list(map(str, range(names))))
    assert Crowd.is_here() is crowd


def test_a_process_that_is_not_the_first_of_a_namespace_stops_nobody(
    signals: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 2)
    assert Crowd.call_stopped(lambda: 5) == 5
    assert signals == []


@pytest.mark.parametrize(("delay", "expected"), [(-3.0, [signal.SIGSTOP, 0, signal.SIGCONT]), (0.0, [0])])
def test_late_actions_have_the_processors_for_themselves(
    delay: float, expected: list[int], signals: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = EventLoop()
    loop.after(delay, lambda: signals.append(0))
    due = loop.timers[0].when
    if not delay:
        monkeypatch.setattr(time, "monotonic", lambda: due)
    assert loop.run_timers() == 0.0
    assert signals == expected


def test_processes_stay_stopped_until_the_last_late_action_is_done(signals: list[int]) -> None:
    loop = EventLoop()
    loop.after(-3.0, lambda: kill_all(set) and signals.append(1))
    loop.after(-2.0, lambda: signals.append(2))
    loop.run_timers()
    assert signals == [signal.SIGSTOP, 1, 2, signal.SIGCONT]


def test_an_error_leaves_no_process_stopped(signals: list[int]) -> None:
    with pytest.raises(ZeroDivisionError):
        Crowd.call_stopped(lambda: 1 / 0)
    assert signals == [signal.SIGSTOP, signal.SIGCONT]
    assert not Crowd.stopped
