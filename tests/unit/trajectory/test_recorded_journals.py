"""Run folders that an earlier version wrote: each opens, folds, renders and resumes. See `data/journals/make.py`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from agent_scripts import SUBMIT, bash, check_messages, script, turn
from support import run as in_loop

from llm_sandbox_nb.card import export
from llm_sandbox_nb.card.card import Card
from llm_sandbox_nb.cli import main
from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.trajectory.events import SCHEMA_VERSION, Forked

JOURNALS = Path(__file__).parents[2] / "data" / "journals"
FOLDERS = sorted(path.parent.relative_to(JOURNALS) for path in JOURNALS.glob("*/*/journal.jsonl"))


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    return shutil.copytree(JOURNALS, tmp_path / "journals")


def load(kept: Path, group: str, *, fork: bool = False) -> Run:
    runs = [Run.load(folder) for folder in sorted((kept / group).iterdir())]
    return next(
        run for run in runs if run.trajectory.start and bool(run.trajectory.start.forked_from) is fork
    )


def test_the_fixtures_are_a_plain_run_one_with_branches_its_fork_a_killed_one_and_one_for_each_version() -> (
    None
):
    assert [folder.parts[0] for folder in FOLDERS] == ["branches", "branches", "killed", "plain", "version-2"]
    starts = [Run.load(JOURNALS / folder).trajectory.start for folder in FOLDERS]
    assert {start.schema_version for start in starts if start} == set(range(1, SCHEMA_VERSION + 1))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.parts[0])
def test_it_folds(folder: Path) -> None:
    run = Run.load(JOURNALS / folder)
    assert all(type(event).__name__ != "UnknownEvent" for event in run.trajectory.events)
    assert all(event.model_extra == {} for event in run.trajectory.events)
    check_messages([*run.trajectory.messages(answer_open=True)])
    assert run.task.startswith("Write a list")
    assert run.steps[0].thought == "First a list."
    assert run.steps[0].calls[0].output.startswith("Exit code: 0\n[stdout]\none\n")
    assert run.files["list.txt"].read_text() == "one\n"


def test_what_each_one_says(kept: Path) -> None:
    plain = load(kept, "plain")
    assert (plain.stop_reason, plain.answer, len(plain.steps)) == ("submitted", "two", 4)
    assert sorted(plain.files) == ["answer.txt", "list.txt", "table.csv"]
    branches = load(kept, "branches")
    assert (branches.answer, len(branches.steps)) == ("three", 3)
    assert [(branch.step, branch.steps, branch.head) for branch in branches.attempts] == [
        (1, 4, False),
        (3, 3, True),
    ]
    fork = load(kept, "branches", fork=True)
    assert fork.trajectory.start
    assert fork.trajectory.start.forked_from
    assert fork.trajectory.start.forked_from.run_id == branches.id
    forks = [event.run_id for event in branches.trajectory.events if isinstance(event, Forked)]
    assert forks == [fork.id]
    assert (fork.steps[1].thought, fork.stop_reason) == ("Four.", "submitted")
    killed = load(kept, "killed")
    assert (killed.stop_reason, len(killed.steps)) == (None, 3)
    assert not killed.steps[2].calls[0].finished


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.parts[0])
def test_it_renders_as_card_as_text_and_as_a_page(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(export, "_asset", lambda name: "")
    monkeypatch.setattr(export, "has_view", lambda: True)
    run = Run.load(JOURNALS / folder)
    card = Card(folder=run.folder)
    for event in run.trajectory.events:
        card.add(event)
    shown = card.final()
    assert "First a list" in shown["text/html"]
    assert "First a list" in shown["text/plain"]
    assert json.dumps(shown)
    assert "First a list." in run.to_html(tmp_path / "run.html").read_text("utf-8")
    assert main(["show", str(run.folder)]) == 0
    assert "First a list." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("group", "fork"), [("plain", False), ("branches", False), ("branches", True), ("killed", False)]
)
def test_it_can_be_resumed_with_its_files(group: str, fork: bool, kept: Path, tmp_path: Path) -> None:
    """In another sandbox, with the files of the last step."""
    run = load(kept, group, fork=fork)
    done = [{"text": "Recorded."}] * sum(step.replied for step in run.steps)
    if (
        group == "killed"
    ):  # else the command that was cut short would be executed first, and takes ten minutes
        done.pop()
        run.rewind(2)
    model = script(tmp_path, *done, turn(bash("cat list.txt; ls output")), SUBMIT)

    async def body() -> None:
        await run.resume("Look at it once more.", model=model, isolation="process")

    in_loop(body())
    assert run.stop_reason == "submitted"
    expected = {
        "plain": "one\ntwo\n",
        "branches": "one\nfour\n" if fork else "No such file",
        "killed": "one\n",
    }
    assert expected[group] in run.steps[-2].calls[0].output
    loaded = Run.load(run.folder)
    assert loaded.trajectory.steps == run.trajectory.steps
    check_messages(loaded.messages)


def test_its_steps_can_be_gone_back_to_and_compared(kept: Path) -> None:
    run = load(kept, "branches")
    comparison = run.compare()
    assert comparison.first_different_step == 2
    assert "/testbed/list.txt" in comparison.files
    assert "two" in comparison.diff("/testbed/list.txt")
    assert run.rewind(1).step == 1
    assert [step.number for step in run.steps] == [1]
    assert sorted(run.files) == ["list.txt"]
