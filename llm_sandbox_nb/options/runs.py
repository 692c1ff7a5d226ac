"""The options of `llm-sandbox-nb runs` and `%sandbox runs`."""

from __future__ import annotations

import argparse

from llm_sandbox_nb.options.table import UsageError


def add_runs_options(parser: argparse.ArgumentParser) -> None:
    """Add them to the parser of a command."""
    parser.add_argument("--json", action="store_true", help="the list for a program")
    parser.add_argument("--prune", action="store_true", help="remove runs, with all their files; asks first")
    parser.add_argument(
        "--older-than",
        "--older_than",
        metavar="DAYS",
        help="with --prune: runs whose last event is older than this",
    )
    parser.add_argument("--keep", metavar="N", help="with --prune: all but the newest N runs")
    parser.add_argument("--yes", action="store_true", help="with --prune: remove without asking")


def prune_rule(arguments: argparse.Namespace) -> tuple[float | None, int | None]:
    """What `--older-than` and `--keep` say: days, and a number of runs.

    Raises:
        UsageError: one of them is invalid, or stands without `--prune`, or both are missing beside it.
    """
    older, keep = arguments.older_than, arguments.keep
    if not arguments.prune:
        if older is not None or keep is not None or arguments.yes:
            raise UsageError("--older-than, --keep and --yes belong to --prune: add --prune to remove runs.")
        return None, None
    if older is None and keep is None:
        raise UsageError("Say which runs: --prune --older-than 30 (days), or --prune --keep 20 (the newest).")
    if keep is not None and not keep.isdecimal():
        raise UsageError(f"--keep takes the number of newest runs to keep, not {keep!r}.")
    return _days(older), None if keep is None else int(keep)


def _days(word: str | None) -> float | None:
    if word is None:
        return None
    try:
        days = float(word.removesuffix("d"))
    except ValueError:
        days = -1.0
    if not 0 <= days < 1_000_000:
        raise UsageError(f"--older-than takes a number of days, such as 30, not {word!r}.")
    return days
