"""Reading and comparison of a run's files at a checkpoint, and restoring of the run's folder `files/`."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from llm_sandbox_nb.agent.artifacts import CollectLimits, collected_names, make_way, saved_file
from llm_sandbox_nb.agent.errors import InputError
from llm_sandbox_nb.agent.inputs import StartingFiles
from llm_sandbox_nb.agent.prompts import PromptConfig
from llm_sandbox_nb.agent.recorder import Recorder
from llm_sandbox_nb.agent.run_record import IN_USE, RunRecord, in_use_by_another
from llm_sandbox_nb.own_folder import is_file, remove_file
from llm_sandbox_nb.runs.rewind_points import files_after
from llm_sandbox_nb.sandbox.contract import Changes, Directories
from llm_sandbox_nb.sandbox.errors import HistoryError
from llm_sandbox_nb.sandbox.history.checkpoint_store import CheckpointStore
from llm_sandbox_nb.sandbox.history.diff import compare
from llm_sandbox_nb.sandbox.history.manifest import FILE, Entry, moved, own_files
from llm_sandbox_nb.sandbox.history.stores import is_history, reading_history
from llm_sandbox_nb.sandbox.isolations import has_own_root
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.run_folder import FILES, HISTORY

_PARTIAL = "files.partial"


class CheckpointFiles:
    """Reader of a run's files at its checkpoints."""

    def __init__(self, run: RunRecord) -> None:
        self._run = run
        self._folder = run.folder / HISTORY

    def has(self, checkpoint: str | None) -> bool:
        """Return True if a checkpoint is stored."""
        if checkpoint is None or not is_history(self._folder):
            return False
        with reading_history(self._folder) as store:
            return any(stored.id == checkpoint for stored in store.checkpoints())

    async def changes_to(self, checkpoint: str) -> Changes:
        """Return the changes that restoring a checkpoint would make to the files of the sandbox.

        If the sandbox is closed, return the changes to the files that were recorded last.
        """
        box = self._run.context.living()
        if box is not None:
            if in_use_by_another(box, self._run.folder):
                raise InputError(IN_USE)
            if self._run.context.session is None:
                await box.keep_history(self._folder)
            return await box.changes(b=checkpoint)
        now = self._run.trajectory.files
        return Changes() if now is None else await asyncio.to_thread(self._between, now, checkpoint)

    def _between(self, a: str, b: str) -> Changes:
        with reading_history(self._folder) as store:
            return compare(store, store.manifest(a), store.manifest(b))

    def manifest(self, checkpoint: str) -> Mapping[str, Entry]:
        """Return the entries (files, folders, links) at a checkpoint, by path.

        Raises:
            HistoryError: if the checkpoint is not stored.
        """
        with reading_history(self._folder) as store:
            return dict(store.manifest(checkpoint))

    def own(self, checkpoint: str, since: str | None = None) -> dict[str, Entry]:
        """Return the entries at a checkpoint by path, like `manifest`, but without changes by others.

        Args:
            since: a recorded checkpoint. All changes between `since` and `checkpoint` count as changes by others.

        Raises:
            HistoryError: if a checkpoint is not stored.
        """
        found = self._run.trajectory.changed_by_others(since or checkpoint)
        pairs = [(change.before, change.after) for change in found] + ([(since, checkpoint)] if since else [])
        with reading_history(self._folder) as store:
            kept = {stored.id for stored in store.checkpoints()}
            others = [
                (store.manifest(before), store.manifest(after))
                for before, after in pairs
                if {before, after} <= kept
            ]
            return own_files(store.manifest(checkpoint), others)

    def of_image(self, path: str) -> Entry | None:
        """Return the entry that the image or the engine has put at a path. None if the history has no such entry."""
        with reading_history(self._folder) as store:
            known = store.image_entry(path)
        return None if known is None else known[0]

    def read(self, entry: Entry, limit: int) -> bytes:
        """Return the content of a file.

        Raises:
            HistoryError: if the content is not stored.
            OutputLimitExceededError: if the file has more than `limit` bytes.
        """
        with reading_history(self._folder) as store:
            return store.read(entry, limit)

    @contextmanager
    def opened(self, checkpoint: str) -> Iterator[tuple[CheckpointStore, Mapping[str, Entry]]]:
        """Open the history. Yield the store, and all entries at a checkpoint by their paths.

        In the paths of a run with the isolation `process`, `/testbed` replaces the folder in which the run worked.
        """
        sandbox = self._run.trajectory.sandbox
        own_root = sandbox is not None and has_own_root(sandbox.protection.get("isolation"))
        with reading_history(self._folder) as store:
            yield store, moved(store.manifest(checkpoint), Directories().root if own_root else "/")


def starting_files(run: RunRecord, step: int = 0) -> StartingFiles | None:
    """Return the files that a run had at the end of a step. None if the files are not stored.

    Raises:
        ValueError: if the run has no such step.
    """
    if step and all(known.number != step for known in run.steps):
        raise ValueError(f"The run {run.folder.name} has no step {step}: it has {len(run.steps)} steps.")
    checkpoint = files_after(run.trajectory, step)
    if checkpoint is None or not CheckpointFiles(run).has(checkpoint):
        return None
    return StartingFiles(run.folder / HISTORY, checkpoint)


# --- `files/` on disk of a run without a session (a session collects these files itself) ---


def restore_artifacts(run: RunRecord, checkpoint: str, known: Collection[str] = ()) -> tuple[str, ...]:
    """Make `files/` equal to the output folder at a checkpoint. Return a sentence for each file that was not restored.

    Only results of the run are restored. These are the files that are in `files/` now, that were collected on any
    branch, or whose names are in `known`. The names in `known` have the form of the names in the journal.
    """
    folder, output = run.folder / FILES, f"{_output_of(run)}/"
    names, there = {*known, *collected_names(run.trajectory)}, set(run.files)
    problems, room = [], CollectLimits.all_bytes
    with CheckpointFiles(run).opened(checkpoint) as (store, manifest):
        here = {
            name: entry
            for path, entry in manifest.items()
            if entry.type == FILE and path.startswith(output) and (name := path.removeprefix(output))
            if (name in there or ev.clean_text(name) in names) and _inside(folder, name)
        }
        for name in there:
            if name not in here:
                remove_file(run.folder, f"{FILES}/{name}")
        for name, entry in sorted(here.items()):
            if _is_same(folder, folder / name, entry):
                continue
            try:
                if entry.size > min(CollectLimits.file_bytes, room):  # a sparse file may have any size
                    raise HistoryError(
                        f"The file has {entry.size:,} bytes, over the limit for collected files."
                    )
                room -= entry.size
                _write(folder, folder / name, functools.partial(store.write, entry))
            except (HistoryError, OSError) as error:
                problems.append(f"The run's file {name} stays as it is now: {error}")
    return tuple(problems)


def record_artifacts(run: RunRecord, recorder: Recorder, step: int) -> None:
    """Record the content of `files/` on the branch of HEAD. Late files may be recorded only on another branch."""
    recorded, here, room = run.trajectory.artifacts, dict(run.files), CollectLimits.all_bytes
    for name, file in here.items():
        if file.size > min(CollectLimits.file_bytes, room):
            continue  # the file exceeds the limits on collected files
        room -= file.size
        event = saved_file(name, file.path, step or None)
        before = recorded.get(event.path)
        if before is None or before.sha256 != event.sha256:
            recorder.emit(event)
    for path in recorded.keys() - {ev.clean_text(name) for name in here}:
        recorder.emit(ev.ArtifactRemoved(step=step or None, path=path))


def _output_of(run: RunRecord) -> str:
    """Return the output folder in the sandbox."""
    start, sandbox = run.trajectory.start, run.trajectory.sandbox
    default = Directories()
    prompts = start.settings.get("prompts") if start else None
    folder = prompts.get("output_dir") if isinstance(prompts, dict) else None
    config = PromptConfig("", output_dir=str(folder or default.output))
    own_root = sandbox is not None and has_own_root(sandbox.protection.get("isolation"))
    root = sandbox.root if sandbox and not own_root else None
    return config.under(root or default.root).output_dir.rstrip("/")


def _inside(folder: Path, name: str) -> bool:
    """Return True if a name stays inside its folder. If another program wrote the record, a name may contain `..` or be
    absolute.
    """
    target = Path(os.path.normpath(folder / name))
    return target != folder and target.is_relative_to(folder)


def _is_same(folder: Path, target: Path, entry: Entry) -> bool:
    """Return True if the content of `target` has the digests in `entry`."""
    name = target.relative_to(folder)
    if entry.chunks is None or not is_file(folder.parent, folder.name / name):
        return False
    if target.stat().st_size != entry.size:
        return False
    if sum(chunk.length for chunk in entry.chunks) != entry.size:
        return False
    with target.open("rb") as file:
        return all(hashlib.sha256(file.read(chunk.length)).digest() == chunk.digest for chunk in entry.chunks)


def _write(folder: Path, target: Path, write: Callable[[BinaryIO], None]) -> None:
    make_way(folder, target)
    partial = folder.with_name(_PARTIAL)
    partial.unlink(missing_ok=True)
    with partial.open("xb") as file:
        write(file)
    partial.replace(target)
