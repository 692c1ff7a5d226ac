"""A run's `files/` on disk, put back to where a run that is not under way was taken back to.

A run under way does that itself: what it finds in its sandbox in the end is what it keeps.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from llm_sandbox_nb.agent.collect import FILES_FOLDER, make_way
from llm_sandbox_nb.agent.files_of import FilesOf
from llm_sandbox_nb.agent.prompts import PromptConfig
from llm_sandbox_nb.sandbox.contract import Directories
from llm_sandbox_nb.sandbox.errors import HistoryError
from llm_sandbox_nb.sandbox.history.entry import FILE, Entry
from llm_sandbox_nb.trajectory import events as ev

if TYPE_CHECKING:
    from llm_sandbox_nb.agent.run import Run

_PARTIAL = ".partial"


def put_files_back(run: Run, checkpoint: str) -> tuple[str, ...]:
    """Make `files/` what the output folder was at a checkpoint; what is not kept, in sentences.

    Only of files that the run has collected at some time, on any branch: others are none of its results.
    """
    folder, output = run.folder / FILES_FOLDER, _output_of(run)
    names = {one.path for one in run.trajectory.events if isinstance(one, ev.ArtifactSaved)}
    targets = {
        name: target for name in sorted({*names, *run.files}) if (target := _inside(folder, name)) is not None
    }
    problems = []
    with FilesOf(run).opened(checkpoint) as (store, manifest):
        found = {name: manifest.get(f"{output}/{name}") for name in targets}
        here = {name: entry for name, entry in found.items() if entry is not None and entry.type == FILE}
        for name in targets.keys() - here.keys():
            _remove(folder, targets[name])
        for name, entry in here.items():
            if _is_same(folder, targets[name], entry):
                continue
            try:
                _write(folder, targets[name], store.read(entry, entry.size))
            except HistoryError as error:
                problems.append(f"The run's file {name} stays as it is now: {error}")
    return tuple(problems)


def _output_of(run: Run) -> str:
    """The output folder in the sandbox."""
    start, sandbox = run.trajectory.start, run.trajectory.sandbox
    usual = Directories()
    prompts = start.settings.get("prompts") if start else None
    folder = prompts.get("output_dir") if isinstance(prompts, dict) else None
    config = PromptConfig("", output_dir=str(folder or usual.output))
    moved = sandbox is not None and sandbox.protection.get("isolation") != "process"
    return config.under((sandbox.root if sandbox and moved else None) or usual.root).output_dir.rstrip("/")


def _inside(folder: Path, name: str) -> Path | None:
    """Where a file is; None for a name that leads elsewhere, as a record from elsewhere may hold."""
    target = Path(os.path.normpath(folder / name))
    return target if target != folder and target.is_relative_to(folder) else None


def _remove(folder: Path, target: Path) -> None:
    if _leads_there(folder, target) and (target.is_symlink() or target.is_file()):
        target.unlink()


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


def _write(folder: Path, target: Path, content: bytes) -> None:
    make_way(folder, target)
    partial = target.with_name(target.name + _PARTIAL)
    partial.unlink(missing_ok=True)
    partial.write_bytes(content)
    partial.replace(target)
