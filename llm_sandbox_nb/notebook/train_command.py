"""The command `%sandbox train`: the actions of `llm-sandbox-nb train`, with live plots in the cell.

A training runs in a separate process, so that its memory is freed at the end and the kernel stays small.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

from llm_sandbox_nb.card.artifacts import relative_path
from llm_sandbox_nb.card.page import card_html
from llm_sandbox_nb.card.text import escape
from llm_sandbox_nb.formatting import plural
from llm_sandbox_nb.notebook.display import UpdatedOutput, has_front_end
from llm_sandbox_nb.notebook.errors import SandboxTrainingError, SandboxUsageError, in_one_sentence
from llm_sandbox_nb.notebook.magic_line import split_words
from llm_sandbox_nb.options.parser import Parser
from llm_sandbox_nb.options.table import UsageError
from llm_sandbox_nb.plain_text import first_line, plain
from llm_sandbox_nb.training.config import ConfigError
from llm_sandbox_nb.training.options import add_training_actions, config_of
from llm_sandbox_nb.training.record import RecordError, RolloutRow, TrainingRecord
from llm_sandbox_nb.training.watch import is_over, overview, plots, rollout_lines
from llm_sandbox_nb.trajectory.run_folder import JOURNAL

CLOSE_SECONDS = 120.0
"""Maximum seconds for closing the sandboxes of an interrupted training."""
_UPDATE_SECONDS = 1.0
"""Seconds between two polls of the training's record."""


class TrainCommand:
    """The command `%sandbox train`. Call an instance with the text after `train`."""

    def __init__(self, shell: Any) -> None:
        self._live = has_front_end(shell)

    def __call__(self, rest: str) -> None:
        """Execute the action that the first word of `rest` names: run, watch, evaluate or data.

        Raises:
            SandboxUsageError: if a named file or option is missing or invalid; nothing was started.
            SandboxTrainingError: if the training ended with an error.
            KeyboardInterrupt: if the cell was interrupted; the sandboxes are closed.
        """
        try:
            words = split_words("train ACTION ...", rest, 0, 1_000)
            parsed = _parsed(words)
            if parsed is None:
                return
            if parsed.action == "run":
                _, folder = config_of(vars(parsed))
                self._run(words, folder.absolute())
            elif parsed.action == "watch":
                self._watch(parsed)
            else:
                self._execute(words)
        except (UsageError, ConfigError, RecordError) as error:
            raise SandboxUsageError(plain(str(error))) from error

    def _run(self, words: list[str], folder: Path) -> None:
        output = UpdatedOutput()
        with tempfile.TemporaryFile() as said:
            process = _start(words, said)

            def show(state: str) -> None:
                note = "" if state == "done" else _last_line(said)
                if (record := _record(folder)) is None:
                    output.publish({"text/plain": f"Training: {state}. {plain(note)}"})
                else:
                    output.publish(training_bundle(record, state, note))

            try:
                _follow(process, lambda: show("running") if self._live else None)
            except KeyboardInterrupt as error:
                _stop(process)
                show("interrupted")
                in_one_sentence(error, "The training was interrupted: run the cell again to resume it.")
                raise
            except BaseException:
                _stop(process)
                raise
            show("failed" if process.returncode else "done")
            if process.returncode:
                raise SandboxTrainingError(
                    plain(_last_line(said) or f"The training ended with exit code {process.returncode}.")
                )

    def _watch(self, parsed: argparse.Namespace) -> None:
        record, output = TrainingRecord.load(parsed.folder), UpdatedOutput()
        while True:
            over = is_over(record)
            output.publish(training_bundle(record, "done" if over else "running", step=parsed.step))
            if over or parsed.once or parsed.step is not None:
                return
            time.sleep(_UPDATE_SECONDS)

    def _execute(self, words: list[str]) -> None:
        """Run an action that prints, and show its output at the end."""
        with tempfile.TemporaryFile() as said:
            process = _start(words, said, subprocess.PIPE)
            assert process.stdout is not None
            try:
                printed = process.stdout.read()
                process.wait()
            except BaseException:
                _stop(process)
                raise
            print(plain(printed.decode("utf-8", "replace")).rstrip())
            if process.returncode:
                raise SandboxTrainingError(
                    plain(
                        _last_line(said)
                        or f"%sandbox train {words[0]} ended with exit code {process.returncode}."
                    )
                )


def _parsed(words: list[str]) -> argparse.Namespace | None:
    """Parse the words as options. If they ask for help, print the help and return None."""
    parser = Parser(prog="%sandbox train", description="Train a model to work in sandboxes.")
    add_training_actions(parser.add_subparsers(dest="action", parser_class=Parser, required=True))
    try:
        return parser.parse_args(words)
    except SystemExit:
        return None


_UNTIL_KERNEL_ENDS = """
import os, signal, sys, threading
def wait():
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=wait, daemon=True).start()
from llm_sandbox_nb.cli import main
sys.exit(main())
"""
"""Program of the training's process. Its stdin is a pipe that closes when the kernel ends; the program then interrupts
itself. Otherwise the training would continue unseen, hold the graphics card and lock its folder."""


def _start(words: list[str], said: IO[bytes], printed: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", _UNTIL_KERNEL_ENDS, "train", *words]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=printed, stderr=said, start_new_session=True
    )


def _follow(process: subprocess.Popen[bytes], show: Callable[[], None]) -> None:
    while True:
        show()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_UPDATE_SECONDS)
            return


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Interrupt a process as Ctrl-C does, so that it closes its sandboxes. Kill a process that does not end."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)
    try:
        with suppress(subprocess.TimeoutExpired):
            process.wait(CLOSE_SECONDS)
    finally:  # also after a second interrupt
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _record(folder: Path) -> TrainingRecord | None:
    try:
        return TrainingRecord.load(folder)
    except RecordError:
        return None


def _last_line(said: IO[bytes]) -> str:
    said.seek(max(0, said.seek(0, os.SEEK_END) - 4000))
    lines = said.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else ""


_HEADS = ("rollout", "row", "reward", "advantage", "turns", "tokens", "seconds", "stop", "answer")
_MAX_ANSWER_CHARACTERS = 60


def training_bundle(
    record: TrainingRecord, state: str, note: str = "", step: int | None = None
) -> dict[str, str]:
    """Return a cell's output about a training, with the rollouts of `step`.

    If `step` is None, the output has the rollouts of the newest step whose rollouts are kept.

    Raises:
        RecordError: if the rollouts of `step` are not kept.
    """
    config, steps = record.config, record.steps()
    done = steps[-1]["step"] if steps else 0
    shown = step
    if shown is None:
        shown = next((number for number in range(done, 0, -1) if record.rollouts(number)), done)
    rows = record.rollouts(shown)
    if step is not None and not rows:
        raise RecordError(
            f"The rollouts of step {step} are not kept: choose a newer step, or raise record.keep."
        )
    said = f"{done} of {plural(config.steps, 'step')}, {plural(config.batch, 'rollout')} each"
    parts = [
        f"<div class='lsn-head'><b>Training {escape(config.name)}</b> <span class='lsn-badge'>{escape(state)}</span> "
        f"<span>{said}</span> <span class='lsn-quiet'>{escape(str(record.folder))}</span></div>"
    ]
    if steps:
        drawn = "".join(plots(steps, config.steps, record.validations()))
        parts.append(f"<div style='display:flex;flex-wrap:wrap;gap:8px 20px;padding:8px 14px'>{drawn}</div>")
    if rows:
        parts.append(_table(record, shown, rows))
    if note:
        parts.append(f"<div class='lsn-notes'>{escape(note)}</div>")
    lines = [*overview(record), "", *(rollout_lines(rows) if rows else ()), *((note,) if note else ())]
    return {"text/html": card_html("".join(parts)), "text/plain": plain("\n".join(lines))}


def _table(record: TrainingRecord, step: int, rows: Sequence[RolloutRow]) -> str:
    ordered = sorted(rows, key=lambda row: (row.group, row.place))
    head = "".join(f"<th scope='col'>{name}</th>" for name in _HEADS)
    body = "".join(f"<tr>{''.join(_cells(record, row))}</tr>" for row in ordered)
    return (
        f"<details open style='padding:0 14px 8px'><summary>Rollouts of step {step}; a click opens the record</summary>"
        "<div role='region' tabindex='0' aria-label='Rollouts' style='overflow:auto;max-height:24em'>"
        f"<table class='lsn-table'><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table></div></details>"
    )


def _cells(record: TrainingRecord, row: RolloutRow) -> list[str]:
    name = str(row.place)
    if row.run:
        target = relative_path(record.folder / row.run / JOURNAL)
        name = f"<a class='lsn-record' href='{escape(quote(target))}'>{row.place}</a>" if target else name
    texts = (
        row.group,
        _number(row.reward, ".3f"),
        _number(row.advantage, "+.3f"),
        str(row.turns),
        str(row.model_tokens),
        f"{row.seconds:.1f}",
        row.stop_reason,
        first_line(row.answer, _MAX_ANSWER_CHARACTERS),
    )
    return [f"<td>{name}</td>", *(f"<td>{escape(text)}</td>" for text in texts)]


def _number(value: float | None, form: str) -> str:
    return "none" if value is None else format(value, form)
