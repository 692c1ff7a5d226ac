"""Files of JSON lines that survive a crash: one write for each record, torn lines left out."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def append_line(path: Path, record: object) -> None:
    """Append one record as a JSON line in one write, so that a crash leaves at most one torn line."""
    data = (json.dumps(record, ensure_ascii=False) + "\n").encode("utf-8", "replace")
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        size = os.fstat(file).st_size
        if size and os.pread(file, 1, size - 1) != b"\n":
            data = b"\n" + data  # what a crash left unfinished must not swallow this record
        while data:
            data = data[os.write(file, data) :]
    finally:
        os.close(file)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole records of a file; lines that a crash tore are left out."""
    if not path.exists():
        return []
    found = []
    for line in path.read_bytes().splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            found.append(record)
    return found
