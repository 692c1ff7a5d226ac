"""The files of a run for its card: read from the run's folder, within bounds, and never through a link."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from llm_sandbox_nb.notebook.artifacts import Artifact
from llm_sandbox_nb.notebook.card_text import size_in_words
from llm_sandbox_nb.trajectory.events import ArtifactSaved


def load_artifacts(
    saved: Iterable[ArtifactSaved], folder: Path | None, *, each: int, together: int
) -> list[Artifact]:
    """The files with their content, when one has at most `each` bytes and all have at most `together`."""
    artifacts = []
    for one in saved:
        artifact = _load(one, folder, min(each, together), each)
        together -= len(artifact.data or b"")
        artifacts.append(artifact)
    return artifacts


def _load(saved: ArtifactSaved, folder: Path | None, room: int, each: int) -> Artifact:
    path = None if folder is None else folder / "files" / saved.path
    href = relative_path(path)
    if saved.size > room:
        bound = f"the bound of {size_in_words(each)} a file" if saved.size > each else "the bound of a run"
        why = f"Not shown: larger than {bound}; it is in the run's folder."
        return Artifact(saved.path, saved.mime, saved.size, None, why, href)
    try:
        data = _read(path, room) if path else None
    except OSError as error:
        return Artifact(saved.path, saved.mime, saved.size, None, f"Cannot be read: {error.strerror}.", None)
    if data is None:
        return Artifact(saved.path, saved.mime, saved.size, None, "Shown when the run is over.", href)
    return Artifact(saved.path, saved.mime, saved.size, data, "", href)


def _read(path: Path, room: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        return file.read(room)


def relative_path(path: Path | None) -> str | None:
    """The path from the working directory, which is the notebook's folder; None when it is elsewhere."""
    if path is None:
        return None
    try:
        return path.absolute().relative_to(Path.cwd()).as_posix()
    except ValueError:
        return None
