"""Loader of runs for an analysis, from journals and from records of other programs."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from llm_sandbox_nb.formats.records import is_foreign, is_record_name, read_file
from llm_sandbox_nb.own_folder import expanded, names_below
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.journal import JournalError, read_journal
from llm_sandbox_nb.trajectory.run_folder import JOURNAL, SEED
from llm_sandbox_nb.trajectory.trajectory import Trajectory


@dataclass(frozen=True)
class Loaded:
    """Loaded run. `form` is `journal`, or the name of another project's format.

    Tables group runs by `group`: the parent folder of the run's folder, relative to the path that was given. Runs below
    a folder `runs`, as in a benchmark's results, belong to the group of the folder above `runs`.
    """

    name: str
    group: str
    form: str
    path: Path
    trajectory: Trajectory


@dataclass
class Reading:
    """Result of `load_runs`. `problems` has a message for each file that could not be read."""

    runs: list[Loaded] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    replays: int = 0
    """Number of omitted replays. Replays are omitted because they repeat the work of a model."""
    copies: int = 0
    """Number of omitted runs that are copies of other runs."""
    without_turns: int = 0
    """Number of omitted records that have no reply of a model."""


def load_runs(paths: Iterable[str | Path]) -> Reading:
    """Load the runs at and below `paths`, from journals and from files in other projects' formats.

    Below a folder, files with names such as `trajectory.json`, `trajectory_math.json`, `*.traj`, `*.traj.json` and
    `*.eval` are read. A file next to a journal is skipped, because both have the same run. A file may have many runs.
    Files that cannot be read are listed in `problems`.

    Raises:
        FileNotFoundError: if one of the paths does not exist.
    """
    reading = Reading()
    seen: set[str] = set()
    known: dict[str, int] = {}
    for given in (expanded(path) for path in paths):
        if not given.exists():
            raise FileNotFoundError(
                f"There is nothing at {given}: give folders of runs or trajectory.json files."
            )
        for file in _files(given):
            if (place := os.path.realpath(file)) in seen:  # unlike `resolve`, takes links in a circle
                continue
            seen.add(place)
            try:
                for run in _read(file, given):
                    _sort_in(run, reading, known)
            except (OSError, ValueError, JournalError) as error:
                why = str(error).replace(f"{file} is", "it is", 1).rstrip(".")
                reading.problems.append(f"{file} was left out: {why}.")
    return reading


def _sort_in(run: Loaded, reading: Reading, known: dict[str, int]) -> None:
    """Add a run to `reading`, or count the run as omitted. Keep the longer of two records of the same run.

    `known` maps digests of the model's work to indexes in `reading.runs`.
    """
    work = _work_of(run)
    if run.trajectory.start is not None and "replay_of" in run.trajectory.start.settings:
        reading.replays += 1
    elif not work:
        reading.without_turns += 1
    elif work in known:
        reading.copies += 1
        if len(run.trajectory.events) > len(reading.runs[known[work]].trajectory.events):
            reading.runs[known[work]] = run
    else:
        known[work] = len(reading.runs)
        reading.runs.append(run)


def _work_of(run: Loaded) -> str:
    """Return a digest of the model's replies. Copies of a run have the same digest.

    Return an empty text if the run has no reply.
    """
    replies = [event for event in run.trajectory.events if isinstance(event, ev.ModelReplied)]
    if not replies:
        return ""
    keys = [reply.id for reply in replies]
    if run.form != "journal":  # other formats have no ids of events
        model = run.trajectory.start.model if run.trajectory.start else ""
        left_out = {"id", "parent", "time"}
        keys = [f"{run.name} {model} {reply.model_dump(exclude=left_out)}" for reply in replies]
    return hashlib.sha256("\n".join(keys).encode("utf-8", "replace")).hexdigest()


def _files(given: Path) -> list[Path]:
    if not given.is_dir():
        return [given.resolve()]
    found = sorted(names_below(given, lambda name: name == JOURNAL or is_record_name(name)))
    journals = [path for path in found if path.name == JOURNAL]
    folders = {journal.parent for journal in journals}
    return journals + [path for path in found if path.name != JOURNAL and path.parent not in folders]


def _read(file: Path, given: Path) -> Iterator[Loaded]:
    if not is_foreign(file):
        group = _group(file.parent.parent, given)
        trajectory = Trajectory(read_journal(file))
        if trajectory.start is None:
            raise ValueError("no run has begun in it")
        yield Loaded(file.parent.name, group, "journal", file, trajectory)
        return
    runs = read_file(file)
    for run in runs:
        name = file.parent.name if len(runs) == 1 and file.name == SEED else run.name
        yield Loaded(name, _group(file.parent, given), run.form, file, run.trajectory)


def _group(folder: Path, given: Path) -> str:
    base = given if given.is_dir() else given.parent
    try:
        inside = folder.resolve().relative_to(base.resolve()).as_posix()
    except ValueError:
        return base.resolve().name
    inside = f"/{inside}".partition("/runs/")[0].removesuffix("/runs").strip("/")
    return inside if inside not in ("", ".") else base.resolve().name
