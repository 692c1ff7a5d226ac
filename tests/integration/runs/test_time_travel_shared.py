"""Two runs in one sandbox: what each of them changed is told apart, and shown before anything is removed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from agent_scripts import SUBMIT, bash, script, turn
from time_travel import awaited, files_of, played_in, same_as_loaded

from llm_sandbox_nb.agent.errors import InputError
from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.sandbox.contract import Sandbox

A = [turn(bash("echo 1 > a.txt; echo 1 > log.txt")), turn(bash("echo 2 >> a.txt")), SUBMIT]
B = [turn(bash("cat input/given.csv > b.txt; echo b >> log.txt")), SUBMIT]


async def two_runs(box: Sandbox, folder: Path) -> tuple[Run, Run]:
    for name in "ab":
        (folder / name).mkdir()
    (folder / "given.csv").write_text("given\n")
    a = await played_in(box, folder / "a", A, task="Make a.")
    b = await played_in(box, folder / "b", B, task="Make b.", inputs=folder / "given.csv")
    return a, b


def paths(found: object) -> list[str]:
    return [str(one).rpartition("/")[2] for one in found]  # type: ignore[attr-defined]


@pytest.mark.alike
@awaited
async def test_a_rewind_names_what_another_run_made_before_it_removes_it(
    box: Sandbox, tmp_path: Path, isolation: str
) -> None:
    a, b = await two_runs(box, tmp_path)
    before = await files_of(box)
    preview = await a.preview(1)
    assert paths(change.path for change in preview.own) == ["a.txt"]
    assert paths(change.path for change in preview.others) == ["b.txt", "given.csv", "log.txt"]
    text = str(preview)
    assert "1 path changes, 2 steps become an earlier attempt" in text
    assert "3 paths were changed later by another run ('Make b.')" in text
    assert text.index("a.txt") < text.index("another run") < text.index("b.txt")
    with pytest.raises(InputError, match="others=True") as refused:
        await a.rewind(1)
    for name in ("b.txt", "given.csv", "log.txt", "Make b."):
        assert name in str(refused.value)
    assert await files_of(box) == before
    assert (a.stop_reason, a.trajectory.rewinds) == ("submitted", [])
    went = await a.rewind(1, others=True)
    assert went.files == len(preview.files) == 4, "both count what a person sees"
    assert paths(went.others) == ["b.txt", "given.csv", "log.txt"]
    assert "result.undo() restores them" in str(went)
    assert await files_of(box) == {"a.txt": b"1\n", "log.txt": b"1\n"}
    await a.undo()
    assert await files_of(box) == before
    # What the other run made is still its own after the undo, and a loaded record knows it as well.
    again = await a.preview(1)
    assert paths(change.path for change in again.others) == ["b.txt", "given.csv", "log.txt"]
    with pytest.raises(InputError, match="others=True"):
        await a.rewind(1)
    same_as_loaded(a)
    # The run that made them last may take them back without more ado.
    await b.rewind(0, others=True)
    assert sorted(await files_of(box)) == ["a.txt", "input/given.csv", "log.txt"]


@pytest.mark.alike
@awaited
async def test_resuming_refuses_to_undo_what_another_run_made_and_an_undo_finds_it(
    box: Sandbox, tmp_path: Path, isolation: str
) -> None:
    a, b = await two_runs(box, tmp_path)
    before, events = await files_of(box), a.journal.read_bytes()
    with pytest.raises(InputError, match="others=True") as refused:
        await a.resume("Once more.", limits={"steps": 9})
    for name in ("b.txt", "given.csv", "log.txt", "Make b."):
        assert name in str(refused.value)
    assert (await files_of(box), a.journal.read_bytes()) == (before, events)
    await a.resume(
        "Once more.", model=script(tmp_path, *A, turn(bash("cat a.txt > c.txt")), SUBMIT), others=True
    )
    assert await files_of(box) == {"a.txt": b"1\n2\n", "c.txt": b"1\n2\n", "log.txt": b"1\n"}
    same_as_loaded(a)
    await a.undo()
    assert await files_of(box) == before
    # Its own files again, without anything of another run: nobody is asked.
    await a.resume("Once more.", model=script(tmp_path, *A, SUBMIT, SUBMIT, SUBMIT, SUBMIT))
    assert b.stop_reason == a.stop_reason == "submitted"


@awaited
async def test_replay_and_compare_leave_out_what_another_run_made(
    box: Sandbox, tmp_path: Path, some_isolation: str
) -> None:
    a, b = await two_runs(box, tmp_path)
    reference = await played_in(box, tmp_path, [SUBMIT], task="Nothing.")
    await a.rewind(1, others=True)
    await a.undo()
    replayed = await a.replay()
    assert replayed.ok, str(replayed)
    assert "not by a step of this run" in replayed.note
    for one in (a, Run.load(a.folder)):
        same = one.compare(replayed.run)
        assert paths(same.files) == []
        assert paths(same.others) == ["b.txt", "given.csv", "log.txt"]
        assert "given.csv" in str(same)
        assert "not by a step of" in str(same)
    # A real difference is still one.
    differing = a.compare(reference)
    assert "a.txt" not in paths(differing.files), "it was there when the other run began, and stayed"
    await a.rewind(1, others=True)
    await a.resume("Once more.", model=replayed.run.model)
    compared = a.compare()
    assert "b.txt" not in paths(compared.files)
    assert b.stop_reason == "submitted"


@awaited
async def test_what_a_person_changed_is_named_and_hinders_no_rewind(box: Sandbox, tmp_path: Path) -> None:
    run = await played_in(box, tmp_path, A)
    await box.run("echo mine > note.txt; echo mine >> a.txt")
    preview = await run.preview(1)
    assert paths(change.path for change in preview.others) == ["a.txt", "note.txt"]
    assert paths(change.path for change in preview.files if change.kind == "deleted") == ["note.txt"]
    assert "by you or by a program that still runs" in str(preview)
    went = await run.rewind(1)
    assert paths(went.others) == ["a.txt", "note.txt"]
    assert "note.txt" in str(went)
    await run.undo()
    assert (await files_of(box))["note.txt"] == b"mine\n"
    assert (await run.replay()).ok


@awaited
async def test_a_rewound_run_says_how_it_continues(box: Sandbox, tmp_path: Path) -> None:
    run = await played_in(box, tmp_path, A)
    assert "Submitted, not checked · 3 steps" in repr(run)
    went = await run.rewind(1)
    calls = "result.resume(), result.resume('Say something first.') or result.undo()"
    ready = f"Ready to continue from step 1: {calls}"
    assert str(went).endswith(f"{ready}.")
    for one in (run, same_as_loaded(run)):
        assert ready in repr(one)
        assert one.trajectory.ready_at == 1
        assert one.trajectory.rewinds[-1].restored == 1
    assert "Ready" not in str(await run.undo())
    assert "Submitted, not checked · 3 steps" in repr(run)
    await run.rewind(0)
    assert "Ready to continue from the beginning" in repr(run)
    await run.resume()
    assert (run.stop_reason, run.trajectory.ready_at) == ("submitted", None)


@awaited
async def test_a_call_that_is_not_awaited_says_so_and_changes_nothing(box: Sandbox, tmp_path: Path) -> None:
    run = await played_in(box, tmp_path, A)
    before = run.journal.read_bytes()
    forgotten = run.rewind(1)
    assert "Nothing has happened yet" in repr(forgotten)
    assert "`await result.rewind(1)`" in repr(forgotten)
    with pytest.raises(AttributeError, match=r"\(await result.rewind\(1\)\).files"):
        forgotten.files  # noqa: B018
    with pytest.warns(RuntimeWarning, match=r"never awaited.*`await result.rewind\(1\)`"):
        del forgotten
    await asyncio.sleep(0)
    assert run.journal.read_bytes() == before
    later = run.rewind(1)
    assert (await later).files == (await later).files == 1
    assert len(run.trajectory.rewinds) == 1
    await run.undo()
    assert run.stop_reason == "submitted"


@pytest.mark.alike
@awaited
async def test_a_resumed_run_has_its_own_answer_and_not_that_of_another_run(
    box: Sandbox, tmp_path: Path, isolation: str
) -> None:
    await played_in(box, tmp_path, [turn(bash("echo Paris > output/answer.txt")), SUBMIT])
    for command, answer in (("echo 1 > output/one", None), ("echo Paris > output/answer.txt", "Paris")):
        run = await played_in(box, tmp_path, [turn(bash(command)), SUBMIT], limits={"steps": 1})
        fork = await run.fork(1)
        await run.resume(limits={"steps": 3})
        await fork.close()
        loaded = Run.load(fork.folder)
        await loaded.resume(model=run.model, limits={"steps": 3}, isolation=isolation)
        await loaded.close()
        assert [run.answer, loaded.answer] == [answer, answer]


@pytest.mark.parametrize("same_sandbox", [True, False])
@awaited
async def test_an_answer_is_not_that_of_an_earlier_request(
    box: Sandbox, tmp_path: Path, same_sandbox: bool
) -> None:
    """A part that ended before its answer goes on, and keeps what it wrote."""
    said = {**SUBMIT, "text": "There is 1 s."}
    three, four = (turn(bash(f"echo {number} > output/answer.txt")) for number in (3, 4))
    run = await played_in(box, tmp_path, [three, SUBMIT, said, four, SUBMIT, three, SUBMIT, SUBMIT])
    answers = [run.answer]
    if not same_sandbox:
        await box.close()
    for text, steps in (("How many s?", 3), ("And t?", 4), (None, 5), ("And u?", 7), ("Done?", 8)):
        if not same_sandbox:
            run = Run.load(run.folder)
        options = {} if same_sandbox else {"model": run.model, "isolation": "process"}
        await run.resume(text, limits={"steps": steps}, **options)
        answers.append(run.answer)
        await run.close()
    assert answers == ["3", "There is 1 s.", "4", "4", "3", "3"]


@awaited
async def test_a_resume_that_is_refused_changes_no_file(box: Sandbox, tmp_path: Path) -> None:
    a, _ = await two_runs(box, tmp_path)
    before = await files_of(box)
    with pytest.raises(InputError, match="has had 3 steps and may have 3"):
        await a.resume("Once more.", limits={"steps": 3}, others=True)
    with pytest.raises(InputError, match="The control belongs to another run"):
        await a.resume("Once more.", control=a.control, others=True)
    assert await files_of(box) == before
    assert a.trajectory.rewinds == []
