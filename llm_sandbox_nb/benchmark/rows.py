"""Rows of a task's data. Each row has a problem. The paper's authors published the schema of the columns."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import Any

from llm_sandbox_nb.agent.errors import InputError
from llm_sandbox_nb.agent.inputs import check_file_names
from llm_sandbox_nb.errors import LLMSandboxError
from llm_sandbox_nb.trajectory.events import clean_text


class DataError(LLMSandboxError, ValueError):
    """Error for data that cannot be used. The message is one sentence with the remedy."""


@dataclass(frozen=True)
class Row:
    """Row with a problem. `ground_truth` is the gold answer. This package puts it into no sandbox and no prompt."""

    id: str
    problem_statement: str
    ground_truth: str
    domain: str = ""
    input_files: Mapping[str, str] = field(default_factory=dict)
    """Texts of the input files, by file name. A name may contain folders."""
    qa_type: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """All other columns, for the scorer."""

    @property
    def digest(self) -> str:
        """Digest of the whole content. If a row with the same id had another digest before, the row has changed."""
        whole = json.dumps([vars(self)], sort_keys=True, default=_in_words)
        return hashlib.sha256(whole.encode("utf-8", "replace")).hexdigest()[:16]

    @property
    def problem(self) -> str:
        """Digest of the question, the documents, the gold answer and the repository, but not of the row's id.

        All copies of a problem have the same digest.
        """
        place = {name: self.extra.get(name) for name in ("image", "repository")}
        whole = [self.problem_statement, dict(self.input_files), self.ground_truth, place]
        text = json.dumps(whole, sort_keys=True, default=_in_words)
        return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


def repeats_of_rows(rows: Iterable[Row], repeats: int) -> dict[str, int]:
    """Return a dict of row ids with the number of repeats of each row.

    Each problem has `repeats` repeats in total. Rows with the same problem share these repeats, but each row has at
    least one repeat.
    """
    copies: dict[str, list[Row]] = {}
    for row in rows:
        copies.setdefault(row.problem, []).append(row)
    found: dict[str, int] = {}
    for same in copies.values():
        whole, more = divmod(max(repeats, len(same)), len(same))
        found |= {row.id: whole + (place < more) for place, row in enumerate(same)}
    return found


def _in_words(value: Any) -> str:
    """Return a text for a value that JSON cannot express. The text of a value is the same in every process."""
    if isinstance(value, bytes):
        return hashlib.sha256(value).hexdigest()
    return str(value) if isinstance(value, date | Decimal) else type(value).__qualname__


_COLUMNS = ("id", "problem_statement", "ground_truth", "domain", "input_files", "qa_type")


def make_row(record: Mapping[str, Any], number: int, names: Mapping[str, str] | None = None) -> Row:
    """Make a row from a record. `names` maps this package's column names to the column names in the data.

    Raises:
        DataError: if the problem is missing or empty, the id or problem is a list or mapping, or `input_files` is not a
            mapping of plain relative names to texts.
    """
    names = names or {}

    def column(name: str) -> Any:
        return record.get(names.get(name, name))

    if (problem := column("problem_statement")) is None:
        known = ", ".join(map(str, record)) or "none"
        raise DataError(f"Row {number} has no problem_statement; its columns are {known}.")
    identity = column("id")
    for name, value in (("id", identity), ("problem_statement", problem)):
        if isinstance(value, Mapping | list):
            raise DataError(f"The {name} of row {number} has to be text, not {str(value)[:80]!r}.")
    if not str(problem).strip():
        known_as = "" if identity is None else f" ({str(identity)!r})"
        raise DataError(
            f"Row {number}{known_as} has an empty problem_statement: fill it in or leave the row out."
        )
    used = {names.get(name, name) for name in _COLUMNS}
    return Row(
        # The ids in results are cleaned in the same way.
        id=str(clean_text(str(number if identity is None else identity))),
        problem_statement=str(problem),
        ground_truth=_as_text(column("ground_truth")),
        domain=str(column("domain") or ""),
        input_files=_files(column("input_files"), number),
        qa_type=str(column("qa_type") or ""),
        extra={key: value for key, value in record.items() if key not in used},
    )


def _as_text(value: Any) -> str:
    """Return the value of a column as text. Null and NaN, which stand for missing values, become an empty text."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _files(value: Any, number: int) -> dict[str, str]:
    """Parse the files of a row from a mapping or its JSON text. An empty column (`null`, `""`, `{}`) means no files."""
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else {}
        except ValueError as error:
            raise DataError(f"The input_files of row {number} are not JSON ({error}).") from error
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise DataError(f"The input_files of row {number} have to be a mapping of names to texts.")
    found = {str(name): text for name, text in value.items() if text is not None}
    for name, text in found.items():
        if (
            not isinstance(text, str)
            or not name
            or name.startswith("/")
            or ".." in name.split("/")
            or "\0" in name
        ):
            raise DataError(
                f"The input file {name!r} of row {number} has to be a text with a plain relative name."
            )
    try:
        check_file_names(found)
    except InputError as error:
        raise DataError(f"The input_files of row {number} cannot be used: {error}") from error
    return found
