"""Decisions as people write them at a prompt, and functions that are asked at a halt."""

from __future__ import annotations

import asyncio
import io
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from agent_scripts import SUBMIT, bash, results, solved, turn
from decided_runs import STEP, Played, play
from decided_runs import bash as call
from support import run

from llm_sandbox_nb.agent.control.decisions import Held
from llm_sandbox_nb.agent.control.frontends import (
    COMMANDS,
    HELP,
    Prompt,
    can_answer,
)
from llm_sandbox_nb.agent.control.pause_rules import pause_rules
from llm_sandbox_nb.agent.control.run_control import RunControl
from llm_sandbox_nb.agent.errors import InputError, RunError
from llm_sandbox_nb.agent.run_spec import NO_DECIDER
from llm_sandbox_nb.card.card import Card
from llm_sandbox_nb.cli.printer import Printer
from llm_sandbox_nb.notebook.errors import SandboxInputError
from llm_sandbox_nb.notebook.run_commands import execute_line_command
from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.runs.solve import solve
from llm_sandbox_nb.trajectory import events as ev


def written(folder: Path, *lines: str, stepping: bool = True) -> tuple[Played, list[str]]:
    """A run of one call at whose halts these lines are written; what was shown."""
    left, shown = list(lines), []

    def decide(control: RunControl, held: Held) -> None:
        prompt = Prompt(control, source="test")
        assert prompt.hint.endswith(": ")
        while prompt.open:
            shown.append(prompt.answer(left.pop(0) if left else "continue"))

    rules = STEP if stepping else pause_rules(approve="ask")
    return play(folder, [[call("make it")]], decide, rules), shown


@pytest.mark.parametrize(
    ("lines", "ran"),
    [
        (["continue"], ["make it"]),
        (["c"], ["make it"]),
        ([""], ["make it"]),
        (["edit command='ls -l'", "c"], ["ls -l"]),
        (['e {"command": "true", "timeout": 5}', "c"], ["true"]),
        (["edit command=5 timeout=5", "c"], ["5"]),
        (["edit tool=str_replace_editor command=view path=/testbed", "c"], []),
        (["deny", "c"], []),
        (["deny there is no need", "c"], []),
        (
            ["say Hello", "help", "change temperature=0.5 steps=7 approve=auto breakpoints='step == 9'", "c"],
            ["make it"],
        ),
    ],
)
def test_one_line_is_one_decision(lines: list[str], ran: list[str], tmp_path: Path) -> None:
    played, shown = written(tmp_path, *lines)
    assert played.box.ran == ran
    assert [text for text in shown if text] == ([HELP] if "help" in lines else [])


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("contineu", "There is no command 'contineu'"), ("continue please", "has no arguments"),
        ("edit", "NAME=VALUE"), ("edit ls", "NAME=VALUE"), ("edit command='ls", "check its quotes"),
        ("edit {oops", "not JSON"), ("edit file=1", "has no argument 'file'"), ("observe x", "not executed yet"),
        ("say", "message is empty"), ("change", "NAME=VALUE"), ("change heat=1", "no setting 'heat'"),
        ("change model=nobody", "no model nobody"),
    ],
)  # fmt: skip
def test_a_line_that_cannot_be_done_is_told_and_the_run_waits(line: str, why: str, tmp_path: Path) -> None:
    played, shown = written(tmp_path, line, "deny It waited.")
    assert why in shown[0]
    assert "\n" not in shown[0]
    assert played.observations[0].startswith("It waited.")


def test_enter_steps_but_approves_nothing(tmp_path: Path) -> None:
    played, shown = written(tmp_path, "", "deny", stepping=False)
    assert shown[0] == HELP
    assert played.box.ran == []


def test_a_prompt_is_over_when_somebody_else_decided(tmp_path: Path) -> None:
    def decide(control: RunControl, held: Held) -> None:
        prompt = Prompt(control, source="test")
        assert prompt.open
        control.deny("first", source="test")
        assert not prompt.open

    play(tmp_path, [[call("a")]], decide, pause_rules(approve="edits"))


def test_where_it_stands_is_told(tmp_path: Path) -> None:
    texts: list[str] = []

    def decide(control: RunControl, held: Held) -> None:
        texts.append(Prompt(control, source="test").text)
        control.step(source="test")

    play(tmp_path, [[call("make it"), ("execute_bash", "{oops")]], decide, STEP)
    assert texts[0] == "Run this command?\nStep 1. Paused before each call.\nmake it"
    assert texts[1].startswith("Step 1: the model has not read the result of execute_bash yet.\n")
    assert "\nWhat the model will read:\n" in texts[1]
    assert texts[1].endswith("ran make it")
    assert texts[2].endswith("{oops")


def test_who_can_answer(tmp_path: Path) -> None:
    assert not can_answer(None)
    assert not can_answer(io.StringIO("x"))
    with Path(os.devnull).open() as empty:
        assert not can_answer(empty)
    assert not can_answer(empty)
    (tmp_path / "lines").write_text("step\n")
    with (tmp_path / "lines").open() as lines:
        assert can_answer(lines)


# --- functions that are asked ---


TWO = (turn(bash("echo one")), turn(bash("echo two")), SUBMIT)


def decisions(done: Run) -> list[tuple[str, str]]:
    return [
        (event.action, event.source) for event in done.trajectory.events if isinstance(event, ev.CallDecided)
    ]


def test_a_plain_function_is_asked_in_a_thread_and_may_wait(tmp_path: Path) -> None:
    threads: set[str] = set()

    def decide(asked: Run) -> None:
        threads.add(threading.current_thread().name)
        assert asked.held is not None
        if asked.held.at == "call":
            asked.edit(command=f"{asked.held.arguments['command']} changed")
        else:
            asked.observe("seen: " + (asked.held.observation or ""))

    done = run(
        solved(tmp_path, *TWO, breakpoints=["command.startswith('echo')", "exit_code == 0"], on_pause=decide)
    )
    assert done.stop_reason == "submitted"
    assert threads == {"on-pause"}
    assert [action for action, _ in decisions(done)] == ["edit", "observe", "edit", "observe"]
    assert "one changed" in done.steps[0].calls[0].output
    assert done.steps[1].calls[0].output.startswith("seen: [A person changed this call")


def test_a_coroutine_function_is_awaited_and_a_word_is_a_decision(tmp_path: Path) -> None:
    async def decide(asked: Run) -> str:
        await asyncio.sleep(0)
        return "deny no" if asked.held and asked.held.step == 1 else "continue"

    done = run(solved(tmp_path, *TWO, approve="ask", on_pause=decide))
    assert decisions(done) == [("skip", "on_pause"), ("run", "on_pause"), ("run", "on_pause")]


@pytest.mark.parametrize(("on_pause", "reason"), [("continue", "submitted"), ("stop", "interrupted")])
def test_a_fixed_answer(on_pause: str, reason: str, tmp_path: Path) -> None:
    done = run(solved(tmp_path, *TWO, step=True, on_pause=on_pause))
    assert done.stop_reason == reason
    assert done.trajectory.start is not None
    assert done.trajectory.start.settings["halts"]["step"] is True


def test_a_function_that_fails_or_says_nonsense_ends_the_run(tmp_path: Path) -> None:
    def broken(asked: Run) -> None:
        raise KeyError("typo")

    with pytest.raises(RunError) as caught:
        run(solved(tmp_path, *TWO, step=True, on_pause=broken))
    assert caught.value.run.stop_reason == "error"
    with pytest.raises(RunError, match="There is no command 'jump'"):
        run(solved(tmp_path, *TWO, step=True, on_pause=lambda asked: "jump"))
    with pytest.raises(RunError, match="on_pause returned True: let it return a command such as 'step'"):
        run(solved(tmp_path, *TWO, step=True, on_pause=lambda asked: True))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"step": True}, NO_DECIDER),
        ({"approve": "ask"}, NO_DECIDER),
        ({"breakpoints": ["comand"]}, "did you mean command"),
        ({"on_pause": "jump"}, "'stop' or 'continue'"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_starts(
    options: Any, why: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as caught:
        run(solve("x", model="scripted/strawberry", isolation="process", output_dir=tmp_path, **options))
    assert why in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_the_run_decides_from_python_while_it_goes_on(tmp_path: Path) -> None:
    """`run.step()`, `run.edit(...)`, `run.resume()` in another task of the same loop."""

    async def go() -> Run:
        runs: list[Run] = []
        held = asyncio.Event()
        work = asyncio.create_task(
            solved(tmp_path, *TWO, step=True, on_run=runs.append,
                   listeners=[lambda event: held.set() if event.kind == "call.held" else None])
        )  # fmt: skip

        async def halt() -> Held:
            await held.wait()
            held.clear()
            found = runs[0].held
            assert found is not None
            return found

        assert (await halt()).at == "call"
        runs[0].edit(command="echo edited")
        assert "edited" in ((await halt()).observation or "")
        runs[0].change(limits={"steps": 5}, settings={"temperature": 0.0})
        runs[0].step()
        assert (await halt()).step == 2
        runs[0].resume()
        return await work

    done = run(go())
    assert done.stop_reason == "submitted"
    assert done.held is None
    assert done.steps[0].calls[0].arguments == {"command": "echo edited"}
    assert results(done)[0].exit_code == 0


def test_the_card_and_the_terminal_tell_what_a_person_changed(tmp_path: Path) -> None:
    left = ["edit command='echo changed'", "", "deny Leave it."]

    def decide(asked: Run) -> str:
        return left.pop(0) if left else "continue"

    done = run(
        solved(tmp_path, *TWO, step=True, on_pause=lambda asked: decide(asked) or "observe It is fine.")
    )
    card, out = Card(), io.StringIO()
    printer = Printer(out)
    for event in done.trajectory.events:
        card.add(event)
        printer(event)
    page = card.final()
    for words in ("edited by you", "result changed by you", "denied by you"):
        assert words in page["text/html"]
        assert words in page["text/plain"]
    for words in (
        "Edited by you (on_pause)",
        "Result changed by you (on_pause)",
        "Denied by you; the model read your answer (on_pause)",
    ):
        assert words in out.getvalue()


def test_words_of_the_line_magic(tmp_path: Path) -> None:
    """As from a second thread of the kernel."""
    said: list[str] = []

    def decide(asked: Run) -> None:
        said.append(execute_line_command(asked, "held", ""))
        with pytest.raises(SandboxInputError, match="NAME=VALUE"):
            execute_line_command(asked, "edit", "")
        said.append(execute_line_command(asked, "edit", "command='echo changed'"))

    done = run(solved(tmp_path, *TWO, breakpoints="command == 'echo one'", on_pause=decide))
    assert "echo one" in said[0]
    assert said[1] == "Done."
    assert decisions(done) == [("edit", "magic")]
    for over in (None, done):
        with pytest.raises(SandboxInputError, match="No run is active"):
            execute_line_command(over, "step", "")


@pytest.mark.parametrize(
    ("lines", "ran", "read"),
    [
        (["y"], ["make it"], "ran make it"),
        (["YES"], ["make it"], "ran make it"),
        (["n"], [], "A person denied this call."),
        (["no Use the CSV."], [], "Use the CSV."),
        (["what?", "y"], ["make it"], "ran make it"),
    ],
)
def test_yes_and_no_answer_the_question(lines: list[str], ran: list[str], read: str, tmp_path: Path) -> None:
    played, shown = written(tmp_path, *lines, stepping=False)
    assert played.box.ran == ran
    assert read in played.observations[0]
    assert [text for text in shown if text] == (
        [f"There is no command 'what?': write one of {', '.join(COMMANDS)}."] if "what?" in lines else []
    )


def test_all_approves_what_follows_too(tmp_path: Path) -> None:
    asked: list[str] = []

    def decide(control: RunControl, held: Held) -> None:
        prompt = Prompt(control, source="test")
        asked.append(prompt.hint)
        prompt.answer("all")

    played = play(tmp_path, [[call("one")], [call("two")]], decide, pause_rules(approve="ask"))
    assert played.box.ran == ["one", "two"]
    assert len(asked) == 1
    assert asked[0].startswith("Approve? (y, n, n REASON, all")


def test_no_at_a_pause_that_a_person_asked_for_is_said_to_the_model(tmp_path: Path) -> None:
    def pause(control: RunControl, event: ev.Event) -> None:
        if isinstance(event, ev.CallProposed) and event.step == 1:
            control.pause(source="test")

    def decide(control: RunControl, held: Held) -> None:
        Prompt(control, source="test").answer("no need to hurry")

    played = play(tmp_path, [[call("one")]], decide, on_event=pause)
    assert [held.reason for held in played.held] == ["pause"]
    assert played.box.ran == ["one"]
    assert any("no need to hurry" in message["content"] for message in played.loop.conversation.messages)
