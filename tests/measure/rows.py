"""The rows of the measurement and those for tuning, drawn or made from one published seed.

`gsm8k-test.jsonl` and `gsm8k-train.jsonl` in `data` hold the drawn rows of GSM8K; `draw_gsm8k` made them. IFBench's
rows are under a licence of their own (ODC-BY), so they are not kept here: their file is given by the user.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Container, Iterable
from pathlib import Path
from typing import Any

from llm_sandbox_nb.benchmark.rows import Row, make_row
from llm_sandbox_nb.examples.gallery import EXAMPLES
from measure.computation import computation_rows
from measure.documents import document_rows
from measure.first_tasks import first_rows, readme_rows

SEED = 20_260_126
DATA = Path(__file__).with_name("data")
NUMBERS = {"gsm8k": 100, "ifbench": 60, "examples": 10, "computation": 30, "files": 20}
"""The sets and how many rows each has."""
REPEATED = {"readme": 20, "first": 5}
"""The sets whose rows text mode does several times, each with a new sample, and how many times."""
DEVELOPMENT = {"first": 12, "gsm8k-train": 60, "computation-train": 30, "files-train": 10}
"""The sets for tuning, and how many rows each has. Of these sets, only `first` is measured too."""
SEEN = (7, 15, 16)
"""Rows of GSM8K's test split, by place: their runs were read while text mode was tuned, so they are never measured."""
IFBENCH_SHA256 = "a2bf7b8e7ed11d39c65b4ec781da8b99663ed0121f97033d70fcecb61f8a9d85"
"""Of IFBench_test.jsonl in allenai/IFBench."""


class RowsError(ValueError):
    """The rows cannot be had. The message is one sentence that says what to do."""


def drawn(
    lines: list[str], number: int, name: str, seen: Container[int] = ()
) -> list[tuple[int, dict[str, Any]]]:
    """Draw so many lines by the seed, without those at the places `seen`; with their places in the file."""
    open_places = [place for place in range(len(lines)) if place not in seen]
    places = sorted(random.Random(f"{name} {SEED}").sample(open_places, number))
    return [(place, json.loads(lines[place])) for place in places]


def draw_gsm8k(source: Path, split: str, number: int) -> None:
    """Write the drawn rows of one split of GSM8K (`grade_school_math/data` of openai/grade-school-math)."""
    lines = (source / f"{split}.jsonl").read_text("utf-8").splitlines()
    seen = SEEN if split == "test" else ()
    with (DATA / f"gsm8k-{split}.jsonl").open("w", encoding="utf-8") as out:
        for place, record in drawn(lines, number, f"gsm8k {split}{', second draw' if seen else ''}", seen):
            out.write(json.dumps({"id": f"{split}-{place}", **record}, ensure_ascii=False) + "\n")


def gsm8k_rows(split: str = "test") -> list[dict[str, Any]]:
    """The drawn rows of one split; the gold answer is the number behind the last `####`."""
    lines = (DATA / f"gsm8k-{split}.jsonl").read_text("utf-8").splitlines()
    return [
        {
            "id": record["id"],
            "problem_statement": record["question"],
            "ground_truth": record["answer"].rpartition("####")[2].strip().replace(",", ""),
            "form": "number",
        }
        for record in map(json.loads, lines)
    ]


def ifbench_rows(file: Path) -> list[dict[str, Any]]:
    """The drawn rows of IFBench's file.

    Raises:
        RowsError: it is another file.
    """
    try:
        data = file.read_bytes()
    except OSError as error:
        raise RowsError(
            f"IFBench's rows cannot be read ({error}): name IFBench_test.jsonl of allenai/IFBench."
        ) from error
    if hashlib.sha256(data).hexdigest() != IFBENCH_SHA256:
        raise RowsError(
            f"{file} is not the IFBench_test.jsonl that the seed draws from: its SHA-256 differs."
        )
    found = drawn(data.decode("utf-8").splitlines(), NUMBERS["ifbench"], "ifbench")
    return [
        {**record, "id": f"ifbench-{record['key']}", "problem_statement": record["prompt"]}
        for _, record in found
    ]


def example_rows() -> list[dict[str, Any]]:
    return [
        {
            "id": name,
            "problem_statement": one.task,
            "ground_truth": "checked by its files",
            "form": name,
            "input_files": {path.name: path.read_text("utf-8") for path in sorted(one.inputs.iterdir())}
            if one.inputs
            else {},
        }
        for name, one in EXAMPLES.items()
    ]


def rows_of(name: str, ifbench: Path | None = None) -> list[Row]:
    """The rows of a set. Without IFBench's file that set is empty."""
    records: Iterable[dict[str, Any]]
    match name:
        case "gsm8k":
            records = gsm8k_rows()
        case "ifbench":
            records = ifbench_rows(ifbench) if ifbench else []
        case "examples":
            records = example_rows()
        case "computation":
            records = computation_rows(SEED, NUMBERS[name])
        case "files":
            records = document_rows(SEED, NUMBERS[name])
        case "readme":
            records = readme_rows()
        case "first":
            records = first_rows()
        case "gsm8k-train":
            records = gsm8k_rows("train")
        case "computation-train":
            records = computation_rows(SEED + 1, DEVELOPMENT[name])
        case _:
            records = document_rows(SEED + 1, DEVELOPMENT[name])
    return [make_row(record, number) for number, record in enumerate(records)]
