"""Runs that other programs have recorded, as entries of the list of runs."""

from __future__ import annotations

from pathlib import Path

from llm_sandbox_nb.formats.records import (
    FORMATS,
    ForeignRun,
    NoRecordError,
    is_foreign,
    is_record_name,
    read_file,
)
from llm_sandbox_nb.own_folder import names_below
from llm_sandbox_nb.runs.catalog import RunEntry
from llm_sandbox_nb.trajectory.doubts.rules import doubts_of
from llm_sandbox_nb.trajectory.run_folder import JOURNAL
from llm_sandbox_nb.trajectory.trajectory import Trajectory


def foreign_runs(root: Path) -> list[RunEntry]:
    """Return the runs in the file `root`, or in the files below the folder `root` whose names are usual for records.

    A file in the same folder as a journal is skipped. A file that cannot be read is listed with the reason.

    Raises:
        NoRecordError: if `root` is a file without a record.
    """
    if root.is_file():
        return _entries(root) if is_foreign(root) else []
    found = sorted(names_below(root, is_record_name))
    files = [path for path in found if not (path.parent / JOURNAL).exists()]
    return [entry for path in files for entry in _entries_or_why(path)]


def _entries_or_why(path: Path) -> list[RunEntry]:
    try:
        return _entries(path)
    except (NoRecordError, OSError) as error:
        why = str(error).removeprefix(f"{path} ")
        return [_entry(path, path.name, None, f"Not readable: {why}")]


def _entries(path: Path) -> list[RunEntry]:
    runs = read_file(path)
    return [_entry(path, path.name if len(runs) == 1 else f"#{run.name}", run) for run in runs]


def _entry(path: Path, name: str, run: ForeignRun | None, state: str = "") -> RunEntry:
    trajectory = run.trajectory if run else Trajectory()
    start, finish = trajectory.start, trajectory.finish
    title = FORMATS[run.form].title if run else ""
    return RunEntry(
        folder=path, short_id=name, state=trajectory.state(live=False).words if run else state,
        stop_reason=finish.stop_reason if finish else None, running=False, in_use=False, readable=run is not None,
        started=start.time if start and start.time else None, changed=path.stat().st_mtime, steps=trajectory.steps_done,
        tokens=trajectory.usage.total_tokens, cost=trajectory.usage.cost, model=(start.model if start else "") or title,
        task=start.task if start else "", forked_from=None, replay_of=None, answer=finish.answer if finish else None,
        doubts=doubts_of(trajectory) if run else [],
    )  # fmt: skip
