"""Record of a run: its folder, its trajectory and its open sandbox. A register has the runs that use each sandbox."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar
from weakref import WeakKeyDictionary

from llm_sandbox_nb.agent.checks import Check
from llm_sandbox_nb.agent.control.decisions import Held
from llm_sandbox_nb.agent.control.run_control import RunControl
from llm_sandbox_nb.agent.errors import ControlError, InputError
from llm_sandbox_nb.agent.recorder import Recorder
from llm_sandbox_nb.agent.run_spec import RunSpec
from llm_sandbox_nb.formats.records import is_foreign, read_run, split_name
from llm_sandbox_nb.model.contract import Model
from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.sandbox.errors import SandboxError
from llm_sandbox_nb.sandbox.history.checkpointing_sandbox import CheckpointingSandbox
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.doubts.rules import doubts_of
from llm_sandbox_nb.trajectory.journal import read_journal
from llm_sandbox_nb.trajectory.run_folder import (
    FILES,
    JOURNAL,
    RUNS,
    RunFiles,
    RunNotFoundError,
    find_run_folder,
    record_of,
)
from llm_sandbox_nb.trajectory.trajectory import Step, Trajectory

_FILES_OF: WeakKeyDictionary[Sandbox, Path] = WeakKeyDictionary()
"""Folder of the run whose files a sandbox has now, by sandbox. `disown_files` removes the entry."""
_USERS: WeakKeyDictionary[Sandbox, list[Path]] = WeakKeyDictionary()
"""Folders of the runs whose files a sandbox has had, by sandbox. The newest run is the last one."""
_IN_USE_BY: WeakKeyDictionary[Sandbox, Path] = WeakKeyDictionary()
IN_USE = "Another run uses this sandbox: wait until it has ended, or stop it."


T = TypeVar("T")


class ActiveSession(Protocol):
    """Session that is executing a run."""

    @property
    def recorder(self) -> Recorder: ...

    async def rewind(self, move: Callable[[Recorder, Sandbox], Awaitable[T]]) -> T:
        """Interrupt the run, rewind it by a call of `move`, and pause it.

        Raises:
            ControlError: if the run has ended.
            Exception: the exception of `move`.
        """
        ...

    async def complete_checkpoint(self) -> None:
        """Wait until the checkpoint of the last call is complete."""
        ...


@dataclass
class RunContext:
    """State of a run that is not in its record."""

    box: Sandbox | None = None
    """The open sandbox. None if no sandbox is open."""
    owned: bool = False
    """True if `close` of the run closes the sandbox."""
    loop: asyncio.AbstractEventLoop | None = None
    """Event loop of the sandbox."""
    session: ActiveSession | None = None
    """Session that is executing the run. None between two sessions."""
    spec: RunSpec | None = None
    """Newest specification. It has the model with its API key, which the record lacks."""
    checks: dict[str, Check] = field(default_factory=dict)
    """Checks that this process knows, by `Check.key`. They are needed because the record cannot contain functions."""
    models: dict[str, Model] = field(default_factory=dict)
    """Models that this process knows, by name. They are needed because some models cannot be made from a name."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments with which `open_sandbox` opens another sandbox like that of the run."""
    isolation_setting: str | None = None
    """Isolation in this notebook's settings. A record alone must not choose a sandbox without isolation."""
    network_setting: str | None = None
    """Network in this notebook's settings. A record alone must not choose an open network."""
    resume_display: ResumeDisplay | None = None
    """Function that displays a resumed run. None if nothing displays the run."""
    on_fork: Callable[[Any], None] | None = None
    """Function that is called with each fork. A notebook needs it to find a fork that was requested over REST."""
    answer: str | None = None
    """Answer of the run while a function checks the result. Otherwise None."""
    shown: bool = False
    """True if the current cell already shows the run's card."""
    _dead: Sandbox | None = None

    def living(self) -> Sandbox | None:
        """Return the open sandbox. Return None if the sandbox is closed or lost."""
        if self.box is not None and getattr(self.box, "lost", None) is not None:
            self._dead, self.box = self.box, None
        return self.box

    async def close_lost_history(self) -> None:
        """Close the history of a dead sandbox, so that another sandbox can write to this history."""
        dead, self._dead = self._dead, None
        if isinstance(dead, CheckpointingSandbox):
            await dead.history.close()

    async def close(self) -> None:
        """Close the sandbox if the run owns the sandbox."""
        box, self.box = self.box, None
        if box is not None and self.owned:
            await box.close()


ResumeDisplay = Callable[[Any, Callable[..., Any]], Any]
"""Function that gets a run and a function `work`. It calls `work(listeners)`, shows the events that the listeners get,
and returns the result of `work`."""


def reserve_sandbox(box: Sandbox, folder: Path) -> None:
    """Reserve `box` for the run in `folder` until `release_sandbox`.

    Raises:
        SandboxError: if another run uses the sandbox.
    """
    if in_use_by_another(box, folder):
        raise SandboxError(IN_USE)
    _IN_USE_BY[box] = folder


def release_sandbox(box: Sandbox, folder: Path) -> None:
    """Release `box` for other runs, if the run in `folder` has reserved `box`."""
    if _IN_USE_BY.get(box) == folder:
        del _IN_USE_BY[box]


def in_use_by_another(box: Sandbox, folder: Path) -> bool:
    """Return True if a run other than that in `folder` uses `box`. Then the files in `box` must not be changed."""
    return _IN_USE_BY.get(box, folder) != folder


def owns_files(box: Sandbox, folder: Path) -> bool:
    """Return True if `box` has the files of the run in `folder`."""
    return _FILES_OF.get(box) == folder


def claim_files(box: Sandbox, folder: Path) -> bool:
    """Register that `box` has the files of the run in `folder`. Return True if this was already registered."""
    same = owns_files(box, folder)
    _FILES_OF[box] = folder
    users = _USERS.setdefault(box, [])
    if folder in users:
        users.remove(folder)
    users.append(folder)
    return same


def users_since(box: Sandbox, folder: Path) -> list[Path]:
    """Return the folders of the runs that have claimed the files of `box` since the run in `folder`, newest last."""
    users = _USERS.get(box, [])
    return users[users.index(folder) + 1 :] if folder in users else list(users)


def disown_files(box: Sandbox) -> None:
    """Register that the files of `box` belong to no run."""
    _FILES_OF.pop(box, None)


class RunRecord:
    """Record of a run, for sessions, rewinds, forks, replays and comparisons. The subclass `Run` is for users."""

    def __init__(
        self,
        folder: Path,
        trajectory: Trajectory,
        control: RunControl | None = None,
        *,
        has_journal: bool = True,
    ) -> None:
        self.folder = folder
        """Folder of the run, which has the journal, the files, and the trajectory in the paper's form."""
        self.trajectory = trajectory
        self.has_journal = has_journal
        """True if the run is in its journal, so that the run can be changed. False for a view or a foreign record."""
        self.context = RunContext()
        """State of the run that the record lacks, such as the open sandbox."""
        self._control = control

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Load a run from its folder, its journal, a part of its name, or a file in another project's format.

        Folders of the paper's package are supported. A part of a name is searched in `sandbox-runs` in the current
        folder. `FILE#NAME` names one of several runs in a file.

        Raises:
            FileNotFoundError: if no run is found, or if several runs have this part in their names.
            JournalError: if the journal is damaged before its last line.
            InputError: if `path` is neither a text nor a path.
            NoRecordError: if the file is not a record of a run. This is a subclass of `ValueError`.
        """
        if not isinstance(path, str | os.PathLike):
            raise InputError(f"Run.load needs a folder, a file, or a part of a run's id, not {path!r:.80}.")
        given, name = split_name(path)
        path = record_of(
            (find_run_folder(str(given), Path(RUNS)) if len(given.parts) == 1 else given).resolve()
        )
        if is_foreign(path):
            return cls(path.parent, read_run(path, name).trajectory, has_journal=False)
        if path.is_dir() or not path.exists():
            raise RunNotFoundError(f"There is no run at {path}: a run is a folder with a {JOURNAL} in it.")
        return cls(path.parent, Trajectory(read_journal(path)))

    @property
    def journal(self) -> Path:
        """Path of the journal, which has an event in each line."""
        return self.folder / JOURNAL

    @property
    def id(self) -> str | None:
        """Id of the run."""
        return self.trajectory.start.run_id if self.trajectory.start else None

    @property
    def task(self) -> str:
        """Text of the task."""
        return self.trajectory.start.task if self.trajectory.start else ""

    @property
    def model(self) -> str:
        """Name of the current model."""
        return self.trajectory.model

    @property
    def answer(self) -> str | None:
        """Final answer: the content of the answer file if the model wrote one, or else the model's last text."""
        return self.trajectory.answer or self.context.answer

    @property
    def checks(self) -> list[ev.Checked]:
        """Checks of the result, newest last. `run.checks[-1].verdict.outcome` is `"passed"`, `"failed"`, ..."""
        return self.trajectory.checks

    @property
    def stop_reason(self) -> str | None:
        """Reason of the run's end. None before the end, and for a run that was killed."""
        return self.trajectory.stop_reason

    @property
    def error(self) -> str | None:
        """Message about the failure of the run. None if the run did not fail."""
        return self.trajectory.finish.error if self.trajectory.finish else None

    @property
    def steps(self) -> list[Step]:
        """Steps in order. `steps[0]` is the first step."""
        return self.trajectory.steps

    @property
    def doubts(self) -> list[ev.Doubt]:
        """Reasons why the result may be wrong, worst first. Each has `.step`, `.rule` and `.text`."""
        return doubts_of(self.trajectory)

    @property
    def usage(self) -> ev.Usage:
        """Tokens and cost of the run so far."""
        return self.trajectory.usage

    @property
    def messages(self) -> list[dict[str, Any]]:
        """Messages of the conversation, exactly as the model saw them."""
        return list(self.trajectory.messages())

    @property
    def files(self) -> RunFiles:
        """Files that the model left in the output folder."""
        return RunFiles(self.folder / FILES)

    @property
    def control(self) -> RunControl:
        """Controls of the run. If the run was loaded from its record, it has no controls, so ControlError is raised."""
        if self._control is None:
            raise ControlError("This run was loaded from its record, so there is nothing to control.")
        return self._control

    @property
    def held(self) -> Held | None:
        """The call or observation that waits for a decision. None if nothing waits."""
        return self._control.held if self._control else None

    def fresh_control(self) -> RunControl:
        """Return controls for the next session. If a session has used the current controls, return new ones."""
        return RunControl() if self._control is None or self._control.used else self._control

    def take_control(self, control: RunControl) -> None:
        """Set the controls for the session that begins now."""
        self._control = control
