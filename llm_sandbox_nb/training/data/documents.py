"""The documents of a folder: found, named, read, and cut into parts.

A few are in memory at a time, so that it does not grow with their number.
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

PLAIN = (".txt", ".md")
CONVERTED = (".html", ".htm", ".xhtml", ".epub", ".pdf")
_MOST_BYTES = 64 * 2**20
_DEADLINE = 120.0
"""Seconds to convert one document."""


@dataclass(frozen=True)
class Document:
    """One document. Its text is read when it is used."""

    name: str
    """Its path in the folder, with `/`: how questions name it."""
    title: str
    domain: str
    """The folder it lies in, empty at the top."""
    path: Path
    """A file of plain text: the document, or what was made of it."""

    def text(self) -> str:
        """The text, with line ends as `\\n`."""
        return _decoded(self.path.read_bytes())


@dataclass(frozen=True)
class Unread:
    """A document that cannot be used, and why."""

    name: str
    reason: str


def read_documents(folder: Path, converted: Path) -> Iterator[Document | Unread]:
    """The documents below `folder`, in the order of their names; texts of converted ones go into `converted`.

    Raises:
        DataError: the folder is not there.
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
    if path.stat().st_size > _MOST_BYTES:
        return Unread(name, f"it is larger than {_MOST_BYTES // 2**20} MiB")
    source, title = path, path.stem
    if path.suffix.lower() in CONVERTED:
        said = _convert(path)
        if "problem" in said:
            return Unread(name, said["problem"])
        source, title = converted / f"{number}.txt", said["title"] or title
        source.write_text(said["text"], "utf-8", "replace", newline="\n")
    if not _decoded(source.read_bytes()).strip():
        return Unread(name, "it is empty")
    return Document(name, " ".join(title.split()), "" if domain == "." else domain, source)


def _convert(path: Path) -> dict[str, str]:
    command = [sys.executable, "-m", "llm_sandbox_nb.training.data.convert", str(path)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_DEADLINE)
    except subprocess.TimeoutExpired:
        return {"problem": f"it took longer than {_DEADLINE:.0f} s to read"}
    if done.returncode:
        last = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        reason = last.removeprefix("__main__.").removeprefix("ConversionError: ")
        return {"problem": reason[:200].rstrip(".") or "the program that reads it ended early"}
    said: dict[str, str] = json.loads(done.stdout)
    return said


def _decoded(content: bytes) -> str:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("cp1252", "replace")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def file_name(title: str) -> str:
    """A title as the name of a file, without its ending: letters, digits, `-`, `_` and `.`; at most 80."""
    plain = unicodedata.normalize("NFKC", title)
    name = re.sub(r"[^\w.-]+", "_", plain).strip("._-")[:80].rstrip("._-")
    return name or "document"


_BORDERS = (
    re.compile(r"\n+(?=#{1,6} |(?:chapter|book|part|act|scene|section) [\divxlc]+\b)", re.IGNORECASE),
    re.compile(r"\n\s*\n+"),
    re.compile(r"[.!?][\"'”’)]*\s+"),
    re.compile(r"\s+"),
)
"""The best first. A part ends behind a match."""


def split_text(text: str, size: int) -> Iterator[str]:
    """Parts of at most `size` characters, which together are the text.

    A part ends at the best border of its second half, so that parts are not much smaller than they may be.
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
