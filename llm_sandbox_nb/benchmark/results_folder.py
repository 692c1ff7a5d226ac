"""Folder of a benchmark: its settings, its plan, and the lock against a second start."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from pydantic import TypeAdapter

from llm_sandbox_nb.benchmark.results import CONFIG, Key, Result, ResultsError, read_results
from llm_sandbox_nb.trajectory.whole_file import write_whole
from llm_sandbox_nb.windows import NOT_INHERITED, try_lock, unlock_and_close

LOCK = "lock"
PLAN = "plan"
_JUDGE_KEY = "judge_model"
"""Name of the setting for the judge. A later start may add this setting, because a folder without a judge has no judged
results."""


@dataclass
class PlannedCell:
    """Planned items of a task in one mode. `rows` maps the id of a row to the row's number of repeats."""

    task: str
    mode: str
    source: str = ""
    """Name or folder of the task."""
    data: str | None = None
    """Value of `--data`, or None for the task's own data."""
    rows: dict[str, int] = field(default_factory=dict)

    @property
    def results(self) -> int:
        return sum(self.rows.values())


class FolderLock:
    """Lock that keeps a second start out of a folder of results, until `release` or the end of this process.

    Raises:
        ResultsError: if another start is using the folder.
    """

    def __init__(self, out: Path) -> None:
        path = out / LOCK
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | NOT_INHERITED, 0o644)
        if not try_lock(self._file):
            os.close(self._file)
            holder = path.read_text("utf-8", "replace").strip() or "another process"
            raise ResultsError(
                f"Another start works in {out} ({holder[:100]}): wait for its end, or choose another --out."
            )
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)

    def release(self) -> None:
        if self._file >= 0:
            # Keep the file. Otherwise, a second start could lock the removed file, and a third start a new file.
            unlock_and_close(self._file)
            self._file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()


def read_config(out: Path) -> dict[str, Any]:
    """Read `config.json`. Return an empty dictionary if the file does not exist.

    Raises:
        ResultsError: if the file cannot be read.
    """
    path = out / CONFIG
    if not path.exists():
        return {}
    try:
        return dict(json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise ResultsError(f"{path} cannot be read ({error}): remove it, or choose another --out.") from error


def check_config(out: Path, config: dict[str, Any]) -> None:
    """Store the settings in a new folder. In a folder that has settings already, check that they are the same.

    Raises:
        ResultsError: if the settings differ, because results of different settings must not share a folder.
    """
    before = read_config(out)
    plan = before.pop(PLAN, [])
    if not before:
        _write_config(out, config | {PLAN: plan})
        return
    asked, known = _filled(config, before), _filled(before, config)
    different = sorted(key for key in {*known, *asked} if known.get(key) != asked.get(key))
    if different:
        key = different[0]
        raise ResultsError(
            f"{out} holds results with {key} {known.get(key)!r}, not {asked.get(key)!r}: choose another --out."
        )
    if known[_JUDGE_KEY] != before.get(_JUDGE_KEY):
        _write_config(out, known | {PLAN: plan})


def change_judge(out: Path, judge_model: str | None) -> None:
    """Store `judge_model` as the judge of a folder, before all answers are scored again.

    With None, the stored judge stays.
    """
    config = read_config(out)
    if judge_model and config.get(_JUDGE_KEY) != judge_model:
        _write_config(out, config | {_JUDGE_KEY: judge_model})


def _filled(config: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    return config | {_JUDGE_KEY: config.get(_JUDGE_KEY) or other.get(_JUDGE_KEY)}


def _write_config(out: Path, config: dict[str, Any]) -> None:
    write_whole(out / CONFIG, json.dumps(config, indent=2, sort_keys=True).encode())


def read_plan(out: Path) -> list[PlannedCell]:
    """Read the plan of a folder, with a cell for each task and mode.

    Raises:
        ResultsError: if `config.json` cannot be read.
    """
    plan = read_config(out).get(PLAN) or []
    try:
        return TypeAdapter(list[PlannedCell]).validate_python(plan)
    except ValueError as error:
        raise ResultsError(f"{out / CONFIG} holds an invalid {PLAN}: remove that key.") from error


def add_to_plan(out: Path, cells: Iterable[PlannedCell], rows: Mapping[str, Iterable[str]]) -> None:
    """Add cells to the plan, and remove rows from the plan that are no longer in the data.

    `rows` maps the name of each task to the ids of all rows in its data.
    """
    known = {(cell.task, cell.mode): cell for cell in read_plan(out)}
    for cell in cells:
        before = known.get((cell.task, cell.mode))
        planned = dict(before.rows) if before else {}
        for identity, repeats in cell.rows.items():
            planned[identity] = max(repeats, planned.get(identity, 0))
        known[cell.task, cell.mode] = PlannedCell(cell.task, cell.mode, cell.source, cell.data, planned)
    for kept in known.values():
        if kept.task in rows:
            there = set(rows[kept.task])
            kept.rows = {identity: repeats for identity, repeats in kept.rows.items() if identity in there}
    plan = [asdict(cell) for _, cell in sorted(known.items())]
    _write_config(out, read_config(out) | {PLAN: plan})


def counted_results(out: Path) -> list[Result]:
    """Return the newest result of each planned item.

    The plan does not contain rows that were removed from the data. If a task and mode are not in the plan, all their
    items count as planned.

    Raises:
        ResultsError: if a file cannot be read, or holds a line that is not a result.
    """
    plan = {(cell.task, cell.mode): cell.rows for cell in read_plan(out)}

    def counts(key: Key) -> bool:
        task, mode, item, repeat = key
        return (task, mode) not in plan or repeat < plan[task, mode].get(item, 0)

    return [result for result in read_results(out) if counts(result.key)]
