"""The events as the view declares them in TypeScript are generated from the events that the journal holds."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support import module_at

GENERATOR = Path(__file__).parents[3] / "labextension" / "generate-events.py"
GENERATED = GENERATOR.parent / "src" / "generated"
Check = Callable[[Path], int]
"""Compares a folder with the events, as the build does; returns the exit code."""


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Check:
    generator = module_at(GENERATOR, "generate_events")
    monkeypatch.setattr(sys, "argv", [GENERATOR.name, "--check"])

    def call(folder: Path) -> int:
        monkeypatch.setattr(generator, "FOLDER", folder)
        code: int = generator.main()
        return code

    return call


def test_the_view_declares_what_the_events_give(check: Check) -> None:
    assert check(GENERATED) == 0


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("events.ts", "exit_code: number | null", "exit_code: number"),
        ("events.ts", "  | ICallHeld\n", ""),
        ("fields.json", '"exit_code": "number | null"', '"exit_code": "number"'),
        ("words.ts", "Waiting for you", "Waiting"),
        ("words.ts", "", None),
    ],
    ids=["a field", "a kind", "a check of a field", "a word", "a file that is missing"],
)
def test_a_difference_is_an_error(
    name: str, old: str, new: str | None, check: Check, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(GENERATED, tmp_path / "generated")
    file = folder / name
    text = file.read_text("utf-8")
    if new is None:
        file.unlink()
    else:
        assert old in text
        file.write_text(text.replace(old, new), "utf-8")
    assert check(folder) == 1
    assert (
        f"{name}: not what Python gives: run python labextension/generate-events.py"
        in capsys.readouterr().err
    )
