"""`kill -9` at any instant: the journal is whole to the last event, the conversation can be gone on with."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from agent_scripts import SUBMIT, bash, check_messages, edit, script, turn
from support import size

from llm_sandbox_nb.agent.run import Run
from llm_sandbox_nb.trajectory.trajectory import Trajectory

KILLS = size(12, 20)
# Forks a child for each instant, so that the slow imports are paid for once. The first one comes to its end: the
# instants are parts of the time it takes.
PROGRAM = """
import asyncio, os, signal, sys, time
from llm_sandbox_nb.agent.model_backend import backend
from llm_sandbox_nb.agent.solve import solve
backend()
model, folder, *instants = sys.argv[1:]

def start(name):
    pid = os.fork()
    if pid == 0:
        asyncio.run(solve("A task.", model=model, isolation="process", output_dir=folder, name=name))
        os._exit(0)
    return pid

begun = time.monotonic()
os.waitpid(start("whole"), 0)
whole = time.monotonic() - begun
for number, instant in enumerate(instants):
    pid = start(str(number))
    time.sleep(float(instant) * whole)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
"""


@pytest.mark.slow
def test_a_run_that_is_killed_at_a_random_instant_is_readable(tmp_path: Path) -> None:
    long = 'python3 -c \'print("x" * 99 + "\\n") * 2000; print("y" * 200000)\''
    steps = [
        turn(
            bash(f"echo {number} > output/{number}.txt; seq 1 {number * 300}"),
            {"tool": "execute_bash", "raw_arguments": "{"},
            edit("create", f"new {number}.txt", file_text="line\n" * 500),
            bash(long if number % 2 else "sleep 0.05"),
            text="I think. " * 40,
            reasoning="why " * 40,
        )
        for number in range(1, 7)
    ]
    model = script(tmp_path, *steps, SUBMIT, delay=0.002)
    seed = random.randrange(10**6)
    dice = random.Random(seed)
    instants = [dice.uniform(0.02, 1.0) for _ in range(KILLS)]
    arguments = [model, str(tmp_path / "runs"), *(f"{instant:.4f}" for instant in instants)]
    subprocess.run([sys.executable, "-c", PROGRAM, *arguments], check=True, timeout=250)
    counts = []
    for number in range(KILLS):
        folders = list((tmp_path / "runs" / str(number)).glob("*"))
        assert len(folders) <= 1
        counts.extend(check_killed(folder, seed) for folder in folders)
    assert len(counts) > KILLS // 4, f"seed {seed}"
    assert max(counts) > 20, f"seed {seed}: {counts}"


def check_killed(folder: Path, seed: int) -> int:
    if not (folder / "journal.jsonl").exists():
        return 0
    run = Run.load(folder)
    events = run.trajectory.events
    where = f"seed {seed}, {folder}, {len(events)} events"
    assert [event.parent for event in events] == [None, *(event.id for event in events[:-1])][
        : len(events)
    ], where
    check_messages(list(run.trajectory.messages(answer_open=True)))
    for length in range(len(events)):
        Trajectory(events[:length])
    written = folder / "trajectory.json"
    assert not written.exists() or json.loads(written.read_text())["problem_statement"] == "A task."
    for name, saved in run.trajectory.artifacts.items():
        assert run.files[name].size == saved.size, where
    return len(events)
