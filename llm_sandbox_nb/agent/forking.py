"""A second run that begins with all that a first one did up to a step, with a sandbox of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

from llm_sandbox_nb.agent.checkpoints import history_folder
from llm_sandbox_nb.agent.files_back import collected, note_files, put_files_back
from llm_sandbox_nb.agent.folders import new_run_folder
from llm_sandbox_nb.agent.going_on import sandbox_options
from llm_sandbox_nb.agent.place import at_work_for_another, take_over
from llm_sandbox_nb.agent.recorder import Recorder
from llm_sandbox_nb.agent.rewinding import Destination
from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.sandbox.errors import SandboxError
from llm_sandbox_nb.sandbox.history.keeper import unhurried
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.journal import FILE_NAME
from llm_sandbox_nb.trajectory.trajectory import Trajectory

if TYPE_CHECKING:
    from llm_sandbox_nb.agent.run import Run

_MAKING = ".being-made"
"""Marks a fork's folder until its journal is there, which comes last and makes it a run."""
_STALE = 3600.0


async def fork(run: Run, there: Destination) -> Run:
    """The second run, its sandbox open, halted where it begins.

    Raises:
        InputError: its folder cannot be made.
        SandboxError: no second sandbox can be started.
    """
    remove_unfinished(run.folder.parent)
    folder = new_run_folder(run.folder.parent, None)
    (folder / _MAKING).touch()
    box: Sandbox | None = None
    try:
        box = await _open(run, folder, there)
        other = await unhurried(asyncio.to_thread(_made, run, there, folder))
        _settle(run, other, box)
        _tell_parent(run, there, other)
    except BaseException:
        if box is not None:
            await asyncio.shield(box.close())
        shutil.rmtree(folder, ignore_errors=True)
        raise
    if run.place.on_fork is not None:
        run.place.on_fork(other)
    return other


def _made(run: Run, there: Destination, folder: Path) -> Run:
    _copy(run, there, folder)
    other = type(run).load(folder)
    _files_of_then(run, there, other)
    return other


def _settle(run: Run, other: Run, box: Sandbox) -> None:
    other.place.box, other.place.owned, other.place.loop = box, True, asyncio.get_running_loop()
    same = run.place
    other.place.job, other.place.options = same.job, same.options
    other.place.stage, other.place.on_fork = same.stage, same.on_fork
    other.place.models = dict(same.models)
    take_over(box, other.folder)


def _files_of_then(run: Run, there: Destination, other: Run) -> None:
    assert there.target is not None
    recorder = Recorder(other.folder, trajectory=other.trajectory)
    try:
        put_files_back(other, there.target, collected(run))
        note_files(other, recorder, there.files_step)
    finally:
        recorder.close()


def remove_unfinished(parent: Path) -> None:
    """Remove what forks have left whose process was killed."""
    for mark in parent.glob(f"*/{_MAKING}"):
        with contextlib.suppress(OSError):
            if not (mark.parent / FILE_NAME).exists() and time.time() - mark.stat().st_mtime > _STALE:
                shutil.rmtree(mark.parent, ignore_errors=True)


def _copy(run: Run, there: Destination, folder: Path) -> None:
    """The blobs and files, then the journal up to the fork, with the same ids."""
    _copy_folder(run.folder / "blobs", folder / "blobs")
    # Of a run under way files come and go; which of them the fork has is put right afterwards.
    with contextlib.suppress(FileNotFoundError, shutil.Error):
        _copy_folder(run.folder / "files", folder / "files")
    prefix = run.trajectory.at(there.to).path
    lines = [
        _as_first(run, there, event, folder.name) if isinstance(event, ev.RunStarted) else event
        for event in prefix
    ]
    if there.target is not None and Trajectory(prefix).files != there.target:
        step = there.files_step or None
        lines.append(ev.Checkpointed(parent=prefix[-1].id, step=step, checkpoint=there.target))
    partial = folder / f"{FILE_NAME}.partial"
    partial.write_text("".join(f"{ev.dump_event(line)}\n" for line in lines), "utf-8", newline="\n")
    partial.rename(folder / FILE_NAME)
    (folder / _MAKING).unlink()


def _copy_folder(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, copy_function=_link, symlinks=True)


def _as_first(run: Run, there: Destination, event: ev.RunStarted, name: str) -> ev.RunStarted:
    came_from = ev.ForkedFrom(run_id=event.run_id, folder=run.folder.name, step=there.step, event=there.to)
    return event.model_copy(update={"run_id": name, "forked_from": came_from})


def _link(source: str, target: str) -> object:
    """Blobs never change, and a changed file of the output takes a new place: links are as good as copies."""
    with contextlib.suppress(OSError):
        if Path(source).parent.name == "blobs":
            os.link(source, target)
            return target
    return shutil.copy2(source, target)


async def _open(run: Run, folder: Path, there: Destination) -> Sandbox:
    """A sandbox with the files of the fork, of the same options as the first one's."""
    assert there.target is not None
    history = history_folder(folder)
    box = run.place.living()
    if box is not None and not at_work_for_another(box, run.folder):
        if run.place.work is None:
            await box.keep_history(history_folder(run.folder))
        return await box.fork(there.target, history=history)
    from llm_sandbox_nb.sandbox.opening import open_sandbox

    box = await open_sandbox(**sandbox_options(run, {}))
    try:
        await box.keep_history(history, continue_from=history_folder(run.folder))
        problems = (await box.restore(there.target)).problems
        if problems:
            raise SandboxError(f"The fork could not be made: {problems[0]}")
    except BaseException:
        await asyncio.shield(box.close())
        raise
    return box


def _tell_parent(run: Run, there: Destination, other: Run) -> None:
    event = ev.Forked(
        run_id=other.id or "", folder=other.folder.name, step=there.step, checkpoint=there.target
    )
    if run.place.work is not None:
        run.place.work.recorder.emit(event)
        return
    recorder = Recorder(run.folder, trajectory=run.trajectory)
    try:
        recorder.emit(event)
    finally:
        recorder.close()
