"""Paths that people give: `~` is a home folder, and a name such as `~nobody` is no reason for a traceback."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from llm_sandbox_nb.cli import main

PACKAGE = Path(__file__).parents[3] / "llm_sandbox_nb"


def test_only_one_place_expands_the_home_folder() -> None:
    """`Path.expanduser` raises RuntimeError for an unknown user; `own_folder.expanded` leaves such a name as it is."""
    places = [
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if re.search(r"\.expanduser\(", path.read_text("utf-8"))
    ]
    assert places == ["own_folder.py"]


@pytest.mark.parametrize(
    "words",
    [
        ["show", "~nobody-of-this-name/run"],
        ["analyze", "~nobody-of-this-name/run"],
        ["export", "~nobody-of-this-name/run"],
        ["run", "--model", "scripted/strawberry", "--input-dir", "~nobody-of-this-name/in", "Count."],
        ["benchmark", "run", "math", "--data", "~nobody-of-this-name/x.jsonl", "-m", "scripted/strawberry"],
        ["train", "run", "--config", "~nobody-of-this-name/config.yaml"],
    ],
    ids=lambda words: words[0],
)
def test_an_unknown_user_in_a_path_is_a_missing_file(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) != 0
    said = capsys.readouterr()
    assert "~nobody-of-this-name" in said.err + said.out
    assert "Traceback" not in said.err + said.out
