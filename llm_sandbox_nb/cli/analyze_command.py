"""`llm-sandbox-nb analyze`: what recorded runs did, as a table on the terminal or one HTML file."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from llm_sandbox_nb.cli import ENDED_WELL, FAILED
from llm_sandbox_nb.options.table import UsageError
from llm_sandbox_nb.trajectory.run_folder import JOURNAL

if TYPE_CHECKING:
    from llm_sandbox_nb.analysis.load import Reading

_SHOWN = ["group", "runs", "turns_mean", "external_rate", "files_rate", "computation_rate", "environment_share",
          "tokens_once_mean", "tokens_billed_mean", "tool_share", "runs_per_minute", "wandering_runs"]  # fmt: skip


def analyze_command(arguments: argparse.Namespace) -> int:
    """Read the runs, print the table of groups, write the report when one is asked for.

    Raises:
        UsageError: a path is not there, no run is found, or pandas or matplotlib is missing.
    """
    from llm_sandbox_nb.analysis.load import load_runs

    try:
        reading = load_runs(arguments.paths)
    except FileNotFoundError as error:
        raise UsageError(str(error)) from error
    for problem in reading.problems:
        print(problem, file=sys.stderr)
    if not reading.runs:
        raise UsageError(
            f"There is no run in {', '.join(arguments.paths)}: a run is a folder with a {JOURNAL}."
        )
    try:
        print(_text(reading))
        if arguments.html is not None:
            from llm_sandbox_nb.analysis.report import write_report

            print(write_report(reading, arguments.html))
    except ImportError as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise UsageError(
            f"The report cannot be written to {arguments.html} ({error.strerror or error}): choose another file."
        ) from error
    return FAILED if reading.problems else ENDED_WELL


def _text(reading: Reading) -> str:
    from llm_sandbox_nb.analysis.frames import groups_frame, runs_frame

    groups = groups_frame(runs_frame(reading.runs))
    return groups[_SHOWN].T.to_string(header=False, float_format=lambda value: f"{value:.4g}")
