"""`binder/` does what mybinder.org needs: the steps repo2docker takes, in an environment of their own."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import venv
from pathlib import Path

import nbformat
import pytest
from support import MIME, record_of

ROOT = Path(__file__).parents[2]
BINDER = ROOT / "binder"
LEFT_BEHIND = shutil.ignore_patterns(
    ".git", ".venv", ".cache", "out", "sandbox-runs", "__pycache__", ".*_cache", "node_modules"
)
KNOWN_TO_REPO2DOCKER = {"requirements.txt", "runtime.txt", "postBuild", "start", "apt.txt"}


def environment(programs: Path, home: Path) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(("PIP_", "SSL_")) or name == "LANG"
    }
    return {**kept, "PATH": f"{programs}:/usr/bin:/bin", "HOME": str(home)}


def test_there_is_nothing_that_repo2docker_would_not_read() -> None:
    assert {path.name for path in BINDER.iterdir()} <= KNOWN_TO_REPO2DOCKER
    assert not (ROOT / ".binder").exists()
    for name in ("postBuild", "start"):
        assert (BINDER / name).stat().st_mode & stat.S_IXUSR
        assert (BINDER / name).read_text().startswith("#!/usr/bin/env bash\n")
    assert "set -e" in (BINDER / "postBuild").read_text()
    assert (BINDER / "start").read_text().rstrip().endswith('exec "$@"')


def test_start_asks_for_processes_by_name_and_hands_over(tmp_path: Path) -> None:
    words = [BINDER / "start", "sh", "-c", 'printf "%s %s" "$LLM_SANDBOX_ISOLATION" "$1"', "sh", "a b"]
    done = subprocess.run(
        words, env=environment(tmp_path, tmp_path), capture_output=True, text=True, check=True
    )
    assert done.stdout == "process a b"


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_the_first_notebook_runs_as_on_mybinder(tmp_path: Path) -> None:
    repository, programs = tmp_path / "repository", tmp_path / "environment" / "bin"
    shutil.copytree(ROOT, repository, ignore=LEFT_BEHIND)
    venv.create(tmp_path / "environment", with_pip=True)
    surroundings = environment(programs, tmp_path)

    def step(*words: str) -> str:
        done = subprocess.run(words, cwd=repository, env=surroundings, capture_output=True, text=True)
        assert done.returncode == 0, f"{words}: {done.stdout[-2000:]} {done.stderr[-4000:]}"
        return done.stdout

    step(
        "python", "-m", "pip", "install", "--quiet", "--upgrade", "pip"
    )  # conda's, which Binder takes, is new
    step("python", "-m", "pip", "install", "--quiet", "-r", "binder/requirements.txt")
    assert "llm_sandbox_nb" in step("binder/postBuild")
    step("binder/start", "jupyter", "execute", "--output=done.ipynb", "notebooks/01-first-task.ipynb")
    notebook = nbformat.read(repository / "notebooks" / "done.ipynb", as_version=4)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    shown = [output["data"] for output in outputs if MIME in output.get("data", {})]
    events = [event for data in shown for event in record_of(data)["events"]]
    ready = [event["protection"]["isolation"] for event in events if event["kind"] == "sandbox.ready"]
    assert set(ready) == {"process"}
    assert {event["stop_reason"] for event in events if event["kind"] == "run.finished"} == {"submitted"}
