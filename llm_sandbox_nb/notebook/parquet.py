"""The first rows of a Parquet file, read by a process of its own with little memory and time.

A file of two kilobytes can hold gigabytes of text: read in the kernel, it would take the notebook with it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass

MEMORY = 2 * 1024**3
"""Bytes of address space of the reading process."""
TIMEOUT = 30.0
"""Seconds."""

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
    names = file.schema_arrow.names
    types = [str(field.type)[:longest] for field in file.schema_arrow]
    rows = []
    for batch in file.iter_batches(batch_size=1, use_threads=False):
        values = (batch.column(place)[0].as_py() for place in range(min(len(names), most_columns)))
        rows.append([str(value)[:longest] for value in values])
        if len(rows) == most_rows:
            break
    told = {"names": names, "types": types, "rows": rows, "total": file.metadata.num_rows}
except MemoryError:
    told = {"error": "it needs too much memory"}
except (pa.ArrowException, OSError, ValueError) as error:
    told = {"error": str(error)[:1000]}
json.dump(told, sys.stdout)
"""


class UnreadableTableError(Exception):
    """The file cannot be read; says why, without a full stop."""


@dataclass(frozen=True)
class FirstRows:
    """The beginning of a table as texts."""

    names: list[str]
    """All columns."""
    types: list[str]
    """Of each column, as Arrow calls it."""
    rows: list[list[str]]
    total: int
    """Rows of the whole file, as it says."""


def first_rows(data: bytes, rows: int, columns: int, longest: int) -> FirstRows:
    """At most `rows` rows and `columns` columns, each cell cut to `longest` characters.

    Raises:
        UnreadableTableError: it is no Parquet file, or it takes too much memory or time.
    """
    command = [sys.executable, "-P", "-c", _READER, *map(str, (MEMORY, rows, columns, longest))]
    try:
        done = subprocess.run(command, input=data, capture_output=True, timeout=TIMEOUT)
    except subprocess.TimeoutExpired as error:
        raise UnreadableTableError("it takes too long") from error
    except OSError as error:
        raise UnreadableTableError(f"no process can be started for it ({error})") from error
    if done.returncode != 0:
        raise UnreadableTableError("reading it failed")
    told = json.loads(done.stdout)
    if "error" in told:
        raise UnreadableTableError(told["error"])
    return FirstRows(told["names"], told["types"], told["rows"], told["total"])
