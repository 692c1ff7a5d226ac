"""Where a run can be rewound to, and its files at a checkpoint: read, compared, and restored to the run's `files/`."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO, Literal

from llm_sandbox_nb.agent.artifacts import CollectLimits, collected_names, make_way, saved_file
from llm_sandbox_nb.agent.errors import InputError
from llm_sandbox_nb.agent.inputs import StartingFiles
from llm_sandbox_nb.agent.prompts import PromptConfig
from llm_sandbox_nb.agent.recorder import Recorder
from llm_sandbox_nb.agent.run_record import IN_USE, RunRecord, in_use_by_another
from llm_sandbox_nb.own_folder import is_file, remove_file
from llm_sandbox_nb.sandbox.contract import Changes, Directories
from llm_sandbox_nb.sandbox.errors import HistoryError
from llm_sandbox_nb.sandbox.history.diff import compare
from llm_sandbox_nb.sandbox.history.manifest import FILE, Entry, moved, own_files
from llm_sandbox_nb.sandbox.history.store import HistoryStore, is_history, reading_history
from llm_sandbox_nb.sandbox.isolations import has_own_root
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.run_folder import FILES, HISTORY
from llm_sandbox_nb.trajectory.trajectory import Trajectory

Moment = Literal["call"]
_EXECUTED = ev.CallHeld | ev.CallDecided | ev.CallStarted | ev.CallFinished
_ENDINGS = (
    ev.RunFinished | ev.Continued | ev.RewindStarted | ev.Rewound | ev.Facts | ev.CheckStarted | ev.Checked
)


def end_of_step(trajectory: Trajectory, step: int) -> str:
    """The last event of a step, with what was said before the next one; step 0 is all before the first.

    Raises:
        ValueError: there is no such step in this attempt; says which there are.
    """
    _check_step(trajectory, step, 0)
    found: str | None = None
    for event in trajectory.path:
        # A trajectory that came from elsewhere has no requests.
        if isinstance(event, ev.ModelRequested | ev.ModelReplied) and event.step > step:
            break
        if not isinstance(event, _ENDINGS):
            found = event.id
    if found is None:
        raise ValueError("Nothing has happened in this run yet, so there is nothing to go back to.")
    return found


def before_calls(trajectory: Trajectory, step: int) -> str:
    """The event after which the calls of a step are proposed, and none is decided on or executed.

    Raises:
        ValueError: there is no such step, or it has no call.
    """
    _check_step(trajectory, step, 1)
    found: str | None = None
    for event in trajectory.path:
        if getattr(event, "step", None) != step:
            continue
        if isinstance(event, ev.CallProposed):
            found = event.id
        elif isinstance(event, _EXECUTED):
            break
    if found is None:
        raise ValueError(f"Step {step} has no tool call to stop before: rewind to the end of a step instead.")
    return found


def files_after(trajectory: Trajectory, step: int) -> str | None:
    """The checkpoint with the files at the end of a step; None when they are not kept."""
    found: str | None = None
    changed = False
    for event in trajectory.path:
        match event:
            case ev.CallStarted(tool="submit"):
                continue
            case ev.CallStarted() if event.step > step:
                break
            case ev.CallStarted():
                changed = True
            case ev.Checkpointed(by_others=True) if (event.step or 0) == step:
                continue  # made after the step, and not by it
            case ev.Checkpointed() if (event.step or 0) <= step:
                found, changed = event.checkpoint, False
            case ev.Rewound(what="files") if trajectory.step_at(event.id) <= step:
                found, changed = event.target, False
    return None if changed else found


def _check_step(trajectory: Trajectory, step: int, first: int) -> None:
    last = trajectory.steps[-1].number if trajectory.steps else 0
    if isinstance(step, bool) or not isinstance(step, int) or not first <= step <= last:
        steps = f"the steps {first} to {last}" if first <= last else "none"
        raise ValueError(f"There is no step {step!r} in this attempt: it has {steps}.")


_PARTIAL = "files.partial"


class CheckpointFiles:
    """Reads the files of one run at its checkpoints: from its sandbox while that is open, else from its folder."""

    def __init__(self, run: RunRecord) -> None:
        self._run = run
        self._folder = run.folder / HISTORY

    def has(self, checkpoint: str | None) -> bool:
        """Whether a checkpoint is kept."""
        if checkpoint is None or not is_history(self._folder):
            return False
        with self._store() as store:
            return any(one.id == checkpoint for one in store.checkpoints())

    async def changes_to(self, checkpoint: str) -> Changes:
        """What would change if a checkpoint were restored."""
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
        with self._store() as store:
            return compare(store, store.manifest(a), store.manifest(b))

    def manifest(self, checkpoint: str) -> Mapping[str, Entry]:
        """All entries at a checkpoint. Raises HistoryError when it is not kept."""
        with self._store() as store:
            return dict(store.manifest(checkpoint))

    def own(self, checkpoint: str, since: str | None = None) -> dict[str, Entry]:
        """All entries at a checkpoint as they would be if others had changed nothing. Raises HistoryError.

        Args:
            since: the newest recorded checkpoint, where only others have changed files after it.
        """
        found = self._run.trajectory.changed_by_others(since or checkpoint)
        pairs = [(one.before, one.after) for one in found] + ([(since, checkpoint)] if since else [])
        with self._store() as store:
            kept = {one.id for one in store.checkpoints()}
            others = [
                (store.manifest(before), store.manifest(after))
                for before, after in pairs
                if {before, after} <= kept
            ]
            return own_files(store.manifest(checkpoint), others)

    def of_image(self, path: str) -> Entry | None:
        """What the image, or the engine, has at a path, where the history knows it."""
        with self._store() as store:
            known = store.image_entry(path)
        return None if known is None else known[0]

    def read(self, entry: Entry, limit: int) -> bytes:
        """The content of a file.

        Raises:
            HistoryError: it is not kept.
            OutputLimitExceededError: it has more than `limit` bytes.
        """
        with self._store() as store:
            return store.read(entry, limit)

    @contextmanager
    def opened(self, checkpoint: str) -> Iterator[tuple[HistoryStore, Mapping[str, Entry]]]:
        """The history, and all entries at a checkpoint by the paths that they have in a container."""
        sandbox = self._run.trajectory.sandbox
        own_root = sandbox is not None and has_own_root(sandbox.protection.get("isolation"))
        with self._store() as store:
            yield store, moved(store.manifest(checkpoint), Directories().root if own_root else "/")

    def _store(self) -> AbstractContextManager[HistoryStore]:
        return reading_history(self._folder)


def starting_files(run: RunRecord, step: int = 0) -> StartingFiles | None:
    """The files that a run had at the end of a step; None when they are not kept.

    Raises:
        ValueError: it has no such step.
    """
    if step and all(one.number != step for one in run.steps):
        raise ValueError(f"The run {run.folder.name} has no step {step}: it has {len(run.steps)}.")
    checkpoint = files_after(run.trajectory, step)
    if checkpoint is None or not CheckpointFiles(run).has(checkpoint):
        return None
    return StartingFiles(run.folder / HISTORY, checkpoint)


# --- the run's `files/` on disk, for a run without a session: a session collects them itself ---


def restore_artifacts(run: RunRecord, checkpoint: str, known: Collection[str] = ()) -> tuple[str, ...]:
    """Make `files/` equal to the output folder at a checkpoint. Returns a sentence for each file that is not kept.

    Restores only files that were collected, by this run on any branch or as `known` (names as the journal has them):
    others are not its results.
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
                room -= _checked_size(entry, room)
                _write(folder, folder / name, functools.partial(store.write, entry))
            except (HistoryError, OSError) as error:
                problems.append(f"The run's file {name} stays as it is now: {error}")
    return tuple(problems)


def record_artifacts(run: RunRecord, recorder: Recorder, step: int) -> None:
    """Record on the branch of HEAD what `files/` holds: files that were collected late are recorded elsewhere."""
    said, here, room = run.trajectory.artifacts, dict(run.files), CollectLimits.all_bytes
    for name, file in here.items():
        if file.size > min(CollectLimits.file_bytes, room):
            continue  # no run collects so much
        room -= file.size
        event = saved_file(name, file.path, step or None)
        before = said.get(event.path)
        if before is None or before.sha256 != event.sha256:
            recorder.emit(event)
    for path in said.keys() - {ev.clean_text(name) for name in here}:
        recorder.emit(ev.ArtifactRemoved(step=step or None, path=path))


def _output_of(run: RunRecord) -> str:
    """The output folder in the sandbox."""
    start, sandbox = run.trajectory.start, run.trajectory.sandbox
    usual = Directories()
    prompts = start.settings.get("prompts") if start else None
    folder = prompts.get("output_dir") if isinstance(prompts, dict) else None
    config = PromptConfig("", output_dir=str(folder or usual.output))
    own_root = sandbox is not None and has_own_root(sandbox.protection.get("isolation"))
    root = sandbox.root if sandbox and not own_root else None
    return config.under(root or usual.root).output_dir.rstrip("/")


def _inside(folder: Path, name: str) -> bool:
    """Whether a name stays in the folder: one in another program's record may not."""
    target = Path(os.path.normpath(folder / name))
    return target != folder and target.is_relative_to(folder)


def _is_same(folder: Path, target: Path, entry: Entry) -> bool:
    """Whether a file has the content of `entry`, by its digests."""
    name = target.relative_to(folder)
    if entry.chunks is None or not is_file(folder.parent, folder.name / name):
        return False
    if target.stat().st_size != entry.size:
        return False
    if sum(chunk.length for chunk in entry.chunks) != entry.size:
        return False
    with target.open("rb") as file:
        return all(hashlib.sha256(file.read(chunk.length)).digest() == chunk.digest for chunk in entry.chunks)


def _checked_size(entry: Entry, room: int) -> int:
    """The size of a file, which may consist of holes. Raises HistoryError when it is over the limits of collecting."""
    if entry.size > min(CollectLimits.file_bytes, room):
        raise HistoryError(f"It has {entry.size:,} bytes, which is more than is collected.")
    return entry.size


def _write(folder: Path, target: Path, write: Callable[[BinaryIO], None]) -> None:
    make_way(folder, target)
    partial = folder.with_name(_PARTIAL)
    partial.unlink(missing_ok=True)
    with partial.open("xb") as file:
        write(file)
    partial.replace(target)
