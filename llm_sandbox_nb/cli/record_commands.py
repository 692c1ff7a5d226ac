"""`llm-sandbox-nb runs | show | export | analyze`: commands for recorded runs."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from llm_sandbox_nb.cli import ENDED_WELL, FAILED
from llm_sandbox_nb.cli.printer import LIVE_LINES, Printer, doubts_text, harmless
from llm_sandbox_nb.formats.records import NoRecordError, is_foreign, read_run, split_name
from llm_sandbox_nb.formatting import plural
from llm_sandbox_nb.options.parser import prune_rule
from llm_sandbox_nb.options.table import UsageError
from llm_sandbox_nb.options.values import resolve
from llm_sandbox_nb.own_folder import expanded
from llm_sandbox_nb.runs.catalog import (
    list_runs,
    plan_prune,
    prune,
    row_text,
    runs_json,
    runs_text,
)
from llm_sandbox_nb.runs.foreign_runs import foreign_runs
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.calm_steps import CalmSteps, step_rows
from llm_sandbox_nb.trajectory.doubts.rules import doubts_of
from llm_sandbox_nb.trajectory.journal import JournalError, is_being_written, read_journal
from llm_sandbox_nb.trajectory.run_folder import (
    JOURNAL,
    RunNotFoundError,
    find_run_folder,
    record_of,
    run_folders,
)
from llm_sandbox_nb.trajectory.trajectory import Trajectory

if TYPE_CHECKING:
    from llm_sandbox_nb.runs.run import Run

_COLUMNS = ["group", "runs", "foreign_runs", "ended", "turns_mean", "external_rate", "files_rate", "computation_rate",
          "environment_share", "tokens_once_mean", "tokens_billed_mean", "tool_share", "runs_per_minute",
          "wandering_runs"]  # fmt: skip


def runs_command(arguments: argparse.Namespace) -> int:
    """List the runs of a folder, or remove some of them.

    Raises:
        UsageError: if the folder is missing, or the options do not select runs to remove.
    """
    days, keep = prune_rule(arguments)
    root = _runs_root(arguments.folder)
    try:
        others = foreign_runs(root)
    except NoRecordError as error:
        raise UsageError(str(error)) from error
    if arguments.json:
        runs = [] if root.is_file() else list_runs(root)
        print(json.dumps(runs_json([*runs, *others]), indent=2))
        return ENDED_WELL
    if not arguments.prune:
        own = root.is_dir() and (not others or bool(run_folders(root)))
        lines = [runs_text(root)] if own else []
        print(harmless("\n".join([*lines, *map(row_text, others)])))
        return ENDED_WELL
    if root.is_file():
        raise UsageError(f"{root} is a file: name a folder of runs to remove some of them.")
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


def _confirmed() -> bool:
    if not sys.stdin.isatty():
        raise UsageError(
            "Nothing was removed, because there is no terminal for the question: add --yes to remove these runs."
        )
    return input("Remove these runs? [y/N] ").strip().lower() in ("y", "yes")


def show_command(arguments: argparse.Namespace) -> int:
    """Print the current attempt of a run, with uneventful steps in one line. With `--all`, print every event.

    A killed run is printed up to its last event.

    Raises:
        UsageError: if the run is missing or cannot be read.
    """
    given, name = split_name(arguments.run)
    path = run_path(str(given))
    journal = record_of(path.resolve())
    journal = journal / JOURNAL if journal.is_dir() else journal
    if not os.path.lexists(journal):
        raise UsageError(f"There is no run at {path}: give the folder that holds its {JOURNAL}.")
    folder, foreign = journal.parent, is_foreign(journal)
    events: list[ev.Event] = []
    broken: Exception | None = None
    calm: list[CalmSteps] = []
    try:
        events.extend(read_run(journal, name).trajectory.events if foreign else read_journal(journal))
    except NoRecordError as error:
        raise UsageError(str(error)) from error
    except (JournalError, ValueError, OSError) as error:
        broken = error
    try:
        trajectory = Trajectory(events)
        lines = LIVE_LINES if arguments.brief else None
        rows = [] if arguments.all else step_rows(trajectory, live=False)
        calm = [row for row in rows if isinstance(row, CalmSteps)]
        printer = Printer(sys.stdout, lines=lines, folder=folder, trajectory=trajectory, calm=calm)
        for event in events if arguments.all else _current_attempt(trajectory):
            printer(event)
        printer.end()
    except FileNotFoundError as error:
        raise UsageError(f"Outputs of the run are missing: copy {folder}/blobs with the run.") from error
    except (JournalError, OSError) as error:
        broken = broken or error
    if calm:
        print("\n(`show --all` prints each of the steps that share a line here.)")
    if broken is not None:
        raise UsageError(f"The run cannot be read to its end: {str(broken).rstrip('.')}.") from broken
    if not events:
        raise UsageError(f"Nothing to show: no run has begun in {folder}.")
    doubts = doubts_text(doubts_of(trajectory))
    if trajectory.finish is None:
        if doubts:
            print(f"\n{doubts}")
        if foreign:
            print("\nThe record does not say how the run ended.")
            return ENDED_WELL
        print(f"\n{harmless(_open_end(trajectory, folder, live=is_being_written(folder)))}")
        return ENDED_WELL
    if trajectory.finish.error:
        print(harmless(trajectory.finish.error))
    if trajectory.answer:
        print(f"\nAnswer\n{harmless(trajectory.answer)}")
    if doubts:
        print(f"\n{doubts}")
    return ENDED_WELL


def _current_attempt(trajectory: Trajectory) -> Iterator[ev.Event]:
    """Yield the events of the current attempt. After an event, yield the rewinds that led to this event."""
    undone = {rewind.undo_of for rewind in trajectory.rewinds if rewind.undo_of}
    led_here: dict[str, list[ev.Event]] = {}
    for earlier in trajectory.rewinds:
        if earlier.what != "files" and earlier.undo_of is None and earlier.id not in undone:
            led_here.setdefault(earlier.to, []).append(earlier)
    for event in trajectory.path:
        yield event
        yield from led_here.get(event.id, ())


def _open_end(trajectory: Trajectory, folder: Path, *, live: bool) -> str:
    """Return a message about a run that has not ended: its state, and the command that continues the run."""
    words = trajectory.state(live=live).words
    if live:
        return f"{words}: the run is not over."
    return f"{words}: `{shlex.join(['llm-sandbox-nb', 'resume', str(folder)])}` continues this run."


def export_command(arguments: argparse.Namespace) -> int:
    """Write the run as an HTML file and print the path of the file.

    Raises:
        UsageError: if the run is missing or cannot be read, or the file cannot be written.
    """
    from llm_sandbox_nb.card.export import NO_VIEW, ExportError, export_html, has_view

    if arguments.out:
        check_not_record(arguments.out, arguments.run)
    run = load_run(arguments.run)
    file = expanded(split_name(arguments.run)[0])
    try:
        default = run.folder / "run.html" if run.has_journal else file.with_suffix(".html")
        print(export_html(run, Path(arguments.out) if arguments.out else default))
        if not has_view():
            print(NO_VIEW, file=sys.stderr)
    except ExportError as error:
        raise UsageError(str(error)) from error
    return ENDED_WELL


def analyze_command(arguments: argparse.Namespace) -> int:
    """Read the runs, print the table of groups, and write the report if requested.

    Raises:
        UsageError: if a path does not exist, no run is found, or pandas or matplotlib is missing.
    """
    from llm_sandbox_nb.analysis.load import load_runs

    try:
        reading = load_runs(arguments.paths)
    except FileNotFoundError as error:
        raise UsageError(str(error)) from error
    for problem in reading.problems:
        print(harmless(problem), file=sys.stderr)
    if reading.replays:
        print(f"{plural(reading.replays, 'replay')} of a run left out.", file=sys.stderr)
    if reading.copies:
        print(f"{plural(reading.copies, 'copy', 'copies')} of a run left out.", file=sys.stderr)
    if reading.without_turns:
        print(
            f"{plural(reading.without_turns, 'record')} left out, without a reply of a model.",
            file=sys.stderr,
        )
    if not reading.runs:
        raise UsageError(
            f"There is no run in {', '.join(arguments.paths)}: a run is a folder with a {JOURNAL}."
        )
    try:
        from llm_sandbox_nb.analysis.frames import groups_frame, runs_frame  # needs pandas

        groups = groups_frame(runs_frame(reading.runs))
        print(harmless(groups[_COLUMNS].map(_shown).T.to_string(header=False)))
        if arguments.html is not None:
            from llm_sandbox_nb.analysis.report import write_report

            try:
                written = write_report(reading, arguments.html)
            except OSError as error:
                raise UsageError(
                    f"The report cannot be written to {arguments.html} ({error.strerror or error}): "
                    "choose another file."
                ) from error
            print(written)
    except ImportError as error:
        raise UsageError(str(error)) from error
    return FAILED if reading.problems else ENDED_WELL


def _shown(value: object) -> str:
    """Return a value of the table as text; a dash if the value is unknown."""
    if value is None or value != value:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def load_run(named: str) -> Run:
    """Load the run with this path, id or part of an id. `FILE#NAME` names a run in a file.

    Raises:
        UsageError: if not exactly one run matches, or the run cannot be read.
    """
    from llm_sandbox_nb.runs.run import Run

    given, name = split_name(named)
    path = run_path(str(given))
    try:
        return Run.load(f"{path}#{name}" if name else path)
    except FileNotFoundError as error:
        raise UsageError(f"There is no run at {named}: give the folder that holds its {JOURNAL}.") from error
    except NoRecordError as error:
        raise UsageError(str(error)) from error
    except (OSError, JournalError, ValueError) as error:
        raise UsageError(f"The run cannot be read: {str(error).rstrip('.')}.") from error


def check_not_record(out: str, run: str) -> None:
    """Raise UsageError if the file to write is the record that is read."""
    record = run_path(str(split_name(run)[0])).resolve()
    if expanded(out).resolve() in (record, record / JOURNAL):
        raise UsageError(f"{out} is the record itself, which would be lost: choose another file.")


def run_path(name: str) -> Path:
    """Return the path of the run `name`, which is a path, an id, or a part of an id.

    Raises:
        UsageError: if not exactly one run matches.
    """
    path = expanded(name)
    if path.exists():
        return path
    try:
        return find_run_folder(name, _runs_root(None))
    except RunNotFoundError as error:
        raise UsageError(str(error)) from error


def _runs_root(named: str | None) -> Path:
    """Return the path `named`, or the folder of runs from the settings. Raises UsageError if `named` is missing."""
    if named is None:
        return expanded(resolve({}, os.environ)["output_dir"])
    root = expanded(named)
    if not root.is_dir() and not root.is_file():
        raise UsageError(f"There is no folder {named}; check the path.")
    return root
