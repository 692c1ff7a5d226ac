"""Hundreds of processes that never sleep: the executor stops them while it works."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support import until

from llm_sandbox_nb.sandbox.executor import processes
from llm_sandbox_nb.sandbox.executor.event_loop import EventLoop
from llm_sandbox_nb.sandbox.executor.processes import Crowd, children_of, is_stopped, kill_all


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[int]]:
    """Signals to all processes, in a namespace with 512 processes that want to run."""
    sent: list[int] = []
    load = tmp_path / "loadavg"
    load.write_text("190.07 80.10 41.44 512/900 10044\n")
    monkeypatch.setattr(os, "getpid", lambda: 1)
    monkeypatch.setattr(Crowd, "signal_all", sent.append)
    monkeypatch.setattr(Crowd, "after", None)
    monkeypatch.setattr(Crowd, "repeats_left", 0)
    monkeypatch.setattr(Crowd, "load", os.open(load, os.O_RDONLY))
    yield sent
    os.close(Crowd.load)


@pytest.mark.parametrize(
    ("running", "newest", "names", "crowd"),
    [
        pytest.param(512, 600, 5, True, id="runnable threads"),
        pytest.param(512, 40, 5, False, id="runnable threads of other sandboxes"),
        pytest.param(99, 600, 5, False, id="few"),
        pytest.param(0, 600, 300, True, id="processes that sleep"),
    ],
)
def test_crowd_is_one_that_runs_or_one_that_is_listed(
    running: int,
    newest: int,
    names: int,
    crowd: bool,
    signals: list[int],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    (tmp_path / "loadavg").write_text(f"0.07 0.10 0.44 {running}/900 {newest}\n")
    monkeypatch.setattr(os, "listdir", lambda _: list(map(str, range(names))))
    assert Crowd.is_here() is crowd


FORKING = """
import os
while True:
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
"""


def test_child_that_was_born_between_the_signals_does_not_stay_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    repeats: list[Callable[[], None]] = []
    forking = subprocess.Popen([sys.executable, "-I", "-S", "-c", FORKING], start_new_session=True)
    monkeypatch.setattr(Crowd, "is_here", lambda: True)
    monkeypatch.setattr(Crowd, "signal_all", lambda number: os.killpg(forking.pid, number))
    monkeypatch.setattr(Crowd, "after", lambda seconds, repeat: repeats.append(repeat))
    stopped: list[int] = []
    try:
        for _ in range(100_000):  # about one child in a thousand
            repeats.clear()
            monkeypatch.setattr(Crowd, "repeats_left", 0)
            Crowd.call_stopped(lambda: None)
            if stopped := [pid for pid in children_of(forking.pid) if is_stopped(pid)]:
                break
        assert stopped
        repeats[0]()
        until(lambda: not is_stopped(stopped[0]))
        assert len(repeats) == 2
    finally:
        os.killpg(forking.pid, signal.SIGKILL)
        forking.wait()


def test_signals_that_continue_a_crowd_end_and_begin_anew_after_the_next_stop(
    signals: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = EventLoop()
    monkeypatch.setattr(Crowd, "after", loop.after)
    Crowd.call_stopped(lambda: None)
    loop.call(loop.timers[:1])
    Crowd.call_stopped(lambda: loop.call(loop.timers[1:2]))
    assert signals == [signal.SIGSTOP, signal.SIGCONT, signal.SIGCONT, signal.SIGSTOP, signal.SIGCONT]
    for number in range(2, 2 + processes.CONTINUE_TIMES):
        loop.call(loop.timers[number : number + 1])
    assert (len(loop.timers), len(signals)) == (2 + processes.CONTINUE_TIMES, 5 + processes.CONTINUE_TIMES)


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
