"""Where a cell's files come from: a cell that is run again can have those that it began with the first time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_sandbox_nb.notebook.errors import SandboxInputError, SandboxUsageError
from llm_sandbox_nb.notebook.naming import notebook_name
from llm_sandbox_nb.notebook.records import find_run, run_folders
from llm_sandbox_nb.notebook.settings import SandboxSettings
from llm_sandbox_nb.trajectory.events import RunStarted, parse_event
from llm_sandbox_nb.trajectory.journal import FILE_NAME

if TYPE_CHECKING:
    from llm_sandbox_nb.agent.run import Run

OFFER = (
    "This cell ran before, and the sandbox has other files now. To begin with its original files, add: "
    "--from-files-of {run}"
)
_LOOKED_AT = 200
"""Runs of a notebook among which an earlier one of a cell is looked for, the newest ones."""
_FIRST_LINE = 4 * 1024 * 1024


def runs_folder(settings: SandboxSettings, namespace: dict[str, Any]) -> Path:
    """Where the runs of this notebook are."""
    return Path(settings.output_dir) / notebook_name(namespace)


def first_run_of(task: str, folder: Path) -> Path | None:
    """The folder of the first run of a task whose files are kept; None when it did not run yet."""
    for one in run_folders(folder)[-_LOOKED_AT:]:
        started = _started(one)
        if (
            started is not None
            and started.task == task
            and not _second_hand(started)
            and (one / "history").is_dir()
        ):
            return one
    return None


def _second_hand(started: RunStarted) -> bool:
    """Whether a run is a fork or a replay of another one."""
    return started.forked_from is not None or bool({"replay_of", "rebuilt_from"} & set(started.settings))


def _started(folder: Path) -> RunStarted | None:
    try:
        with (folder / FILE_NAME).open("rb") as file:
            event = parse_event(file.readline(_FIRST_LINE))
    except (OSError, ValueError):
        return None
    return event if isinstance(event, RunStarted) else None


def files_of(text: str | None, folder: Path, namespace: dict[str, Any]) -> tuple[Run, int] | None:
    """The run and step that `--from-files-of RUN[:STEP]` names.

    Raises:
        SandboxUsageError: the step is no number.
        SandboxInputError: there is no such run.
    """
    if not text:
        return None
    from llm_sandbox_nb.agent.run import Run

    name, colon, step = text.rpartition(":")
    if not colon or "/" in step:
        name, step = text, "0"
    if not step.isdecimal():
        raise SandboxUsageError(f"--from-files-of takes RUN or RUN:STEP, not {text!r}.")
    held = namespace.get(name)
    run = held if isinstance(held, Run) else find_run(name, folder)
    if not run.has_journal:
        raise SandboxInputError(f"{name} has no files of its own: name a run of %sandbox runs.")
    return run, int(step)
