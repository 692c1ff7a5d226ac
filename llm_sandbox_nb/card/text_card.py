"""The card as text, for terminals and front ends without HTML: outcome first, then a line for each step."""

from __future__ import annotations

from llm_sandbox_nb.card.outcome import Tally, figures, protection_chip, state, step_failed
from llm_sandbox_nb.card.page import first_error
from llm_sandbox_nb.card.step_line import (
    chips,
    edited_lines,
    line_words,
    one_line,
    tool_kind,
)
from llm_sandbox_nb.card.step_line import figures as step_figures
from llm_sandbox_nb.card.steps import decision_text
from llm_sandbox_nb.card.text import plain
from llm_sandbox_nb.formatting import clip, format_size, plural
from llm_sandbox_nb.trajectory.trajectory import Step, Trajectory

_STEPS = 100
"""Steps listed; the ones before are counted."""
_LIVE_STEPS = 8
_FILES = 20
_SIGNS = {"bash": "$ ", "edit": "edit ", "submit": "", "other": ""}


def card_text(trajectory: Trajectory, tally: Tally, *, live: bool) -> str:
    """State and task, reason of failure and answer, files, facts; then a line for each step."""
    words, _ = state(trajectory, live=live)
    task = one_line(trajectory.start.task) if trajectory.start else ""
    lines = [f"{plain(words)}  {task}".rstrip()]
    if trajectory.finish and trajectory.finish.error:
        lines += ["", plain(clip(trajectory.finish.error, 500)).strip()]
    if trajectory.answer:
        lines += ["", plain(clip(trajectory.answer, 4_000)).strip()]
    if files := list(trajectory.artifacts.values()):
        named = ", ".join(f"{one_line(one.path)} ({format_size(one.size)})" for one in files[:_FILES])
        more = f" and {len(files) - _FILES} more" if len(files) > _FILES else ""
        lines += ["", f"Files: {named}{more}"]
    lines += ["", _facts(trajectory, tally), ""]
    listed = trajectory.steps[-_LIVE_STEPS if live else -_STEPS :]
    if hidden := len(trajectory.steps) - len(listed):
        lines.append(f"... {plural(hidden, 'step')} before ...")
    root = (trajectory.sandbox.root if trajectory.sandbox else None) or ""
    lines += [_step(step, root) for step in listed]
    return "\n".join(lines).rstrip()


def _facts(trajectory: Trajectory, tally: Tally) -> str:
    parts = figures(trajectory)
    if trajectory.sandbox:
        parts.append(protection_chip(trajectory.sandbox.protection))
    if (number := first_error(trajectory, tally)) is not None:
        parts.append(f"First error: step {number}")
    if changed := tally.changed_files:
        parts.append(f"{plural(changed, 'file')} changed")
    return " · ".join(parts)


def _step(step: Step, root: str) -> str:
    call = step.calls[0] if step.calls else None
    said, called = line_words(step, root)
    what = f"{_SIGNS[tool_kind(call)]}{called}{_counts(*edited_lines(step))}" if call else ""
    shown = [f"{chip.text}{_counts(chip.added, chip.removed)}" for chip in chips(step, root)]
    if call and not shown and not step_failed(step) and call.exit_code == 0:
        shown = ["exit 0"]
    if any(not one.finished for one in step.calls):
        shown.append("running" if call and call.started else "waiting")
    line = "   ".join(filter(None, [said, what, *shown, step_figures(step)]))
    decided = [
        text.rstrip(":") for one in step.calls for made in one.decisions if (text := decision_text(made))
    ]
    return "\n".join([f"{step.number:>3}  {line}", *(f"       {text}" for text in decided)])


def _counts(added: int, removed: int) -> str:
    return (f" +{added}" if added or removed else "") + (f" -{removed}" if removed else "")
