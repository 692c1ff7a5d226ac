"""Loader of a task's rows, from a file, from the task's folder, or from Hugging Face."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from llm_sandbox_nb.benchmark.rows import DataError, Row, make_row
from llm_sandbox_nb.benchmark.scorers import gold_problem
from llm_sandbox_nb.benchmark.swe import tests_of
from llm_sandbox_nb.benchmark.task import DataSource, Task
from llm_sandbox_nb.encoded_text import text_of
from llm_sandbox_nb.own_folder import expanded

SAMPLE = "sample"
"""Value of `--data` for the sample rows in a task's folder. These few rows only test the installation."""
HUB = "hf:"
"""Prefix of `--data` for a data set of the Hugging Face hub."""
_DATA_FILES = ("data.jsonl", "data.json", "data.parquet")


def load_rows(task: Task, source: str | None = None) -> list[Row]:
    """Load the rows of a task. With `source` None, use the data in the task's folder, or else the task's data set.

    Otherwise, `source` is a file, a folder with TASK.jsonl, `sample`, or `hf:OWNER/NAME/CONFIG:SPLIT`.

    Raises:
        DataError: if there are no rows, two rows have the same id, a row lacks data for the scorer, or a row does not
            match the schema in the module `rows`.
    """
    records = map(_without_envelope, _records(task, source))
    rows = [make_row(record, number, task.data.columns) for number, record in enumerate(records)]
    if not rows:
        raise DataError(f"There are no rows for the task {task.name}.")
    seen: set[str] = set()
    for number, row in enumerate(rows):
        if row.id in seen:
            raise DataError(f"Two rows of the task {task.name} have the id {row.id!r}: ids have to differ.")
        seen.add(row.id)
        if problem := gold_problem(task.scorer, row):
            where = f"Row {number} ({row.id!r}) of the task {task.name}"
            raise DataError(f"{where} {problem}: fill it in or leave the row out.")
        if task.scorer == "swe":
            tests_of(row)  # raises an error before the model is asked for an answer that cannot be scored
    return rows


def _records(task: Task, source: str | None) -> Iterable[Mapping[str, Any]]:
    if source is not None and source.startswith(HUB):
        return _hub(_hub_source(task, source))
    if source is not None:
        return _file(_named(task, source))
    if task.data.file:
        return _file(task.folder / task.data.file)
    for name in _DATA_FILES:
        if (task.folder / name).is_file():
            return _file(task.folder / name)
    if not task.data.dataset:
        raise DataError(f"The task {task.name} has no data: put a data.jsonl into {task.folder}.")
    return _hub(task.data)


def _hub_source(task: Task, source: str) -> DataSource:
    """Parse `hf:OWNER/NAME/CONFIG:SPLIT`. Configuration and split are optional."""
    path, _, split = source.removeprefix(HUB).replace("{task}", task.name).partition(":")
    owner, _, rest = path.partition("/")
    name, _, config = rest.partition("/")
    if not owner or not name or "/" in config:
        raise DataError(
            f"{source} does not name a data set: write hf:OWNER/NAME, with /CONFIG and :SPLIT where needed."
        )
    return replace(
        task.data, dataset=f"{owner}/{name}", config=config or None, split=split or DataSource().split
    )


def _without_envelope(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the columns of a row. Records for the trainer verl have all columns of the row in `extra_info`."""
    inner = record.get("extra_info")
    known = "problem_statement" not in record and isinstance(inner, dict) and "problem_statement" in inner
    return inner if known and isinstance(inner, dict) else record


def _named(task: Task, source: str) -> Path:
    if source != SAMPLE:
        path = expanded(source)
        if path.is_dir():
            files = (path / f"{task.name}.{ending}" for ending in ("jsonl", "json", "parquet"))
            path = next(filter(Path.is_file, files), path)
        if not path.is_file():
            raise DataError(f"There is no data at {source}: give a .jsonl, .json or .parquet file.")
        return path
    found = next(
        (path for path in (task.folder / "sample.jsonl", task.folder / "data.jsonl") if path.is_file()), None
    )
    if found is None:
        raise DataError(f"The task {task.name} has no sample rows: give a file with --data.")
    return found


def _json_lines(text: str) -> Iterator[Any]:
    """Parse JSON lines. Raise ValueError with the number of an invalid line."""
    # `splitlines` would also split at characters such as U+2028, which a JSON text may contain
    for number, line in enumerate(text.split("\n"), 1):
        # Some Windows programs begin a file with this mark. In joined files, it is also in the middle.
        line = line.removeprefix("\ufeff")
        if line.strip():
            try:
                yield json.loads(line)
            except ValueError as error:
                raise ValueError(f"line {number} is not JSON ({error})") from error


def _file(path: Path) -> Iterable[Mapping[str, Any]]:
    try:
        if path.suffix == ".parquet":
            return _parquet(path)
        text = text_of(path.read_bytes(), "strict")
        records = json.loads(text) if path.suffix == ".json" else list(_json_lines(text))
    except RecursionError as error:
        raise DataError(f"{path} cannot be read: a row is nested too deeply.") from error
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {' '.join(str(error).split()).rstrip('.')}.") from error
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise DataError(f"{path} has to hold objects, one for each row.")
    return records


def _parquet(path: Path) -> list[Mapping[str, Any]]:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise DataError("Parquet needs pyarrow: run `pip install 'llm-sandbox-nb[benchmark]'`.") from error
    records: list[Mapping[str, Any]] = pyarrow.parquet.read_table(path).to_pylist()
    return records


def _hub(source: DataSource) -> Iterable[Mapping[str, Any]]:
    try:
        import datasets
    except ImportError as error:
        raise DataError("Data sets need a package: run `pip install 'llm-sandbox-nb[benchmark]'`.") from error
    try:
        return list(datasets.load_dataset(source.dataset, source.config, split=source.split))
    except Exception as error:
        raise DataError(
            f"The data set {source.dataset} cannot be loaded ({type(error).__name__}): where there is no network, "
            f"give the rows with --data FILE, or test the installation with --data {SAMPLE}."
        ) from error


def with_documents(row: Row) -> str:
    """Return the documents of a row followed by the problem, for a model that gets no input files."""
    if not row.input_files:
        return row.problem_statement
    parts = [
        f"----- BEGIN {name} -----\n{text}\n----- END {name} -----"
        for name, text in sorted(row.input_files.items())
    ]
    return "\n\n".join([*parts, row.problem_statement])
