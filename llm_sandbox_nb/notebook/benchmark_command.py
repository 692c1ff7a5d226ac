"""The command `%sandbox benchmark`: the actions of `llm-sandbox-nb benchmark`, with a live table in the cell."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_sandbox_nb.benchmark.commands import (
    Prepared,
    list_text,
    make_comparison,
    make_report,
    prepare,
    prepare_scoring,
    unscored_keys,
)
from llm_sandbox_nb.benchmark.item_pipeline import FatalError, Item
from llm_sandbox_nb.benchmark.options import add_benchmark_actions
from llm_sandbox_nb.benchmark.progress import CellProgress, Progress
from llm_sandbox_nb.benchmark.report import as_text, comparison_text, short_html
from llm_sandbox_nb.benchmark.results import read_results
from llm_sandbox_nb.card.page import card_html
from llm_sandbox_nb.card.text import escape
from llm_sandbox_nb.formatting import format_cost, format_count, format_duration, format_percent, text_table
from llm_sandbox_nb.model.model_names import typed_key_of
from llm_sandbox_nb.notebook.display import UpdatedOutput, has_front_end
from llm_sandbox_nb.notebook.errors import SandboxBenchmarkError, SandboxUsageError, in_one_sentence
from llm_sandbox_nb.notebook.event_loop import BackgroundLoop, BackgroundTask
from llm_sandbox_nb.notebook.settings import SandboxSettings
from llm_sandbox_nb.options.parser import Parser
from llm_sandbox_nb.options.table import UsageError
from llm_sandbox_nb.own_folder import expanded
from llm_sandbox_nb.plain_text import first_line, plain

CLOSE_SECONDS = 120.0
"""Maximum seconds for closing all sandboxes of an interrupted benchmark."""
_UPDATE_SECONDS = 1.0
"""Maximum seconds between two checks of whether the table has changed."""
_SETTINGS = (
    "model", "api_base", "api_key_env", "isolation", "profile", "image", "network", "allow", "secret",
    "ca_bundle", "index_url", "proxy",
)  # fmt: skip
"""Options whose values come from the settings of the notebook if the line does not name them."""
_Work = Callable[[list[Item]], Coroutine[Any, Any, object]]


class BenchmarkCommand:
    """The command `%sandbox benchmark`. Call an instance with the text after `benchmark`."""

    def __init__(self, background: BackgroundLoop, settings: SandboxSettings, shell: Any) -> None:
        self._background, self._settings, self._shell = background, settings, shell

    def __call__(self, rest: str) -> None:
        """Execute the action that the first word of `rest` names: list, run, report, score or compare.

        Raises:
            SandboxUsageError: if a named file or option is missing or invalid; nothing was started.
            SandboxBenchmarkError: if the benchmark cannot continue, or every item failed.
            KeyboardInterrupt: if the cell was interrupted; the sandboxes are closed.
        """
        try:
            parsed = _parsed(rest)
            if parsed is None:
                return
            if parsed.action == "list":
                print(list_text())
            elif parsed.action == "report":
                self._report(parsed)
            elif parsed.action == "compare":
                print(plain(comparison_text(make_comparison(Path(parsed.results), Path(parsed.other)))))
            elif parsed.action == "score":
                with prepare_scoring(Path(parsed.results), self._flags(vars(parsed)), os.environ) as made:
                    self._do(made, made.items, made.runner.score_again)
            else:
                with prepare(parsed.tasks, self._flags(vars(parsed)), os.environ) as made:
                    self._do(made, made.runner.open_items(made.items), made.runner.run)
        except UsageError as error:
            raise SandboxUsageError(plain(str(error))) from error

    def _report(self, parsed: argparse.Namespace) -> None:
        made = make_report(expanded(parsed.results), parsed.html)
        bundle = {"text/html": card_html(short_html(made.found)), "text/plain": plain(as_text(made.found))}
        UpdatedOutput().publish(bundle)
        if made.page is not None:
            print(plain(str(made.page)))

    def _flags(self, flags: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of the line, with the notebook's settings as defaults."""
        given = {name: getattr(self._settings, name) for name in _SETTINGS if self._settings.is_given(name)}
        found = dict(flags) | {
            name: value for name, value in given.items() if name in flags and flags[name] is None and value
        }
        if found.get("model") and typed_key_of(found["model"], found["api_base"]):
            # a key that the person typed (`%sandbox key`) wins over the setting `api_key_env`
            found["api_key_env"] = flags["api_key_env"]
        return found

    def _do(self, made: Prepared, open_items: list[Item], work: _Work) -> None:
        runner = made.runner
        workers, done = runner.options.workers, read_results(made.out)
        progress = Progress(made.items, open_items, done, workers)
        runner.on_begin, runner.on_result = progress.began, progress.ended
        table = BenchmarkTable(progress, made.model, made.scripted, str(made.out))
        view = _View(table, has_front_end(self._shell), self._settings.update_interval)
        self._wait(BackgroundTask(self._background, work(made.items)), view, made)
        self._end(made, view)

    def _wait(self, job: BackgroundTask[Any], view: _View, made: Prepared) -> None:
        """Wait until the benchmark ends, and show the table meanwhile."""
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
            ended = job.wait(CLOSE_SECONDS)
            said = "" if ended else " Some sandboxes are still being closed."
            note = f"Results so far are in {made.out}: run the cell again to resume.{said}"
            view.finish("interrupted" if isinstance(error, KeyboardInterrupt) else "failed", note=note)
            if isinstance(error, KeyboardInterrupt):
                in_one_sentence(error, f"The benchmark was interrupted. {plain(note)}")
            raise

    def _end(self, made: Prepared, view: _View) -> None:
        wanted, unscored = {item.key for item in made.items}, unscored_keys(made)
        failed = [result for result in read_results(made.out) if result.key in unscored and result.error_kind]
        note = ""
        if unscored:
            note = f"{len(unscored)} of {len(wanted)} results have no score: run the cell again to try them again."
        try:
            view.finish("done", make_report(made.out).found, note)
        except UsageError as error:
            view.finish("done", note=f"{note} {error}".strip())
        if failed and len(failed) == len(wanted):
            last = failed[-1]
            raise SandboxBenchmarkError(
                plain(f"Every item failed. The last error: {last.error_kind}: {last.error[:500]}")
            )


class _View:
    """The cell's output, updated only after a change and at most once per interval."""

    def __init__(self, table: BenchmarkTable, live: bool, interval: float) -> None:
        self._table, self._live, self._output = table, live, UpdatedOutput()
        self._last: dict[str, str] = {}
        self.interval = min(max(interval, 0.1), _UPDATE_SECONDS)

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
    """Parse the words as options. If they ask for help, print the help and return None."""
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


HEADS = ("task", "mode", "done", "running", "score", "errors", "tokens", "cost", "elapsed", "rest")
SCRIPTED = "The replies are read from a file: no model is asked and no request is sent."
"""Explanation of the word "scripted" in the head of the table."""
KINDS = 4
"""Maximum number of error kinds that a row names. Further kinds are only counted."""
_MAX_ERROR_CHARACTERS = 200
_MAX_CELL_CHARACTERS = 80


@dataclass(eq=False)
class BenchmarkTable:
    """Table with the progress of a benchmark. Names and error messages may hold hostile HTML, so they are escaped."""

    progress: Progress
    model: str
    scripted: bool
    out: str

    def bundle(self, state: str, found: Mapping[str, Any] | None = None, note: str = "") -> dict[str, str]:
        """Return the cell's output by MIME type: the head with `state`, the table, `note`, and the report `found`.

        While the benchmark runs, `found` is None, and the output has no report.
        """
        rows = [_cells(row) for row in self.progress.rows()]
        notes = [_note(*note) for note in self.progress.notes]
        html, text = self._html(state, rows, notes), self._text(state, rows, notes)
        if note:
            html, text = f"{html}<div>{escape(note)}</div>", f"{text}\n{note}"
        if found:
            html, text = html + short_html(found), f"{text}\n{as_text(found)}"
        return {"text/html": card_html(html), "text/plain": "\n".join(map(plain, text.split("\n")))}

    def _html(self, state: str, rows: Sequence[Sequence[str]], notes: Sequence[str]) -> str:
        scripted = f"<span class='lsn-badge' title='{SCRIPTED}'>scripted</span>" if self.scripted else ""
        head = (
            f"<div class='lsn-head'><b>Benchmark</b> <span class='lsn-badge'>{escape(state)}</span> "
            f"<span>{escape(self.model)}</span> {scripted} "
            f"<span class='lsn-quiet'>results in {escape(self.out)}</span></div>"
        )
        listed = "".join(f"<div class='lsn-bad'>{escape(note)}</div>" for note in notes)
        return head + _table(HEADS, rows) + listed

    def _text(self, state: str, rows: Sequence[Sequence[str]], notes: Sequence[str]) -> str:
        scripted = f" (scripted: {SCRIPTED})" if self.scripted else ""
        head = f"Benchmark: {state}, {self.model}{scripted}, results in {self.out}"
        return "\n".join(
            [head, text_table([[_cell_text(cell) for cell in row] for row in (HEADS, *rows)]), *notes]
        )


def _cells(row: CellProgress) -> list[str]:
    score = "" if row.score is None else format_percent(row.score)
    rest = "?" if row.rest is None else f"about {format_duration(row.rest)}"
    return [
        row.task,
        row.mode,
        f"{format_count(row.done)}/{format_count(row.total)}",
        str(row.running) if row.running else "",
        score,
        _errors(row.errors),
        format_count(row.tokens) if row.tokens else "",
        "unknown" if row.cost is None else format_cost(row.cost) if row.tokens else "",
        format_duration(row.elapsed) if row.elapsed else "",
        rest if row.done < row.total else "",
    ]


def _errors(errors: Mapping[str, int]) -> str:
    listed = sorted(errors.items(), key=lambda counted: (-counted[1], counted[0]))
    words = [f"{number} {first_line(plain(kind), 40)}" for kind, number in listed[:KINDS]]
    more = sum(number for _, number in listed[KINDS:])
    return ", ".join([*words, f"{more} others"] if more else words)


def _note(key: tuple[str, str, str, int], kind: str, error: str) -> str:
    task, mode, item, repeat = key
    words = (f"{task}/{mode}", first_line(plain(item), 60), f"repeat {repeat}" if repeat else "", kind)
    return first_line(
        plain(f"{', '.join(filter(None, words))}: {first_line(plain(error[:2_000]), _MAX_ERROR_CHARACTERS)}"),
        400,
    )


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    def line(tag: str, cells: Iterable[str]) -> str:
        return f"<tr>{''.join(f'<{tag}>{escape(_cell_text(cell))}</{tag}>' for cell in cells)}</tr>"

    body = "".join(line("td", row) for row in rows)
    return f"<table class='lsn-table'><thead>{line('th', heads)}</thead><tbody>{body}</tbody></table>"


def _cell_text(text: str) -> str:
    return first_line(plain(text), _MAX_CELL_CHARACTERS)
