"""The folder of a run: what its files are called, and the files that the model left there."""

from __future__ import annotations

import mimetypes
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

JOURNAL = "journal.jsonl"
"""One event in each line."""
BLOBS = "blobs"
"""Texts that are too long for a line of the journal, by their SHA-256."""
FILES = "files"
"""What the model left in the output folder."""
HISTORY = "history"
"""The files of the sandbox after each step."""
SEED = "trajectory.json"
"""The record in the form of the LLM-in-Sandbox paper."""


class RunFile(os.PathLike[str]):
    """One file the model left. Give it to anything that takes a path, or read it."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.path = path

    @property
    def mime(self) -> str:
        """The media type that its name implies."""
        return mimetypes.guess_type(self.name)[0] or "application/octet-stream"

    @property
    def size(self) -> int:
        """Bytes."""
        return self.path.stat().st_size

    def read_bytes(self) -> bytes:
        """The content."""
        return self.path.read_bytes()

    def read_text(self, encoding: str = "utf-8") -> str:
        """The content as text."""
        return self.path.read_text(encoding)

    def __fspath__(self) -> str:
        return str(self.path)

    def __bytes__(self) -> bytes:
        return self.read_bytes()

    def __repr__(self) -> str:
        return f"<RunFile {self.name}: {self.size} bytes at {self.path}>"


class RunFiles(Mapping[str, RunFile]):
    """The files of a run by their names below the output folder. Never leads out of the run's folder."""

    def __init__(self, folder: Path, make: type[RunFile] = RunFile) -> None:
        self._folder = folder
        self._make = make

    def __getitem__(self, name: str) -> RunFile:
        path = self._folder / name
        inside = Path(os.path.normpath(path)).is_relative_to(self._folder) and not Path(name).is_absolute()
        if (
            not inside
            or not path.is_file()
            or path.resolve() != self._folder.resolve() / Path(os.path.normpath(name))
        ):
            raise KeyError(
                f"{name!r} is not among the files of this run: {', '.join(self) or 'there are none'}"
            )
        return self._make(name, path)

    def __iter__(self) -> Iterator[str]:
        names = []
        for folder, _, files in os.walk(self._folder):
            names += [str((Path(folder) / file).relative_to(self._folder)) for file in files]
        return iter(sorted(name for name in names if not (self._folder / name).is_symlink()))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"<RunFiles {', '.join(self) or 'none'}>"
