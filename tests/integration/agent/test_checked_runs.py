"""The check of a result: tries, verdicts, limits and stops, and that it belongs to the branch."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from agent_scripts import SUBMIT, bash, outputs, solved, turn
from support import run

from llm_sandbox_nb.agent.control.run_control import RunControl
from llm_sandbox_nb.agent.errors import InputError
from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.runs.solve import solve
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.journal import load_text
from llm_sandbox_nb.trajectory.run_summary import summarize

TESTS = (
    b"import os, sys, unittest\nsys.path.append(os.environ['WORKSPACE'])\n"
    b"class Total(unittest.TestCase):\n"
    b"    def test_two(self): from total import f; self.assertEqual(f(2), 4)\n"
    b"    def test_file(self): self.assertEqual(sys.stdin.read(), 'done')\n"
)
CHECK: dict[str, Any] = {
    "check": "python3 -m unittest -q test_total",
    "check_files": {"test_total.py": TESTS},
}


def wrote(source: str, answer: str = "done") -> dict[str, Any]:
    return turn(bash(f"echo '{source}' > total.py; mkdir -p output; printf '{answer}' > output/answer.txt"))


WRONG, RIGHT = wrote("def f(x): return x"), wrote("def f(x): return x * 2")


def words(one: Run) -> str:
    said = one.trajectory.state(live=False).words
    summary = summarize(one.folder)
    assert summary is not None
    assert (
        summary.run_state(live=False).words == said == Run.load(one.folder).trajectory.state(live=False).words
    )
    return said


def test_the_model_corrects_what_a_check_has_found_in_the_same_sandbox(tmp_path: Path) -> None:
    one = run(solved(tmp_path, WRONG, SUBMIT, RIGHT, SUBMIT, check_tries=3, **CHECK))
    first, second = one.checks
    assert (first.number, first.verdict.outcome, first.verdict.summary) == (
        1, "failed", "unittest 1 failed, 1 passed",
    )  # fmt: skip
    assert "AssertionError: 2 != 4" in load_text(one.folder, first.output)
    assert (second.number, second.verdict.outcome, second.exit_code) == (2, "passed", 0)
    told = outputs(one)[1]
    assert told.startswith(
        "Not accepted yet: a check of your result failed (check 1 of 3): unittest 1 failed, 1 passed."
    )
    assert "AssertionError: 2 != 4" in told
    assert "Steps remaining: 98" in told
    assert words(one) == "Submitted, checked without protection: unittest 2 passed"
    assert (one.folder / "check" / "test_total.py").is_file()


def test_without_tries_left_the_run_ends_with_the_check_that_failed(tmp_path: Path) -> None:
    one = run(solved(tmp_path, WRONG, SUBMIT, RIGHT, SUBMIT, **CHECK))
    assert (len(one.steps), one.stop_reason) == (2, "submitted")
    assert words(one) == "Submitted, check failed: unittest 1 failed, 1 passed"
    at_its_limit = run(solved(tmp_path, WRONG, SUBMIT, RIGHT, check_tries=3, limits={"steps": 2}, **CHECK))
    assert words(at_its_limit) == "Submitted, check failed: unittest 1 failed, 1 passed"


def _fails(one: Run) -> None:
    assert one.answer == "41", f"the answer is {one.answer}"


def _breaks(one: Run) -> bool:
    return bool(one.steps[99])


async def _waits(one: Run) -> bool:
    await asyncio.sleep(0)  # on purpose: it is a coroutine
    return one.files["answer.txt"].read_text() == "done" and one.answer == "done"


@pytest.mark.parametrize(
    ("check", "said", "meaning"),
    [
        (_waits, "checked without protection: _waits", "ok"),
        (lambda one: False, "check failed: <lambda>", "bad"),
        (lambda one: 5 / 6, "scored 0.833 without protection", "plain"),
        (lambda one: 1.0, "scored 1 without protection", "plain"),
        (lambda one: "The map\nlacks a legend.", "checked without protection: The map", "plain"),
        (_fails, "check failed: _fails: the answer is done", "bad"),
        (_breaks, "the check could not run: _breaks raised IndexError: list index out of range", "bad"),
        (lambda one: None, "the check could not run: <lambda> returned None: return true or false, ...", "bad"),
        ("exit 3", "check failed: exit 3, exit 3", "bad"),
        ("echo 'it is wrong'; false", "check failed: echo 'it is wrong'; false, exit 1: it is wrong", "bad"),
        ("no-such-program", "check failed: no-such-program, exit 127: ...", "bad"),
        ("sleep infinity", "check failed: it took longer than 0.5 s", "bad"),
        ("test -s output/answer.txt", "checked without protection: test -s output/answer.txt", "ok"),
        ("yes | head -c 3000000; cd $CHECK 2>/dev/null; true", "checked without protection: yes | ...", "ok"),
    ],
)  # fmt: skip
def test_every_verdict_in_words(tmp_path: Path, check: Any, said: str, meaning: str) -> None:
    timeout = {"check_timeout": 0.5} if check == "sleep infinity" else {}
    one = run(solved(tmp_path, RIGHT, SUBMIT, check=check, **timeout))
    start, _, end = f"Submitted, {said}".partition("...")
    assert words(one).startswith(start)
    assert words(one).endswith(end)
    assert one.trajectory.state(live=False).meaning == meaning
    assert len(load_text(one.folder, one.checks[0].output)) < 600_000


def test_an_answer_in_words_is_checked_and_a_run_that_reached_its_limit_is_not(tmp_path: Path) -> None:
    check = {"check": 'test "$(cat)" = 42'}
    one = run(solved(tmp_path, {"text": "42"}, nudges=0, **check))
    assert words(one) == 'Answered, checked without protection: test "$(cat)" = 42'
    limited = run(solved(tmp_path, WRONG, RIGHT, limits={"steps": 1}, **check))
    assert (limited.checks, words(limited)) == ([], "Step limit reached (1)")


@pytest.mark.parametrize("action", ["stop", "pause"])
def test_a_run_can_be_stopped_and_paused_during_its_check(tmp_path: Path, action: str) -> None:
    control = RunControl()
    states: list[str] = []
    begun: list[Run] = []

    def listen(event: ev.Event) -> None:
        if isinstance(event, ev.CheckStarted) and event.number == 1:
            states.append(begun[0].trajectory.state(live=True).words)
            asyncio.get_running_loop().call_later(0.3, getattr(control, action))
        elif isinstance(event, ev.Controlled) and event.action == "paused":
            states.append(begun[0].trajectory.state(live=True).words)
            asyncio.get_running_loop().call_soon(control.resume)

    command = "sleep infinity" if action == "stop" else "sleep 1; grep -q '\\* 2' total.py"
    turns = (WRONG, SUBMIT, RIGHT, SUBMIT)
    options = {"check": command, "check_tries": 2, "control": control, "listeners": [listen]}
    one = run(solved(tmp_path, *turns, on_run=begun.append, **options))
    if action == "stop":
        assert (states, words(one), one.checks) == (["Checking the result"], "Stopped by you", [])
        assert "Interrupted" in outputs(one)[-1]
    else:
        assert states == ["Checking the result", "Waiting for you"]
        assert [check.verdict.outcome for check in one.checks] == ["failed", "passed"]


def test_a_check_belongs_to_the_branch_and_to_what_is_made_of_the_run(tmp_path: Path) -> None:
    async def travelled() -> None:
        one = await solved(tmp_path, RIGHT, SUBMIT, WRONG, SUBMIT, RIGHT, SUBMIT, **CHECK)
        passed = "Submitted, checked without protection: unittest 2 passed"
        failed = "Submitted, check failed: unittest 1 failed, 1 passed"
        assert words(one) == passed
        await one.rewind(1)
        assert (words(one), one.checks) == ("Ready to continue from step 1", [])
        await one.undo()
        assert words(one) == passed
        loaded = Run.load(one.folder)
        model = one.context.models[one.model]
        await loaded.resume("Make it wrong.", model=model, isolation="process")
        assert words(loaded) == failed
        assert [check.number for check in loaded.checks] == [1, 1]
        await loaded.resume("Make it right.", model=model, check_tries=2, isolation="process")
        assert words(loaded) == passed
        fork = await loaded.fork(1, isolation="process")
        assert (fork.checks, (fork.folder / "check" / "test_total.py").is_file()) == ([], True)
        replay = (await one.replay(isolation="process")).run
        said = replay.trajectory.state(live=False)
        assert (said.words.endswith("checked without protection: unittest 2 passed"), said.meaning) == (
            True,
            "ok",
        )
        await fork.close()
        await loaded.close()

    run(travelled())


def test_a_function_is_in_no_record_and_a_loaded_run_says_so(tmp_path: Path) -> None:
    async def resumed() -> tuple[Run, Run]:
        one = await solved(tmp_path, RIGHT, SUBMIT, SUBMIT, SUBMIT, check=_waits)
        loaded = Run.load(one.folder)
        await loaded.resume("Again.", model=one.context.models[one.model], isolation="process")
        said = words(loaded)
        assert said == "Submitted, not checked"
        assert any("The check _waits is a Python function" in note for note in loaded.trajectory.notes)
        await one.close()
        again = Run.load(one.folder)
        await again.resume("Again.", model=one.context.models[one.model], check=_waits, isolation="process")
        return again, loaded

    again, _ = run(resumed())
    assert words(again) == "Submitted, checked without protection: _waits"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"check": " "}, "check is a command"),
        ({"check": 7}, "check is a command or a function that gets the run, not 7"),
        ({"check_files": "tests"}, "check_files are the files of a check"),
        ({"check": "true", "check_files": "no-such-file"}, "no-such-file"),
        ({"check": "true", "check_tries": 0}, "check_tries is a whole number of at least one, not 0"),
        ({"check": "true", "check_timeout": 0}, "check_timeout is a number of seconds above zero, not 0"),
        ({"check": len, "check_files": {"a": b""}}, "A function needs no check_files"),
    ],
)
def test_an_invalid_check_starts_nothing(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said.replace("(", r"\(")):
        run(solve("A task.", model="scripted/strawberry", output_dir=tmp_path / "runs", **options))
    assert not (tmp_path / "runs").exists()
