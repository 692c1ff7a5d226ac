"""Going back: what would change, doing it, and taking it back.

The order makes it whole at any instant: the files as they are become a checkpoint, `rewind.started` names it and the
one to go back to, the files go back, and the one line `rewound` moves conversation and files together. Without that
line the rewind did not happen, and the files of HEAD are those of the first checkpoint.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from llm_sandbox_nb.agent.checkpoints import history_folder
from llm_sandbox_nb.agent.failures import InputError
from llm_sandbox_nb.agent.files_back import note_files, put_files_back
from llm_sandbox_nb.agent.files_of import FilesOf
from llm_sandbox_nb.agent.home import Awaitable
from llm_sandbox_nb.agent.place import OTHERS, at_work_for_another, begin_work, end_work, let_go, take_over
from llm_sandbox_nb.agent.recorder import Recorder
from llm_sandbox_nb.sandbox.contract import Changes, FileChange, Sandbox
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.places import Moment, before_calls, end_of_step, files_after
from llm_sandbox_nb.trajectory.trajectory import Trajectory

if TYPE_CHECKING:
    from llm_sandbox_nb.agent.run import Run

What = Literal["both", "files", "conversation"]
_SHOWN = 40


@dataclass(frozen=True)
class Destination:
    """Where a run shall go back to."""

    to: str
    step: int
    what: What
    target: str | None
    files_step: int
    """The step whose files these are."""
    undo_of: str | None = None


@dataclass(frozen=True)
class Preview(Awaitable):
    """What going back would change in the files. `incomplete` says in words what is not known."""

    step: int
    files: tuple[FileChange, ...]
    incomplete: str = ""
    steps_left: int = 0
    """Steps that the branch would lose; they stay in the journal."""
    what: What = "both"

    def __str__(self) -> str:
        lines = [_headline(self.step, self.steps_left, len(self.files))]
        marks = {"added": "+", "modified": "~", "deleted": "-"}
        lines += [f"  {marks[change.kind]} {_printable(change.path)}" for change in self.files[:_SHOWN]]
        if len(self.files) > _SHOWN:
            lines.append(f"  and {len(self.files) - _SHOWN} more")
        lines += [self.incomplete] if self.incomplete else []
        ended = "" if self.what == "conversation" else "Commands that run in the sandbox are ended. "
        lines.append(f"{ended}run.undo() takes it back.")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True)
class WentBack(Awaitable):
    """What going back has done."""

    step: int
    what: What
    files: int = 0
    """Paths that were written, changed or deleted."""
    problems: tuple[str, ...] = ()
    """A sentence for each thing that could not be put back."""
    waiting: bool = False
    """Whether the files go back when the run goes on, as it has no sandbox now."""
    before_calls: bool = False
    """Whether the step's calls are proposed and not carried out."""

    def __str__(self) -> str:
        place = f"the end of step {self.step}" if self.step else "the beginning"
        place = f"the calls of step {self.step}, which are not carried out," if self.before_calls else place
        subject = {
            "both": "Conversation and files are",
            "files": "The files are",
            "conversation": "The conversation is",
        }
        text = f"{subject[self.what]} at {place} again."
        if self.what != "conversation":
            text += (
                " It has no sandbox now, and gets one with these files when it goes on."
                if self.waiting
                else f" {self.files} paths were put back."
            )
        return " ".join([text, *self.problems])

    def __repr__(self) -> str:
        return str(self)


def destination(run: Run, step: int, what: What = "both", before: Moment | None = None) -> Destination:
    """Where to go back to.

    Raises:
        InputError: there is no such step, or its files were not kept.
    """
    if what not in ("both", "files", "conversation"):
        raise InputError(f"`what` has to be both, files or conversation, not {what!r}.")
    if before not in (None, "call"):
        raise InputError(f"`before` can be 'call', not {before!r}.")
    trajectory = run.trajectory
    try:
        to = before_calls(trajectory, step) if before else end_of_step(trajectory, step)
    except ValueError as error:
        raise InputError(str(error)) from error
    files_step = step - 1 if before else step
    target = files_after(trajectory, files_step)
    if what != "conversation" and not FilesOf(run).has(target):
        raise InputError(
            f"The files of step {step} are not kept (any more), so only the conversation can go back to it: "
            "what='conversation'."
        )
    return Destination(to, step, what, target, files_step)


def last_rewind(trajectory: Trajectory) -> Destination:
    """Where `undo` leads: to where the newest rewind, that was not taken back, came from.

    Raises:
        InputError: there is none.
    """
    undone = {one.undo_of for one in trajectory.rewinds if one.undo_of}
    for one in reversed(trajectory.rewinds):
        if one.id in undone or one.undo_of:
            continue
        begun = trajectory.parent(one.id)
        came_from = trajectory.parent(begun) if begun else None
        if came_from is None:
            break
        step = trajectory.step_at(came_from)
        return Destination(came_from, step, one.what, one.safety, step, one.id)
    raise InputError("There is no rewind to take back.")


async def preview(run: Run, there: Destination) -> Preview:
    """What going back would change."""
    changes = Changes()
    if there.what != "conversation" and there.target:
        changes = await FilesOf(run).from_now_to(there.target)
    last = run.steps[-1].number if run.steps else 0
    left = 0 if there.what == "files" else last - there.step
    return Preview(there.step, changes.files, changes.incomplete, left, there.what)


async def go_back(run: Run, there: Destination) -> WentBack:
    """Do it, in the run's event loop."""
    place = run.place
    if place.work is not None:
        return await place.work.trips.ask(lambda recorder, box: travel(recorder, box, there))
    box = place.living()
    if box is not None and at_work_for_another(box, run.folder):
        if there.what != "conversation":
            raise InputError(OTHERS)
        box = None
    if box is None and there.what != "conversation" and not FilesOf(run).has(there.target):
        raise InputError("The files to go back to are not kept any more: only the conversation can go back.")
    recorder = Recorder(run.folder, trajectory=run.trajectory)
    try:
        if box is not None:
            begin_work(box, run.folder)
            await box.keep_history(history_folder(run.folder))
        went = await travel(recorder, box, there)
        if there.what == "conversation" or there.target is None:
            return went
        more = await asyncio.to_thread(put_files_back, run, there.target)
        await asyncio.to_thread(note_files, run, recorder, there.files_step)
        return replace(went, problems=(*went.problems, *more))
    finally:
        recorder.close()
        if box is not None:
            end_work(box, run.folder)


async def travel(recorder: Recorder, box: Sandbox | None, there: Destination) -> WentBack:
    """Go back with the conversation and the files, as one."""
    safety = recorder.trajectory.files if box is None else await box.checkpoint()
    facts: dict[str, Any] = {"to": there.to, "step": there.step, "what": there.what}
    facts |= {"target": there.target, "safety": safety}
    recorder.emit(ev.RewindStarted(**facts))
    files, problems = 0, tuple[str, ...]()
    if box is not None and there.what != "conversation" and there.target is not None:
        let_go(box)  # whatever happens meanwhile, they are files of no step
        restored = await box.restore(there.target)
        files, problems = restored.files, restored.problems
        take_over(box, recorder.folder)
    recorder.emit(ev.Rewound(**facts, undo_of=there.undo_of))
    name_files(recorder, there.files_step)
    return WentBack(there.step, there.what, files, problems, box is None, there.files_step < there.step)


def name_files(recorder: Recorder, step: int) -> None:
    """Say on the branch itself which files it has, where HEAD was moved and its path says something else."""
    trajectory = recorder.trajectory
    if trajectory.files is not None and (
        trajectory.head is None
        or trajectory.at(trajectory.head).uncovered is not None
        or trajectory.at(trajectory.head).files != trajectory.files
    ):
        recorder.emit(ev.Checkpointed(step=step or None, checkpoint=trajectory.files))


def _headline(step: int, left: int, files: int) -> str:
    place = f"step {step}" if step else "the beginning"
    steps = f", {left} steps leave the branch" if left > 0 else ""
    return f"Back to {place}: {files} paths change{steps}."


def _printable(path: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in path)
