"""A new option is at most three edits: its row in the table, its field, and its use. All other places derive it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import require

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "llm_sandbox_nb"
EDITS = {
    "options/table.py": (
        "LIMIT_OPTIONS = (\n",
        '    Option("max_output", "maximum characters of a command\'s output that the model reads", whole_number,\n'
        '           metavar="N", sets="max_output"),\n',
    ),
    "agent/run_options.py": (
        '    """Number of replies in a row without a call that the run answers with a nudge; `all` for no limit."""\n',
        "    max_output: int | None = None\n",
    ),
    "agent/tools/execute_bash.py": (
        "            return Outcome(f\"Error: {error}\", error=\"bad_arguments\")\n",
        "        outcome = await self.outcome(box, result)\n"
        "        return Outcome(outcome.observation[: context.options.max_output], result=result)\n",
    ),
}  # fmt: skip
"""Files of the exercise, each with the line after which its text is inserted."""


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The places that know the option, in a copy of the package to which it was added."""
    require("process")
    folder = tmp_path_factory.mktemp("new_option")
    shutil.copytree(PACKAGE, folder / PACKAGE.name, ignore=shutil.ignore_patterns("labextension", "page"))
    for name, (line, added) in EDITS.items():
        path = folder / PACKAGE.name / name
        before, found, after = path.read_text("utf-8").partition(line)
        assert found, f"{name} has no line {line!r} any more"
        path.write_text(before + line + added + after, "utf-8")
    work = folder / "work"
    work.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LLM_")}
    environment |= {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT / 'tests'}", "HOME": str(work)}
    done = subprocess.run(
        [sys.executable, ROOT / "tests" / "option_places.py", ROOT / "docs"],
        cwd=work, env=environment, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.rstrip().rpartition("\n")[2])
    return found


def test_a_new_option_is_at_most_three_edits() -> None:
    assert len(EDITS) <= 3


def test_every_parser_help_text_and_page_has_a_new_option(places: dict[str, Any]) -> None:
    described = places["described"]
    assert len(described) == 8
    assert [place for place, known in described.items() if not known] == []


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("flag", 13),
        ("option of a cell", 14),
        ("%config", 15),
        ("file, command line", 16),
        ("file, cell", 16),
    ],
)
def test_a_new_option_reaches_its_use_and_the_journal(
    places: dict[str, Any], source: str, value: int
) -> None:
    assert places[source] == {"journal": value, "read back": value, "characters of output": value}


def test_solve_and_resume_accept_a_new_option(places: dict[str, Any]) -> None:
    assert places["Python"] == {"journal": 11, "read back": 11, "characters of output": 11, "change": 12}


def test_the_journal_has_a_new_option_only_if_it_is_given(places: dict[str, Any]) -> None:
    left_out = places["left out"]
    assert (left_out["journal"], left_out["read back"]) == (None, None)
    assert left_out["characters of output"] > 16
