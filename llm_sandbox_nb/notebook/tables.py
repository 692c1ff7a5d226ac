"""Tables and JSON as a person reads them: the first rows, and how many more there are."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from itertools import islice
from typing import Any

from llm_sandbox_nb.notebook.card_text import escape, first_line
from llm_sandbox_nb.notebook.parquet import UnreadableTableError, first_rows

ROWS = 30
COLUMNS = 20
_CELL = 80


def table_html(header: Sequence[str], rows: Iterable[Sequence[str]], note: str = "") -> str:
    """A table, at most `COLUMNS` wide; `note` stands below it."""
    head = "".join(f"<th>{_cell(name)}</th>" for name in header[:COLUMNS])
    body = "".join(f"<tr>{''.join(f'<td>{_cell(cell)}</td>' for cell in row[:COLUMNS])}</tr>" for row in rows)
    if len(header) > COLUMNS:
        note = f"{note}{', ' if note else ''}{len(header) - COLUMNS} more columns"
    below = f"<p class='lsn-quiet'>{escape(note)}</p>" if note else ""
    return f"<table class='lsn-table'><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}"


def _cell(text: str) -> str:
    return escape(first_line(text, _CELL))


def delimited_table(text: str, delimiter: str) -> str:
    """The first rows of a CSV or TSV file."""
    if delimiter == "," and text.partition("\n")[0].count(";") > text.partition("\n")[0].count(","):
        delimiter = ";"
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        rows = list(islice(reader, ROWS + 1))
        more = sum(1 for row in reader if row)
    except csv.Error as error:
        return f"<p class='lsn-quiet'>Not a table that can be shown: {escape(str(error))}.</p>"
    if not rows:
        return "<p class='lsn-quiet'>The file is empty.</p>"
    return table_html(rows[0], rows[1:], f"{more:,} more rows" if more else "")


def parquet_preview(data: bytes) -> dict[str, Any] | None:
    """The first rows of a Parquet file for the trajectory view; None when it cannot be read here.

    `columns` with name and type, `rows` as texts, and `total_rows`.
    """
    if find_spec("pyarrow") is None:
        return None
    try:
        table = first_rows(data, ROWS, COLUMNS, _CELL * 5)
    except UnreadableTableError:
        return None
    named = zip(table.names[:COLUMNS], table.types[:COLUMNS], strict=True)
    columns = [{"name": name, "type": kind} for name, kind in named]
    return {"columns": columns, "rows": table.rows, "total_rows": table.total}


def parquet_table(data: bytes) -> str:
    """The first rows of a Parquet file."""
    if find_spec("pyarrow") is None:
        return "<p class='lsn-quiet'>To see Parquet files here, install pyarrow beside the notebook.</p>"
    try:
        table = first_rows(data, ROWS, COLUMNS, _CELL + 1)
    except UnreadableTableError as error:
        reason = escape(first_line(str(error)).rstrip("."))
        return f"<p class='lsn-quiet'>Not a Parquet file that can be read: {reason}.</p>"
    more = table.total - len(table.rows)
    return table_html(table.names, table.rows, f"{more:,} more rows" if more else "")


def json_text(text: str) -> str:
    """JSON indented; anything else, or JSON nested too deep, as it is."""
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text
