"""Back, on, elsewhere: what `Run` does with a run's time, while it goes on and afterwards."""

from __future__ import annotations

import asyncio
import fcntl
import json
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from agent_scripts import SUBMIT, bash, check_messages, outputs, script, turn
from support import eventually
from support import run as in_loop
from talking_model import TalkingModel
from time_travel import awaited, begun, files_of, played_in, same_as_loaded, talked, writes

from llm_sandbox_nb.agent.errors import ControlError, InputError
from llm_sandbox_nb.analysis.usage import times_of
from llm_sandbox_nb.runs.catalog import list_runs
from llm_sandbox_nb.runs.event_loops import EventLoops
from llm_sandbox_nb.runs.recorded_spec import recorded_spec
from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.runs.solve import solve
from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.sandbox.open import open_sandbox
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.journal import JournalError
from llm_sandbox_nb.trajectory.run_folder import run_folders, short_ids


@pytest.mark.alike
@awaited
async def test_a_run_under_way_is_taken_back_and_halts_there(
    box: Sandbox, tmp_path: Path, isolation: str
) -> None:
    """What is under way is ended; its result stays on the branch that is left and leaks nowhere."""
    waits = turn(bash("echo half > half.txt; echo It waits.; sleep infinity; echo late > late.txt"))
    waiting = asyncio.Event()

    def listen(event: ev.Event) -> None:
        if isinstance(event, ev.CallOutput) and "It waits." in event.text:
            waiting.set()

    model = script(tmp_path, *writes(2)[:2], waits, SUBMIT)
    run, work = await begun(box, tmp_path / "runs", model=model, listeners=[listen])
    await waiting.wait()
    await run.rewind(1)
    assert [step.number for step in run.steps] == [1]
    assert sorted(await files_of(box)) == ["log.txt", "new1.txt", "output/last.txt"]
    assert not work.done()
    left = run.at(next(branch for branch in run.attempts if not branch.head))
    cut_short = left.steps[2].calls[0].result
    assert cut_short
    assert cut_short.error == "interrupted"
    await run.undo()
    assert [step.number for step in run.steps] == [1, 2, 3]
    assert (await files_of(box))["half.txt"] == b"half\n"
    run.say("Do not sleep.")
    run.resume()
    await work
    assert run.stop_reason == "submitted"
    assert "late.txt" not in await files_of(box)
    assert any("Do not sleep." in str(message["content"]) for message in run.messages)
    check_messages(run.messages)
    same_as_loaded(run)


@pytest.mark.alike
@awaited
async def test_travel_to_the_last_step_waits_for_its_checkpoint(
    box: Sandbox, tmp_path: Path, isolation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint is taken beside the run, so a run that has just paused may not have the newest yet."""
    take, taking, may_take = box.checkpoint, asyncio.Event(), asyncio.Event()

    async def late(*, keep: Collection[str] = ()) -> str:
        if "log.txt" in await files_of(box):
            taking.set()
            await may_take.wait()
        return await take(keep=keep)

    monkeypatch.setattr(box, "checkpoint", late)
    runs: list[Run] = []

    def listen(event: ev.Event) -> None:
        if isinstance(event, ev.CallFinished):
            runs[0].pause()

    model = script(tmp_path, *writes(1))
    run, work = await begun(box, tmp_path / "runs", model=model, on_run=runs.append, listeners=[listen])
    await taking.wait()
    travels = [asyncio.ensure_future(_awaited(one)) for one in (run.preview(1), run.fork(1))]
    await files_of(box)  # many times as long as a travel takes to its first request
    assert not any(travel.done() for travel in travels)
    may_take.set()
    preview, other = await asyncio.gather(*travels)
    assert not preview.files
    await run.rewind(1)
    run.resume()
    await work
    assert [step.number for step in other.steps] == [1]
    await other.close()
    same_as_loaded(run)


async def _awaited(call: Any) -> Any:
    return await call


@awaited
async def test_forks_live_at_once_and_know_nothing_of_each_other(
    box: Sandbox, tmp_path: Path, isolation: str
) -> None:
    run = await talked(box, tmp_path, 3)
    first, second = await asyncio.gather(run.fork(1), run.fork(2))
    models = [TalkingModel(5, command=f"echo {name} {{number}} >> log.txt") for name in ("a", "b")]
    await asyncio.gather(first.resume(model=models[0]), second.resume(model=models[1]))
    logs = [await one.context.box.read_file("log.txt") for one in (run, first, second) if one.context.box]
    assert logs == [
        b"turn 1\nturn 2\nturn 3\n",
        b"turn 1\na 2\na 3\na 4\na 5\n",
        b"turn 1\nturn 2\nb 3\nb 4\nb 5\n",
    ]
    forks = [event.step for event in run.trajectory.events if isinstance(event, ev.Forked)]
    assert forks in ([1, 2], [2, 1])
    for one in (first, second):
        started = same_as_loaded(one).trajectory.start
        assert started
        assert started.forked_from
        assert started.forked_from.run_id == run.id
        assert Path(started.forked_from.folder).name == run.folder.name
        await one.close()
        await one.close()
    compared = run.compare(first, second)
    assert [len(row.steps) for row in compared.rows] == [3] * len(compared.rows)
    assert compared.first_different_step == 2
    assert "-turn 2\n" in compared.diff("/testbed/log.txt")
    assert "log.txt" in compared._repr_html_()
    assert len(compared.to_dataframe()) == len(compared.rows)
    # A fork of a run whose sandbox is gone opens one of its own.
    again = await first.fork(3)
    assert again.context.box
    assert await again.context.box.read_file("log.txt") == b"turn 1\na 2\na 3\n"
    await again.close()


@awaited
async def test_a_replay_finds_what_differs_and_nothing_else(tmp_path: Path) -> None:
    counter = tmp_path / "outside"
    counter.write_text("1")
    turns = [
        turn(bash("cat input/given.txt; echo pid $$")),
        turn(bash(f"cat {counter} > copied.txt")),
        turn(bash("date +%N > time.log; wc -c < copied.txt")),
        SUBMIT,
    ]
    (tmp_path / "given.txt").write_text("given\n")
    model = script(tmp_path, *turns)
    run = await solve(
        "A task.",
        model=model,
        isolation="process",
        output_dir=tmp_path / "runs",
        inputs=tmp_path / "given.txt",
    )
    declared: dict[str, Any] = {"ignore": [r"pid \d+"], "ignore_files": ["*/time.log"]}
    same = await run.replay(**declared)
    assert same.ok, str(same)
    assert (same.steps, same.run.folder != run.folder) == (4, True)
    bare = await run.replay()
    assert bare.first
    assert (bare.first.step, "pid" in bare.first.now) == (1, True)
    counter.write_text("22")
    other = await run.replay(**declared)
    assert [one.step for one in other.differences] == [2, 3]
    assert other.first
    assert other.first.files == ("/testbed/copied.txt",)
    assert "first is step 2" in str(other)
    states = {entry.folder: entry.state for entry in list_runs(tmp_path / "runs")}
    short = short_ids(run_folders(tmp_path / "runs"))[run.folder]
    assert states[same.run.folder] == f"Replay of {short}: nothing differs"
    assert states[other.run.folder] == f"Replay of {short}: 2 steps differ, first step 2"
    with pytest.raises(InputError, match="regular expression"):
        await run.replay(["("])


@awaited
async def test_a_conversation_from_elsewhere_gets_its_files_and_goes_on_live(tmp_path: Path) -> None:
    """In the original package's form: one record for each call, no files, no prompts."""
    records = [
        ("execute_bash", {"command": "cat input/data.txt > copy.txt; export SEEN=yes"}, "(nothing)"),
        ("str_replace_editor", {"command": "create", "path": "note.txt", "file_text": "a note\n"}, "made"),
        ("execute_bash", {"command": "cat copy.txt note.txt"}, "data\na note\n"),
    ]
    steps = [
        {
            "thought": f"I think {number}.", "reasoning_content": "",
            "action": {"function": tool, "parameters": parameters}, "observation": seen,
            "metadata": {"step": number, "exec_time": 1.0},
        }
        for number, (tool, parameters, seen) in enumerate(records, 1)
    ]  # fmt: skip
    seed = {"problem_statement": "Copy and note.", "steps": steps, "metadata": {"total_steps": 3}}
    (tmp_path / "trajectory.json").write_text(json.dumps(seed))
    (tmp_path / "data.txt").write_text("data\n")

    loaded = Run.load(tmp_path / "trajectory.json")
    with pytest.raises(InputError, match="rebuild"):
        loaded.rewind(1)
    with pytest.raises(InputError, match="rebuild"):
        await loaded.resume("Go on.", model="scripted/strawberry")
    assert not (tmp_path / "journal.jsonl").exists()
    run = await loaded.rebuild(
        isolation="process", inputs=tmp_path / "data.txt", output_dir=tmp_path / "runs"
    )
    assert (run.task, len(run.steps)) == ("Copy and note.", 3)
    assert "data\na note" in outputs(run)[2]
    assert run.rebuilt
    assert not run.rebuilt.ok
    with pytest.raises(InputError, match="name one"):
        await run.resume()
    command = "echo $SEEN >> note.txt; echo turn {number} >> note.txt"
    await run.resume(model=TalkingModel(4, command=command))
    assert run.stop_reason == "submitted"
    assert len(run.steps) == 5
    check_messages(run.messages)
    await run.rewind(2)
    async with open_sandbox("process") as box:
        await run.resume(model=TalkingModel(2), sandbox=box)
        assert await box.read_file("note.txt") == b"a note\n"


@awaited
async def test_a_record_of_the_paper_s_package_is_rebuilt_with_a_shell_for_each_call(tmp_path: Path) -> None:
    """`cd` and variables end with their call, also when the rebuilt run is replayed and resumed."""
    commands = ["mkdir sub; cd sub; pwd; export SEEN=yes", "basename $PWD > where.txt; echo seen=$SEEN; ls"]
    label = "Execution output of \\[execute_bash]:\n\\[STDOUT]\n"
    steps = [
        {
            "thought": "", "reasoning_content": "", "metadata": {"step": number, "exec_time": 1.0},
            "action": {"function": "execute_bash", "parameters": {"command": command}},
            "observation": f"Exit code: 0\n{label}?",
        }
        for number, command in enumerate(commands, 1)
    ]  # fmt: skip
    (tmp_path / "trajectory.json").write_text(json.dumps({"problem_statement": "Look.", "steps": steps}))
    run = await Run.load(tmp_path).rebuild(isolation="process", output_dir=tmp_path / "runs")
    assert [step.calls[0].arguments for step in run.steps] == [{"command": one} for one in commands]
    assert "/sub\n" in outputs(run)[0]
    assert "seen=\n" in outputs(run)[1]
    assert "sub\nwhere.txt" in outputs(run)[1]
    assert (await run.replay(isolation="process")).ok
    await run.resume("Look again.", model=TalkingModel(3, command="ls -d sub; cd sub"))
    assert "sub" in outputs(run)[2]
    assert "No such file" not in outputs(run)[2]


@contextmanager
def held(journal: Path) -> Iterator[None]:
    with journal.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@awaited
async def test_a_run_that_executes_elsewhere_is_forked(box: Sandbox, tmp_path: Path) -> None:
    """The executing process alone writes the journal of the run. So only the record of the fork names both."""
    model = script(tmp_path, *writes(2))
    run, work = await begun(box, tmp_path / "runs", model=model, breakpoints="step == 2")
    await eventually(lambda: run.held and 1 in run.trajectory.checkpoints)
    fork = await Run.load(run.folder).fork(1, isolation="process")
    assert fork.context.box
    assert (await files_of(fork.context.box))["log.txt"] == b"1\n"
    same_as_loaded(run)
    run.resume()
    await work
    entries = {entry.name: entry.forked_from for entry in list_runs(run.folder.parent)}
    assert entries == {run.folder.name: None, fork.folder.name: run.folder.name}
    await fork.close()


@awaited
async def test_wrong_wishes_get_a_sentence_and_change_nothing(box: Sandbox, tmp_path: Path) -> None:
    run = await talked(box, tmp_path, 2)
    before = run.journal.read_bytes(), sorted(run.folder.parent.iterdir())
    wrong: Any = "talk"
    wishes: list[tuple[Callable[[], object], str]] = [
        (lambda: run.rewind(9), "no step 9"),
        (lambda: run.rewind(-1), "no step -1"),
        (lambda: run.rewind(1, wrong), "both, files or conversation"),
        (lambda: run.rewind(0, before="call"), "no step 0"),
        (lambda: run.fork(7), "no step 7"),
        (run.undo, "no rewind"),
        (run.compare, "one attempt"),
    ]
    for wish, words in wishes:
        with pytest.raises(InputError, match=words):
            wish()
    with pytest.raises(InputError, match="what more"):
        await run.resume()
    with pytest.raises(InputError, match="no setting 'temprature'"):
        await run.resume("x", settings={"temprature": 1})
    with pytest.raises(InputError, match="limit on steps is a whole number above zero, not 'x'"):
        await run.resume("x", limits={"steps": "x"})
    with pytest.raises(InputError, match="compared with runs, not with 'talk'"):
        run.compare(wrong)
    with pytest.raises(InputError, match="has had 3 steps"):
        await run.resume("x", limits={"steps": 2})
    with pytest.raises(ControlError, match="No call waits"):
        run.edit(command="ls")
    assert (run.journal.read_bytes(), sorted(run.folder.parent.iterdir())) == before
    await run.rewind(1, before="call")
    edits: list[tuple[Any, dict[str, Any], str]] = [
        ({"wrong": 1}, {}, "command"),
        ("ls", {}, "have names"),
        (None, {"foo": 1}, "has no argument 'foo'"),
        ({"command": 3}, {}, "command"),
    ]
    for arguments, changes, words in edits:
        with pytest.raises(ControlError, match=words):
            run.edit(arguments, **changes)
    with pytest.raises(ControlError, match="has no argument 'command'"):
        run.edit(tool="submit", command="ls")
    with held(run.journal), pytest.raises(JournalError, match="is already running"):
        run.edit(command="ls")


@awaited
async def test_a_run_whose_files_are_gone_stays_as_it_is(tmp_path: Path) -> None:
    run = await solve("A task.", model=TalkingModel(2), isolation="process", output_dir=tmp_path)
    shutil.rmtree(run.folder / "history")
    before = run.journal.read_bytes()
    loaded = Run.load(run.folder)
    with pytest.raises(InputError, match=r"not kept, so it cannot resume: result.rebuild\(\)"):
        await loaded.resume("More.", model=TalkingModel(3))
    assert run.journal.read_bytes() == before
    assert Run.load(run.folder).stop_reason == "submitted"
    assert str(await loaded.preview(1, "conversation")).count("are ended") == 0
    shutil.rmtree(run.folder)
    with pytest.raises(InputError, match="folder of this run is gone"):
        await loaded.resume("More.", model=TalkingModel(3))
    assert not run.folder.exists()


@awaited
async def test_a_run_that_never_began_does_not_resume(tmp_path: Path) -> None:
    """A full disk leaves an empty journal. Without its task, the model would work on nothing."""
    (tmp_path / "journal.jsonl").touch()
    run = Run.load(tmp_path)
    with pytest.raises(InputError, match=r"No run has begun in .*: start the task again"):
        await run.resume("More.", model=TalkingModel(3))
    assert run.journal.read_bytes() == b""


@awaited
async def test_a_loaded_run_asks_for_the_approvals_that_it_asked_for_before(tmp_path: Path) -> None:
    """For example after a restart of the kernel; another rule that is given does not replace this one."""

    def pauses(kind: str, run: Run) -> list[int]:
        return [
            event.step
            for event in run.trajectory.path
            if isinstance(event, ev.CallHeld)
            if event.reason == kind
        ]

    def never(moment: Any) -> bool:
        return False

    rules: dict[str, Any] = {"approve": "ask", "breakpoints": "step == 2", "break_when": never}
    run = await solve(
        "A task.",
        model=TalkingModel(3),
        isolation="process",
        output_dir=tmp_path,
        on_pause="continue",
        **rules,
    )
    await run.rewind(1)
    loaded = Run.load(run.folder)
    options: dict[str, Any] = {"model": TalkingModel(3), "isolation": "process"}
    with pytest.raises(InputError, match=r"function never .*break_when=never"):
        await loaded.resume(on_pause="continue", **options)
    with pytest.raises(InputError, match="Nobody could decide"):
        await loaded.resume(break_when=(), **options)
    await loaded.resume(break_when=(), on_pause="continue", **options)
    assert pauses("approval", loaded) == [1, 3, 4]
    assert pauses("breakpoint", loaded) == [2]
    await loaded.rewind(1)
    again = Run.load(run.folder)
    await again.resume(break_when=(), breakpoints=(), on_pause="continue", **options)
    assert pauses("approval", again) == [1, 2, 3, 4]


@awaited
async def test_a_loaded_run_steps_as_long_as_a_person_did_not_continue_it(tmp_path: Path) -> None:
    def pauses(run: Run) -> list[int]:
        return [event.step for event in run.trajectory.path if isinstance(event, ev.CallHeld)]

    options: dict[str, Any] = {"isolation": "process"}
    run = await solve(
        "A task.",
        model=TalkingModel(3),
        output_dir=tmp_path,
        step=True,
        on_pause=lambda held: "step" if held.steps[-1].number == 1 else "continue",
        **options,
    )
    assert pauses(run) == [1, 1, 2], "the person steps through the first step, then continues"
    await run.rewind(1)
    loaded = Run.load(run.folder)
    with pytest.raises(InputError, match="Nobody could decide"):
        await loaded.resume(model=TalkingModel(3), **options)
    await loaded.resume(model=TalkingModel(3), on_pause="continue", **options)
    assert pauses(loaded) == [1, 1, 2]
    again = Run.load(run.folder)
    await again.resume("More.", model=TalkingModel(3), **options)
    await again.rewind(1)
    await again.resume(step=False, model=TalkingModel(3), **options)
    assert pauses(again) == [1, 1]
    assert not recorded_spec(Run.load(run.folder), TalkingModel(3)).pause_rules.step
    await again.resume("More.", step=True, approve="ask", model=TalkingModel(3), on_pause="stop", **options)
    rules = recorded_spec(Run.load(run.folder), TalkingModel(3)).pause_rules
    assert (rules.step, rules.approve) == (True, "ask"), "rules that a resume was given"


@awaited
async def test_the_text_of_the_reply_that_submits_is_the_answer_also_after_a_resume(
    box: Sandbox, tmp_path: Path
) -> None:
    run = await played_in(box, tmp_path, [turn(bash("true")), {"text": "It is 3.", **SUBMIT}])
    assert run.answer == "It is 3."
    await run.rewind(2, before="call")
    await run.resume()
    assert (run.stop_reason, run.answer) == ("submitted", "It is 3.")
    same_as_loaded(run)


@awaited
async def test_skip_and_observe_on_a_run_that_stands_still(box: Sandbox, tmp_path: Path) -> None:
    run = await talked(box, tmp_path, 3)
    await run.rewind(2, before="call")
    run.deny("There was no need.")
    await run.resume()
    assert await box.read_file("log.txt") == b"turn 1\nturn 3\n"
    assert outputs(run)[1].startswith("There was no need.")
    await run.rewind(1)
    run.observe("All lights are green.")
    await run.resume()
    assert run.steps[0].calls[0].output == "All lights are green."
    assert any(message["content"] == "All lights are green." for message in run.messages)
    check_messages(run.messages)
    same_as_loaded(run)


@awaited
async def test_a_cell_awaits_a_run_in_a_sandbox_that_it_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To wait in the cell would stop the event loop that the sandbox needs."""
    monkeypatch.setattr(EventLoops, "cells_wait", True)

    run = await solve("A task.", model=TalkingModel(2), isolation="process", output_dir=tmp_path)
    async with open_sandbox("process") as box:
        loaded = await Run.load(run.folder).resume("More.", model=TalkingModel(3), sandbox=box)
        assert loaded.stop_reason == "submitted"
        assert len(await box.read_file("log.txt")) > 0


def test_in_a_script_every_call_returns_when_it_is_done(tmp_path: Path) -> None:
    """No event loop, no await; and a history that a run has is gone with its folder."""
    run = in_loop(solve("A task.", model=TalkingModel(3), isolation="process", output_dir=tmp_path))
    assert "Back to step 1" in str(run.preview(1))
    assert "end of step 1" in str(run.rewind(1))
    assert run.resume(model=TalkingModel(2)).stop_reason == "submitted"
    assert len(run.steps) == 3
    other = run.fork(1)
    assert other.resume(model=TalkingModel(4)).stop_reason == "submitted"
    other.close()
    assert run.replay().ok
    assert (run.folder / "history").is_dir()
    assert [path.name for path in other.folder.iterdir() if path.name.startswith(".")] == []


@awaited
async def test_a_reached_limit_is_raised_and_the_run_goes_on(box: Sandbox, tmp_path: Path) -> None:
    run = await talked(box, tmp_path, 3, limits={"steps": 2})
    assert run.stop_reason == "steps"
    await run.resume(limits={"steps": 9})
    assert run.stop_reason == "submitted"
    changed = [event for event in run.trajectory.path if event.kind == "settings.changed"]
    assert len(changed) == 1
    assert any(str(message["content"]).startswith("Continue with the task.") for message in run.messages)
    check_messages(run.messages)


@awaited
async def test_a_run_that_goes_on_counts_the_time_that_it_had(box: Sandbox, tmp_path: Path) -> None:
    turns = [turn(bash("sleep 0.5")), turn(bash("true")), SUBMIT]
    run = await played_in(box, tmp_path, turns, limits={"steps": 1, "time": 100})
    assert run.trajectory.finish is not None
    before = run.trajectory.finish.wall_time
    assert before > 0.5
    fork = await run.fork(1)
    for other in (run, fork):
        await other.resume(limits={"steps": 9})
        assert other.trajectory.finish is not None
        assert other.trajectory.finish.wall_time > 0.5
        assert 0 < (times_of(other.trajectory).tool_share or 0) < 1
    assert run.trajectory.finish.wall_time > before
    with pytest.raises(InputError, match=r"The run has taken .* and may take .*limits=\{'time': 60\}"):
        await run.resume("More.", limits={"time": 0.5})
    await fork.close()
