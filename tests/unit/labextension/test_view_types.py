"""The events as the view declares them in TypeScript are generated from the events that the journal holds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

GENERATOR = Path(__file__).parents[3] / "labextension" / "generate-events.py"
GENERATED = GENERATOR.parent / "src" / "generated"


def check(generator: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(generator), "--check"], capture_output=True, text=True, timeout=280
    )


def test_the_view_declares_what_the_events_give() -> None:
    done = check(GENERATOR)
    assert done.returncode == 0, done.stderr


def test_a_difference_is_an_error(tmp_path: Path) -> None:
    """By a field, a kind, a word and a file that is missing; as the build and this test see it."""
    generator = tmp_path / GENERATOR.name
    generator.write_text(GENERATOR.read_text("utf-8"), "utf-8")
    assert "run python labextension/generate-events.py" in check(generator).stderr
    folder = tmp_path / "src" / "generated"
    folder.mkdir(parents=True)
    for file in GENERATED.iterdir():
        (folder / file.name).write_text(file.read_text("utf-8"), "utf-8")
    assert check(generator).returncode == 0
    for name, old, new in (
        ("events.ts", "exit_code: number | null", "exit_code: number"),
        ("events.ts", "  | ICallHeld\n", ""),
        ("fields.json", '"exit_code": "number | null"', '"exit_code": "number"'),
        ("words.ts", "Waiting for you", "Waiting"),
    ):
        good = (folder / name).read_text("utf-8")
        (folder / name).write_text(good.replace(old, new), "utf-8")
        assert check(generator).returncode == 1, (name, old)
        (folder / name).write_text(good, "utf-8")
