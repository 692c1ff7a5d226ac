"""Run folders whose files have further names elsewhere (`cp -al`, or hard links of a stranger): no write gets there."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from pathlib import Path

import pytest
from agent_scripts import SUBMIT, bash, script, turn

from llm_sandbox_nb import Run, solve

pytestmark = pytest.mark.engine


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def linked(tmp_path: Path) -> tuple[Path, Path, str]:
    (tmp_path / "runs").mkdir()
    model = script(
        tmp_path,
        turn(bash("echo one > output/result.txt")),
        turn(bash("echo two > output/result.txt; seq 40000")),
        SUBMIT,
        turn(bash("echo three > output/result.txt")),
        SUBMIT,
    )
    run = asyncio.run(solve("A task.", model=model, isolation="process", output_dir=tmp_path / "runs"))
    copy = tmp_path / "copies" / run.folder.name
    for path in sorted(run.folder.rglob("*")):
        place = copy / path.relative_to(run.folder)
        place.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            place.mkdir(exist_ok=True)
        else:
            os.link(path, place)
    return run.folder, copy, model


def test_a_folder_of_hard_links_is_read_and_never_written_through(linked: tuple[Path, Path, str]) -> None:
    other, folder, model = linked
    before = contents(other)
    assert len(before) > 6
    run = Run.load(folder)
    assert run.files["result.txt"].read_text() == "two\n"
    run.to_html(folder.parent / "page.html")
    assert "result.txt" in str(run.preview(1))
    run.rewind(1)
    run.undo()
    assert contents(other) == before
    again = Run.load(folder).resume("More.", model=model, isolation="process")
    assert again.stop_reason == "submitted"
    assert contents(other) == before
    assert (folder / "files/result.txt").read_text() == "three\n"
    assert len((folder / "journal.jsonl").read_bytes()) > len(before["journal.jsonl"])
    assert contents(folder)["journal.jsonl"].startswith(before["journal.jsonl"])
    assert Run.load(other).files["result.txt"].read_text() == "two\n"


def test_a_torn_last_line_is_cut_off_in_one_of_them(linked: tuple[Path, Path, str]) -> None:
    other, folder, _ = linked
    with (other / "journal.jsonl").open("ab") as file:
        file.write(b'{"kind": "half')
    before = contents(other)
    Run.load(folder).rewind(1)
    assert contents(other) == before
    assert b"half" not in (folder / "journal.jsonl").read_bytes()


def test_a_log_of_the_index_is_not_written_into_another_database(linked: tuple[Path, Path, str]) -> None:
    """SQLite writes its log into the database when the last connection closes: here that would be elsewhere."""
    other, folder, _ = linked
    index = folder / "history/index.sqlite"
    sql = sqlite3.connect(index, isolation_level=None)
    sql.execute("UPDATE checkpoints SET incomplete = 'changed'")
    (index.with_name("kept")).write_bytes(index.with_name("index.sqlite-wal").read_bytes())
    assert (index.with_name("kept")).stat().st_size
    pages = index.read_bytes()
    sql.close()
    for name in ("index.sqlite-wal", "index.sqlite-shm"):
        index.with_name(name).unlink(missing_ok=True)
    with index.open("r+b") as file:  # as it was before the log was written into it
        file.write(pages)
        file.truncate(len(pages))
    index.with_name("kept").rename(index.with_name("index.sqlite-wal"))
    before = (other / "history/index.sqlite").read_bytes()
    assert before == pages
    run = Run.load(folder)
    assert "result.txt" in str(run.preview(1))
    assert (other / "history/index.sqlite").read_bytes() == before
    run.rewind(1)
    assert (other / "history/index.sqlite").read_bytes() == before
