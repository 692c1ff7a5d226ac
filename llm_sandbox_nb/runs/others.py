"""What others have changed in a run's sandbox: other runs, a person, a program that still runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from llm_sandbox_nb.agent.run_context import users_since
from llm_sandbox_nb.agent.run_record import RunRecord
from llm_sandbox_nb.formatting import plural
from llm_sandbox_nb.runs.checkpoint_files import CheckpointFiles
from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.sandbox.history.diff import differing_paths
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.journal import JournalError, read_journal
from llm_sandbox_nb.trajectory.run_folder import JOURNAL

_NAMED = 3
_TITLE = 60


@dataclass(frozen=True)
class Others:
    """Changes that are not by a step of the run, and that restoring a checkpoint would undo."""

    paths: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    """Tasks of the other runs that used the sandbox since; without any, a person or a program changed the files."""

    @property
    def by(self) -> str:
        """Who changed them, for a sentence."""
        return changed_by(self.runs)


NO_OTHERS = Others()


def changed_by(runs: Iterable[str]) -> str:
    """Who changed files, for a sentence."""
    titles = list(dict.fromkeys(f"'{_title(run)}'" for run in runs))
    if not titles:
        return "by you or by a program that still runs"
    if len(titles) == 1:
        return f"by another run ({titles[0]})"
    more = f" and {plural(len(titles) - _NAMED, 'more')}" if len(titles) > _NAMED else ""
    return f"by {len(titles)} other runs ({', '.join(titles[-_NAMED:])}{more})"


async def undone_changes(run: RunRecord, box: Sandbox | None, target: str) -> Others:
    """Others' changes that restoring `target` would undo. Without a sandbox: those that the record knows."""
    known = run.trajectory.files
    now = known if box is None or run.context.session is not None else await box.checkpoint()
    if now is None:
        return NO_OTHERS
    since = known if now != known and run.trajectory.uncovered is None else None
    return await asyncio.to_thread(_undone_changes, run, box, now, since, target)


def _undone_changes(run: RunRecord, box: Sandbox | None, now: str, since: str | None, target: str) -> Others:
    files = CheckpointFiles(run)
    if not (files.has(now) and files.has(target)):
        return NO_OTHERS
    present = files.manifest(now)
    of_others = set(differing_paths(files.own(now, since), present))
    paths = tuple(path for path in differing_paths(present, files.manifest(target)) if path in of_others)
    runs = [task for one in run.trajectory.changed_by_others(since or now) for task in one.runs]
    if since is not None and box is not None:
        runs += runs_since(run, box)
    return Others(tuple(sorted(paths)), tuple(runs))


def runs_since(run: RunRecord, box: Sandbox) -> list[str]:
    """Tasks of the runs that have used the sandbox since this one."""
    return [_task_of(folder) for folder in users_since(box, run.folder)]


def _task_of(folder: Path) -> str:
    try:
        first = next(islice(read_journal(folder / JOURNAL), 1), None)
    except (JournalError, OSError):
        first = None
    return first.task.strip() if isinstance(first, ev.RunStarted) else folder.name


def _title(task: str) -> str:
    text = " ".join("".join(letter if letter.isprintable() else " " for letter in task).split())
    return text if len(text) <= _TITLE else f"{text[: _TITLE - 3]}..."
