"""Only `trajectory/` reads the kinds of events, in Python and in TypeScript: all else asks it what a run says.

Other modules may tell events apart by their classes, where they do something with one: they make nothing of its kind.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / "llm_sandbox_nb"
TYPESCRIPT = ROOT / "labextension" / "src"
READERS = ("trajectory", "generated")
"""Folders, in both languages, whose subject is the record."""
KIND = re.compile(r"""\b(?:event|last)s?(?:\[-?\w+\])?(?:\.kind\b|\[["']kind["']\]|\.get\(["']kind["'])""")
PARSED = re.compile(
    r"""re\.compile\(.*(?:Steps remaining|A person changed this call)|/.*\[?(?:Steps remaining|stdout\\\])"""
)
"""What would read out of a text for the model what is a field of the event."""
OTHERS = {"shell_parser.py", "channel.py"}
"""Modules whose `kind` is that of something else."""


def sources() -> Iterator[Path]:
    for folder, ending in ((PYTHON, "*.py"), (TYPESCRIPT, "*.ts")):
        for path in sorted(folder.rglob(ending)):
            inside = path.relative_to(folder).parts
            if inside[0] not in READERS and path.name not in OTHERS:
                yield path


def found(path: Path, pattern: re.Pattern[str]) -> list[str]:
    lines = path.read_text("utf-8").splitlines()
    return [
        f"{path.name}:{number}: {line.strip()}"
        for number, line in enumerate(lines, 1)
        if pattern.search(line)
    ]


def test_no_other_module_reads_the_kind_of_an_event() -> None:
    assert len(list(sources())) > 200
    assert not [hit for path in sources() for hit in found(path, KIND)]


@pytest.mark.parametrize(
    "line",
    [
        'if event["kind"] == "note":',
        "match event.kind:",
        'event.get("kind")',
        "events[-1].kind",
        "switch (event.kind) {",
        "last.kind === 'note'",
    ],
)
def test_a_new_reader_is_seen(line: str, tmp_path: Path) -> None:
    (tmp_path / "new.py").write_text(line)
    assert found(tmp_path / "new.py", KIND)


def test_text_for_the_model_is_parsed_by_the_reader_of_older_records_alone() -> None:
    hits = [path for path in sources() if found(path, PARSED)]
    formats = {PYTHON / "formats" / "llm_in_sandbox.py"}
    assert set(hits) <= formats, "another program's record has no fields for it"
    assert found(PYTHON / "trajectory" / "older.py", PARSED), "the canary"
