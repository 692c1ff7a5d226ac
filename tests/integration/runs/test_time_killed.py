"""`kill -9` in rewind, undo, edit, fork, checkpoint: never a mixture, nothing acknowledged is lost.

Before each event that is written; and, as a campaign, at random instants.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest
from agent_scripts import check_messages
from kill_points import killed_before_each, run_program
from support import run as in_loop
from support import size
from talking_model import TalkingModel, lines_by_talk

from llm_sandbox_nb.runs.checkpoint_files import CheckpointFiles
from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.sandbox.open import open_sandbox
from llm_sandbox_nb.trajectory.trajectory import Trajectory

KILLS = size(20, 100)
# A child for each instant, forked so that imports are paid for once. It says when it begins to travel, and writes
# down what each call that has returned has acknowledged: event, step, checkpoint, and how many events there were.
PROGRAM = """
import asyncio, json, os, random, signal, sys, time
from talking_model import TalkingModel
from llm_sandbox_nb.runs.solve import solve
from llm_sandbox_nb.sandbox.open import open_sandbox

async def travel(folder, seed, ready):
    dice = random.Random(seed)
    async with open_sandbox("process") as box:
        run = await solve("A task.", model=TalkingModel(4), sandbox=box, isolation="process", output_dir=folder)
        acknowledged = open(f"{folder}/acknowledged", "w", buffering=1)
        os.write(ready, b"x")
        plan = [["fork"], ["edit"], ["rewind"], []][seed % 4]
        while True:
            what = plan.pop() if plan else dice.choice(["rewind", "undo", "edit", "edit", "fork", "checkpoint"])
            last = run.steps[-1].number
            if what == "rewind":
                await run.rewind(dice.randint(0, last - 1), dice.choice(["both", "both", "conversation"]))
                if run.trajectory.rewinds[-1].what == "conversation":
                    await run.undo()
            elif what == "undo" and len(run.attempts) > 1:
                try: await run.undo()
                except ValueError: pass
            elif what == "edit":
                step = dice.randint(1, min(4, last))
                await run.rewind(step, before="call")
                run.edit(command=f"echo edited {dice.random()} >> log.txt")
                note(acknowledged, run)
                await run.resume()
            elif what == "fork":
                other = await run.fork(dice.randint(0, last - 1))
                await other.close()
            elif what == "checkpoint" and run.stop_reason != "submitted":
                await run.resume()
            note(acknowledged, run)

def note(file, run):
    one = run.trajectory
    file.write(json.dumps([len(one.events), one.head, one.files]) + chr(10))

parent, *instants = sys.argv[1:]
for number, instant in enumerate(instants):
    folder = f"{parent}/{number}"
    os.mkdir(folder)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        asyncio.run(travel(folder, number, write))
        os._exit(1)
    os.close(write)
    os.read(read, 1)
    os.close(read)
    time.sleep(float(instant))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
"""


JOURNEY = """
import asyncio, json, sys
from kill_points import for_each
from talking_model import TalkingModel
from llm_sandbox_nb.runs.solve import solve
from llm_sandbox_nb.sandbox.open import open_sandbox

async def travel(folder):
    async with open_sandbox("process") as box:
        run = await solve("A task.", model=TalkingModel(2), sandbox=box, isolation="process", output_dir=folder)
        acknowledged = open(f"{folder}/acknowledged", "w", buffering=1)
        def note():
            one = run.trajectory
            acknowledged.write(json.dumps([len(one.events), one.head, one.files]) + chr(10))
        note()
        await run.rewind(1)
        note()
        await run.undo()
        note()
        await run.rewind(1, "conversation")
        await run.undo()
        note()
        await run.rewind(2, before="call")
        run.edit(command="echo edited >> log.txt")
        note()
        await run.resume()
        note()
        fork = await run.fork(1)
        await fork.close()
        note()

for_each(lambda folder: asyncio.run(travel(folder)), sys.argv[1:])
"""


def runs_in(folder: Path) -> list[Path]:
    return [one for one in folder.glob("*/") if (one / "journal.jsonl").exists()]


def test_a_kill_before_any_event_leaves_one_state_and_not_two_halves(tmp_path: Path) -> None:
    last, numbers = killed_before_each(JOURNEY, tmp_path)
    assert last > 30
    for number in numbers:
        folder, where = tmp_path / str(number), f"before event {number} of {last}"
        found = runs_in(folder)
        written = sum((one / "journal.jsonl").read_bytes().count(b"\n") for one in found)
        assert written >= number - 1, f"{where}: a fork begins with a copy of its parent's events"
        acknowledged = folder / "acknowledged"
        for one in found:
            run = check(one, where) if acknowledged.exists() else Run.load(one)
            check_messages(list(run.trajectory.messages(answer_open=True)))
            if acknowledged.exists() and run.trajectory.start and run.trajectory.start.forked_from is None:
                nothing_lost(run, json.loads(acknowledged.read_text().splitlines()[-1]), where)
    for number in (numbers[len(numbers) // 2], numbers[-2]):
        in_loop(goes_on(tmp_path / str(number), f"before event {number} of {last}"))


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_a_kill_at_any_instant_leaves_one_state_and_not_two_halves(tmp_path: Path) -> None:
    seed = int(os.environ.get("LLM_SANDBOX_KILL_SEED") or random.randrange(10**6))
    dice = random.Random(seed)
    instants = [f"{dice.uniform(0.0, 1.2):.4f}" for _ in range(KILLS)]
    run_program(PROGRAM, tmp_path, *instants)
    runs, travelled, broken_off = 0, 0, 0
    for number in range(KILLS):
        where = f"seed {seed}, instant {number}"
        acknowledged = (tmp_path / str(number) / "acknowledged").read_text().splitlines()
        travelled += len(acknowledged)
        found = runs_in(tmp_path / str(number))
        runs += len(found)
        for folder in found:
            run = check(folder, where)
            broken_off += run.stop_reason is None
            if run.trajectory.start and run.trajectory.start.forked_from is None and acknowledged:
                nothing_lost(run, json.loads(acknowledged[-1]), where)
    assert runs > KILLS, f"seed {seed}: {runs} runs, with forks"
    assert travelled > KILLS // 2, f"seed {seed}: {travelled} calls returned"
    assert broken_off > KILLS // 10, f"seed {seed}: {broken_off} runs were not at an end"
    for number in range(0, KILLS, 10):
        in_loop(goes_on(tmp_path / str(number), f"seed {seed}, instant {number}"))


def check(folder: Path, where: str) -> Run:
    """Journal, conversation and files of a run that was killed, or of one of its forks."""
    run = Run.load(folder)
    where = f"{where}, {folder.name}, {len(run.trajectory.events)} events"
    check_messages(list(run.trajectory.messages(answer_open=True)))
    assert run.trajectory.files is not None, where
    manifest = CheckpointFiles(run).manifest(run.trajectory.files)
    path = next((path for path in manifest if path.endswith("/log.txt")), None)
    kept = CheckpointFiles(run).read(manifest[path], 10**6).decode().splitlines() if path else []
    assert kept == lines_by_talk(told_by(run)), where
    for branch in run.attempts:
        check_messages(list(run.at(branch).trajectory.messages(answer_open=True)))
    return run


def told_by(run: Run) -> Trajectory:
    """The talk that the files belong to: where only the conversation went back, the one that it came from."""
    talk = run.trajectory
    last = talk.rewinds[-1] if talk.rewinds else None
    if last is None or last.what != "conversation" or last.undo_of:
        return talk
    begun = talk.parent(last.id)
    came_from = talk.parent(begun) if begun else None
    return talk.at(came_from) if came_from else talk


def nothing_lost(run: Run, acknowledged: list[object], where: str) -> None:
    """What a call had said it did is there: the state then, or one that came after it."""
    count, head, files = acknowledged
    assert isinstance(count, int)
    events = run.trajectory.events
    assert len(events) >= count, where
    then = Run(run.folder, type(run.trajectory)(events[:count]), has_journal=False)
    assert (then.trajectory.head, then.trajectory.files) == (head, files), where
    assert isinstance(files, str)
    assert CheckpointFiles(run).has(files), where


async def goes_on(folder: Path, where: str) -> None:
    """A run that was killed goes on to its end, in a new sandbox, with the files that its talk is about."""
    [run] = [
        run
        for one in folder.glob("*/journal.jsonl")
        if (run := Run.load(one.parent)).trajectory.start and not run.trajectory.start.forked_from
    ]
    if told_by(run) is not run.trajectory:
        return  # talk and files are apart because somebody wanted that
    async with open_sandbox("process") as box:
        text = "More." if run.stop_reason == "submitted" else None
        await run.resume(text, model=TalkingModel(6), sandbox=box)
        kept = (await box.read_file("log.txt")).decode().splitlines()
        assert kept == lines_by_talk(run.trajectory), where
        assert run.stop_reason == "submitted", where
        check_messages(run.messages)
