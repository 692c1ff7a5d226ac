"""Functions that find, read and split the documents in a folder.

Only a few documents are in memory at a time, however many documents there are.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from llm_sandbox_nb.benchmark.rows import DataError
from llm_sandbox_nb.encoded_text import text_of
from llm_sandbox_nb.training.data.convert import MAX_BYTES

PLAIN = (".txt", ".md")
CONVERTED = (".html", ".htm", ".xhtml", ".epub", ".pdf")
_DEADLINE_SECONDS = 120.0
"""Maximum seconds for the conversion of one document."""


@dataclass(frozen=True)
class Document:
    """Document. Its text is read on demand."""

    name: str
    """Path relative to the folder of all documents, with `/`. Questions use this name for the document."""
    title: str
    domain: str
    """Path of the document's folder, relative to the folder of all documents. Empty if it is that folder."""
    path: Path
    """Path of a plain text file: the document itself, or its text after the conversion."""

    def text(self) -> str:
        """Return the text. All its lines end with `\\n`."""
        return _decoded(self.path.read_bytes())


@dataclass(frozen=True)
class Unread:
    """Name of a document that cannot be used, with the reason."""

    name: str
    reason: str


def read_documents(folder: Path, converted: Path) -> Iterator[Document | Unread]:
    """Yield the documents below `folder` in the order of their names. Write converted texts to `converted`.

    Raises:
        DataError: if the folder does not exist.
    """
    if not folder.is_dir():
        raise DataError(f"There is no folder {folder}: give the folder with the documents.")
    paths = sorted(
        (
            path
            for path in folder.rglob("*")
            if path.suffix.lower() in (*PLAIN, *CONVERTED) and path.is_file()
        ),
        key=lambda path: path.relative_to(folder).as_posix(),
    )
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield from pool.map(partial(_read, folder, converted), range(len(paths)), paths)


def _read(folder: Path, converted: Path, number: int, path: Path) -> Document | Unread:
    name = path.relative_to(folder).as_posix()
    domain = path.relative_to(folder).parent.as_posix()
    if path.stat().st_size > MAX_BYTES:
        return Unread(name, f"it is larger than {MAX_BYTES // 2**20} MiB")
    source, title = path, path.stem
    if path.suffix.lower() in CONVERTED:
        result = _convert(path)
        if "problem" in result:
            return Unread(name, result["problem"])
        source, title = converted / f"{number}.txt", result["title"] or title
        source.write_text(result["text"], "utf-8", "replace", newline="\n")
    if not _decoded(source.read_bytes()).strip():
        return Unread(name, "it is empty")
    return Document(name, " ".join(title.split()), "" if domain == "." else domain, source)


def _convert(path: Path) -> dict[str, str]:
    command = [sys.executable, "-m", "llm_sandbox_nb.training.data.convert", str(path)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_DEADLINE_SECONDS)
    except subprocess.TimeoutExpired:
        return {"problem": f"it took longer than {_DEADLINE_SECONDS:.0f} s to read"}
    if done.returncode:
        last = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        reason = last.removeprefix("__main__.").removeprefix("ConversionError: ")
        return {"problem": reason[:200].rstrip(".") or "the program that reads it ended early"}
    result: dict[str, str] = json.loads(done.stdout)
    return result


def _decoded(content: bytes) -> str:
    try:
        text = text_of(content, "strict")
    except UnicodeDecodeError:
        text = content.decode("cp1252", "replace")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def file_name(title: str) -> str:
    """Convert a title to a file name without an ending, of at most 80 letters, digits, `-`, `_` and `.`."""
    plain = unicodedata.normalize("NFKC", title)
    name = re.sub(r"[^\w.-]+", "_", plain).strip("._-")[:80].rstrip("._-")
    return name or "document"


_BORDERS = (
    re.compile(r"\n+(?=#{1,6} |(?:chapter|book|part|act|scene|section) [\divxlc]+\b)", re.IGNORECASE),
    re.compile(r"\n\s*\n+"),
    re.compile(r"[.!?][\"'”’)]*\s+"),
    re.compile(r"\s+"),
)
"""Patterns of places where a part may end. The best kind of place is first. The part ends after the match."""


def split_text(text: str, size: int) -> Iterator[str]:
    """Split a text into parts of at most `size` characters.

    A part ends at the best place in its second half, so each part except the last has at least `size` / 2 characters.
    """
    if size < 2:
        raise ValueError(f"size must be at least 2, not {size}")
    start = 0
    while len(text) - start > size:
        end = start + _cut(text[start : start + size])
        yield text[start:end]
        start = end
    if start < len(text):
        yield text[start:]


def _cut(window: str) -> int:
    half = len(window) // 2
    for border in _BORDERS:
        ends = [match.end() for match in border.finditer(window, half) if match.end() < len(window)]
        if ends:
            return ends[-1]
    return len(window)
