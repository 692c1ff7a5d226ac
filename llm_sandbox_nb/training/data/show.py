"""Training data as text: what a folder holds, and one row as the policy gets it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from llm_sandbox_nb.benchmark.rows import DataError, Row, make_row
from llm_sandbox_nb.formatting import format_size, plural
from llm_sandbox_nb.training.data.build import ROWS, STATISTICS

_HEAD = 300
"""Characters of each file that a preview shows."""


def statistics_lines(folder: Path) -> Iterator[str]:
    """What was built, and what was left out and why.

    Raises:
        DataError: the folder holds no training data.
    """
    path = folder / STATISTICS
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(
            f"There is no training data in {folder}: give the folder that `train data build` was told as --out."
        ) from error
    rows, documents = plural(found["rows"], "row"), plural(found["documents"], "document")
    yield f"{rows} from {documents}, {format_size(found['characters'])} of text in their files"
    for name, label in (
        ("types", "type"),
        ("domains", "domain"),
        ("forms", "form"),
        ("files", "files in a row"),
        ("distractors", "distractors in a row"),
        ("examples", "examples in a prompt"),
    ):
        counts = found[name]
        ordered = sorted(
            counts, key=lambda key: (not key.isdigit(), int(key) if key.isdigit() else -counts[key], key)
        )
        yield f"{label:<22}" + ", ".join(f"{key or 'none'}: {counts[key]}" for key in ordered)
    yield f"{'answer in documents':<22}{found['verbatim']} of {found['rows']}, word by word"
    for one in found["unread"]:
        yield f"left out: document {one['name']}: {one['reason']}"
    for reason, count in sorted(found["left_out"].items(), key=lambda item: -item[1]):
        yield f"left out: {plural(count, 'question')}: {reason}"
    yield f"seed {found['options']['seed']}, sha256 {found['sha256']}"


def row_lines(folder: Path, identity: str | None = None) -> Iterator[str]:
    """One row: its prompt, its answer, its files. Without `identity` the first.

    Raises:
        DataError: there is no such row.
    """
    row = _find(folder, identity)
    yield f"row {row.id}, {row.qa_type}, domain {row.domain or 'none'}"
    yield ""
    yield row.problem_statement
    yield ""
    yield f"gold answer (for the reward alone): {row.ground_truth}"
    for name, text in row.input_files.items():
        head = text[:_HEAD].strip()
        yield ""
        yield f"documents/{name}, {format_size(len(text.encode('utf-8', 'replace')))}"
        yield from (f"  | {line}" for line in head.split("\n"))
        if len(text) > _HEAD:
            yield "  | ..."


def _find(folder: Path, identity: str | None) -> Row:
    try:
        with (folder / ROWS).open(encoding="utf-8") as file:
            for number, line in enumerate(file):
                record: Mapping[str, Any] = json.loads(line)
                if identity is None or str(record["id"]) == identity:
                    return make_row(record, number)
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{folder / ROWS} cannot be read: build the data again.") from error
    raise DataError(f"There is no row {identity} in {folder / ROWS}: leave out --row to see the first.")
