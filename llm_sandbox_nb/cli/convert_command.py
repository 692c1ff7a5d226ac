"""`llm-sandbox-nb convert RUN OUT`: write a run in another format, or another program's record as a journal."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from llm_sandbox_nb.cli import ENDED_WELL
from llm_sandbox_nb.cli.printer import harmless
from llm_sandbox_nb.cli.record_commands import check_not_record, run_path
from llm_sandbox_nb.formats import opentelemetry
from llm_sandbox_nb.formats.format_names import JOURNAL as JOURNAL_FORM
from llm_sandbox_nb.formats.format_names import WRITTEN
from llm_sandbox_nb.formats.records import (
    FORMATS,
    NoRecordError,
    is_foreign,
    read_file,
    split_name,
    write_record,
)
from llm_sandbox_nb.options.table import UsageError
from llm_sandbox_nb.own_folder import expanded
from llm_sandbox_nb.trajectory.journal import Journal, JournalError, read_journal
from llm_sandbox_nb.trajectory.run_folder import JOURNAL
from llm_sandbox_nb.trajectory.trajectory import Trajectory
from llm_sandbox_nb.trajectory.whole_file import write_whole


def convert_command(arguments: argparse.Namespace) -> int:
    """Write the run, and print each file that was written.

    Raises:
        UsageError: if the run is missing, the format is unknown, or a file cannot be written.
    """
    check_not_record(arguments.out, arguments.run)
    form = arguments.to or _form_of(arguments.out)
    runs, folder = _read(arguments.run, form)
    written: set[str] = set()
    for number, (name, trajectory) in enumerate(runs.items(), 1):
        out = arguments.out
        if len(runs) > 1 and not _is_address(out):
            out = _with_word(out, name)
            if out in written:  # two names can lead to the same file name
                out = _with_word(out, str(number))
            written.add(out)
        try:
            for line in _written(trajectory, folder, form, out, content=arguments.content):
                print(harmless(line))
        except (ValueError, JournalError) as error:
            raise UsageError(str(error)) from error
        except OSError as error:
            raise UsageError(f"{out} cannot be written ({error.strerror}): choose another file.") from error
    if form in FORMATS and FORMATS[form].loses:
        print(FORMATS[form].loses, file=sys.stderr)
    return ENDED_WELL


def _read(named: str, form: str) -> tuple[dict[str, Trajectory], Path]:
    """Return the runs by name, and the folder of the record.

    If `form` is a journal, refuse a run of this package: the new folder would lack the run's long outputs and files.
    """
    given, name = split_name(named)
    path = run_path(str(given))
    journal = path / JOURNAL if path.is_dir() else path.resolve()
    try:
        if not is_foreign(journal):
            trajectory = Trajectory(read_journal(journal))
            if trajectory.start is None:
                raise UsageError(f"Nothing to convert: no run has begun in {journal.parent}.")
            if form == JOURNAL_FORM:
                raise UsageError(
                    f"{journal.parent} is a run of this package already: copy the folder, or name another format "
                    "with --to."
                )
            return {journal.parent.name: trajectory}, journal.parent
        runs = {run.name: run.trajectory for run in read_file(journal) if name in ("", run.name)}
    except FileNotFoundError as error:
        raise UsageError(
            f"There is no run at {path}: give its folder with the {JOURNAL}, or a file."
        ) from error
    except NoRecordError as error:
        raise UsageError(str(error)) from error
    except (JournalError, OSError) as error:
        raise UsageError(f"The run cannot be read: {str(error).rstrip('.')}.") from error
    if not runs:
        raise UsageError(f"{journal} has no run {name}: `llm-sandbox-nb runs {journal}` lists them.")
    return runs, journal.parent


def _form_of(out: str) -> str:
    """Return the format that the name of a file implies. Raises UsageError if the name implies no format."""
    if _is_address(out):
        return "opentelemetry"
    if not Path(out).suffix:
        return JOURNAL_FORM
    endings = [
        (ending, form.name) for form in FORMATS.values() for ending in form.endings if form.name in WRITTEN
    ]
    fitting = [pair for pair in endings if out.endswith(pair[0])]
    if not fitting:
        raise UsageError(f"The name {out} does not imply a format: add --to {', '.join(WRITTEN)}.")
    return max(fitting, key=lambda pair: len(pair[0]))[1]


def _is_address(out: str) -> bool:
    return out.startswith(("http://", "https://"))


def _with_word(out: str, word: str) -> str:
    """Return the name of a file with a word inserted before the suffixes."""
    path = Path(out)
    plain = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in word)[:80]
    stem, dot, endings = path.name.partition(".")
    return str(path.with_name(f"{stem}-{plain}{dot}{endings}"))


def _written(trajectory: Trajectory, folder: Path, form: str, out: str, *, content: bool) -> list[str]:
    """Write the files and return a line for each. In a format without branches, write one file for each branch."""
    if form == JOURNAL_FORM:
        return [str(_write_journal(trajectory, expanded(out)))]
    if _is_address(out):
        return [opentelemetry.send(opentelemetry.write(trajectory, folder, content=content), out)]
    paths = []
    for number, data in enumerate(write_record(trajectory, form, folder, content=content), 1):
        name = out if number == 1 else _with_word(out, f"branch-{number}")
        paths.append(write_whole(expanded(name), data, follow_links=True))
    return [str(path) for path in paths]


def _write_journal(trajectory: Trajectory, folder: Path) -> Path:
    """Write the events as a run folder of this package. Raises UsageError if the folder holds a run already."""
    if os.path.lexists(folder / JOURNAL):
        raise UsageError(f"{folder} holds a run already: choose another folder.")
    journal = Journal(folder)
    try:
        for event in trajectory.events:
            journal.append(event)
    finally:
        journal.close()
    return folder / JOURNAL
