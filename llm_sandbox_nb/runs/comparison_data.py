"""Compared runs as data: rows of steps, totals, and the paths of final files that differ."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from llm_sandbox_nb.agent.run_record import RunRecord
from llm_sandbox_nb.runs.aligned_steps import AlignedRow
from llm_sandbox_nb.runs.end_files import ComparedFile, EndFiles
from llm_sandbox_nb.sandbox.errors import HistoryError, OutputLimitExceededError
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.unified_diff import unified

if TYPE_CHECKING:
    import pandas

R = TypeVar("R", bound=RunRecord)
_DIFF_CHARACTERS = 256 * 1024


@dataclass(frozen=True)
class Totals:
    """Totals of one run. Times are in seconds."""

    name: str
    steps: int
    stop_reason: str | None
    state: str
    """The state at the end of the run, in words."""
    answer: str | None
    usage: ev.Usage
    model_time: float
    tool_time: float
    scripted: bool = False
    """True if the replies were read from a script, which costs nothing."""


@dataclass(repr=False)
class ComparedRuns(Generic[R]):
    """Runs with their aligned steps, totals and differing files."""

    runs: list[R]
    rows: list[AlignedRow]
    totals: list[Totals]
    files: dict[str, ComparedFile] = field(default_factory=dict)
    """The final files that differ, by path. The paths may be anywhere in the sandbox."""
    note: str = ""
    """Reason why files are not compared. Empty if files are compared."""
    others: tuple[str, ...] = ()
    """Paths with changes that no step of a compared run made. These changes are not compared."""
    _files: list[EndFiles] = field(default_factory=list, repr=False)

    @property
    def divergence(self) -> int | None:
        """Index in `rows` of the first row that differs. None if all rows are the same."""
        return next((index for index, row in enumerate(self.rows) if row.likeness != "same"), None)

    @property
    def first_different_step(self) -> int | None:
        """Number of the first step that differs. None if all steps are the same."""
        if self.divergence is None:
            return None
        return min(step.number for step in self.rows[self.divergence].steps if step is not None)

    def diff(self, path: str, first: int = 0, second: int = 1) -> str:
        """Return the unified diff of a file in two runs, or a sentence that says why there is no diff.

        `first` and `second` are the indexes of the two runs in `runs`.

        Raises:
            KeyError: if the path does not differ.
        """
        if path not in self.files:
            raise KeyError(f"{path} does not differ; differing paths: {', '.join(self.files) or 'none'}.")
        try:
            texts = [self._files[index].text(path) for index in (first, second)]
        except (HistoryError, OutputLimitExceededError, UnicodeDecodeError) as error:
            return f"{path} is not shown as a diff: {error}"
        made, note = unified(path.lstrip("/"), texts[0], texts[1], _DIFF_CHARACTERS)
        return made or note or "The content is the same; the mode of the file differs."

    def to_dataframe(self) -> pandas.DataFrame:
        """Return a data frame with a row for each aligned row of steps, and columns for each run. Needs pandas."""
        import pandas

        return pandas.DataFrame([self._frame_row(row) for row in self.rows])

    def _frame_row(self, row: AlignedRow) -> dict[str, Any]:
        made: dict[str, Any] = {"likeness": row.likeness}
        for total, step in zip(self.totals, row.steps, strict=True):
            usage = (step.usage if step else None) or ev.Usage()
            calls = step.calls if step else []
            made |= {
                f"{total.name}: step": step.number if step else None,
                f"{total.name}: calls": [[call.tool, call.arguments] for call in calls],
                f"{total.name}: outputs": [call.output for call in calls],
                f"{total.name}: tokens": usage.total_tokens,
                f"{total.name}: cost": usage.cost,
                f"{total.name}: model time": step.model_time if step else None,
            }
        return made
