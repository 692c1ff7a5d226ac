"""`llm-sandbox-nb export`: a recorded run as one HTML file."""

from __future__ import annotations

import argparse
from pathlib import Path

from llm_sandbox_nb.agent.run import Run
from llm_sandbox_nb.cli.errors import ENDED_WELL
from llm_sandbox_nb.notebook.export import ExportError, export_html
from llm_sandbox_nb.options.errors import UsageError
from llm_sandbox_nb.trajectory.journal import JournalError


def export_command(arguments: argparse.Namespace) -> int:
    """Write the file and print where it is.

    Raises:
        UsageError: there is no run, it cannot be read, or the file cannot be written.
    """
    try:
        run = Run.load(arguments.run)
    except FileNotFoundError as error:
        raise UsageError(
            f"There is no run at {arguments.run}: give the folder that holds its journal.jsonl."
        ) from error
    except (OSError, JournalError, ValueError) as error:
        raise UsageError(f"The run cannot be read: {str(error).rstrip('.')}.") from error
    try:
        print(export_html(run, Path(arguments.out) if arguments.out else run.folder / "run.html"))
    except ExportError as error:
        raise UsageError(str(error)) from error
    return ENDED_WELL
