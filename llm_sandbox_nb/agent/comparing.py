"""Runs side by side: steps, the first that differs, tokens, cost, time, and the files in the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from llm_sandbox_nb.agent.aligning import Row, align
from llm_sandbox_nb.agent.comparison_text import as_html, as_text
from llm_sandbox_nb.agent.failures import InputError
from llm_sandbox_nb.agent.files_of import FilesOf
from llm_sandbox_nb.agent.home import Awaitable
from llm_sandbox_nb.sandbox.errors import HistoryError, OutputLimitExceededError
from llm_sandbox_nb.sandbox.history.entry import Entry
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.unified import COMPARED_BYTES, unified

if TYPE_CHECKING:
    import pandas

    from llm_sandbox_nb.agent.run import Run

_DIFF_CHARACTERS = 256 * 1024
_ROOT = "/testbed"


@dataclass(frozen=True)
class Totals:
    """What one run has used. Times are seconds; `cost` is US dollars, None when it is not known."""

    name: str
    steps: int
    stop_reason: str | None
    answer: str | None
    usage: ev.Usage
    model_time: float
    tool_time: float


@dataclass(frozen=True)
class ComparedFile:
    """One path that is not the same in the end: for each run its size and digest, None where it has none."""

    path: str
    states: tuple[str | None, ...]


@dataclass
class Comparison(Awaitable):
    """What `run.compare` gives. Shown as a table in a notebook.

    >>> comparison.divergence, comparison.diff("/testbed/answer.txt")
    """

    runs: list[Run]
    rows: list[Row]
    totals: list[Totals]
    files: dict[str, ComparedFile] = field(default_factory=dict)
    """Paths that differ in the end, anywhere in the sandbox."""
    note: str = ""
    """Why files are not compared, if they are not."""
    _files: list[EndFiles] = field(default_factory=list, repr=False)

    @property
    def divergence(self) -> int | None:
        """Index in `rows` of the first that differs; None when none does."""
        return next((index for index, row in enumerate(self.rows) if row.likeness != "same"), None)

    @property
    def first_different_step(self) -> int | None:
        """The number of the first step that differs; None when none does."""
        if self.divergence is None:
            return None
        return min(step.number for step in self.rows[self.divergence].steps if step is not None)

    def diff(self, path: str, first: int = 0, second: int = 1) -> str:
        """How a file of one run differs from that of another, as a unified diff; else a sentence why there is none.

        Raises:
            KeyError: the path is the same in all runs, or in none.
        """
        if path not in self.files:
            raise KeyError(f"{path} does not differ; those that do: {', '.join(self.files) or 'none'}.")
        try:
            texts = [self._files[one].text(path) for one in (first, second)]
        except (HistoryError, OutputLimitExceededError, UnicodeDecodeError) as error:
            return f"{path} is not shown as a diff: {error}"
        made, note = unified(path.lstrip("/"), texts[0], texts[1], _DIFF_CHARACTERS)
        return made or note or "The content is the same; its mode differs."

    def to_dataframe(self) -> pandas.DataFrame:
        """One row for each aligned row of steps, with columns for each run. Needs pandas."""
        import pandas

        return pandas.DataFrame([self._frame_row(row) for row in self.rows])

    def _frame_row(self, row: Row) -> dict[str, Any]:
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

    def __str__(self) -> str:
        return as_text(self)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return as_html(self)


def compare_runs(runs: Sequence[Run], names: Sequence[str] = ()) -> Comparison:
    """Set runs side by side.

    Raises:
        InputError: there are fewer than two.
    """
    if len(runs) < 2:
        raise InputError("There is one branch only: name another run to compare this one with.")
    rows = align([[step for step in run.steps if step.replied] for run in runs])
    named = names or [_name(run, number) for number, run in enumerate(runs, 1)]
    totals = [_totals(run, name) for run, name in zip(runs, named, strict=True)]
    made = Comparison(list(runs), rows, totals)
    try:
        made._files = [EndFiles(run, run.trajectory.files) for run in runs]
    except HistoryError as error:
        made.note = f"The files are not compared: {error}"
        return made
    made.files = EndFiles.differing(made._files)
    return made


def _name(run: Run, number: int) -> str:
    return f"{number}: {run.folder.name}"


def _totals(run: Run, name: str) -> Totals:
    results = [call.result for step in run.steps for call in step.calls if call.result]
    return Totals(
        name=name,
        steps=len(run.steps),
        stop_reason=run.stop_reason,
        answer=run.answer,
        usage=run.usage,
        model_time=sum(step.model_time for step in run.steps),
        tool_time=sum(result.duration for result in results),
    )


class EndFiles:
    """The files of one run at a checkpoint."""

    def __init__(self, run: Run, checkpoint: str | None) -> None:
        """Raises HistoryError when they are not kept."""
        self._reader = FilesOf(run)
        if checkpoint is None or not self._reader.has(checkpoint):
            raise HistoryError(f"those of {run.folder.name} are not kept.")
        self._checkpoint = checkpoint
        manifest = self._reader.manifest(checkpoint)
        root = _working_directory(run, manifest)
        self.entries = {_under(path, root): (path, entry) for path, entry in manifest.items()}

    def state(self, path: str) -> str | None:
        """Its type, mode and content in a form that can be compared and read; None for what is as in the image."""
        found = self.entries.get(path)
        if found is None or found[1].base:
            return None
        entry = found[1]
        if entry.type == "l":
            return f"link to {entry.target}"
        if entry.type == "d":
            return f"folder, mode {entry.mode:o}"
        digest = "".join(chunk.digest.hex()[:16] for chunk in entry.chunks or ())
        return f"{entry.size} bytes, mode {entry.mode:o}, {digest[:64]}"

    def hides(self, path: str) -> bool:
        """Whether the image's file at a path was deleted: its folder is told, and it is not."""
        above = self.entries.get(str(PurePosixPath(path).parent))
        return path not in self.entries and above is not None and not above[1].base

    def text(self, path: str) -> str:
        """A file's content, empty where there is none. Raises HistoryError, UnicodeDecodeError, ..."""
        found = self.entries.get(path)
        if found is None:
            return ""
        return self._reader.read(self._checkpoint, found[0], COMPARED_BYTES).decode("utf-8")

    @staticmethod
    def differing(files: list[EndFiles]) -> dict[str, ComparedFile]:
        """Paths that are not the same, but for times and for folders."""
        paths = sorted(
            {path for one in files for path, (_, entry) in one.entries.items() if entry.type != "d"}
        )
        found: dict[str, ComparedFile] = {}
        for path in paths:
            states = tuple(one.state(path) for one in files)
            told = any(state is not None for state in states)
            if len(set(states)) > 1 or (not told and len({one.hides(path) for one in files}) > 1):
                found[path] = ComparedFile(path, states)
        return found


def _working_directory(run: Run, manifest: dict[str, Entry] | Any) -> str:
    """Of isolation `process`, where each sandbox has another; the only folder that is told."""
    protection = run.trajectory.sandbox.protection if run.trajectory.sandbox else {}
    if protection.get("isolation") != "process":
        return _ROOT
    return min(manifest, key=len, default=_ROOT)


def _under(path: str, root: str) -> str:
    inside = path == root or path.startswith(f"{root}/")
    return _ROOT + path[len(root) :] if inside and root != "/" else path
