"""A run as sessions know it: its folder and trajectory, its sandbox while that is open, and whose files that has."""

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
from llm_sandbox_nb.formats.llm_in_sandbox import read_seed
from llm_sandbox_nb.model.contract import Model
from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.sandbox.errors import SandboxError
from llm_sandbox_nb.sandbox.history.sandbox import CheckpointingSandbox
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
_USERS: WeakKeyDictionary[Sandbox, list[Path]] = WeakKeyDictionary()
"""The runs that had the files of a sandbox, each once, the newest last."""
_IN_USE_BY: WeakKeyDictionary[Sandbox, Path] = WeakKeyDictionary()
IN_USE = "Another run uses this sandbox: wait until it has ended, or stop it."


T = TypeVar("T")


class ActiveSession(Protocol):
    """A session that executes a run now."""

    @property
    def recorder(self) -> Recorder:
        """Records the events of the run."""
        ...

    async def rewind(self, move: Callable[[Recorder, Sandbox], Awaitable[T]]) -> T:
        """Interrupt the run, call `move`, which goes back, and pause there.

        Raises:
            ControlError: the run has ended.
            Exception: what `move` raises.
        """
        ...

    async def complete_checkpoint(self) -> None:
        """Wait until the checkpoint of the last call is complete."""
        ...


@dataclass
class RunContext:
    """The part of a run that is not in its record."""

    box: Sandbox | None = None
    """The sandbox, while it is open."""
    owned: bool = False
    """Whether it is closed with the run."""
    loop: asyncio.AbstractEventLoop | None = None
    """The event loop that the sandbox belongs to."""
    session: ActiveSession | None = None
    """What executes the run now; None while nothing does."""
    spec: RunSpec | None = None
    """The latest specification: it holds the model, whose key is in no record."""
    checks: dict[str, Check] = field(default_factory=dict)
    """Checks of the run in this process, by `Check.key`: a function is in no record."""
    models: dict[str, Model] = field(default_factory=dict)
    """Models of the run in this process, by their names: some cannot be made from a name."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of `open_sandbox` for another sandbox like it."""
    isolation_setting: str | None = None
    """What the settings of this notebook say: the record alone may not choose a sandbox that isolates nothing."""
    network_setting: str | None = None
    """The same for an open network."""
    resume_display: ResumeDisplay | None = None
    """Shows what the run does when it resumes."""
    on_fork: Callable[[Any], None] | None = None
    """Called with each fork, also with one that was asked for over REST, so that a variable can keep it."""
    answer: str | None = None
    """The answer of a run that has submitted, while a function checks it."""
    shown: bool = False
    """Whether the cell that runs now shows the run's card already."""
    _dead: Sandbox | None = None

    def living(self) -> Sandbox | None:
        """The sandbox, unless it is closed or lost."""
        if self.box is not None and getattr(self.box, "lost", None) is not None:
            self._dead, self.box = self.box, None
        return self.box

    async def close_lost_history(self) -> None:
        """Close the history of a sandbox that died, so that another sandbox can write it."""
        dead, self._dead = self._dead, None
        if isinstance(dead, CheckpointingSandbox):
            await dead.history.close()

    async def close(self) -> None:
        """Close the sandbox if it is the run's own."""
        box, self.box = self.box, None
        if box is not None and self.owned:
            await box.close()


ResumeDisplay = Callable[[Any, Callable[..., Any]], Any]
"""`resume_display(run, work)` calls `work(listeners)`, shows the events, and returns the result."""


def reserve_sandbox(box: Sandbox, folder: Path) -> None:
    """Only the run in `folder` may use `box` until `release_sandbox`.

    Raises:
        SandboxError: another run uses it.
    """
    if in_use_by_another(box, folder):
        raise SandboxError(IN_USE)
    _IN_USE_BY[box] = folder


def release_sandbox(box: Sandbox, folder: Path) -> None:
    """Other runs may use `box` again."""
    if _IN_USE_BY.get(box) == folder:
        del _IN_USE_BY[box]


def in_use_by_another(box: Sandbox, folder: Path) -> bool:
    """Whether a run other than the one in `folder` uses `box`: its files and its history must not change."""
    return _IN_USE_BY.get(box, folder) != folder


def owns_files(box: Sandbox, folder: Path) -> bool:
    """Whether the files of `box` are those of the run in `folder`."""
    return _FILES_OF.get(box) == folder


def claim_files(box: Sandbox, folder: Path) -> bool:
    """The files of `box` are those of the run in `folder` from now on. Returns whether they already were."""
    same = owns_files(box, folder)
    _FILES_OF[box] = folder
    users = _USERS.setdefault(box, [])
    if folder in users:
        users.remove(folder)
    users.append(folder)
    return same


def users_since(box: Sandbox, folder: Path) -> list[Path]:
    """The other runs that have had the files of `box` since the run in `folder` had them, the newest last."""
    users = _USERS.get(box, [])
    return users[users.index(folder) + 1 :] if folder in users else list(users)


def disown_files(box: Sandbox) -> None:
    """The files of `box` are those of no run."""
    _FILES_OF.pop(box, None)


class RunRecord:
    """What a session, a rewind, a fork, a replay and a comparison take. `Run` adds what a person does with it."""

    def __init__(
        self,
        folder: Path,
        trajectory: Trajectory,
        control: RunControl | None = None,
        *,
        has_journal: bool = True,
    ) -> None:
        self.folder = folder
        """Everything of the run on disk: journal, files, the trajectory in the paper's form."""
        self.trajectory = trajectory
        self.has_journal = has_journal
        """Whether the folder is this run's own, so that the run can be changed."""
        self.context = RunContext()
        """Its sandbox while that is open, and the like."""
        self._control = control

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """A run from its folder, its journal, its id or a part of that, or a `trajectory.json` in the paper's form.

        The folder may also be one that the paper's package wrote. An id is looked for in `sandbox-runs` here.

        Raises:
            FileNotFoundError: there is none, or several have this part in their names.
            JournalError: the journal is damaged before its last line.
            InputError: it is no path.
            ValueError: the file is no trajectory.
        """
        if not isinstance(path, str | os.PathLike):
            raise InputError(f"Run.load takes a folder, a file, or a part of a run's id, not {path!r:.80}.")
        path = Path(path).expanduser()
        path = find_run_folder(str(path), Path(RUNS)) if len(path.parts) == 1 else path
        path = path.resolve()
        if (record := record_of(path)).suffix == ".json":
            return cls(record.parent, read_seed(record), has_journal=False)
        if not path.exists() or (path.is_dir() and not (path / JOURNAL).exists()):
            raise RunNotFoundError(f"There is no run at {path}: a run is a folder with a {JOURNAL} in it.")
        return cls(path if path.is_dir() else path.parent, Trajectory(read_journal(path)))

    @property
    def journal(self) -> Path:
        """The journal: one event in each line."""
        return self.folder / JOURNAL

    @property
    def id(self) -> str | None:
        """The run's own id."""
        return self.trajectory.start.run_id if self.trajectory.start else None

    @property
    def task(self) -> str:
        """What was asked."""
        return self.trajectory.start.task if self.trajectory.start else ""

    @property
    def model(self) -> str:
        """The name of the current model."""
        return self.trajectory.model

    @property
    def answer(self) -> str | None:
        """The final answer: the answer file if the model wrote one, else what it said last."""
        return self.trajectory.answer or self.context.answer

    @property
    def checks(self) -> list[ev.Checked]:
        """The checks of its result, the newest last: `run.checks[-1].verdict.outcome` is `"passed"`, `"failed"`, ..."""
        return self.trajectory.checks

    @property
    def stop_reason(self) -> str | None:
        """Why it ended; None until then, and for a run that was killed."""
        return self.trajectory.stop_reason

    @property
    def error(self) -> str | None:
        """What went wrong, in one sentence."""
        return self.trajectory.finish.error if self.trajectory.finish else None

    @property
    def steps(self) -> list[Step]:
        """The steps in order: `steps[0]` is the first."""
        return self.trajectory.steps

    @property
    def doubts(self) -> list[ev.Doubt]:
        """Why the result may be wrong, the worst first; each has `.step`, `.rule` and `.text`."""
        return doubts_of(self.trajectory)

    @property
    def usage(self) -> ev.Usage:
        """Tokens and cost so far."""
        return self.trajectory.usage

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation exactly as the model saw it."""
        return list(self.trajectory.messages())

    @property
    def files(self) -> RunFiles:
        """What the model left in the output folder."""
        return RunFiles(self.folder / FILES)

    @property
    def control(self) -> RunControl:
        """The controls of the run until it ends. Raises ControlError for one that was loaded."""
        if self._control is None:
            raise ControlError("This run was loaded from its record, so there is nothing to control.")
        return self._control

    @property
    def held(self) -> Held | None:
        """The call or observation at which the run has paused; None while it executes."""
        return self._control.held if self._control else None

    def fresh_control(self) -> RunControl:
        """A control for the next session: the present one, unless a session has used it."""
        return RunControl() if self._control is None or self._control.used else self._control

    def take_control(self, control: RunControl) -> None:
        """The control of the session that begins now."""
        self._control = control
