"""`llm-sandbox-nb run` with stops: answers at a terminal or through a pipe, and refusals where there is neither."""

from __future__ import annotations

import os
import pty
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_process import CommandLine, open_command_line
from support import PATIENCE

from llm_sandbox_nb.runs.run import Run

SCRIPT = """
turns:
  - calls: [{tool: execute_bash, arguments: {command: "rm -rf precious"}}]
  - calls: [{tool: execute_bash, arguments: {command: "cat note.txt"}}]
  - calls: [{tool: submit}]
"""
RUN = ("run", "--query", "Work.", "--llm_name", "scripted/script.yaml", "--isolation", "process")


@pytest.fixture
def command_line(tmp_path: Path) -> Iterator[CommandLine]:
    (tmp_path / "script.yaml").write_text(SCRIPT)
    (tmp_path / "looks.py").write_text("def deletes(moment):\n    return 'rm ' in (moment.command or '')\n")
    yield from open_command_line(tmp_path)


def test_a_pipe_can_answer(command_line: CommandLine) -> None:
    answers = "wat\nedit command='echo kept > note.txt'\nstep\nstep\nobserve It says: kept.\ncontinue\n"
    done = command_line(*RUN, "--step", stdin=answers)
    assert (done.code, done.err, done.left) == (0, "", [])
    for shown in (
        "Run this command?",
        "rm -rf precious",
        "There is no command 'wat'",
        "What the model will read:",
    ):
        assert shown in done.out
    run = Run.load(command_line.folder / done.folder)
    first, second = (step.calls[0] for step in run.steps[:2])
    assert first.arguments == {"command": "echo kept > note.txt"}
    assert second.output.startswith("It says: kept.")
    assert {event.source for call in (first, second) for event in call.decisions} == {"terminal"}


@pytest.mark.parametrize(
    "options", [("--break", "'rm ' in command"), ("--break-when", "looks.py:deletes"), ("--approve", "ask")]
)
def test_a_run_that_nobody_answers_to_ends_before_the_call(
    options: tuple[str, str], command_line: CommandLine
) -> None:
    done = command_line(*RUN, *options, stdin="")
    assert done.code == 130
    assert "Nobody answers: the run is ended." in done.out
    [call] = Run.load(command_line.folder / done.folder).steps[0].calls
    assert call.started is None


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("--step", "--on_pause", "continue"), 0),
        (("--break", "'rm ' in command", "--on-pause", "stop"), 130),
        (("--break", "'rm ' in path", "--on-pause", "stop"), 0),
    ],
)
def test_what_to_do_can_be_said_before(
    options: tuple[str, ...], code: int, command_line: CommandLine
) -> None:
    assert command_line(*RUN, *options).code == code


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--step",), "--step needs a person at the terminal"),
        (("--approve", "edits"), "--approve edits needs a person"),
        (("--break", "comand == 'ls'"), "did you mean command"),
        (("--break-when", "nothing"), "must be FILE.py:NAME"),
        (("--break-when", "looks.py:missing"), "has no function missing"),
        (("--approve", "maybe"), "must be one of ask, edits, auto"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_starts(
    options: tuple[str, ...], said: str, command_line: CommandLine
) -> None:
    command_line(*RUN, *options).is_one_sentence(2, said)
    assert not (command_line.folder / "sandbox-runs").exists()


def test_a_terminal_is_asked_and_an_interrupt_ends_the_waiting(command_line: CommandLine) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command_line.words(*RUN, "--step"),
        cwd=command_line.folder,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env={**os.environ, "HOME": str(command_line.home)},
    )
    os.close(theirs)
    try:
        assert b"continue, deny" in read_until(ours, b"help): ")
        os.write(ours, b"deny Leave it.\n")
        read_until(ours, b"help): ")
        process.send_signal(2)
        assert process.wait(PATIENCE) == 130
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    [folder] = (command_line.folder / "sandbox-runs").glob("*/journal.jsonl")
    first = Run.load(folder.parent).steps[0].calls[0]
    assert first.output.startswith("Leave it.")


def test_the_question_is_the_last_thing_on_the_terminal(command_line: CommandLine) -> None:
    """The sandbox becomes ready after the model's first reply: what that prints stands above the question."""
    script = command_line.folder / "script.yaml"
    script.write_text(SCRIPT)
    done = command_line(*RUN, "--approve", "ask", stdin="n Leave it.\ny\nall\n")
    assert (done.code, done.err, done.left) == (0, "", [])
    shown = [
        "Isolation  process",
        "Run this command? It deletes files. Not isolated: it runs on this machine.",
        "Step 1. You approve every call.",
        "rm -rf precious",
        "Approve? (y, n, n REASON, all",
        "Denied by you; the model read your answer (terminal)",
    ]
    places = [done.out.index(text) for text in shown]
    assert places == sorted(places)
    first, second = (step.calls[0] for step in Run.load(command_line.folder / done.folder).steps[:2])
    assert first.output.startswith("Leave it.")
    assert second.exit_code is not None
    assert done.out.count("Leave it.") == 1


def read_until(terminal: int, text: bytes) -> bytes:
    deadline, shown = time.monotonic() + PATIENCE, b""
    while text not in shown and time.monotonic() < deadline:
        shown += os.read(terminal, 4096)
    assert text in shown
    return shown
