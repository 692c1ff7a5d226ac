"""A pause where there is no server: the person is asked in the cell, or what the cell says is done."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from live_kernel import LiveKernel, live_kernel

SCRIPT = """
turns:
  - calls: [{tool: execute_bash, arguments: {command: "sleep 1"}}]
  - calls: [{tool: execute_bash, arguments: {command: "echo second"}}]
  - calls: [{tool: submit}]
"""
PAUSE_LATER = """
import threading, time
def pause_later():
    while 'run' not in globals() or not any(e.kind == 'call.started' for e in run.trajectory.events):
        time.sleep(0.02)
    run.pause()
threading.Thread(target=pause_later).start()
"""
RESUME_LATER = """
def resume_later():
    while 'run' not in globals() or not run.trajectory.paused:
        time.sleep(0.02)
    time.sleep(2)
    run.resume()
threading.Thread(target=resume_later).start()
"""
TOLD = "print(run.stop_reason, [(e.action, e.source) for e in run.trajectory.controls])"
CELL = "%%sandbox -m scripted/./script.yaml --isolation process -o run {}\nWork."


def outcome(kernel: LiveKernel) -> str:
    return kernel.printed(TOLD).strip()


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("--on-pause go", "submitted [('pause', 'python'), ('paused', 'run'), ('resume', 'cell')]"),
        ("--on-pause stop", "interrupted [('pause', 'python'), ('paused', 'run'), ('stop', 'cell')]"),
        ("", "interrupted [('pause', 'python'), ('paused', 'run'), ('stop', 'cell')]"),
    ],
)
def test_where_nobody_can_be_asked(option: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "script.yaml").write_text(SCRIPT)
    with live_kernel(tmp_path) as kernel:
        kernel.run(PAUSE_LATER)
        cell = str(kernel.client.execute(CELL.format(option), allow_stdin=False))
        kernel.messages(cell, timeout=180)
        assert outcome(kernel) == told


def test_wait_waits_for_python(tmp_path: Path) -> None:
    (tmp_path / "script.yaml").write_text(SCRIPT)
    with live_kernel(tmp_path) as kernel:
        kernel.run(PAUSE_LATER + RESUME_LATER)
        begun = time.monotonic()
        kernel.messages(str(kernel.client.execute(CELL.format("--on-pause wait"))), timeout=180)
        assert time.monotonic() - begun > 2
        assert outcome(kernel) == "submitted [('pause', 'python'), ('paused', 'run'), ('resume', 'python')]"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("", "submitted [('pause', 'python'), ('paused', 'run'), ('resume', 'cell')]"),
        ("stop", "interrupted [('pause', 'python'), ('paused', 'run'), ('stop', 'cell')]"),
        (
            "Be quick.",
            "submitted [('pause', 'python'), ('paused', 'run'), ('say', 'cell'), ('resume', 'cell')]",
        ),
    ],
)
def test_the_person_is_asked_in_the_cell(said: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "script.yaml").write_text(SCRIPT)
    with live_kernel(tmp_path) as kernel:
        kernel.run(PAUSE_LATER)
        cell = str(kernel.client.execute(CELL.format(""), allow_stdin=True))
        question = kernel.client.get_stdin_msg(timeout=180)
        assert "The run is paused" in question["content"]["prompt"]
        kernel.client.input(said)
        kernel.messages(cell, timeout=180)
        assert outcome(kernel) == told
