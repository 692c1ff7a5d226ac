"""The card as static HTML: style, state and task, answer or error, files, facts, a line for each step."""

from __future__ import annotations

import re
from functools import cache

from llm_sandbox_nb.card.facts import facts_html, step_anchor
from llm_sandbox_nb.card.text import card_file, escape, markdown_html
from llm_sandbox_nb.formatting import TAIL_LINES, clip, plural
from llm_sandbox_nb.plain_text import first_line, plain
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.calm_steps import CalmSteps, step_rows
from llm_sandbox_nb.trajectory.doubts.rules import doubts_of
from llm_sandbox_nb.trajectory.state import CHECK_LABELS, UNPROTECTED
from llm_sandbox_nb.trajectory.step_line import shown_text, step_failed, step_line
from llm_sandbox_nb.trajectory.trajectory import Step, Trajectory

_COLOURS = {
    "ok": "#2da44e",
    "bad": "#e5534b",
    "plain": "#7d8590",
    "wait": "#bf8700",
    "run": "#3b78c4",
    "away": "#e5534b",
}
"""Colours of the dot to the left of the run's state in the header, by the state's meaning.

They are inline because a style sheet may be missing."""
_TINTS = {"bad": " lsn-r", "human": " lsn-y"}
_ICONS = {"bash": "$", "edit": "✎", "submit": "✓"}
_MAX_ROWS = 200
"""Maximum number of rows, and of steps in an unfolded row; earlier steps are only in the record."""
_MAX_LIVE_ROWS = 15
_MAX_OPEN_FILES = 12
"""Maximum number of files that are shown unfolded."""


def run_html(trajectory: Trajectory, files: list[str], notes: list[str], *, limit: int, live: bool) -> str:
    """Return the whole card. `files` holds figures as HTML. Each text is clipped to about `limit` characters."""
    rows, hidden = listed_rows(trajectory, live=live)
    lines = "".join(f"<div class='lsn-quiet'>{escape(clip(note, 500))}</div>" for note in notes)
    parts = [
        header_html(trajectory, limit, live=live),
        result_html(trajectory, limit),
        doubts_html(trajectory, live=live),
        files_html(files),
        facts_html(trajectory, live=live),
        _before(hidden),
        *(_row_html(trajectory, row, live=live) for row in rows),
        _output_html(trajectory, limit) if live else "",
        f"<div class='lsn-notes'>{lines}</div>" if lines else "",
    ]
    return card_html("".join(parts))


def header_html(trajectory: Trajectory, limit: int, *, live: bool) -> str:
    """Return one line with the state and the task of the run. A long task unfolds."""
    state = trajectory.state(live=live)
    sign = f"<span style='color:{_COLOURS[state.meaning]}'>●</span>"
    task = _task(trajectory.start.task, limit) if trajectory.start else ""
    return f"<div class='lsn-head'>{sign} <b>{escape(first_line(state.words, 100))}</b> {task}</div>"


def _task(task: str, limit: int) -> str:
    if len(task) <= 160 and "\n" not in task.strip():
        return f"<span class='lsn-said'>{escape(task.strip())}</span>"
    summary = f"<summary class='lsn-said'>{escape(first_line(plain(task[:1_000]), 160))}</summary>"
    return f"<details>{summary}<div class='lsn-text'>{escape(clip(task, limit))}</div></details>"


def result_html(trajectory: Trajectory, limit: int) -> str:
    """Return the error, the answer rendered from Markdown, and the newest check."""
    finish = trajectory.finish
    error = (
        f"<div class='lsn-bad'>{escape(clip(finish.error, 2_000))}</div>" if finish and finish.error else ""
    )
    answer, check = trajectory.answer, check_html(trajectory)
    label = "<div class='lsn-quiet'>Answer</div>"
    shown = f"{label}<div class='lsn-answer'>{markdown_html(clip(answer, limit))}</div>" if answer else ""
    return f"<div class='lsn-out'>{error}{shown}{check}</div>" if error or shown or check else ""


def check_html(trajectory: Trajectory) -> str:
    """Return the verdict of the newest check. A click unfolds the command, the output and the notes of the check.

    They are unfolded from the beginning if the check did not pass or has notes.
    """
    if not trajectory.checks:
        return ""
    check = trajectory.checks[-1]
    verdict = check.verdict
    label = CHECK_LABELS.get(verdict.outcome, "Checked")
    tint = {"passed": " class='lsn-g'", "failed": " class='lsn-r'", "error": " class='lsn-r'"}
    summary = (
        f"<b{tint.get(verdict.outcome, '')}>{label}:</b> {escape(first_line(plain(verdict.summary), 200))}"
    )
    notes = [*([] if verdict.protected else [UNPROTECTED]), *check.left_out]
    lines = "".join(f"<div class='lsn-quiet'>{escape(clip(plain(note), 300))}</div>" for note in notes)
    code = f"<code>{escape(clip(plain(check.what), 1_000))}</code>"
    output = clip("\n".join(plain(shown_text(check.output)).rstrip().split("\n")[-TAIL_LINES:]), 4_000)
    text = f"<pre class='lsn-text'>{escape(output)}</pre>" if output else ""
    unfolded = " open" if verdict.outcome != "passed" or notes else ""
    return f"<details{unfolded}><summary>{summary}</summary>{code}{text}{lines}</details>"


def doubts_html(trajectory: Trajectory, *, live: bool) -> str:
    """Return the doubts in one line. Once the run is over, a doubt links to its step."""
    parts = []
    for doubt in doubts_of(trajectory):
        line = escape(doubt.line)
        linked = doubt.step is not None and not live and trajectory.step(doubt.step) is not None
        parts.append(f"<a href='#{step_anchor(trajectory, doubt.step or 0)}'>{line}</a>" if linked else line)
    return f"<div class='lsn-doubts'>Doubts: {' · '.join(parts)}</div>" if parts else ""


def files_html(files: list[str]) -> str:
    if not files:
        return ""
    more = files[_MAX_OPEN_FILES:]
    fold = f"<summary>{plural(len(more), 'more file')}</summary><div class='lsn-outs'>{''.join(more)}</div>"
    folded = f"<details class='lsn-notes'>{fold}</details>" if more else ""
    return f"<div class='lsn-outs'>{''.join(files[:_MAX_OPEN_FILES])}</div>{folded}"


def listed_rows(trajectory: Trajectory, *, live: bool) -> tuple[list[Step | CalmSteps], int]:
    """Return the rows to list, and the number of earlier steps that are left out.

    Once the run is over, successive uneventful steps share a row.
    """
    if live:  # a fixed number of rows, so that the cost of an update does not grow with the run
        return [*trajectory.steps[-_MAX_LIVE_ROWS:]], max(0, len(trajectory.steps) - _MAX_LIVE_ROWS)
    rows = step_rows(trajectory, live=live)[-_MAX_ROWS:]
    shown = sum(len(row.steps) if isinstance(row, CalmSteps) else 1 for row in rows)
    return rows, len(trajectory.steps) - shown


def shown_line(trajectory: Trajectory, step: Step, *, live: bool) -> ev.StepLine:
    """Return the line of a step. With `live`, the last step may still change."""
    running = live and trajectory.finish is None and step is trajectory.steps[-1]
    return step_line(step, trajectory.root, running=running, start=trajectory.start)


def _before(count: int) -> str:
    return f"<div class='lsn-row lsn-quiet'>{plural(count, 'step')} before</div>" if count > 0 else ""


def _row_html(trajectory: Trajectory, row: Step | CalmSteps, *, live: bool) -> str:
    """Return the line of a step, or a line for several uneventful steps that unfolds into their lines."""
    if not isinstance(row, CalmSteps):
        return _step_html(trajectory, row, live=live)
    lines = (_step_html(trajectory, step, live=live) for step in row.steps[-_MAX_ROWS:])
    inside = _before(len(row.steps) - _MAX_ROWS) + "".join(lines)
    line = f"{row.numbers} <span class='lsn-what'>{escape(row.words)}</span>"
    figures = f"<span class='lsn-fig'>{escape(row.figures)}</span>"
    return f"<details><summary class='lsn-row lsn-quiet'>{line} {figures}</summary>{inside}</details>"


def _step_html(trajectory: Trajectory, step: Step, *, live: bool) -> str:
    """Return a step in one line. Spaces separate its parts, so that it can be read without a style sheet too."""
    line = shown_line(trajectory, step, live=live)
    tint = " lsn-x" if step_failed(step) else "" if line.tool == "bash" else f" lsn-{line.tool}"
    what = f"<code>{escape(line.what)}</code>" if line.what else ""
    words = f"<span class='lsn-said'>{escape(line.thought)}</span> {what}{_counts(line.added, line.removed)}"
    chips = ""
    for chip in line.chips:
        counts = _counts(chip.added, chip.removed)
        chips += f" <span class='lsn-chip{_TINTS.get(chip.kind, '')}'>{escape(chip.text)}{counts}</span>"
    return (
        f"<div class='lsn-row' id='{step_anchor(trajectory, step.number)}'><span class='lsn-n'>{step.number}</span> "
        f"<span class='lsn-i{tint}'>{_ICONS.get(line.tool, '•')}</span> <span class='lsn-what'>{words}</span>{chips} "
        f"<span class='lsn-fig'>{escape(line.figures)}</span></div>"
    )


def _counts(added: int, removed: int) -> str:
    plus = f" <span class='lsn-add'>+{added}</span>" if added else ""
    return f"{plus} <span class='lsn-del'>−{removed}</span>" if removed else plus


def _output_html(trajectory: Trajectory, limit: int) -> str:
    """Return the newest lines of output from the running call."""
    calls = trajectory.steps[-1].calls if trajectory.steps else []
    tail = next((call.live_output for call in calls if call.live_output and not call.finished), "")[-limit:]
    lines = tail.rstrip("\n").split("\n")[-TAIL_LINES:]
    return f"<pre>{escape(chr(10).join(lines))}</pre>" if tail.strip() else ""


def card_html(body: str) -> str:
    """Return a card with this content and its own style sheet."""
    return f"<div class='lsn'>{style()}{body}</div>"


@cache
def style() -> str:
    """Return the style sheet. Every card has a copy, because each output of a notebook can be moved or deleted."""
    rules = re.sub(r"/\*.*?\*/\n|\n *", "", card_file("card.css"), flags=re.DOTALL)
    return f"<style>{rules}</style>"
