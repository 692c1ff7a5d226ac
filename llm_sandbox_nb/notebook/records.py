"""The runs of this notebook on disk: listed by `%sandbox runs`, shown again by `%sandbox load`."""

from __future__ import annotations

import datetime
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_sandbox_nb.notebook.caps import Caps
from llm_sandbox_nb.notebook.card import Card
from llm_sandbox_nb.notebook.card_text import first_line, plain
from llm_sandbox_nb.notebook.errors import SandboxInputError, SandboxUsageError
from llm_sandbox_nb.notebook.forks import Forks
from llm_sandbox_nb.notebook.live_display import LiveDisplay
from llm_sandbox_nb.trajectory.journal import FILE_NAME, JournalError, read_journal
from llm_sandbox_nb.trajectory.trajectory import Trajectory

if TYPE_CHECKING:
    from llm_sandbox_nb.agent.run import Run

_SHOWN = 30


def run_folders(folder: Path) -> list[Path]:
    """The folders of runs below `folder`, newest last; their names begin with their time."""
    return sorted(path.parent for path in folder.glob(f"*/{FILE_NAME}"))


def runs_text(folder: Path) -> str:
    """One line for each of the newest runs."""
    folders = run_folders(folder)
    if not folders:
        return f"There are no runs in {folder}."
    lines = [_line(one) for one in folders[-_SHOWN:]]
    if len(folders) > _SHOWN:
        lines.insert(0, f"… {len(folders) - _SHOWN} earlier runs in {folder}")
    return "\n".join(lines)


def _line(folder: Path) -> str:
    try:
        run = Trajectory(read_journal(folder))
    except (OSError, JournalError) as error:
        return f"{folder.name}  cannot be read: {plain(first_line(str(error)))}"
    return "  ".join(_facts(folder.name, run))


def _facts(name: str, run: Trajectory) -> Iterator[str]:
    yield name
    if run.start:
        yield datetime.datetime.fromtimestamp(run.start.time).strftime("%d %b %H:%M")
        yield plain(run.start.model)
    yield f"{run.stop_reason or 'not finished'} after {len(run.steps)} steps"
    yield plain(first_line(run.start.task if run.start else "", 60))


def find_run(name: str, folder: Path, forks: Forks | None = None) -> Run:
    """The run `name`: a folder or file, or the name (or a part of it) of a run of this notebook.

    One of the `forks` comes with its sandbox.

    Raises:
        SandboxInputError: there is none, or several, or it cannot be read.
    """
    from llm_sandbox_nb.agent.run import Run

    path = _find(name, folder)
    if forks is not None and (held := forks.at(path)) is not None:
        return held
    try:
        return Run.load(path)
    except (FileNotFoundError, JournalError, ValueError) as error:
        raise SandboxInputError(str(error)) from error


def _find(name: str, folder: Path) -> Path:
    path = Path(name).expanduser()
    if path.exists():
        return path
    found = [one for one in run_folders(folder) if name in one.name]
    if len(found) == 1:
        return found[0]
    if found:
        raise SandboxInputError(f"{len(found)} runs have {name!r} in their name: give more of it.")
    raise SandboxInputError(f"There is no run {name!r}: %sandbox runs lists those of this notebook.")


def export_run(rest: str, find: Callable[[str], Run]) -> Path:
    """Write the HTML file that `%sandbox export RUN [FILE]` asks for; without FILE it is RUN.html, here.

    Raises:
        SandboxUsageError: the words are others.
        SandboxInputError: there is no such run, or the file cannot be written.
    """
    from llm_sandbox_nb.notebook.export import ExportError, export_html

    words = shlex.split(rest)
    if not 1 <= len(words) <= 2:
        raise SandboxUsageError("The command is %sandbox export RUN [FILE]; %sandbox runs lists the runs.")
    run = find(words[0])
    try:
        return export_html(run, words[1] if len(words) == 2 else f"{run.folder.name}.html")
    except ExportError as error:
        raise SandboxInputError(str(error)) from error


def show_run(run: Run, shell: Any, caps: Caps) -> None:
    """Show the card of a run, as its cell did."""
    card = Card(caps, run.folder)
    for event in run.trajectory.events:
        card.add(event)
    LiveDisplay(card, shell).finish()
