"""A run as sessions know it: its folder, its trajectory, and its context in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from llm_sandbox_nb.agent.control.decisions import Held
from llm_sandbox_nb.agent.control.run_control import RunControl
from llm_sandbox_nb.agent.errors import ControlError
from llm_sandbox_nb.agent.run_context import RunContext
from llm_sandbox_nb.formats.llm_in_sandbox import read_seed
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.journal import read_journal
from llm_sandbox_nb.trajectory.run_folder import FILES, JOURNAL, RUNS, RunFiles, find_run_folder
from llm_sandbox_nb.trajectory.trajectory import Step, Trajectory


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

        An id is looked for in the folder `sandbox-runs` here.

        Raises:
            FileNotFoundError: there is none, or several have this part in their names.
            JournalError: the journal is damaged before its last line.
            ValueError: the file is no trajectory.
        """
        path = Path(path).expanduser()
        path = (find_run_folder(str(path), Path(RUNS)) if len(path.parts) == 1 else path).resolve()
        if path.suffix == ".json":
            return cls(path.parent, read_seed(path), has_journal=False)
        if not path.exists() or (path.is_dir() and not (path / JOURNAL).exists()):
            raise FileNotFoundError(f"There is no run at {path}: a run is a folder with a {JOURNAL} in it.")
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
        return self.trajectory.answer

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
