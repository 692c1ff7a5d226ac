"""`llm-sandbox-nb export`: a recorded run as one HTML file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from llm_sandbox_nb.card.export import NO_VIEW, ExportError, export_html, has_view
from llm_sandbox_nb.cli import ENDED_WELL
from llm_sandbox_nb.cli.runs_command import run_path
from llm_sandbox_nb.options.table import UsageError
from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.trajectory.journal import JournalError
from llm_sandbox_nb.trajectory.run_folder import JOURNAL


def export_command(arguments: argparse.Namespace) -> int:
    """Write the file and print where it is.

    Raises:
        UsageError: there is no run, it cannot be read, or the file cannot be written.
    """
    try:
        run = Run.load(run_path(arguments.run))
    except FileNotFoundError as error:
        raise UsageError(
            f"There is no run at {arguments.run}: give the folder that holds its {JOURNAL}."
        ) from error
    except (OSError, JournalError, ValueError) as error:
        raise UsageError(f"The run cannot be read: {str(error).rstrip('.')}.") from error
    try:
        print(export_html(run, Path(arguments.out) if arguments.out else run.folder / "run.html"))
        if not has_view():
            print(NO_VIEW, file=sys.stderr)
    except ExportError as error:
        raise UsageError(str(error)) from error
    return ENDED_WELL
