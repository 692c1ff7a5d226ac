"""The list of the runs on disk, with their states and sizes, and the removal of runs."""

from __future__ import annotations

import contextlib
import datetime
import os
import shutil
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from llm_sandbox_nb.formatting import format_size, plural
from llm_sandbox_nb.own_folder import open_file, status_below
from llm_sandbox_nb.plain_text import first_line, plain
from llm_sandbox_nb.sandbox.history.stores import is_history_in_use
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.doubts.rules import doubts_json, doubts_line, doubts_of
from llm_sandbox_nb.trajectory.journal import MAX_LINE_BYTES, JournalError, is_being_written, read_journal
from llm_sandbox_nb.trajectory.replay_outcome import replay_finding, replayed_run
from llm_sandbox_nb.trajectory.run_folder import HISTORY, JOURNAL, run_folders, short_ids
from llm_sandbox_nb.trajectory.run_summary import recorded_doubts
from llm_sandbox_nb.trajectory.state import State, Status
from llm_sandbox_nb.trajectory.trajectory import Trajectory
from llm_sandbox_nb.windows import try_lock, unlock_and_close

_TAIL_BYTES = 256 * 1024
"""Number of bytes at the end of a journal that are read to find its last events."""
_MAX_DOUBT_LINES = 8
"""Number of lines at the end of a journal that are searched for the final doubts."""
_DAY_SECONDS = 86400.0
_REMOVING = ".being-removed"


@dataclass(frozen=True)
class RunEntry:
    """A run on disk."""

    folder: Path
    short_id: str
    state: str
    """The state in words."""
    stop_reason: str | None
    running: bool
    """True if a process executes the run."""
    in_use: bool
    """True if a process executes the run, or holds the run's sandbox open."""
    readable: bool
    started: float | None
    """Start time in seconds since the epoch."""
    changed: float
    """Time of the last change of the journal, in seconds since the epoch."""
    steps: int
    tokens: int
    cost: float | None
    model: str
    task: str
    forked_from: str | None
    """Folder name of the run from which this run was forked."""
    replay_of: str | None
    """Id of the replayed run."""
    answer: str | None
    doubts: list[ev.Doubt]

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.folder.name

    @property
    def size(self) -> int:
        """Size on disk in bytes."""
        return self.folder.stat().st_size if self.folder.is_file() else disk_use([self.folder])


def list_runs(root: Path, most: int | None = None, elsewhere: Iterable[Path] = ()) -> list[RunEntry]:
    """Return the runs below `root` and the runs in the folders `elsewhere`, oldest first.

    If `most` is not None, return only the `most` newest runs.
    """
    folders = _folders(root, elsewhere)
    short = short_ids(folders)
    names = {folder.name: short_id for folder, short_id in short.items()}
    newest = folders if most is None else folders[max(0, len(folders) - most) :]
    entries = [_entry(folder, short[folder], names) for folder in newest]
    return sorted(entries, key=lambda entry: (entry.started or 0.0, entry.name))


def _folders(root: Path, elsewhere: Iterable[Path]) -> list[Path]:
    """Return all run folders, the newest last. Their names begin with the start time, so they are sorted by name."""
    return sorted([*run_folders(root), *elsewhere], key=lambda folder: folder.name)


def _entry(folder: Path, short_id: str, names: Mapping[str, str]) -> RunEntry:
    """Read the entry of one run. `names` maps the names of all folders to short ids."""
    common: dict[str, Any] = {
        "folder": folder, "short_id": short_id, "running": False, "in_use": False, "changed": 0.0,
    }  # fmt: skip
    try:
        running = is_being_written(folder)
        common |= {
            "running": running,
            "in_use": running or is_history_in_use(folder / HISTORY),
            "changed": (folder / JOURNAL).stat().st_mtime,
        }
        start, finish, doubts = _ends(folder)
        other = replayed_run(start)
        known = doubts is not None and not (running or other)
        if known and start is not None and finish is not None and not Status.needs_all(finish):
            status = Status()
            status.add(start)
            status.add(finish)
            words = status.run_state(live=False).words
            steps, usage = finish.steps, finish.usage
        else:
            trajectory = Trajectory(read_journal(folder))
            start, finish, other = trajectory.start, trajectory.finish, replayed_run(trajectory.start)
            found = trajectory.state(live=running)
            words = found.words
            if other and found.state == State.REPLAYED.label:
                words = f"Replay of {names[other]}" if other in names and not found.check else words
                words = ": ".join(filter(None, (words, replay_finding(folder))))
            steps, usage, doubts = trajectory.steps_done, trajectory.usage, doubts_of(trajectory)
    except (OSError, JournalError) as error:
        return RunEntry(
            **common, state=f"Not readable: {error}", stop_reason=None, readable=False, started=None, steps=0, tokens=0,
            cost=None, model="", task="", forked_from=None, replay_of=None, answer=None,
            doubts=[],
        )  # fmt: skip
    return RunEntry(
        **common,
        state=words,
        stop_reason=finish.stop_reason if finish else None,
        readable=True,
        started=start.time if start else None,
        steps=steps,
        tokens=usage.total_tokens,
        cost=usage.cost,
        model=start.model if start else "",
        task=start.task if start else "",
        forked_from=start.forked_from.folder if start and start.forked_from else None,
        replay_of=other,
        answer=finish.answer if finish else None,
        doubts=doubts or [],
    )


def _ends(folder: Path) -> tuple[ev.RunStarted | None, ev.RunFinished | None, list[ev.Doubt] | None]:
    """Return the first event, the end of the run with its score, and the final doubts. All are None without an end.

    These parts of the journal are enough for the row of an ended run.
    """
    with os.fdopen(open_file(folder, JOURNAL), "rb") as file:
        first = file.readline(MAX_LINE_BYTES)
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - _TAIL_BYTES))
        lines = file.read().splitlines(keepends=True)
    last = lines[-2:]
    with contextlib.suppress(ValueError):
        start = ev.parse_event(first)
        ends = [ev.parse_event(line) for line in last if line.endswith(b"\n")]
        score = ends.pop() if ends and isinstance(ends[-1], ev.Checked) else None
        finish = ends[-1] if ends else None
        if isinstance(start, ev.RunStarted) and isinstance(finish, ev.RunFinished):
            scored = {"check": score.verdict} if isinstance(score, ev.Checked) else {}
            return start, finish.model_copy(update=scored), recorded_doubts(lines[-_MAX_DOUBT_LINES:])
    return None, None, None


@contextlib.contextmanager
def _locked_journal(folder: Path) -> Iterator[bool]:
    """Lock the journal inside the `with` block. Yield False if another process has the lock."""
    descriptor = open_file(folder, JOURNAL)
    try:
        yield try_lock(descriptor)
    finally:
        unlock_and_close(descriptor)


def disk_use(folders: Iterable[Path]) -> int:
    """Return the bytes on disk of all files in folders. Hard links are counted once, symbolic links not followed."""
    seen: set[tuple[int, int]] = set()
    total = 0
    for info in chain.from_iterable(map(status_below, folders)):
        if (info.st_dev, info.st_ino) not in seen:
            seen.add((info.st_dev, info.st_ino))
            total += getattr(info, "st_blocks", -(-info.st_size // 512)) * 512
    return total


# --- removal ---


@dataclass(frozen=True)
class PrunePlan:
    """The runs to remove, and the runs that were chosen too but must stay, with the reasons."""

    remove: list[RunEntry]
    spared: list[tuple[RunEntry, str]]

    @property
    def size(self) -> int:
        """Size on disk, in bytes, of the runs to remove."""
        return disk_use(entry.folder for entry in self.remove)

    def text(self) -> str:
        """Describe the plan, a line for each run."""
        lines = [f"keeps  {entry.short_id}  {why}" for entry, why in self.spared]
        lines += [f"removes  {row_text(entry)}" for entry in self.remove]
        runs = plural(len(self.remove), "run")
        return "\n".join([*lines, f"{runs} to remove, {format_size(self.size)} on disk."])


def plan_prune(
    entries: list[RunEntry], *, days: float | None = None, keep: int | None = None, now: float | None = None
) -> PrunePlan:
    """Choose runs to remove: runs that are older than `days` and not among the `keep` newest.

    If `days` or `keep` is None, only the other limit counts. The age of a run is the time since its last event. Runs
    that are in use or cannot be read are not removed, and neither are runs from which a remaining run was forked.
    """
    newest = sorted(entries, key=lambda entry: (entry.changed, entry.name))
    named = newest[: max(0, len(newest) - (keep or 0))]
    limit = (time.time() if now is None else now) - (days or 0.0) * _DAY_SECONDS
    named = [entry for entry in named if days is None or entry.changed < limit]
    spared = [(entry, "it is in use") for entry in named if entry.in_use]
    spared += [(entry, "it cannot be read") for entry in named if not entry.readable and not entry.in_use]
    remove = {entry.name: entry for entry in named if entry.readable and not entry.in_use}
    while True:
        needed = {
            entry.forked_from: entry.short_id
            for entry in entries
            if entry.forked_from in remove and entry.name not in remove
        }
        if not needed:
            return PrunePlan(list(remove.values()), spared)
        spared += [(remove.pop(str(name)), f"{fork} was forked from it") for name, fork in needed.items()]


def prune(plan: PrunePlan) -> list[str]:
    """Remove the runs of a plan. Return a sentence for each run that could not be removed. Links are not followed."""
    problems = []
    for entry in plan.remove:
        try:
            with _locked_journal(entry.folder) as locked:
                if not locked or is_history_in_use(entry.folder / HISTORY):
                    problems.append(f"{entry.name} is in use now, so it stays.")
                    continue
                moved = entry.folder.with_name(f"{_REMOVING}-{entry.name}")
                entry.folder.rename(moved)
            shutil.rmtree(moved)
        except (OSError, RecursionError) as error:
            problems.append(f"{entry.name} could not be removed: {error}.")
    return problems


# --- as text and JSON ---


def runs_text(root: Path, most: int | None = None, elsewhere: Collection[Path] = ()) -> str:
    """Return a line for each of the newest runs, newest first, and a line with the total size of all runs."""
    folders = _folders(root, elsewhere)
    if not folders:
        return f"There are no runs in {root}."
    lines = [row_text(entry) for entry in reversed(list_runs(root, most, elsewhere))]
    if len(folders) > len(lines):
        lines.append(f"… {plural(len(folders) - len(lines), 'earlier run')}")
    places = dict.fromkeys([root, *sorted({folder.parent for folder in elsewhere})])
    where = ", ".join(map(str, places))
    lines.append(f"{plural(len(folders), 'run')}, {format_size(disk_use(folders))} on disk, in {where}")
    return "\n".join(lines)


def row_text(entry: RunEntry) -> str:
    """Describe a run in one line. If the run has doubts, describe them in a second line."""
    began = "" if not entry.started else f"{datetime.datetime.fromtimestamp(entry.started):%d %b %H:%M}"
    steps, task = plural(entry.steps, "step"), plain(first_line(entry.task, 60))
    if answer := plain(first_line(entry.answer or "", 60)):
        task = f"{task}  → {answer}"
    if entry.doubts:
        task = f"{task}\n{'':<10}{plain(doubts_line(entry.doubts))}"
    cells = [
        f"{entry.short_id:<8}", f"{began:<12}", f"{first_line(entry.state, 60):<20}", f"{steps:>9}",
        f"{format_size(entry.size):>9}", f"{plain(entry.model)}", task,
    ]  # fmt: skip
    return "  ".join(cells).rstrip()


def runs_json(entries: list[RunEntry]) -> list[dict[str, Any]]:
    """Return the runs as JSON values.

    `state` is the stop reason, `running`, `not_finished`, `replay` or `unreadable`.
    """
    return [
        {
            "id": entry.name,
            "short_id": entry.short_id,
            "folder": str(entry.folder),
            "started": entry.started,
            "state": _state_name(entry),
            "steps": entry.steps,
            "tokens": entry.tokens,
            "cost": entry.cost,
            "bytes": entry.size,
            "model": entry.model,
            "task": entry.task,
            "answer": entry.answer,
            "doubts": doubts_json(entry.doubts),
            "forked_from": entry.forked_from,
            "replay_of": entry.replay_of,
        }
        for entry in entries
    ]


def _state_name(entry: RunEntry) -> str:
    if not entry.readable:
        return "unreadable"
    if entry.running and entry.stop_reason is None:
        return "running"
    if entry.replay_of is not None:
        return "replay"
    return entry.stop_reason or "not_finished"
