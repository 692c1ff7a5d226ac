"""`%sandbox benchmark list | run | report`: as on the command line, with a live table in the cell."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llm_sandbox_nb.benchmark.commands import Prepared, list_text, make_report, prepare
from llm_sandbox_nb.benchmark.item_pipeline import FatalError
from llm_sandbox_nb.benchmark.options import add_benchmark_actions
from llm_sandbox_nb.benchmark.progress import Progress
from llm_sandbox_nb.benchmark.report import as_text, short_html
from llm_sandbox_nb.benchmark.results import Result, read_results
from llm_sandbox_nb.card.page import card_html
from llm_sandbox_nb.card.text import plain
from llm_sandbox_nb.model.model_names import typed_key_of
from llm_sandbox_nb.notebook.benchmark_table import BenchmarkTable
from llm_sandbox_nb.notebook.display import UpdatedOutput, has_front_end
from llm_sandbox_nb.notebook.errors import SandboxBenchmarkError, SandboxUsageError, in_one_sentence
from llm_sandbox_nb.notebook.event_loop import BackgroundLoop, BackgroundTask
from llm_sandbox_nb.notebook.settings import SandboxSettings
from llm_sandbox_nb.options.parser import Parser
from llm_sandbox_nb.options.table import UsageError

CLOSING = 120.0
"""Seconds that all sandboxes of a benchmark that was interrupted may take to be closed."""
_INTERVAL = 1.0
"""Seconds between two updates of the table while nothing changes."""
_SETTINGS = (
    "model", "api_base", "api_key_env", "isolation", "profile", "image", "network", "ca_bundle", "index_url", "proxy",
)  # fmt: skip
"""Options that `%config SandboxMagics` may set."""


class BenchmarkCommand:
    """Call it with the words after `%sandbox benchmark`."""

    def __init__(self, background: BackgroundLoop, settings: SandboxSettings, shell: Any) -> None:
        self._background, self._settings, self._shell = background, settings, shell

    def __call__(self, rest: str) -> None:
        """List, run or report.

        Raises:
            SandboxUsageError: something named is not there or cannot be understood; nothing was started.
            SandboxBenchmarkError: it cannot continue, or no item could be done.
            KeyboardInterrupt: it was interrupted, and its sandboxes are closed.
        """
        try:
            parsed = _parsed(rest)
            if parsed is None:
                return
            if parsed.action == "list":
                print(list_text())
            elif parsed.action == "report":
                self._report(parsed)
            else:
                self._run(prepare(parsed.tasks, self._flags(vars(parsed)), os.environ))
        except UsageError as error:
            raise SandboxUsageError(plain(str(error))) from error

    def _report(self, parsed: argparse.Namespace) -> None:
        made = make_report(Path(parsed.results).expanduser(), parsed.html)
        bundle = {"text/html": card_html(short_html(made.found)), "text/plain": plain(as_text(made.found))}
        UpdatedOutput().publish(bundle)
        if made.page is not None:
            print(plain(str(made.page)))

    def _flags(self, flags: Mapping[str, Any]) -> dict[str, Any]:
        """The options of the line, else those of the notebook's settings."""
        given = {name: getattr(self._settings, name) for name in _SETTINGS if self._settings.is_given(name)}
        found = dict(flags) | {name: value for name, value in given.items() if flags[name] is None and value}
        if found["model"] and typed_key_of(found["model"], found["api_base"]):
            found["api_key_env"] = flags["api_key_env"]  # a typed key comes before that of a setting
        return found

    def _run(self, made: Prepared) -> None:
        runner = made.runner
        workers, done = runner.options.workers, read_results(made.out)
        progress = Progress(made.items, runner.open_items(made.items), done, workers)
        runner.on_begin, runner.on_result = progress.began, progress.ended
        table = BenchmarkTable(progress, made.model, made.scripted, str(made.out))
        view = _View(table, has_front_end(self._shell), self._settings.update_interval)
        self._wait(BackgroundTask(self._background, runner.run(made.items)), view, made)
        self._end(made, view)

    def _wait(self, job: BackgroundTask[list[Result]], view: _View, made: Prepared) -> None:
        """Wait for the end and show the table meanwhile."""
        try:
            view.show("running")
            while not job.wait(view.interval):
                view.show("running")
            job.result()
        except FatalError as error:
            view.finish("stopped", note=str(error))
            raise SandboxBenchmarkError(
                f"{plain(str(error))} Results so far are in {made.out}; run the cell again to resume."
            ) from error
        except BaseException as error:
            view.show("stopping")
            job.cancel()
            ended = job.wait(CLOSING)
            said = "" if ended else " Some sandboxes are still being closed."
            note = f"Results so far are in {made.out}: run the cell again to resume.{said}"
            view.finish("interrupted" if isinstance(error, KeyboardInterrupt) else "failed", note=note)
            if isinstance(error, KeyboardInterrupt):
                in_one_sentence(error, f"The benchmark was interrupted. {plain(note)}")
            raise

    def _end(self, made: Prepared, view: _View) -> None:
        wanted = {item.key for item in made.items}
        failed = [one for one in read_results(made.out) if one.key in wanted and one.error_kind]
        note = ""
        if failed:
            note = f"{len(failed)} of {len(wanted)} failed: run the cell again to try them again."
        try:
            view.finish("done", make_report(made.out).found, note)
        except UsageError as error:
            view.finish("done", note=f"{note} {error}".strip())
        if failed and len(failed) == len(wanted):
            last = failed[-1]
            raise SandboxBenchmarkError(
                plain(f"Nothing could be done: {last.error_kind}: {last.error[:500]}")
            )


class _View:
    """The one output of the cell, published only when it changed and at most once an interval."""

    def __init__(self, table: BenchmarkTable, live: bool, interval: float) -> None:
        self._table, self._live, self._output = table, live, UpdatedOutput()
        self._last: dict[str, str] = {}
        self.interval = min(max(interval, 0.1), _INTERVAL)

    def show(self, state: str) -> None:
        """Show the table during the benchmark."""
        if self._live and (bundle := self._table.bundle(state)) != self._last:
            self._last = bundle
            self._output.publish(bundle)

    def finish(self, state: str, found: Mapping[str, Any] | None = None, note: str = "") -> None:
        """Show the final table, which the notebook keeps."""
        self._table.progress.stopped()
        self._output.publish(self._table.bundle(state, found, note))


def _parsed(rest: str) -> argparse.Namespace | None:
    """The words as options; None when they asked for help, which is printed."""
    parser = Parser(prog="%sandbox benchmark", description="Measure a model on many problems.")
    parts = add_benchmark_actions(parser)
    try:
        words = shlex.split(rest)
    except ValueError as error:
        raise UsageError(f"The line cannot be read ({error}): check its quotes.") from error
    try:
        parsed, unknown = parser.parse_known_args(words)
    except SystemExit:
        return None
    if unknown:
        parts[parsed.action].unknown(unknown)
    return parsed
