"""The command `llm-sandbox-nb benchmark`, with the actions list, run, report, score and compare."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_sandbox_nb.benchmark.commands import (
    Prepared,
    list_text,
    make_comparison,
    make_report,
    prepare,
    prepare_scoring,
    unscored_keys,
)
from llm_sandbox_nb.cli import ENDED_WELL, FAILED, INTERRUPTED, MODEL_ERROR, on_signals
from llm_sandbox_nb.cli.printer import harmless
from llm_sandbox_nb.formatting import format_percent, plural
from llm_sandbox_nb.options.table import UsageError

if TYPE_CHECKING:
    from llm_sandbox_nb.benchmark.item_pipeline import Item
    from llm_sandbox_nb.benchmark.progress import Progress
    from llm_sandbox_nb.benchmark.results import Result


def benchmark_command(arguments: argparse.Namespace) -> int:
    """Execute the action: list tasks, run tasks, or report, score or compare results. Return the exit code.

    Raises:
        UsageError: if a named file, task or option is missing or invalid; nothing was started.
    """
    if arguments.action == "list":
        print(list_text())
        return ENDED_WELL
    if arguments.action == "report":
        return _report(Path(arguments.results), arguments.html)
    if arguments.action == "compare":
        return _compare(Path(arguments.results), Path(arguments.other))
    if arguments.action == "score":
        with prepare_scoring(Path(arguments.results), vars(arguments), os.environ) as made:
            return _until_over(made, made.runner.score_again)
    with prepare(arguments.tasks, vars(arguments), os.environ) as made:
        return _until_over(made, made.runner.run)


def _report(out: Path, html: str | None) -> int:
    from llm_sandbox_nb.benchmark.report import as_text

    made = make_report(out, html)
    print(harmless(as_text(made.found)))
    if made.page is not None:
        print(made.page)
    whole = all(row["scored"] == row["planned"] for row in made.found["cells"])
    return ENDED_WELL if whole else FAILED


def _compare(out: Path, other: Path) -> int:
    from llm_sandbox_nb.benchmark.report import comparison_text

    print(harmless(comparison_text(make_comparison(out, other))))
    return ENDED_WELL


def _until_over(made: Prepared, work: Callable[[list[Item]], Coroutine[Any, Any, object]]) -> int:
    """Run `work` on all items with a progress line, then print the report."""
    from llm_sandbox_nb.benchmark.item_pipeline import FatalError
    from llm_sandbox_nb.benchmark.progress import Progress
    from llm_sandbox_nb.benchmark.results import read_results

    items, runner, out = made.items, made.runner, made.out
    open_items = items if work == runner.score_again else runner.open_items(items)
    line = ProgressLine(Progress(items, open_items, read_results(out), runner.options.workers))
    runner.on_begin, runner.on_result = line.progress.began, line
    try:
        asyncio.run(_until_signal(work(items)))
    except FatalError as error:
        print(harmless(str(error)), file=sys.stderr)
        print(f"Stopped; results so far are in {out}.", file=sys.stderr)
        return MODEL_ERROR
    except (KeyboardInterrupt, asyncio.CancelledError):
        print(f"Interrupted; results so far are in {out}. The same command resumes there.", file=sys.stderr)
        return INTERRUPTED
    finally:
        line.close()
    return _print_report(made)


def _print_report(made: Prepared) -> int:
    from llm_sandbox_nb.benchmark.report import as_text

    try:
        print(harmless(as_text(make_report(made.out).found)))
    except UsageError as error:
        print(harmless(str(error)), file=sys.stderr)
    print(made.out)
    return FAILED if unscored_keys(made) else ENDED_WELL


async def _until_signal(work: Coroutine[Any, Any, object]) -> None:
    """Await `work`. SIGTERM and SIGHUP cancel the work as Ctrl-C does."""
    if task := asyncio.current_task():
        on_signals(task.cancel, signal.SIGTERM, signal.SIGHUP)
    await work


class ProgressLine:
    """Progress in one line: rewritten in place on a terminal, printed every half minute elsewhere."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self._terminal = sys.stderr.isatty()
        self._started = self._printed = time.monotonic()
        if progress.before:
            print(f"{progress.before} of {progress.total} were done before.", file=sys.stderr)

    def __call__(self, result: Result) -> None:
        self.progress.ended(result)
        now = time.monotonic()
        if self._terminal or now - self._printed >= 30 or self.progress.done == self.progress.total:
            self._printed = now
            print(self._line(now), end="\r" if self._terminal else "\n", file=sys.stderr, flush=True)

    def _line(self, now: float) -> str:
        cells = self.progress.rows()
        rate = 60 * (self.progress.done - self.progress.before) / max(now - self._started, 1e-3)
        scored = [row for row in cells[: -1 if len(cells) > 1 else None] if row.score is not None]
        score = ", ".join(f"{row.task}/{row.mode} {format_percent(row.score or 0.0)}" for row in scored)
        failed = sum(cells[-1].errors.values())
        errors = f", {plural(failed, 'error')}" if failed else ""
        return f"{self.progress.done}/{self.progress.total}{', ' if score else ''}{score}{errors}, {rate:.1f} a minute "

    def close(self) -> None:
        """End the progress line."""
        if self._terminal:
            print(file=sys.stderr)
