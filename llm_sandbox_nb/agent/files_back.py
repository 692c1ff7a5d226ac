"""A run's `files/` on disk, put back to where a run that is not under way was taken back to.

A run under way does that itself: what it finds in its sandbox in the end is what it keeps.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from llm_sandbox_nb.agent.collect import FILES_FOLDER, CollectLimits, make_way, saved_file
from llm_sandbox_nb.agent.files_of import FilesOf
from llm_sandbox_nb.agent.prompts import PromptConfig
from llm_sandbox_nb.agent.recorder import Recorder
from llm_sandbox_nb.sandbox.contract import Directories
from llm_sandbox_nb.sandbox.errors import HistoryError
from llm_sandbox_nb.sandbox.history.entry import FILE, Entry
from llm_sandbox_nb.trajectory import events as ev

if TYPE_CHECKING:
    from llm_sandbox_nb.agent.run import Run

_PARTIAL = "files.partial"


def put_files_back(run: Run, checkpoint: str, known: Collection[str] = ()) -> tuple[str, ...]:
    """Make `files/` what the output folder was at a checkpoint; what is not kept, in sentences.

    Only of files that were collected at some time, by this run on any branch or as `known` (names as the journal has
    them): others are none of its results.
    """
    folder, output = run.folder / FILES_FOLDER, f"{_output_of(run)}/"
    names, there = {*known, *collected(run)}, set(run.files)
    problems, room = [], CollectLimits.all_bytes
    with FilesOf(run).opened(checkpoint) as (store, manifest):
        here = {
            name: entry
            for path, entry in manifest.items()
            if entry.type == FILE and path.startswith(output) and (name := path.removeprefix(output))
            if (name in there or ev.clean_text(name) in names) and _inside(folder, name)
        }
        for name in there:
            if name not in here:
                (folder / name).unlink()
        for name, entry in sorted(here.items()):
            if _is_same(folder, folder / name, entry):
                continue
            try:
                room -= _fitting(entry, room)
                _write(folder, folder / name, functools.partial(store.write, entry))
            except (HistoryError, OSError) as error:
                problems.append(f"The run's file {name} stays as it is now: {error}")
    return tuple(problems)


def note_files(run: Run, recorder: Recorder, step: int) -> None:
    """Say on the branch of HEAD which files there are: what was collected late is told after the step, elsewhere."""
    said, here = run.trajectory.artifacts, dict(run.files)
    for name, file in here.items():
        event = saved_file(name, file.path, step or None)
        before = said.get(event.path)
        if before is None or before.sha256 != event.sha256:
            recorder.emit(event)
    for path in said.keys() - {ev.clean_text(name) for name in here}:
        recorder.emit(ev.ArtifactRemoved(step=step or None, path=path))


def collected(run: Run) -> set[str]:
    """Names of all files that a run has collected, on any branch."""
    return {one.path for one in run.trajectory.events if isinstance(one, ev.ArtifactSaved)}


def _output_of(run: Run) -> str:
    """The output folder in the sandbox."""
    start, sandbox = run.trajectory.start, run.trajectory.sandbox
    usual = Directories()
    prompts = start.settings.get("prompts") if start else None
    folder = prompts.get("output_dir") if isinstance(prompts, dict) else None
    config = PromptConfig("", output_dir=str(folder or usual.output))
    moved = sandbox is not None and sandbox.protection.get("isolation") != "process"
    return config.under((sandbox.root if sandbox and moved else None) or usual.root).output_dir.rstrip("/")


def _inside(folder: Path, name: str) -> bool:
    """Whether a name stays in the folder; one in a record from elsewhere may not."""
    target = Path(os.path.normpath(folder / name))
    return target != folder and target.is_relative_to(folder)


def _is_same(folder: Path, target: Path, entry: Entry) -> bool:
    """Whether a file has this content, which is not read for that."""
    if entry.chunks is None or not _leads_there(folder, target) or target.is_symlink():
        return False
    if not target.is_file() or target.stat().st_size != entry.size:
        return False
    if sum(chunk.length for chunk in entry.chunks) != entry.size:
        return False
    with target.open("rb") as file:
        return all(hashlib.sha256(file.read(chunk.length)).digest() == chunk.digest for chunk in entry.chunks)


def _leads_there(folder: Path, target: Path) -> bool:
    """Whether no link leads out of the folder on the way."""
    return target.parent.resolve().is_relative_to(folder.resolve())


def _fitting(entry: Entry, room: int) -> int:
    """The size of a file, which may be nothing but holes, when it is no more than is ever taken."""
    if entry.size > min(CollectLimits.file_bytes, room):
        raise HistoryError(f"It has {entry.size:,} bytes, which is more than is taken.")
    return entry.size


def _write(folder: Path, target: Path, write: Callable[[BinaryIO], None]) -> None:
    make_way(folder, target)
    partial = folder.with_name(_PARTIAL)
    partial.unlink(missing_ok=True)
    with partial.open("xb") as file:
        write(file)
    partial.replace(target)
