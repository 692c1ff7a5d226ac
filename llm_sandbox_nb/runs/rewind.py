"""Preview, rewind and undo of a run, and the changes by others that a rewind would undo.

The order of the actions keeps the record consistent, even if the process is killed. First, the current files are
stored as a checkpoint. The event `rewind.started` names this checkpoint and the target. Then, the files are restored.
Finally, one event `rewound` records that the conversation, the files or both are now those of the target. If this event
is missing, the rewind did not happen, and the files in the first checkpoint belong to HEAD.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from llm_sandbox_nb.agent.errors import InputError
from llm_sandbox_nb.agent.recorder import Recorder
from llm_sandbox_nb.agent.run_record import (
    IN_USE,
    RunRecord,
    claim_files,
    disown_files,
    in_use_by_another,
    release_sandbox,
    reserve_sandbox,
    users_since,
)
from llm_sandbox_nb.formatting import plural, shorten
from llm_sandbox_nb.runs.checkpoint_files import CheckpointFiles, record_artifacts, restore_artifacts
from llm_sandbox_nb.runs.end_files import printable as on_one_line
from llm_sandbox_nb.runs.event_loops import AwaitableResult
from llm_sandbox_nb.runs.rewind_points import Before, before_calls, end_of_step, files_after
from llm_sandbox_nb.sandbox.contract import Changes, FileChange, Sandbox
from llm_sandbox_nb.sandbox.history.diff import differing_paths
from llm_sandbox_nb.sandbox.history.restore import printable
from llm_sandbox_nb.sandbox.history.stores import reading_history
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.journal import JournalError, read_journal
from llm_sandbox_nb.trajectory.mcp_calls import calls_not_undone
from llm_sandbox_nb.trajectory.run_folder import HISTORY, JOURNAL
from llm_sandbox_nb.trajectory.state import State, state_words
from llm_sandbox_nb.trajectory.trajectory import Trajectory

What = Literal["both", "files", "conversation"]
_MAX_LISTED_PATHS = 40
_MAX_NAMED_PATHS = 8
"""Number of paths that an error names."""
_MAX_NAMED_RUNS = 3
_TITLE_CHARACTERS = 60
_MARKS = {"added": "+", "modified": "~", "deleted": "-"}


@dataclass(frozen=True)
class Others:
    """Changes by others that restoring a checkpoint would undo."""

    paths: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    """Tasks of the other runs that may have made the changes. Empty if a person or a program made them."""

    @property
    def by(self) -> str:
        """The authors of the changes in words, such as `by another run ('Make a poster')`."""
        return changed_by(self.runs)


NO_OTHERS = Others()


@dataclass(frozen=True)
class Destination:
    """Destination of a rewind."""

    to: str
    step: int
    what: What
    target: str | None
    files_step: int
    """The step whose files are restored."""
    undo_of: str | None = None
    others: bool = False
    """True if changes of other runs may be undone too."""


@dataclass(frozen=True)
class Preview(AwaitableResult):
    """The changes that a rewind would make to files. `incomplete` is a sentence if some changes are not known."""

    step: int
    files: tuple[FileChange, ...]
    incomplete: str = ""
    steps_left: int = 0
    """Number of later steps, which would become an earlier attempt."""
    what: What = "both"
    undoes: Others = NO_OTHERS
    """The changes by others that the rewind would undo."""
    outside: tuple[str, ...] = ()
    """Calls outside the sandbox that the rewind cannot undo, such as `step 3: time__now`."""

    @property
    def own(self) -> tuple[FileChange, ...]:
        """The changes in `files` that undo changes by this run."""
        return tuple(change for change in self.files if change.path not in self.undoes.paths)

    @property
    def others(self) -> tuple[FileChange, ...]:
        """The changes in `files` that undo changes by others."""
        return tuple(change for change in self.files if change.path in self.undoes.paths)

    def to_json(self) -> dict[str, Any]:
        """Return the preview as JSON. With it, the view asks for a confirmation before a rewind."""
        return {
            "step": self.step,
            "what": self.what,
            "steps_left": self.steps_left,
            "own": _as_json(self.own),
            "others": _as_json(self.others),
            "other_runs": list(self.undoes.runs),
            "by": self.undoes.by,
            "outside": list(self.outside[:_MAX_LISTED_PATHS]),
            "incomplete": self.incomplete,
        }

    def __str__(self) -> str:
        place = f"step {self.step}" if self.step else "the beginning"
        left, paths = self.steps_left, plural(len(self.own), "path changes", "paths change")
        steps = f", {plural(left, 'step becomes', 'steps become')} an earlier attempt" if left > 0 else ""
        lines = [f"Back to {place}: {paths}{steps}.", *_listed(self.own)]
        if others := self.others:
            changed = plural(len(others), "path was changed later", "paths were changed later")
            lines += [f"{changed} {self.undoes.by}. These changes are undone too:", *_listed(others)]
        lines += [self.incomplete] if self.incomplete else []
        lines += [_outside_text(self.outside)] if self.outside else []
        ended = "" if self.what == "conversation" else "Commands that run in the sandbox are ended. "
        lines.append(f"{ended}result.undo() undoes the rewind.")
        return "\n".join(lines)

    __repr__ = __str__


@dataclass(frozen=True)
class RewindResult(AwaitableResult):
    """The result of a rewind."""

    step: int
    what: What
    files: int = 0
    """Number of paths that were written, changed or deleted."""
    problems: tuple[str, ...] = ()
    """A sentence for each path that could not be restored."""
    waiting: bool = False
    """True if the run has no sandbox now, so that the files are restored when the run resumes."""
    before_calls: bool = False
    """True if the run is now before the calls of the step. These calls are proposed and not executed."""
    undid: Others = NO_OTHERS
    """Changes by others that were undone."""
    ready: bool = False
    """True if the run can continue from here. False if an undo led to an ended run."""
    outside: tuple[str, ...] = ()
    """Calls outside the sandbox that were not undone."""

    @property
    def others(self) -> tuple[str, ...]:
        """Restored paths that others had changed."""
        return self.undid.paths

    def __str__(self) -> str:
        place = f"the end of step {self.step}" if self.step else "the beginning"
        place = f"the calls of step {self.step}, which are not executed," if self.before_calls else place
        subject = {
            "both": "Conversation and files are",
            "files": "The files are",
            "conversation": "The conversation is",
        }
        text = f"{subject[self.what]} at {place} again."
        if self.what != "conversation":
            text += (
                " The run has no sandbox now; it gets one with these files when it resumes."
                if self.waiting
                else f" {plural(self.files, 'path was', 'paths were')} put back."
            )
        if self.ready:
            text += f" {ready_text(self.step)}."
        if self.others:
            changed = f"later changes {self.undid.by}: {_names(self.others)}"
            text += f" This undid {changed}. result.undo() restores them."
        if self.outside:
            text += f" {_outside_text(self.outside)}"
        return " ".join([text, *self.problems])

    __repr__ = __str__


def find_destination(
    run: RunRecord, step: int, what: What = "both", before: Before | None = None
) -> Destination:
    """Return the destination of a rewind to `step`.

    Raises:
        InputError: if there is no such step, or its files are not stored.
    """
    if what not in ("both", "files", "conversation"):
        raise InputError(f"`what` must be both, files or conversation, not {what!r}.")
    if before not in (None, "call"):
        raise InputError(f"`before` can be 'call', not {before!r}.")
    trajectory = run.trajectory
    try:
        to = before_calls(trajectory, step) if before else end_of_step(trajectory, step)
    except ValueError as error:
        raise InputError(str(error)) from None
    files_step = step - 1 if before else step
    target = files_after(trajectory, files_step, before_next=before is not None)
    kept = CheckpointFiles(run)
    if what != "conversation" and not kept.has(target):
        others = (
            number for number in range(files_step - 1, -1, -1) if kept.has(files_after(trajectory, number))
        )
        nearest = next(others, None)
        before_it = "" if nearest is None else f" The last step before it whose files are kept is {nearest}."
        raise InputError(
            f"The files of step {step} are not kept (any more), so only the conversation can go back to it: "
            f"what='conversation'.{before_it}"
        )
    return Destination(to, step, what, target, files_step)


def last_rewind(trajectory: Trajectory) -> Destination:
    """Return the destination of `undo`: the event before the newest rewind that was not undone.

    Raises:
        InputError: if there is no rewind to undo.
    """
    undone = {rewound.undo_of for rewound in trajectory.rewinds if rewound.undo_of}
    for rewound in reversed(trajectory.rewinds):
        if rewound.id in undone or rewound.undo_of:
            continue
        begun = trajectory.parent(rewound.id)
        came_from = trajectory.parent(begun) if begun else None
        if came_from is None:
            break
        step = trajectory.step_at(came_from)
        return Destination(came_from, step, rewound.what, rewound.safety, step, rewound.id)
    raise InputError("There is no rewind to undo.")


async def preview(run: RunRecord, destination: Destination) -> Preview:
    """Return the changes that a rewind would make."""
    changes, undoes = Changes(), NO_OTHERS
    if destination.what != "conversation" and destination.target:
        changes = await CheckpointFiles(run).changes_to(destination.target)
        undoes = await undone_changes(run, run.context.living(), destination.target)
    last = run.steps[-1].number if run.steps else 0
    left = 0 if destination.what == "files" else last - destination.step
    outside = calls_not_undone(run.trajectory, destination.to)
    return Preview(
        destination.step, changes.files, changes.incomplete, left, destination.what, undoes, outside
    )


async def rewind(run: RunRecord, destination: Destination) -> RewindResult:
    """Rewind a run. This function must be called in the run's event loop.

    Raises:
        InputError: if the files are not stored, another run uses the sandbox, or the rewind would undo changes of other
            runs and `destination.others` is False.
    """
    context = run.context
    if context.session is not None:
        undid = await _check_others(run, context.living(), destination)
        return await context.session.rewind(lambda recorder, box: go_back(recorder, box, destination, undid))
    box = context.living()
    if box is not None and in_use_by_another(box, run.folder):
        if destination.what != "conversation":
            raise InputError(IN_USE)
        box = None
    if (
        box is None
        and destination.what != "conversation"
        and not CheckpointFiles(run).has(destination.target)
    ):
        raise InputError("The files of that step are no longer kept: only the conversation can go back.")
    recorder = Recorder(run.folder, trajectory=run.trajectory)
    try:
        if box is not None:
            reserve_sandbox(box, run.folder)
            await box.keep_history(run.folder / HISTORY)
        undid = await _check_others(run, box, destination)
        other_runs = [] if box is None else runs_since(run, box)
        went = await go_back(recorder, box, destination, undid, other_runs)
        if destination.what == "conversation":  # the files of forgotten steps stay, and belong to no step
            await asyncio.to_thread(record_artifacts, run, recorder, 0)
            return went
        if destination.target is None:
            return went
        more = await asyncio.to_thread(restore_artifacts, run, destination.target)
        await asyncio.to_thread(record_artifacts, run, recorder, destination.files_step)
        return replace(went, problems=(*went.problems, *more))
    finally:
        recorder.close()
        if box is not None:
            release_sandbox(box, run.folder)


def ready_text(step: int) -> str:
    """Describe the state of a run after a rewind to `step`.

    The text names the calls that continue the run, and the call that undoes the rewind.
    """
    ready = state_words(State.READY.label, str(step)) if step else "Ready to continue from the beginning"
    return f"{ready}: result.resume(), result.resume('Say something first.') or result.undo()"


async def _check_others(run: RunRecord, box: Sandbox | None, destination: Destination) -> Others:
    """Return the changes by others that a rewind undoes.

    Raises:
        InputError: if another run has made changes and `destination.others` is False.
    """
    if box is None or destination.what == "conversation" or destination.target is None:
        return NO_OTHERS
    found = await undone_changes(run, box, destination.target)
    if found.paths and found.runs and not destination.others:
        place = (
            f"the files of step {destination.step}"
            if destination.what == "files"
            else f"step {destination.step}"
        )
        place = place if destination.step else "the beginning"
        raise InputError(
            f"To go back to {place} would also undo later changes {changed_by(found.runs)}: {_names(found.paths)}. "
            "Nothing was changed. To undo these changes too, add others=True (%sandbox: --others); result.undo() "
            "restores them."
        )
    return found


async def go_back(
    recorder: Recorder,
    box: Sandbox | None,
    destination: Destination,
    undid: Others = NO_OTHERS,
    other_runs: Sequence[str] = (),
) -> RewindResult:
    """Move the conversation and restore the files. One event `rewound` records both."""
    outside = calls_not_undone(recorder.trajectory, destination.to)
    keep = [destination.target] if destination.target else []
    safety = recorder.trajectory.files if box is None else await box.checkpoint(keep=keep)
    facts: dict[str, Any] = {"to": destination.to, "step": destination.step, "what": destination.what}
    facts |= {"target": destination.target, "safety": safety}
    recorder.emit(ev.RewindStarted(**facts, other_runs=list(other_runs)))
    files, restored_paths, problems = 0, 0, tuple[str, ...]()
    if box is not None and destination.what != "conversation" and destination.target is not None:
        disown_files(box)  # the files belong to no step until they are restored
        restored = await box.restore(destination.target)
        files, problems = restored.files, restored.problems
        restored_paths = await asyncio.to_thread(_differing, recorder.folder, safety, destination.target)
        files = files if safety is None else restored_paths  # a preview shows the same count
        claim_files(box, recorder.folder)
    recorder.emit(ev.Rewound(**facts, undo_of=destination.undo_of, restored=restored_paths))
    record_files(recorder, destination)
    proposed_only = destination.files_step < destination.step
    ready = recorder.trajectory.ready_at is not None
    return RewindResult(
        destination.step, destination.what, files, problems, box is None, proposed_only, undid, ready, outside
    )


def _outside_text(calls: Sequence[str]) -> str:
    """Return a sentence about calls outside the sandbox that are not undone."""
    more = f" and {len(calls) - _MAX_NAMED_PATHS} more" if len(calls) > _MAX_NAMED_PATHS else ""
    return f"Not undone, because outside the sandbox: {', '.join(calls[:_MAX_NAMED_PATHS])}{more}."


def _differing(folder: Path, a: str | None, b: str) -> int:
    """Return the number of paths that differ between two checkpoints. Times of folders are not compared."""
    if a is None:
        return 0
    with reading_history(folder / HISTORY) as store:
        return len(differing_paths(store.manifest(a), store.manifest(b)))


def record_files(recorder: Recorder, destination: Destination) -> None:
    """Record the files that belong to HEAD after a rewind, if the events of the branch name other files."""
    trajectory = recorder.trajectory
    if trajectory.files is not None and (
        trajectory.head is None
        or trajectory.at(trajectory.head).uncovered is not None
        or trajectory.at(trajectory.head).files != trajectory.files
    ):
        left = (destination.target or "") if destination.what == "conversation" else None
        step = destination.files_step or None
        recorder.emit(ev.Checkpointed(step=step, checkpoint=trajectory.files, after_step=left))


def _listed(changes: Sequence[FileChange]) -> list[str]:
    lines = [f"  {_MARKS[change.kind]} {printable(change.path)}" for change in changes[:_MAX_LISTED_PATHS]]
    more = len(changes) - _MAX_LISTED_PATHS
    return lines + ([f"  and {more} more"] if more > 0 else [])


def _as_json(changes: Sequence[FileChange]) -> dict[str, Any]:
    shown = [{"path": printable(change.path), "kind": change.kind} for change in changes[:_MAX_LISTED_PATHS]]
    return {"total": len(changes), "paths": shown}


def _names(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - _MAX_NAMED_PATHS} more" if len(paths) > _MAX_NAMED_PATHS else ""
    return ", ".join(printable(path) for path in paths[:_MAX_NAMED_PATHS]) + more


def changed_by(runs: Iterable[str]) -> str:
    """Return the authors of changes in words. `runs` has the tasks of the other runs that made the changes."""
    titles = list(dict.fromkeys(f"'{_title(run)}'" for run in runs))
    if not titles:
        return "by you or by a program that still runs"
    if len(titles) == 1:
        return f"by another run ({titles[0]})"
    more = f" and {plural(len(titles) - _MAX_NAMED_RUNS, 'more')}" if len(titles) > _MAX_NAMED_RUNS else ""
    return f"by {len(titles)} other runs ({', '.join(titles[-_MAX_NAMED_RUNS:])}{more})"


async def undone_changes(run: RunRecord, box: Sandbox | None, target: str) -> Others:
    """Return the changes by others that restoring `target` would undo. If `box` is None, use only recorded changes."""
    known = run.trajectory.files
    running = run.context.session is not None
    now = known if box is None or running else await box.checkpoint(keep=[target])
    if now is None:
        return NO_OTHERS
    since = known if now != known and run.trajectory.uncovered is None else None
    return await asyncio.to_thread(_undone_changes, run, box, now, since, target)


def _undone_changes(run: RunRecord, box: Sandbox | None, now: str, since: str | None, target: str) -> Others:
    files = CheckpointFiles(run)
    if not (files.has(now) and files.has(target)):
        return NO_OTHERS
    present = files.manifest(now)
    of_others = set(differing_paths(files.own(now, since), present))
    paths = tuple(path for path in differing_paths(present, files.manifest(target)) if path in of_others)
    runs = [task for change in run.trajectory.changed_by_others(since or now) for task in change.runs]
    if since is not None and box is not None:
        runs += runs_since(run, box)
    return Others(tuple(sorted(paths)), tuple(runs))


def runs_since(run: RunRecord, box: Sandbox) -> list[str]:
    """Return the tasks of the runs that have used the sandbox since `run`."""
    return [_task_of(folder) for folder in users_since(box, run.folder)]


def _task_of(folder: Path) -> str:
    try:
        first = next(islice(read_journal(folder / JOURNAL), 1), None)
    except (JournalError, OSError):
        first = None
    return first.task.strip() if isinstance(first, ev.RunStarted) else folder.name


def _title(task: str) -> str:
    return shorten(" ".join(on_one_line(task).split()), _TITLE_CHARACTERS)
