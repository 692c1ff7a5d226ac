"""The first rows of tables, and the number of further rows.

A separate process with limited memory and time reads Parquet files. A file of two kilobytes can hold gigabytes of text,
which would kill the kernel.
"""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from itertools import islice
from typing import Any

from llm_sandbox_nb.card.text import escape
from llm_sandbox_nb.errors import LLMSandboxError
from llm_sandbox_nb.formatting import plural
from llm_sandbox_nb.plain_text import first_line

_MAX_ROWS = 30
_MAX_COLUMNS = 20
_CELL_CHARACTERS = 80
_MAX_TEXT = 5 * _CELL_CHARACTERS
_MEMORY_BYTES = 2 * 1024**3
"""Maximum address space of the reading process, in bytes."""
_TIMEOUT_SECONDS = 30.0

_READER = """
import io, json, sys
import pyarrow as pa
import pyarrow.parquet as pq
memory, most_rows, most_columns, longest = map(int, sys.argv[1:])
try:
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
except (ImportError, ValueError, OSError):
    pass
pa.set_cpu_count(1)
pa.set_memory_pool(pa.system_memory_pool())
try:
    file = pq.ParquetFile(io.BytesIO(sys.stdin.buffer.read()))
    fields = [file.schema_arrow.field(place) for place in range(min(len(file.schema_arrow), most_columns))]
    columns = [{"name": field.name, "type": str(field.type)[:longest]} for field in fields]
    rows = []
    for batch in file.iter_batches(batch_size=1, use_threads=False):
        rows.append([str(batch.column(place)[0].as_py())[:longest] for place in range(len(columns))])
        if len(rows) == most_rows:
            break
    found = {"columns": columns, "rows": rows, "total_rows": file.metadata.num_rows, "width": len(file.schema_arrow)}
except MemoryError:
    found = {"error": "it needs too much memory"}
except (pa.ArrowException, OSError, ValueError) as error:
    found = {"error": str(error)[:1000]}
json.dump(found, sys.stdout)
"""


class UnreadableTableError(LLMSandboxError):
    """Raised if a table cannot be read. The message is the reason without a full stop."""


def first_rows(data: bytes) -> dict[str, Any]:
    """Return the beginning of a Parquet file: `columns` with name and type, `rows` as texts, `total_rows`, `width`.

    The result has at most `_MAX_ROWS` rows and `_MAX_COLUMNS` columns. Each text is cut to `_MAX_TEXT` characters.

    Raises:
        UnreadableTableError: if the file is not Parquet, or needs too much memory or time.
    """
    command = [
        sys.executable,
        "-P",
        "-c",
        _READER,
        *map(str, (_MEMORY_BYTES, _MAX_ROWS, _MAX_COLUMNS, _MAX_TEXT)),
    ]
    try:
        done = subprocess.run(command, input=data, capture_output=True, timeout=_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise UnreadableTableError("it takes too long") from error
    except OSError as error:
        raise UnreadableTableError(f"no process can be started for it ({error})") from error
    if done.returncode != 0:
        raise UnreadableTableError("reading it failed")
    found: dict[str, Any] = json.loads(done.stdout)
    if "error" in found:
        raise UnreadableTableError(found["error"])
    return found


def table_html(header: Sequence[str], rows: Iterable[Sequence[str]], note: str, width: int) -> str:
    """Return a table as HTML with `note` below. Of the `width` columns, the first `_MAX_COLUMNS` are shown."""
    head = "".join(f"<th>{_cell(name)}</th>" for name in header[:_MAX_COLUMNS])
    body = "".join(
        f"<tr>{''.join(f'<td>{_cell(cell)}</td>' for cell in row[:_MAX_COLUMNS])}</tr>" for row in rows
    )
    if width > _MAX_COLUMNS:
        note = f"{note}{', ' if note else ''}{width - _MAX_COLUMNS} more columns"
    below = f"<p class='lsn-quiet'>{escape(note)}</p>" if note else ""
    return f"<table class='lsn-table'><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}"


def _cell(text: str) -> str:
    return escape(first_line(text, _CELL_CHARACTERS))


def delimited_table(text: str, delimiter: str) -> str:
    """Return the first rows of a CSV or TSV file as HTML."""
    if delimiter == "," and text.partition("\n")[0].count(";") > text.partition("\n")[0].count(","):
        delimiter = ";"
    filled = filter(None, csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))
    try:
        rows = list(islice(filled, _MAX_ROWS + 1))
        more = sum(1 for _ in filled)
    except csv.Error as error:
        return f"<p class='lsn-quiet'>Not a table that can be shown: {escape(str(error))}.</p>"
    if not rows:
        return "<p class='lsn-quiet'>The file is empty.</p>"
    return table_html(rows[0], rows[1:], plural(more, "more row") if more else "", len(rows[0]))


def parquet_rows(data: bytes) -> dict[str, Any] | str:
    """Return the first rows of a Parquet file, or a sentence that says why it cannot be read here."""
    if find_spec("pyarrow") is None:
        return "To see Parquet files here, install pyarrow in the notebook's environment."
    try:
        return first_rows(data)
    except UnreadableTableError as error:
        return f"Not a Parquet file that can be read: {first_line(str(error)).rstrip('.')}."


def parquet_table(table: dict[str, Any] | str) -> str:
    """Return the result of `parquet_rows` as HTML."""
    if isinstance(table, str):
        return f"<p class='lsn-quiet'>{escape(table)}</p>"
    more = table["total_rows"] - len(table["rows"])
    header = [column["name"] for column in table["columns"]]
    return table_html(header, table["rows"], plural(more, "more row") if more else "", table["width"])
