"""`llm-sandbox-nb show`: a recorded run as text."""

from __future__ import annotations

import argparse
import sys

from llm_sandbox_nb.cli.printer import LIVE_LINES, Printer, harmless
from llm_sandbox_nb.cli.runs_command import run_path
from llm_sandbox_nb.formats.llm_in_sandbox import read_seed
from llm_sandbox_nb.options.table import UsageError
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.journal import JournalError, read_journal
from llm_sandbox_nb.trajectory.run_folder import JOURNAL


def show_command(arguments: argparse.Namespace) -> int:
    """Print every event of a run; a run that was killed is shown up to its last event.

    Raises:
        UsageError: there is no run, or it cannot be read.
    """
    path = run_path(arguments.run)
    journal = path / JOURNAL if path.is_dir() else path
    if not journal.is_file():
        raise UsageError(f"There is no run at {path}: give the folder that holds its {JOURNAL}.")
    folder = journal.parent
    printer = Printer(sys.stdout, lines=LIVE_LINES if arguments.brief else None, folder=folder)
    last: ev.Event | None = None
    try:
        for last in read_seed(journal).events if journal.suffix == ".json" else read_journal(journal):
            printer(last)
    except FileNotFoundError as error:
        raise UsageError(f"Outputs of the run are missing; {folder}/blobs was left behind.") from error
    except (JournalError, ValueError) as error:
        raise UsageError(f"The run cannot be read to its end: {str(error).rstrip('.')}.") from error
    if last is None:
        raise UsageError(f"There is nothing to show: no run has begun in {folder}.")
    _show_end(last)
    return 0


def _show_end(last: ev.Event) -> None:
    if not isinstance(last, ev.RunFinished):
        print("\nThe record ends here: the run is still running, or was killed.")
        return
    if last.error:
        print(harmless(last.error))
    if last.answer:
        print(f"\nAnswer\n{harmless(last.answer)}")
