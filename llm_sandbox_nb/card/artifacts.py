"""Files that the model made, loaded within limits of size."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from llm_sandbox_nb.card.tables import parquet_rows
from llm_sandbox_nb.formatting import format_size
from llm_sandbox_nb.own_folder import open_file
from llm_sandbox_nb.trajectory.events import ArtifactSaved
from llm_sandbox_nb.trajectory.run_folder import FILES, own_file

_MAX_TABLES = 10


@dataclass(frozen=True)
class Artifact:
    """A file of the output folder, with its content if known."""

    path: str
    """Path relative to the output folder, with `/` as separator."""
    mime: str
    size: int
    data: bytes | None = None
    """The content; None if the file is not shown."""
    omitted: str = ""
    """Reason why `data` is None."""
    href: str | None = None
    """Path of the file relative to the notebook's folder; None if the file is elsewhere."""
    unread: str = ""
    """Reason why a Parquet file with content is not read."""

    @property
    def suffix(self) -> str:
        """The suffix of the name in lower case, which decides how the file is shown."""
        return PurePosixPath(self.path).suffix.lower()

    @cached_property
    def table(self) -> dict[str, Any] | str:
        """The first rows of a Parquet file, or a sentence that says why there are none."""
        return self.unread or parquet_rows(self.data or b"")


def load_artifacts(
    saved: Iterable[ArtifactSaved], folder: Path | None, *, each: int, together: int
) -> list[Artifact]:
    """Load files. A file with more than `each` bytes gets no content, nor does one after `together` bytes in all.

    Reading a Parquet file takes a second, so only the first `_MAX_TABLES` of these files are read.
    """
    artifacts: list[Artifact] = []
    tables = 0
    for file in saved:
        artifact = _load(file, folder, min(each, together), each)
        together -= len(artifact.data or b"")
        tables += artifact.suffix == ".parquet" and artifact.data is not None
        if tables > _MAX_TABLES:
            artifact = replace(artifact, unread=f"Only the first {_MAX_TABLES} Parquet files are shown.")
        artifacts.append(artifact)
    return artifacts


def _load(saved: ArtifactSaved, folder: Path | None, room: int, each: int) -> Artifact:
    path = None if folder is None else own_file(folder / FILES, saved.path)
    size = max(saved.size, path.lstat().st_size if path else 0)  # the size in a received record may be wrong
    data = None
    why = (
        "Shown when the run is over." if folder is None else "Cannot be read: it is not in the run's folder."
    )
    if size > room:
        bound = (
            f"the limit of {format_size(each)} for a file"
            if size > each
            else "what is left of the run's limit"
        )
        why = f"Not shown: larger than {bound}; it is in the run's folder."
    elif path and folder:
        try:
            with os.fdopen(open_file(folder, path.relative_to(folder)), "rb") as file:
                data, why = file.read(room), ""
        except OSError as error:
            path, why = None, f"Cannot be read: {error.strerror or error}."
    return Artifact(saved.path, saved.mime, saved.size, data, why, relative_path(path))


def relative_path(path: Path | None) -> str | None:
    """Return the path relative to the working directory, which is the notebook's folder; None for a path elsewhere."""
    if path is None:
        return None
    try:
        return path.absolute().relative_to(Path.cwd()).as_posix()
    except ValueError:
        return None
