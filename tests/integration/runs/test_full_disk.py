"""Records on a disk that is full, or nearly: no sandbox is lost, steps have no files, and one sentence says why.

In Docker and bubblewrap `make test` has one small disk and one that becomes full; the rest there is a campaign.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_scripts import SUBMIT, bash, script, turn

from llm_sandbox_nb import Run, solve
from llm_sandbox_nb.agent.errors import InputError, RunError
from llm_sandbox_nb.cli import main
from llm_sandbox_nb.sandbox.history import packs, sandbox_history
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.journal import read_journal

pytestmark = pytest.mark.engine
MB = 1024**2
WRONG = ("protocol", "more content than", "is lost", "Stopped by you", "Traceback", "Errno", "sqlite")
"""Words of sentences that blame the sandbox, a person or this program."""
TURNS = (
    turn(bash("seq 200000 > output/one.txt; head -c 70M /dev/zero > zeros; head -c 3M /dev/urandom > noise")),
    turn(bash("wc -l < output/one.txt; rm zeros; echo two > output/two.txt")),
    SUBMIT,
)


@pytest.fixture
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", request.param, "tmpfs", folder], capture_output=True, text=True
    )
    if mounted.returncode:
        required = os.environ.get("LLM_SANDBOX_REQUIRE_ENGINES") == "1"
        (pytest.fail if required else pytest.skip)(
            f"A small disk cannot be mounted here: {mounted.stderr.strip()}"
        )
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def fill(disk: Path) -> None:
    file = os.open(disk / "filler", os.O_WRONLY | os.O_CREAT)
    for size in (1024**2, 4096, 1):
        with contextlib.suppress(OSError):
            while True:
                os.write(file, bytes(size))
    os.close(file)


def play(tmp_path: Path, disk: Path, isolation: str, **options: Any) -> Run | RunError:
    """A run whose record is on that disk, or how it failed."""
    try:
        return asyncio.run(
            solve("A task.", model=script(tmp_path, *TURNS), isolation=isolation, output_dir=disk, **options)
        )
    except RunError as error:
        return error


def said(folder: Path) -> list[str]:
    found = []
    for event in read_journal(folder):
        match event:
            case ev.Noted():
                found.append(event.text)
            case ev.ArtifactSkipped():
                found.append(event.reason)
            case ev.RunFinished(error=str(text)):
                found.append(text)
            case ev.Checkpointed():
                found.append(event.incomplete)
    return [text for text in found if text]


def check_run_without_files(run: Run | RunError) -> None:
    """The run went to its end; one sentence speaks of the disk; its steps have no files, and a rewind says so."""
    assert isinstance(run, Run), run
    assert run.stop_reason == "submitted"
    assert "200000" in str([event for event in run.trajectory.path if event.kind == "call.finished"])
    sentences = said(run.folder)
    assert not [text for text in sentences for word in WRONG if word in text], sentences
    about = [text for text in sentences if "not kept" in text]
    assert len(about) == 1, sentences
    assert "disk" in about[0]
    with pytest.raises(InputError, match="The files of step 1 are not kept"):
        run.rewind(1)


def test_a_rewind_and_a_fork_that_find_no_room_are_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fork leaves no folder. With room again, both work."""
    run = play(tmp_path, tmp_path / "runs", "process")
    assert isinstance(run, Run)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for place, travel in (("trajectory.journal._check_last_line", run.rewind), ("runs.fork._copy", run.fork)):
        with monkeypatch.context() as patched:
            patched.setattr(f"llm_sandbox_nb.{place}", full)
            with pytest.raises(RunError, match=r"cannot be read or written \(.*No space left on device"):
                travel(1)
    assert list((tmp_path / "runs").iterdir()) == [run.folder]
    run.rewind(1)
    run.fork(1).close()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("disk", ["size=60M"], indirect=True)
def test_a_disk_with_little_room_loses_no_sandbox(isolation: str, disk: Path, tmp_path: Path) -> None:
    check_run_without_files(play(tmp_path, disk, isolation))


@pytest.mark.alike
@pytest.mark.timeout(300)
@pytest.mark.parametrize("disk", [f"size={size}M" for size in (1, 24, 255)], indirect=True)
def test_a_disk_of_another_size_loses_no_sandbox(isolation: str, disk: Path, tmp_path: Path) -> None:
    check_run_without_files(play(tmp_path, disk, isolation))


@pytest.mark.alike
@pytest.mark.timeout(300)
@pytest.mark.parametrize("disk", ["size=400M"], indirect=True)
def test_a_disk_with_room_keeps_all(isolation: str, disk: Path, tmp_path: Path) -> None:
    """The canary: the same run, and nothing is said."""
    run = play(tmp_path, disk, isolation)
    assert isinstance(run, Run)
    assert said(run.folder) == []
    assert "went back" in str(run.rewind(1)).lower() or "again" in str(run.rewind(0))
    with pytest.raises(AssertionError):
        check_run_without_files(run)


@pytest.mark.alike
@pytest.mark.timeout(300)
@pytest.mark.parametrize("disk", ["size=400M,nr_inodes=8"], indirect=True)
def test_a_disk_without_inodes_loses_no_sandbox(isolation: str, disk: Path, tmp_path: Path) -> None:
    """The disk says that it has room, and takes no further file: not the index of the history."""
    check_run_without_files(play(tmp_path, disk, isolation))


@pytest.mark.alike
@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [errno.EDQUOT, errno.EMFILE])
def test_a_quota_that_is_used_up_loses_no_sandbox(
    number: int, isolation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a disk reports as free says nothing of a quota: the pack cannot be written."""

    def refuse(*_: Any) -> Any:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(packs.PackFolder, "create", refuse)
    run = play(tmp_path, tmp_path / "runs", isolation)
    assert isinstance(run, Run), run
    sentences = said(run.folder)
    assert run.stop_reason == "submitted", sentences
    assert os.strerror(number) in "".join(sentences)
    assert len([text for text in sentences if "not kept" in text]) == 1, sentences
    assert not [text for text in sentences for word in WRONG if word in text], sentences


@pytest.mark.timeout(300)
@pytest.mark.parametrize("disk", ["size=400M"], indirect=True)
def test_a_disk_that_becomes_full_ends_the_run_with_a_sentence(
    isolation: str, disk: Path, tmp_path: Path
) -> None:
    def listen(event: ev.Event) -> None:
        if event.kind == "call.started":
            fill(disk)

    run = play(tmp_path, disk, isolation, listeners=[listen])
    assert isinstance(run, RunError)
    assert "cannot be written" in str(run)
    assert "free disk space" in str(run)
    assert not [word for word in WRONG if word in str(run)]
    (disk / "filler").unlink()
    (folder,) = disk.iterdir()
    assert Run.load(folder).trajectory.steps  # every line is whole, and the run can be read


@pytest.mark.parametrize("disk", ["size=1M"], indirect=True)
def test_a_disk_that_is_full_starts_nothing(
    disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(disk)
    model = script(tmp_path, *TURNS)
    code = main(["run", "A task.", "--model", model, "--isolation", "process", "--output-dir", str(disk)])
    said = capsys.readouterr()
    assert code != 0
    assert "cannot be" in said.err
    assert len(said.err.strip().splitlines()) == 1, said.err
    assert not [word for word in WRONG if word in said.err]


def test_a_rewind_names_the_step_before_whose_files_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    room = sandbox_history.room_for_content

    def less_and_less(store: Any, spare: int) -> int:
        taken.append(spare)
        return room(store, spare if len(taken) < 3 else 2**62)

    monkeypatch.setattr(sandbox_history, "room_for_content", less_and_less)
    run = play(tmp_path, tmp_path / "runs", "process")
    assert isinstance(run, Run)
    with pytest.raises(InputError, match=r"step 2 are not kept .* files are kept is 1\."):
        run.rewind(2)
