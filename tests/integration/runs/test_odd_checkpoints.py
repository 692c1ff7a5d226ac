"""Checkpoints of a received run that no sandbox can have taken: what is said blames the record, never the sandbox."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agent_scripts import SUBMIT, bash, script, turn
from support import require

from llm_sandbox_nb import Run, solve
from llm_sandbox_nb.agent.errors import RunError
from llm_sandbox_nb.sandbox.errors import HistoryError, SandboxError
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.journal import read_journal

pytestmark = pytest.mark.engine
Change = Callable[[sqlite3.Connection, int, str], object]
"""Changes the index at a checkpoint; the last argument is the folder in which the run worked."""
WRONG = ("protocol", "is lost", "Traceback", "broke off", "something still changes them.")


def entry(
    kind: str = "f",
    detail: Any = None,
    *,
    base: int = 0,
    size: int = 0,
    link: str | None = None,
    owner: int = 0,
) -> list[Any]:
    """A row of the index without its path."""
    detail = [] if detail is None and kind == "f" and not base else detail
    return [kind, base, 0o755, owner, owner, 0, size, detail, link, None]


def put(path: str, row: list[Any]) -> Change:
    """An entry in a checkpoint; `~` stands for the folder of the run."""

    def change(sql: sqlite3.Connection, checkpoint: int, root: str) -> None:
        own = [root + one[1:] if isinstance(one, str) and one.startswith("~") else one for one in row]
        place = (root + path[1:] if path.startswith("~") else path).encode()
        sql.execute(
            "INSERT OR REPLACE INTO entries VALUES (?, ?, ?)", (checkpoint, place, json.dumps(own).encode())
        )

    return change


def drop(path: str) -> Change:
    return lambda sql, checkpoint, root: sql.execute(
        "DELETE FROM entries WHERE path = ?", ((root + path[1:]).encode(),)
    )


def shell(state: bytes) -> Change:
    return lambda sql, checkpoint, root: sql.execute(
        "UPDATE checkpoints SET shell = ?", (zlib.compress(state),)
    )


OUTSIDE = "outside of the sandbox"
ODD: dict[str, tuple[Change, str]] = {
    "the folder is a link": (put("~", entry("l", "/etc")), "could not be restored"),
    "the folder is a file": (put("~", entry()), "could not be restored"),
    "the folder is a device": (put("~", entry("c", [1, 5])), "could not be restored"),
    "the folder is missing": (drop("~"), OUTSIDE),
    "the root is a file": (put("/", entry()), OUTSIDE),
    "the root is a link": (put("/", entry("l", "/etc")), OUTSIDE),
    "a file elsewhere": (put("/nope/nope/x", entry()), OUTSIDE),
    "a folder elsewhere": (put("/etc", entry("d", base=1)), "could not be restored"),
    "a file without its folder": (put("~/nope/x", entry()), "could not be restored"),
    "a folder that is missing": (drop("~/output"), "could not be restored"),
    "a file below a file": (put("~/output/result.txt/x", entry()), "could not be restored"),
    "a file below a link": (put("~/output/l/x", entry()), "could not be restored"),
    "a hard link out": (put("~/output/h", entry(link="/etc/passwd")), "or the checkpoint is damaged"),
    "a hard link to nothing": (put("~/output/h", entry(link="~/output/none")), "or the checkpoint is damaged"),
    "a hard link to itself": (put("~/output/h", entry(link="~/output/h")), ""),
    "a file of the image": (put("~/output/b", entry(base=1, size=5)), "its content was not kept"),
    "a folder of the image": (put("~/output/b", entry("d", base=1)), "its content was not kept"),
    "content that is missing": (put("~/output/u", entry("f", [[0, 3, "ab" * 32]], size=3)), "was not kept"),
    "an owner that is none": (put("~/output/o", entry(owner=2**32 - 1)), ""),
    "a shell that is none": (shell(b"garbage" * 1000), ""),
    "a shell of other kinds": (shell(b'{"cwd": "/nope", "env": {"A": 1}, "functions": "$(touch /x)"}'), ""),
}  # fmt: skip
"""By name: the change, and what is said of it at least; a pipe or an odd owner may be restored without a word."""


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require("process")
    folder = tmp_path_factory.mktemp("honest")
    model = script(
        folder,
        turn(
            bash(
                "echo one > output/result.txt; mkdir output/below; echo x > output/below/more; ln -s /etc output/l"
            )
        ),
        SUBMIT,
        turn(bash("ls output")),
        SUBMIT,
    )
    run = asyncio.run(solve("A task.", model=model, isolation="process", output_dir=folder / "runs"))
    return run.folder


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", ODD)
def test_the_record_is_blamed_and_no_sandbox_is_lost(name: str, honest: Path, tmp_path: Path) -> None:
    change, expected = ODD[name]
    folder = tmp_path / honest.name
    shutil.copytree(honest, folder)
    sql = sqlite3.connect(folder / "history/index.sqlite", isolation_level=None)
    (path,) = sql.execute(
        "SELECT path FROM entries WHERE CAST(path AS TEXT) LIKE '%/output/result.txt'"
    ).fetchone()
    root = path.decode().removesuffix("/output/result.txt")
    for (checkpoint,) in sql.execute("SELECT number FROM checkpoints").fetchall():
        change(sql, checkpoint, root)
    sql.close()
    said = []
    try:
        Run.load(folder).fork(1, isolation="process").close()
    except (HistoryError, SandboxError) as error:
        said.append(str(error))
    try:
        model = f"scripted/{honest.parents[1] / 'script.yaml'}"
        Run.load(folder).resume("More.", model=model, isolation="process")
    except (RunError, HistoryError) as error:
        said.append(str(error))
    said += [event.text for event in read_journal(folder) if isinstance(event, ev.Noted)]
    assert not [text for text in said for word in WRONG if word in text], said
    assert expected in " ".join(said), said
