"""Windows: recorded runs are read, compared and exported; one sentence says that no sandbox opens."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from card_runs import run_events, saved_file

from llm_sandbox_nb.cli import _MODULES
from llm_sandbox_nb.trajectory.journal import Journal
from llm_sandbox_nb.windows import NO_SANDBOX, WITH_SANDBOX, try_lock

TESTS = Path(__file__).parents[2]
PROGRAM = """
import asyncio, contextlib, io, json, os, pathlib, sys
try:
    import fcntl
except ImportError:
    print("fcntl: none")
print("O_DIRECTORY:", hasattr(os, "O_DIRECTORY"))
import llm_sandbox_nb as lsn
from llm_sandbox_nb.cli import main
run = lsn.Run.load(sys.argv[1])
print("steps:", run.trajectory.finish.steps, len(run.messages) > 0)
print("compared:", "<table" in run.compare(run)._repr_html_())
run.to_html("run.html")
print("exported:", pathlib.Path("run.html").stat().st_size > 1000)
for words in json.loads(sys.argv[2]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
try:
    asyncio.run(lsn.solve("x", model="scripted/strawberry", isolation="process"))
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "sandbox-runs" / "20260101-000000-abcdef01"
    events = run_events(2)
    journal = Journal(folder)
    for event in (*events[:-1], saved_file(folder, "small.txt", b"one\r\ntwo\r\n"), events[-1]):
        journal.append(event)
    journal.close()
    return folder


def on_windows(folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """Run a program as on Windows, where a killed process of this package has left a history."""
    temporary = folder / "temporary"
    (temporary / "llm-sandbox-history-left").mkdir(parents=True)
    command = [*map(str, [sys.executable, TESTS / "like_windows.py", *words])]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


READ = {
    "small.txt": ["show", "RUN"],
    "abcd": ["runs"],
    "tokens_once_mean": ["analyze", "sandbox-runs"],
    "commands.html": ["export", "RUN", "--out", "commands.html"],
    "converted.json": ["convert", "RUN", "converted.json"],
    "pendulum": ["examples"],
    "output_dir": ["settings"],
}
REFUSED = [
    ["run", "--query", "x", "--llm_name", "scripted/strawberry"],
    ["resume", "sandbox-runs/20260101-000000-abcdef01"],
    ["doctor"],
    ["benchmark", "run", "x.yaml"],
    ["examples", "math"],
]


def test_the_program_starts_where_no_sandbox_opens(folder: Path) -> None:
    said = on_windows(folder.parents[1], "-m", "llm_sandbox_nb", "show", folder)
    assert (said.returncode, said.stderr) == (0, "")
    assert "small.txt" in said.stdout


def test_recorded_runs_are_read_and_what_needs_a_sandbox_is_refused_in_one_sentence(
    folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    commands = [[str(folder) if word == "RUN" else word for word in words] for words in READ.values()]
    said = on_windows(tmp_path, "program.py", folder, json.dumps(commands + REFUSED))
    lines = said.stdout.splitlines()
    results = [json.loads(line) for line in lines[5:-1]]
    assert [result[0] for result in results] == [0] * len(READ) + [4] * len(REFUSED), results
    for expected, (_, out, err) in zip(READ, results, strict=False):
        assert (expected in out, err) == (True, "")
    assert results[len(READ) :] == [[4, "", f"{NO_SANDBOX}\n"]] * len(REFUSED)
    assert [*lines[:5], lines[-1]] == [
        "fcntl: none",
        "O_DIRECTORY: False",
        "steps: 2 True",
        "compared: True",
        "exported: True",
        f"RunError {NO_SANDBOX}",
    ], said.stderr


def test_each_command_works_on_windows_or_needs_a_sandbox() -> None:
    without = {"examples", "image", "models", "settings", "runs", "show", "export", "analyze", "convert"}
    assert {*_MODULES, "examples NAME"} == {*WITH_SANDBOX, *without}


def test_the_page_lists_the_commands_that_are_refused() -> None:
    page = (TESTS.parent / "docs" / "how-to" / "install.md").read_text("utf-8")
    (refused,) = re.findall(r"The commands ([^.]*?) are refused there\.", page)
    for listed in (refused, NO_SANDBOX.partition("all commands except ")[2]):
        assert tuple(re.findall(r"`(.+?)`", listed)) == WITH_SANDBOX
    for name in re.findall(r"`(\w+)`", page.partition("work on Windows too: ")[2].partition(".")[0]):
        assert name in _MODULES
        assert name not in WITH_SANDBOX


def test_a_locked_file_is_locked_for_others(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    first, second = (os.open(tmp_path / "file", os.O_RDONLY) for _ in range(2))
    try:
        assert [try_lock(first), try_lock(second)] == [True, False]
    finally:
        os.close(first)
        os.close(second)
