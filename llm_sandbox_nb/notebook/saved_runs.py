"""The runs of this notebook on disk: listed by `%sandbox runs`, shown again by `%sandbox load`."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_sandbox_nb.card.bundle import MIME, Caps
from llm_sandbox_nb.card.card import Card
from llm_sandbox_nb.formatting import plural
from llm_sandbox_nb.notebook.display import LiveDisplay
from llm_sandbox_nb.notebook.errors import SandboxInputError
from llm_sandbox_nb.notebook.sandboxes import Forks
from llm_sandbox_nb.notebook.settings import SandboxSettings
from llm_sandbox_nb.own_folder import expanded, open_file
from llm_sandbox_nb.trajectory.events import RunStarted, SandboxReady, parse_event
from llm_sandbox_nb.trajectory.journal import JournalError, journal_lines
from llm_sandbox_nb.trajectory.run_folder import (
    HISTORY,
    JOURNAL,
    RunNotFoundError,
    find_run_folder,
    notebook_folder_name,
    run_folders,
)

if TYPE_CHECKING:
    from llm_sandbox_nb.runs.run import Run

_MAX_SEARCHED_RUNS = 200
"""Maximum number of runs, newest first, that are searched for an earlier run of a cell."""
_MAX_FIRST_LINE_BYTES = 4 * 1024 * 1024
_MAX_NOTEBOOK_BYTES = 256 * 1024**2
"""Maximum bytes of a notebook whose cards are read."""
_RUN_ID = re.compile(r"[\w.-]{1,200}")


def notebook_name(namespace: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> str:
    """Return the notebook's file name without suffix; `notebook` if neither Jupyter nor VS Code names the file."""
    path = environment.get("JPY_SESSION_NAME") or str(namespace.get("__vsc_ipynb_file__") or "")
    return "notebook" if path.endswith(("/", "\\")) else notebook_folder_name(path)


def runs_folder(settings: SandboxSettings, namespace: dict[str, Any]) -> Path:
    return expanded(settings.output_dir) / notebook_name(namespace)


@dataclass(frozen=True)
class MovedRuns:
    """Runs that a notebook's cards show but its folder of runs lacks: the notebook was renamed, copied or moved."""

    folders: tuple[Path, ...] = ()
    """Run folders that were found in the folders of other notebooks."""
    missing: int = 0
    """Number of runs that were not found below `output_dir`."""

    @property
    def hint(self) -> str:
        """Advice on missing runs. Empty if no run is missing."""
        if not self.missing:
            return ""
        shown = plural(self.missing, "run of this notebook's cards is", "runs of this notebook's cards are")
        return (
            f"{shown} not here: copy the folder of runs next to the notebook, or set output_dir to its place."
        )


def moved_runs(
    settings: SandboxSettings, namespace: Mapping[str, Any], environment: Mapping[str, str] = os.environ
) -> MovedRuns:
    """Return the runs of the notebook's saved cards, except runs in the notebook's own folder of runs."""
    path = Path(environment.get("JPY_SESSION_NAME") or str(namespace.get("__vsc_ipynb_file__") or ""))
    shown = _shown_runs(path) if path.suffix == ".ipynb" else set()
    root = expanded(settings.output_dir)
    shown -= {folder.name for folder in run_folders(root / notebook_name(namespace, environment))}
    found = {folder.name: folder for folder in run_folders(root) if folder.name in shown}
    return MovedRuns(tuple(found.values()), len(shown - found.keys()))


def _shown_runs(path: Path) -> set[str]:
    """Return the ids of the runs in a notebook's cards. The notebook may be hostile: its content is checked."""
    try:
        if path.stat().st_size > _MAX_NOTEBOOK_BYTES:
            return set()
        cells = json.loads(path.read_bytes())["cells"]
        cards = [
            output["data"][MIME]
            for cell in cells
            for output in cell.get("outputs", ())
            if MIME in output.get("data", ())
        ]
        ids = [card.get("run_id") for card in cards]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return set()
    return {run_id for run_id in ids if isinstance(run_id, str) and _RUN_ID.fullmatch(run_id)}


def find_run(name: str, folder: Path, forks: Forks | None = None) -> Run:
    """Return the run with this folder, file or name. A part of the name is enough.

    If the run is one of `forks`, it is returned with its open sandbox.

    Raises:
        SandboxInputError: if no run or several runs match, or the run cannot be read.
    """
    from llm_sandbox_nb.runs.run import Run

    try:
        path = find_run_folder(name, folder)
    except RunNotFoundError:
        try:
            path = find_run_folder(
                name, folder.parent, "%sandbox runs"
            )  # a run of another notebook, or of the command line
        except RunNotFoundError as error:
            raise SandboxInputError(str(error)) from error
    if forks is not None and (held := forks.at(path)) is not None:
        return held
    try:
        return Run.load(path)
    except (FileNotFoundError, JournalError, ValueError) as error:
        raise SandboxInputError(str(error)) from error


def show_run(run: Run, shell: Any, caps: Caps) -> None:
    card = Card(caps, run.folder)
    for event in run.trajectory.events:
        card.add(event)
    LiveDisplay(card, shell).finish()


def first_run_of(task: str, sandbox_id: str, folder: Path) -> Path | None:
    """Return the folder of the first run of `task` in the sandbox, or None. Only runs with a history of files count."""
    for run_folder in run_folders(folder)[-_MAX_SEARCHED_RUNS:]:
        started = _started(run_folder)
        if (
            started is not None
            and started.task == task
            and started.forked_from is None
            and not {"replay_of", "rebuilt_from"} & set(started.settings)
            and (run_folder / HISTORY).is_dir()
            and _ran_in(run_folder, sandbox_id)
        ):
            return run_folder
    return None


def _ran_in(folder: Path, sandbox_id: str) -> bool:
    try:
        events = map(parse_event, journal_lines(folder))
        ready = next((event for event in events if isinstance(event, SandboxReady)), None)
    except (OSError, ValueError, JournalError):
        return False
    return ready is not None and ready.sandbox_id == sandbox_id


def _started(folder: Path) -> RunStarted | None:
    try:
        with os.fdopen(open_file(folder, JOURNAL), "rb") as file:
            event = parse_event(file.readline(_MAX_FIRST_LINE_BYTES))
    except (OSError, ValueError):
        return None
    return event if isinstance(event, RunStarted) else None
