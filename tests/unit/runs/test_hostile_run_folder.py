"""A run folder that someone else made shows nothing of this machine: not on the terminal and not in a page."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import pytest

from llm_sandbox_nb.card import export
from llm_sandbox_nb.card.export import export_html
from llm_sandbox_nb.cli import main
from llm_sandbox_nb.formats.llm_in_sandbox import write_seed
from llm_sandbox_nb.runs.fork import _copy_folder
from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.journal import Journal

SECRET = "the secret of this machine"
DIGEST = "ab" * 32


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    path = folder / DIGEST
    path.write_text(SECRET)
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "received"
    for part in ("blobs", "files"):
        (folder / part).mkdir(parents=True)
    return folder


def record(run: Path, digest: str) -> None:
    journal = Journal(run)
    journal.append(ev.RunStarted(run_id="r", task="Look.", model="scripted/x"))
    journal.append(ev.CallStarted(step=1, call_id="c", tool="execute_bash", arguments={"command": "true"}))
    journal.close()
    blob = {"sha256": digest, "size": 5, "preview": "shown"}
    finished = ev.CallFinished(step=1, call_id="c", observation="").model_dump(mode="json")
    with (run / "journal.jsonl").open("a") as file:
        file.write(json.dumps(finished | {"stdout": blob}) + "\n")
    end = Journal(run)
    end.append(ev.RunFinished(stop_reason="submitted", steps=1, wall_time=1.0))
    end.close()


WAYS = ["path up", "absolute", "link to a folder", "link below", "link", "pipe"]


def lead(folder: Path, secret: Path, way: str) -> str:
    """Make a name in this folder of a run lead to the secret; the name."""
    if way == "path up":
        return "../../home/" + DIGEST
    if way == "absolute":
        return str(secret)
    if way == "link below":
        (folder / "below").symlink_to(secret.parent)
        return "below/" + DIGEST
    if way == "link to a folder":
        folder.rmdir()
        folder.symlink_to(secret.parent)
    elif way == "link":
        (folder / DIGEST).symlink_to(secret)
    else:
        os.mkfifo(folder / DIGEST)
    return DIGEST


@pytest.mark.timeout(60)
@pytest.mark.parametrize("way", WAYS)
def test_an_output_is_read_from_its_own_file_only(
    way: str, run: Path, secret: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(run, lead(run / "blobs", secret, way))
    assert main(["show", str(run)]) != 0
    printed = capsys.readouterr()
    assert SECRET not in printed.out + printed.err
    assert len(printed.err.strip().splitlines()) == 1


def test_an_output_in_its_own_file_is_read(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "blobs" / DIGEST).write_text("what the command said")
    record(run, DIGEST)
    assert main(["show", str(run)]) == 0
    assert "what the command said" in capsys.readouterr().out


@pytest.mark.timeout(60)
@pytest.mark.parametrize("view", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_files_of_a_run_are_in_its_own_folder(
    way: str, view: bool, run: Path, secret: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the page with the view, and in the one that is the card alone."""
    monkeypatch.setattr(export, "has_view", lambda: view)
    monkeypatch.setattr(export, "_asset", str)
    name = lead(run / "files", secret, way)
    save(run, name)
    loaded = Run.load(run)
    assert name not in loaded.files
    assert DIGEST not in loaded.files
    page = export_html(loaded, tmp_path / "run.html").read_text()
    assert not_in(page)


def test_a_file_in_its_own_folder_is_in_the_page(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The canary: the page of an honest run holds its file."""
    monkeypatch.setattr(export, "has_view", lambda: True)
    monkeypatch.setattr(export, "_asset", str)
    (run / "files" / "answer.txt").write_text(SECRET)
    save(run, "answer.txt")
    assert not not_in(export_html(Run.load(run), tmp_path / "run.html").read_text())


@pytest.mark.parametrize("part", ["files", "blobs"])
def test_a_fork_copies_nothing_from_elsewhere(part: str, run: Path, secret: Path, tmp_path: Path) -> None:
    (run / part).rmdir()
    (run / part).symlink_to(secret.parent)
    _copy_folder(run / part, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def save(run: Path, name: str) -> None:
    journal = Journal(run)
    journal.append(ev.RunStarted(run_id="r", task="Look.", model="scripted/x"))
    journal.append(ev.ArtifactSaved(step=None, path=name, mime="text/plain", size=len(SECRET), sha256=DIGEST))
    journal.append(ev.RunFinished(stop_reason="submitted", steps=1, wall_time=1.0))
    journal.close()


def not_in(page: str) -> bool:
    return SECRET not in page and base64.b64encode(SECRET.encode()).decode() not in page


@pytest.mark.parametrize("name", ["run.html", ".run.html.partial"])
def test_an_export_into_the_folder_writes_no_other_file(name: str, run: Path, secret: Path) -> None:
    (run / "blobs" / DIGEST).write_text("what the command said")
    record(run, DIGEST)
    (run / name).symlink_to(secret)
    assert main(["export", str(run)]) == 0
    assert secret.read_text() == SECRET
    assert not (run / "run.html").is_symlink()


def test_a_record_of_the_folder_writes_no_other_file(run: Path, secret: Path) -> None:
    record(run, DIGEST)
    (run / "trajectory.json").symlink_to(secret)
    write_seed(Run.load(run).trajectory, run)
    assert secret.read_text() == SECRET
