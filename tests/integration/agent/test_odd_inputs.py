"""Runs whose inputs are odd: links, pipes and a worktree of git lose no run, and the record says what was left out."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from agent_scripts import SUBMIT, bash, script, solved, turn
from support import run

from llm_sandbox_nb import solve
from llm_sandbox_nb.agent.errors import InputError
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.journal import read_journal


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A worktree of git, with an environment elsewhere, a pipe, and a link that leads nowhere."""
    main, here = tmp_path / "main", tmp_path / "project"
    main.mkdir()
    git = ["git", "-c", "user.name=A", "-c", "user.email=a@example.com"]
    for words in (
        ["init", "-q"],
        ["commit", "-q", "--allow-empty", "-m", "x"],
        ["worktree", "add", "-q", here],
    ):
        subprocess.run([*git, *words], cwd=main, check=True, capture_output=True)
    (here / ".venv").symlink_to("/usr/lib/python3")
    (here / "dangling").symlink_to("nowhere")
    (here / "code.py").write_text("1\n")
    os.mkfifo(here / "pipe")
    return here


@pytest.mark.parametrize("by_name", [False, True])
def test_a_run_takes_them_and_says_what_it_left_out(by_name: bool, project: Path, tmp_path: Path) -> None:
    inputs = {"given": project} if by_name else project
    folder = "input/given" if by_name else "input"
    command = f"cd {folder} && readlink .venv dangling && cat code.py && test ! -e pipe && echo gone"
    result = run(solved(tmp_path, turn(bash(command)), SUBMIT, inputs=inputs))
    assert result.stop_reason == "submitted"
    (done,) = [event for event in result.trajectory.path if isinstance(event, ev.CallFinished)][:1]
    assert str(done.stdout).split() == ["/usr/lib/python3", "nowhere", "1", "gone"]
    notes = [event.text for event in read_journal(result.folder) if isinstance(event, ev.Noted)]
    assert any("pipe was left out: it is a pipe" in text for text in notes), notes
    assert any(".git names a repository that is not in the upload" in text for text in notes), notes
    assert len(notes) == 2
    prefix = "given/" if by_name else ""
    assert result.trajectory.start.inputs == [
        f"{prefix}{name}" for name in (".git", ".venv", "code.py", "dangling")
    ]


def test_what_cannot_be_read_is_named_before_the_run_begins(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: "code.py" not in str(path) and real(path, mode))
    for inputs in (project, {"given": project}, [project / "code.py"]):
        with pytest.raises(InputError, match=r"code\.py cannot be read \(Permission denied\)"):
            run(
                solve(
                    "A task.",
                    model=script(tmp_path, SUBMIT),
                    isolation="process",
                    inputs=inputs,
                    output_dir=tmp_path / "runs",
                )
            )
    assert not (tmp_path / "runs").exists()
