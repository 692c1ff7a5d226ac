"""What a run has on disk of its output follows it back in time, with its sandbox open, closed, or in a fork."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from agent_scripts import SUBMIT, bash, turn
from support import eventually
from support import run as in_loop
from talking_model import TalkingModel
from time_travel import awaited, begun, files_of, played_in, same_as_loaded, talked

from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.sandbox.open import open_sandbox

TURNS = [
    turn(bash("echo one > output/a.txt; mkdir output/d; echo deep > output/d/e.txt")),
    turn(bash("echo two > output/a.txt; rm -r output/d; echo file > output/d")),
    turn(bash("rm output/a.txt; echo three > output/c.txt")),
    SUBMIT,
]
STATES = {
    0: {},
    1: {"a.txt": "one\n", "d/e.txt": "deep\n"},
    2: {"a.txt": "two\n", "d": "file\n"},
    3: {"c.txt": "three\n", "d": "file\n"},
}


LONG = "x" * 255


def kept(run: Run) -> dict[str, str]:
    return {name: file.read_text() for name, file in run.files.items()}


def recorded(run: Run) -> dict[str, str]:
    return {name: event.sha256 for name, event in run.trajectory.artifacts.items()}


def digests(files: dict[str, str]) -> dict[str, str]:
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in files.items()}


@pytest.mark.alike
def test_files_of_the_output_go_back_with_the_run(tmp_path: Path, isolation: str) -> None:
    async def with_its_sandbox() -> Path:
        async with open_sandbox(isolation) as box:
            run = await played_in(box, tmp_path, TURNS)
            assert kept(run) == STATES[3]
            for step in (1, 3, 2, 0):
                await run.rewind(step, "both" if step else "files")
                assert kept(run) == STATES[step]
                await run.undo()
                assert kept(run) == STATES[3]
            await run.rewind(1, "conversation")
            assert kept(run) == STATES[3]  # the sandbox has them still
            assert recorded(run) == recorded(Run.load(run.folder)) == digests(STATES[3])
            await run.undo()
            assert recorded(run) == digests(STATES[3])
            fork = await run.fork(2)
            assert (kept(fork), kept(run)) == (STATES[2], STATES[3])
            await fork.close()
        return run.folder

    async def without(folder: Path) -> None:
        run = Run.load(folder)
        for step in (2, 1):
            went = await run.rewind(step)
            assert went.problems == ()
            assert kept(run) == kept(Run.load(folder)) == STATES[step]
        await run.undo()
        assert kept(run) == STATES[2]

    folder = in_loop(with_its_sandbox(), timeout=120)
    in_loop(without(folder))


@awaited
async def test_a_fork_has_the_files_of_its_step_and_goes_on_with_them(tmp_path: Path) -> None:
    """Files are collected while the model thinks, so the record tells of them after the step; names may be no text."""
    turns = [
        turn(
            bash(
                "echo one > output/a.txt; printf n > output/$'\\xff.txt'; mkdir output/p; echo q > output/p/q; "
                f"echo long > output/{LONG}"
            )
        ),
        turn(bash("rm -r output/*; echo p > output/p")),
        turn(bash("ls output")),
        SUBMIT,
    ]
    first = {"a.txt": "one\n", "\udcff.txt": "n", "p/q": "q\n", LONG: "long\n"}

    async with open_sandbox("process") as box:
        run = await played_in(box, tmp_path, turns)
        assert kept(run) == {"p": "p\n"}
        skipped = await run.fork(2, before="call")
        skipped.deny("That is not done.")
        await skipped.resume()
        assert kept(skipped) == first
        assert set(skipped.trajectory.artifacts) == {"a.txt", "p/q", "\ufffd.txt", LONG}
        await skipped.rewind(1)
        assert kept(skipped) == first
        await skipped.close()
        loaded = Run.load(run.folder)
        await loaded.rewind(1)
        assert kept(loaded) == first
        assert set(loaded.trajectory.artifacts) == {"a.txt", "p/q", "\ufffd.txt", LONG}
        again = await loaded.fork(1, isolation="process")
        assert kept(again) == first
        await again.resume(model=run.model)
        assert kept(again) == {"p": "p\n"}
        assert set(again.trajectory.artifacts) == {"p"}
        await again.close()


@awaited
async def test_a_name_that_was_a_file_and_a_folder_stops_no_collecting(tmp_path: Path) -> None:
    turns = [
        turn(bash("mkdir -p output/p; echo q > output/p/q; echo f > output/f")),
        turn(bash("rm -r output/*; echo p > output/p; mkdir output/f; echo g > output/f/g")),
        SUBMIT,
        turn(
            bash("(until [ -e go ]; do sleep 0.05; done; echo late > output/late.txt; touch made) & echo ok")
        ),
        turn(bash("touch go; until [ -e made ]; do sleep 0.05; done")),
        SUBMIT,
    ]

    async with open_sandbox("process") as box:
        run = await played_in(box, tmp_path, turns)
        await run.resume("More.")
        assert kept(run) == {"p": "p\n", "f/g": "g\n", "late.txt": "late\n"}


@awaited
async def test_names_in_a_record_from_elsewhere_lead_nowhere(tmp_path: Path) -> None:
    """A journal that somebody else wrote says that a file above the folder of files was collected."""
    async with open_sandbox("process") as box:
        folder = (await played_in(box, tmp_path, TURNS)).folder
    journal = folder / "journal.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    for line in lines:
        if line["kind"] == "artifact" and line["path"] == "a.txt":
            line["path"] = "../../evil.txt"
    journal.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    outside = tmp_path / "outside"
    outside.mkdir()
    (folder / "files" / "d").unlink()
    (folder / "files" / "d").symlink_to(outside)
    run = Run.load(folder)
    await run.rewind(1)
    assert kept(run) == {"d/e.txt": "deep\n"}
    assert list(outside.iterdir()) == []
    assert not list(tmp_path.rglob("evil.txt"))


@awaited
async def test_a_rewind_of_the_conversation_alone_keeps_the_files_of_its_step(
    box: Sandbox, tmp_path: Path
) -> None:
    """The run has later files then. Those of the step are still there for a rewind, a fork and another run."""
    later, first = b"turn 1\nturn 2\nturn 3\n", b"turn 1\n"
    run = await talked(box, tmp_path, 3)
    await run.rewind(1, "conversation")
    assert (await files_of(box))["log.txt"] == later
    other = await run.fork(1)
    assert other.context.box
    assert (await files_of(other.context.box))["log.txt"] == first
    await other.close()
    async with open_sandbox("process") as second:
        await talked(second, tmp_path, 1, files_of=(run, 1))
        assert (await files_of(second))["log.txt"] == first + b"turn 1\n"
    assert len((await run.preview(1, "files")).files) == 1
    assert (await run.rewind(1, "files")).files == 1
    assert (await files_of(box))["log.txt"] == first
    await run.undo()
    assert (await files_of(box))["log.txt"] == later
    same_as_loaded(run)
    assert (await run.rewind(1, "files")).files == 1


@awaited
async def test_before_the_calls_of_a_step_are_the_files_that_the_calls_had(
    box: Sandbox, tmp_path: Path
) -> None:
    run = await talked(box, tmp_path, 3)
    await run.rewind(1, "conversation")
    await run.resume("Go on.", model=TalkingModel(2))
    assert (await files_of(box))["log.txt"] == b"turn 1\nturn 2\nturn 3\nturn 2\n"
    await run.rewind(2, before="call")
    assert (await files_of(box))["log.txt"] == b"turn 1\nturn 2\nturn 3\n"
    await run.undo()
    await run.rewind(2, "conversation", before="call")
    assert (await run.rewind(2, "files", before="call")).files == 1
    assert (await files_of(box))["log.txt"] == b"turn 1\nturn 2\nturn 3\n"
    await run.rewind(1)
    assert (await files_of(box))["log.txt"] == b"turn 1\n"
    same_as_loaded(run)


@awaited
async def test_a_rewind_of_the_files_alone_keeps_the_files_of_the_last_step(
    box: Sandbox, tmp_path: Path
) -> None:
    run = await talked(box, tmp_path, 3, limits={"steps": 3})
    assert [step.number for step in run.steps] == [1, 2, 3]
    await run.rewind(1, "files")
    assert (await files_of(box))["log.txt"] == b"turn 1\n"
    await run.rewind(3, "files")
    assert (await files_of(box))["log.txt"] == b"turn 1\nturn 2\nturn 3\n"
    same_as_loaded(run)


@awaited
async def test_a_result_that_a_rewind_of_the_conversation_kept_is_a_result_of_the_new_attempt(
    box: Sandbox, tmp_path: Path
) -> None:
    name = "output/{number}.txt"
    model = TalkingModel(3, command=f"test -e {name} || echo {{number}} > {name}")
    run, work = await begun(box, tmp_path, model=model, breakpoints="step == 3")
    await eventually(lambda: run.held)
    await run.rewind(1, "conversation")
    run.resume()
    await eventually(lambda: run.held)
    run.resume()
    await work
    assert sorted(run.trajectory.artifacts) == sorted(run.files) == ["1.txt", "2.txt", "3.txt"]
    same_as_loaded(run)
