"""`kill -9` of a run: the journal is whole to the last event, and the conversation can be resumed.

Before each event that is written; and, as a campaign, at random instants.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from agent_scripts import SUBMIT, bash, check_messages, edit, script, turn
from kill_points import killed_before_each
from support import run, size

from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.runs.solve import solve
from llm_sandbox_nb.trajectory.trajectory import Trajectory

KILLS = size(12, 20)
# Forks a child for each instant, so that the imports are paid for once. The first one comes to its end: the
# instants are parts of the time it takes.
PROGRAM = """
import asyncio, os, signal, sys, time
from llm_sandbox_nb.runs.solve import solve
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


EACH_EVENT = """
import asyncio, sys
from kill_points import for_each
from talking_model import TalkingModel
from llm_sandbox_nb.runs.solve import solve

def work(folder):
    model = TalkingModel(2, command="seq 1 9000; echo {number} > output/{number}.txt")
    asyncio.run(solve("A task.", model=model, isolation="process", output_dir=folder, name="run"))

for_each(work, sys.argv[1:])
"""


@pytest.mark.campaign
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
        counts.extend(check_killed(folder, f"seed {seed}") for folder in folders)
    assert len(counts) > KILLS // 4, f"seed {seed}"
    assert max(counts) > 20, f"seed {seed}: {counts}"


def test_a_run_that_is_killed_before_any_event_is_readable(tmp_path: Path) -> None:
    last, numbers = killed_before_each(EACH_EVENT, tmp_path)
    assert last > 15
    for number in numbers:
        [folder] = (tmp_path / str(number) / "run").glob("*")
        assert check_killed(folder, f"killed before event {number}") == number - 1


@pytest.mark.parametrize(("check", "state"), [(None, "not checked"), ("grep 3 output/answer.txt", "checked")])
def test_a_run_that_was_killed_after_its_submission_ends_with_its_answer(
    check: str | None, state: str, tmp_path: Path
) -> None:
    model = script(tmp_path, turn(bash("echo 3 > output/answer.txt")), SUBMIT)
    options: dict[str, Any] = {"isolation": "process", "limits": {"steps": 2}, "check": check}
    whole = run(solve("A task.", model=model, output_dir=tmp_path / "runs", **options))
    lines = whole.journal.read_text("utf-8").splitlines(keepends=True)
    last = max(number for number, line in enumerate(lines) if '"call.finished"' in line)
    whole.journal.write_text("".join(lines[: last + 1]), "utf-8")
    killed = Run.load(whole.folder)
    assert killed.stop_reason is None
    again = run(killed.resume(isolation="process", check=check))
    assert (again.stop_reason, again.answer) == ("submitted", "3")
    assert len(again.steps) == 2, "the model is not asked again"
    assert state in again.trajectory.state(live=False).words


def check_killed(folder: Path, how: str) -> int:
    if not (folder / "journal.jsonl").exists():
        return 0
    run = Run.load(folder)
    events = run.trajectory.events
    where = f"{how}, {folder}, {len(events)} events"
    chain = [
        event for event in events if event.kind not in ("step.facts", "doubts")
    ]  # those stand at the event that they are of
    assert [event.parent for event in chain] == [None, *(event.id for event in chain)][: len(chain)], where
    check_messages(list(run.trajectory.messages(answer_open=True)))
    for length in range(len(events)):
        Trajectory(events[:length])
    written = folder / "trajectory.json"
    assert not written.exists() or json.loads(written.read_text())["problem_statement"] == "A task."
    for name, saved in run.trajectory.artifacts.items():
        assert run.files[name].size == saved.size, where
    return len(events)
