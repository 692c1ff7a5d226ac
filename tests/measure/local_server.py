"""A model server of our own for the measurement: a GGUF file, served by a child process until this one ends."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CONTEXT = 8_192
"""Tokens: what all columns can use."""


class ServerError(RuntimeError):
    """The server cannot be started. The message is one sentence that says what to do."""


@dataclass(frozen=True)
class Server:
    """A server that answers."""

    url: str
    process: int | None
    """Its process; None for one that somebody else has started."""
    model: str
    """The model's name in tables."""
    sha256: str = ""


@contextmanager
def served(file: Path, log: Path, threads: int, python: Path = Path(sys.executable)) -> Iterator[Server]:
    """The server of a GGUF file. `python` is an interpreter that has xllamacpp.

    Raises:
        ServerError: the file is missing, or the server did not start.
    """
    if not file.is_file():
        raise ServerError(f"There is no model at {file}: name a GGUF file with --model.")
    with file.open("rb") as data:
        sha256 = hashlib.file_digest(data, "sha256").hexdigest()
    words = [python, Path(__file__).with_name("serve_gguf.py"), file, str(threads), str(CONTEXT), "1"]
    with log.open("ab") as errors:
        process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        if not address.startswith("http"):
            raise ServerError(
                f"The server of {file.name} did not start: {log} says why (`pip install xllamacpp`?)."
            )
        yield Server(f"{address}/v1", process.pid, file.stem, sha256)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.terminate()
        process.wait()
