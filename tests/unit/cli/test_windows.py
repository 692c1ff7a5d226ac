"""Windows: recorded runs are read, compared and exported; one sentence says that no sandbox opens."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from card_runs import run_events, saved_file

from llm_sandbox_nb.trajectory.journal import Journal
from llm_sandbox_nb.windows import NO_SANDBOX, open_no_link, try_lock

TESTS = Path(__file__).parents[2]
PROGRAM = """
import asyncio, os, pathlib, sys
try:
    import fcntl
except ImportError:
    print("fcntl: none")
print("O_DIRECTORY:", hasattr(os, "O_DIRECTORY"))
import llm_sandbox_nb as lsn
run = lsn.Run.load(sys.argv[1])
print("steps:", run.trajectory.finish.steps, len(run.messages) > 0)
print("compared:", "<table" in run.compare(run)._repr_html_())
run.to_html("run.html")
print("exported:", pathlib.Path("run.html").stat().st_size > 1000)
try:
    asyncio.run(lsn.solve("x", model="scripted/strawberry", isolation="process"))
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A recorded run with a file."""
    folder = tmp_path / "sandbox-runs" / "20260101-000000-abcdef01"
    events = run_events(2)
    journal = Journal(folder)
    for event in (*events[:-1], saved_file(folder, "small.txt", b"one\r\ntwo\r\n"), events[-1]):
        journal.append(event)
    journal.close()
    return folder


def on_windows(folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, TESTS / "like_windows.py", *words]
    return subprocess.run([*map(str, command)], cwd=folder, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("show", "RUN"), "small.txt"),
        (("runs",), "abcd"),
        (("analyze", "sandbox-runs"), "tokens_once_mean"),
        (("export", "RUN", "--out", "run.html"), "run.html"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_recorded_runs_are_read(folder: Path, words: tuple[str, ...], expected: str) -> None:
    home = folder.parents[1]
    said = on_windows(home, "-m", "llm_sandbox_nb", *(folder if word == "RUN" else word for word in words))
    assert (said.returncode, said.stderr) == (0, "")
    assert expected in said.stdout


@pytest.mark.parametrize(
    "words",
    [
        ("run", "--query", "x", "--llm_name", "scripted/strawberry"),
        ("doctor",),
        ("benchmark", "run", "x.yaml"),
    ],
    ids=lambda words: words[0],
)
def test_what_needs_a_sandbox_says_so_in_one_sentence(tmp_path: Path, words: tuple[str, ...]) -> None:
    said = on_windows(tmp_path, "-m", "llm_sandbox_nb", *words)
    assert (said.returncode, said.stdout, said.stderr) == (4, "", f"{NO_SANDBOX}\n")


def test_python_reads_and_refuses_in_the_same_way(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    said = on_windows(tmp_path, "program.py", folder)
    assert said.stdout.splitlines() == [
        "fcntl: none",
        "O_DIRECTORY: False",
        "steps: 2 True",
        "compared: True",
        "exported: True",
        f"RunError {NO_SANDBOX}",
    ], said.stderr


def test_a_link_is_not_followed_where_the_system_has_no_flag_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to("file")
    monkeypatch.setattr("llm_sandbox_nb.windows.NO_LINK", 0)
    os.close(open_no_link(tmp_path / "file"))
    with pytest.raises(OSError, match="link"):
        open_no_link(tmp_path / "link")


def test_a_locked_file_is_locked_for_others(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    first, second = (os.open(tmp_path / "file", os.O_RDONLY) for _ in range(2))
    try:
        assert [try_lock(first), try_lock(second)] == [True, False]
    finally:
        os.close(first)
        os.close(second)
