"""Forking of a run. A fork is a second run that has the steps of the first up to some step, and a separate sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from llm_sandbox_nb.agent.artifacts import CollectLimits, collected_names
from llm_sandbox_nb.agent.recorder import Recorder, new_run_folder
from llm_sandbox_nb.agent.run_record import RunRecord, claim_files, in_use_by_another
from llm_sandbox_nb.own_folder import file_names
from llm_sandbox_nb.runs.checkpoint_files import record_artifacts, restore_artifacts
from llm_sandbox_nb.runs.recorded_spec import sandbox_options
from llm_sandbox_nb.runs.rewind import Destination
from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.sandbox.errors import SandboxError
from llm_sandbox_nb.sandbox.history.sandbox_history import finish_anyway
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.journal import JournalError, JournalNotWrittenError
from llm_sandbox_nb.trajectory.run_folder import BLOBS, CHECK_FILES, FILES, HISTORY, JOURNAL
from llm_sandbox_nb.trajectory.trajectory import Trajectory

R = TypeVar("R", bound=RunRecord)
_MAKING = ".being-made"
"""Name of a file that marks the folder of an incomplete fork. The file is removed when the journal exists."""
_STALE_SECONDS = 3600.0  # no copy of a run takes that long


async def fork(
    run: R, destination: Destination, isolation: str | None = None, network: str | None = None
) -> R:
    """Make a second run that can resume from `destination`. The sandbox of the second run is open.

    Args:
        isolation, network: options of the new sandbox, if the sandbox of `run` is gone.

    Raises:
        InputError: if the folder cannot be made, or if the caller must name the isolation or the network.
        SandboxError: if no second sandbox can be started.
    """
    remove_unfinished(run.folder.parent)
    folder = new_run_folder(run.folder.parent, None)
    box: Sandbox | None = None
    try:
        (folder / _MAKING).touch()
        box = await _open(run, folder, destination, {"isolation": isolation, "network": network})
        other = await finish_anyway(asyncio.to_thread(_copied, run, destination, folder))
        _set_context(run, other, box)
        # if another process writes the journal of `run`, or the disk is full, only the fork records its origin
        with contextlib.suppress(JournalError, JournalNotWrittenError):
            _record_in_parent(run, destination, other)
    except BaseException:
        if box is not None:
            await asyncio.shield(box.close())
        shutil.rmtree(folder, ignore_errors=True)
        raise
    if run.context.on_fork is not None:
        run.context.on_fork(other)
    return other


def _copied(run: R, destination: Destination, folder: Path) -> R:
    _copy(run, destination, folder)
    other = type(run).load(folder)
    _restore_files(run, destination, other)
    return other


def _set_context(run: RunRecord, other: RunRecord, box: Sandbox) -> None:
    other.context.box, other.context.owned, other.context.loop = box, True, asyncio.get_running_loop()
    same = run.context
    other.context.spec, other.context.options = same.spec, same.options
    other.context.isolation_setting = same.isolation_setting
    other.context.network_setting = same.network_setting
    other.context.resume_display, other.context.on_fork = same.resume_display, same.on_fork
    other.context.models, other.context.checks = dict(same.models), dict(same.checks)
    claim_files(box, other.folder)


def _restore_files(run: RunRecord, destination: Destination, other: RunRecord) -> None:
    assert destination.target is not None
    recorder = Recorder(other.folder, trajectory=other.trajectory)
    try:
        restore_artifacts(other, destination.target, collected_names(run.trajectory))
        record_artifacts(other, recorder, destination.files_step)
    finally:
        recorder.close()


def remove_unfinished(parent: Path) -> None:
    """Remove incomplete folders of forks that killed processes have left in `parent`."""
    for mark in parent.glob(f"*/{_MAKING}"):
        with contextlib.suppress(OSError):
            if not (mark.parent / JOURNAL).exists() and time.time() - mark.stat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(mark.parent, ignore_errors=True)


def _copy(run: RunRecord, destination: Destination, folder: Path) -> None:
    """Copy the blobs and files, then the journal up to the destination. Events keep their ids."""
    _copy_folder(run.folder / BLOBS, folder / BLOBS)
    if (run.folder / CHECK_FILES).is_dir():
        _copy_folder(run.folder / CHECK_FILES, folder / CHECK_FILES)
    # the run may change its files during the copy, so `_restore_files` corrects the copies afterwards
    with contextlib.suppress(FileNotFoundError, shutil.Error):
        _copy_folder(run.folder / FILES, folder / FILES)
    prefix = run.trajectory.at(destination.to).path
    lines = []
    for event in prefix:
        if isinstance(event, ev.RunStarted):
            origin = ev.ForkedFrom(
                run_id=event.run_id, folder=run.folder.name, step=destination.step, event=destination.to
            )
            event = event.model_copy(update={"run_id": folder.name, "forked_from": origin})
        lines.append(event)
    if destination.target is not None and Trajectory(prefix).files != destination.target:
        step = destination.files_step or None
        lines.append(ev.Checkpointed(parent=destination.to, step=step, checkpoint=destination.target))
    partial = folder / f"{JOURNAL}.partial"
    partial.write_text("".join(f"{ev.dump_event(line)}\n" for line in lines), "utf-8", newline="\n")
    partial.rename(folder / JOURNAL)
    (folder / _MAKING).unlink()


def _copy_folder(source: Path, target: Path) -> None:
    """Copy the regular files below a folder of a run. Blobs are hard-linked, because they never change."""
    room = CollectLimits.all_bytes
    for name in file_names(source):
        copy = target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError):
            if source.name == BLOBS:
                os.link(source / name, copy)
                continue
        size = (source / name).stat().st_size
        if size <= min(CollectLimits.file_bytes, room):
            room -= size
            shutil.copy2(source / name, copy)


async def _open(
    run: RunRecord, folder: Path, destination: Destination, named: Mapping[str, str | None]
) -> Sandbox:
    """Open a sandbox with the files at the destination and the sandbox options of `run`."""
    assert destination.target is not None
    history = folder / HISTORY
    box = run.context.living()
    if box is not None and not in_use_by_another(box, run.folder):
        if run.context.session is None:
            await box.keep_history(run.folder / HISTORY)
        return await box.fork(destination.target, history=history)
    from llm_sandbox_nb.sandbox.open import open_sandbox

    box = await open_sandbox(**sandbox_options(run, named))
    try:
        await box.keep_history(history, continue_from=run.folder / HISTORY)
        problems = (await box.restore(destination.target)).problems
        if problems:
            raise SandboxError(f"The fork could not be made: {problems[0]}")
    except BaseException:
        await asyncio.shield(box.close())
        raise
    return box


def _record_in_parent(run: RunRecord, destination: Destination, other: RunRecord) -> None:
    event = ev.Forked(
        run_id=other.id or "", folder=other.folder.name, step=destination.step, checkpoint=destination.target
    )
    if run.context.session is not None:
        run.context.session.recorder.emit(event)
        return
    recorder = Recorder(run.folder, trajectory=run.trajectory)
    try:
        recorder.emit(event)
    finally:
        recorder.close()
