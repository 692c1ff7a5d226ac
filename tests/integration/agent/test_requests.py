"""What people have asked of other tools in vain, one test each, that does what was asked."""

from __future__ import annotations

from pathlib import Path

from agent_scripts import SUBMIT, bash, check_messages, edit, outputs, script, turn
from time_travel import awaited, files_of, played_in, same_as_loaded, writes

from llm_sandbox_nb.runs.checkpoint_files import CheckpointFiles
from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.runs.solve import solve
from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.sandbox.open import open_sandbox


@awaited
async def test_swe_agent_1068_truncate_at_a_step_inject_information_and_resume(
    box: Sandbox, tmp_path: Path
) -> None:
    run = await played_in(box, tmp_path, writes(4))
    before = run.messages
    await run.rewind(2)
    kept = run.messages
    assert kept == before[: len(kept)]
    assert [step.number for step in run.steps] == [1, 2]
    await run.resume("The numbers are wrong: look at the units.")
    told = run.messages[len(kept)]
    assert told["role"] == "user"
    assert told["content"].startswith("The numbers are wrong: look at the units.")
    assert run.messages[: len(kept)] == kept
    assert run.stop_reason == "submitted"
    check_messages(run.messages)
    assert (await files_of(box))["log.txt"] == b"1\n2\n3\n4\n"
    same_as_loaded(run)


@awaited
async def test_openhands_8962_an_edited_message_forks_history_and_overwrites_nothing(
    box: Sandbox, tmp_path: Path
) -> None:
    run = await played_in(box, tmp_path, writes(3))
    first = [event.id for event in run.trajectory.path]
    await run.rewind(2, before="call")
    run.edit(command="echo edited > new2.txt")
    await run.resume()
    assert len(run.attempts) == 2
    old = next(branch for branch in run.attempts if not branch.head)
    assert [event.id for event in run.at(old).trajectory.path] == first
    assert run.at(old).steps[1].calls[0].arguments == {
        "command": "echo 2 > new2.txt; echo 2 >> log.txt; export NUMBER=2; echo 2 > output/last.txt"
    }
    assert run.steps[1].calls[0].arguments == {"command": "echo edited > new2.txt"}
    assert (await files_of(box))["new2.txt"] == b"edited\n"
    # A retry is the same without an edit: a third branch, and the first two are still there.
    await run.rewind(2, before="call")
    await run.resume()
    assert len(run.attempts) == 3
    assert (await files_of(box))["new2.txt"] == b"2\n"
    same_as_loaded(run)


@awaited
async def test_pi_5522_after_a_rewind_transcript_and_working_tree_agree(
    box: Sandbox, tmp_path: Path, isolation: str
) -> None:
    """Also for what bash wrote, deleted, moved and linked, which tools that watch their own editor do not see."""
    states: list[dict[str, bytes]] = []
    commands = [
        "echo a > a.txt; mkdir -p deep/er; echo b > deep/er/b.txt; ln -s a.txt link",
        "rm a.txt; mv deep elsewhere; ln -sfn elsewhere link; chmod 700 elsewhere",
        'python3 -c \'open("big.bin", "wb").write(bytes(range(256)) * 9999)\'; : > elsewhere/er/b.txt',
    ]
    turns = [turn(bash(command)) for command in commands]
    run = await played_in(box, tmp_path, [*turns, turn(edit("create", "e.txt", file_text="e\n")), SUBMIT])
    for step in range(1, 5):
        await run.rewind(step)
        states.append(await files_of(box) | {"link": (await box.run("readlink link")).stdout})
        await run.undo()
    assert sorted(states[0]) == ["a.txt", "deep/er/b.txt", "link"]
    assert states[1] == {"elsewhere/er/b.txt": b"b\n", "link": b"elsewhere\n"}
    assert states[2] == {
        "elsewhere/er/b.txt": b"", "link": b"elsewhere\n", "big.bin": bytes(range(256)) * 9999,
    }  # fmt: skip
    assert states[3] == states[2] | {"e.txt": b"e\n"}
    await run.rewind(2)
    assert [step.number for step in run.steps] == [1, 2]
    listed = (await box.run("stat -c %a elsewhere; ls -A")).text.split()
    assert listed[0] == "700"
    assert {"elsewhere", "link"} <= set(listed)
    assert not {"a.txt", "big.bin", "e.txt"} & set(listed)


@awaited
async def test_antigravity_713_chat_alone_files_alone_or_both(box: Sandbox, tmp_path: Path) -> None:
    run = await played_in(box, tmp_path, writes(3))
    everything = await files_of(box)
    whole = run.messages

    await run.rewind(1, what="conversation")
    assert (len(run.steps), await files_of(box)) == (1, everything)
    await run.undo()
    assert (run.messages, await files_of(box)) == (whole, everything)

    await run.rewind(1, what="files")
    assert run.messages == whole
    files = await files_of(box)
    assert (sorted(files), files["log.txt"]) == (["log.txt", "new1.txt", "output/last.txt"], b"1\n")
    await run.undo()
    assert (run.messages, await files_of(box)) == (whole, everything)

    await run.rewind(1)
    assert (len(run.steps), await files_of(box)) == (1, files)
    same_as_loaded(run)


@awaited
async def test_oh_my_pi_11663_a_reload_after_a_rewind_is_on_the_rewound_branch(tmp_path: Path) -> None:
    """Position and files are one line of the journal: nothing that lives in memory alone."""
    async with open_sandbox("process") as box:
        run = await played_in(box, tmp_path, writes(3))
        await run.rewind(1)
    loaded = same_as_loaded(run)
    assert [step.number for step in loaded.steps] == [1]
    journal = run.journal.read_text("utf-8").splitlines()
    assert sum('"kind":"rewound"' in line for line in journal) == 1
    await loaded.resume("Go on.", model=run.model, isolation="process")
    assert [step.number for step in loaded.steps] == [1, 2, 3, 4]
    assert loaded.files["last.txt"].read_text() == "3\n"
    manifest = {path.rpartition("/")[2] for path in await _kept(loaded)}
    assert {"new1.txt", "new2.txt", "new3.txt"} <= manifest


async def _kept(run: Run) -> set[str]:
    assert run.trajectory.files is not None
    return set(CheckpointFiles(run).manifest(run.trajectory.files))


@awaited
async def test_smolagents_1640_parameters_are_reviewed_and_edited_before_they_execute(tmp_path: Path) -> None:
    model = script(tmp_path, turn(bash("touch wrong; echo wrong")), turn(bash("ls")), SUBMIT)
    async with open_sandbox("process") as box:
        seen = []

        async def review(run: Run) -> None:
            seen.append((str(run.control.held), sorted(await files_of(box))))
            run.edit(command="touch right; echo right")

        run = await solve(
            "A task.", model=model, sandbox=box, isolation="process", output_dir=tmp_path,
            breakpoints="'wrong' in command", on_pause=review,
        )  # fmt: skip
        assert sorted(await files_of(box)) == ["right"]
    [(held, files)] = seen
    assert "touch wrong; echo wrong" in held
    assert files == []
    assert "right" in outputs(run)[0]
    assert run.steps[0].calls[0].arguments == {"command": "touch right; echo right"}
    assert "touch wrong" in run.steps[0].calls[0].raw_arguments
    check_messages(run.messages)
