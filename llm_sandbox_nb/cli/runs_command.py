"""`llm-sandbox-nb runs`: the runs on disk, and the removal of old ones."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from llm_sandbox_nb.cli import ENDED_WELL, FAILED
from llm_sandbox_nb.cli.printer import harmless
from llm_sandbox_nb.options.parser import prune_rule
from llm_sandbox_nb.options.table import UsageError
from llm_sandbox_nb.options.values import resolve
from llm_sandbox_nb.runs.catalog import list_runs, plan_prune, prune, runs_json, runs_text
from llm_sandbox_nb.trajectory.run_folder import RunNotFoundError, find_run_folder


def runs_command(arguments: argparse.Namespace) -> int:
    """List the runs of a folder, or remove some of them.

    Raises:
        UsageError: there is no such folder, or it was not said which runs to remove.
    """
    days, keep = prune_rule(arguments)
    root = _runs_root(arguments.folder)
    if arguments.json:
        print(json.dumps(runs_json(list_runs(root)), indent=2))
        return ENDED_WELL
    if not arguments.prune:
        print(harmless(runs_text(root)))
        return ENDED_WELL
    plan = plan_prune(list_runs(root), days=days, keep=keep)
    print(harmless(plan.text()), flush=True)
    if not plan.remove:
        return ENDED_WELL
    if not arguments.yes and not _confirmed():
        print("Nothing was removed.")
        return ENDED_WELL
    problems = prune(plan)
    print(
        harmless("\n".join([*problems, f"Removed {len(plan.remove) - len(problems)} of {len(plan.remove)}."]))
    )
    return FAILED if problems else ENDED_WELL


def run_path(name: str) -> Path:
    """The run that a command names: a path, or the id of a run or a part of it. Raises UsageError."""
    path = Path(name).expanduser()
    if path.exists():
        return path
    try:
        return find_run_folder(name, _runs_root(None))
    except RunNotFoundError as error:
        raise UsageError(str(error)) from error


def _runs_root(named: str | None) -> Path:
    """The folder of runs: the one that is named, else that of the settings. Raises UsageError when it is not there."""
    if named is None:
        return Path(resolve({}, os.environ)["output_dir"]).expanduser()
    root = Path(named).expanduser()
    if not root.is_dir():
        raise UsageError(f"There is no folder {named}; check the path.")
    return root


def _confirmed() -> bool:
    if not sys.stdin.isatty():
        raise UsageError(
            "There is no terminal to ask at, so nothing was removed: add --yes to remove these runs."
        )
    return input("Remove these runs? [y/N] ").strip().lower() in ("y", "yes")
