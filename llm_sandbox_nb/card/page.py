"""The frame of the card as static HTML: state and task, answer or reason of failure, files, facts."""

from __future__ import annotations

import hashlib
from typing import Any

from llm_sandbox_nb.card.outcome import Tally, figures, protection_chip, protection_text, state, step_failed
from llm_sandbox_nb.card.style import STYLE
from llm_sandbox_nb.card.text import escape, first_line, markdown_html, plain
from llm_sandbox_nb.formatting import clip, plural
from llm_sandbox_nb.sandbox.isolations import isolates
from llm_sandbox_nb.trajectory.trajectory import Trajectory

_SIGNS = {"ok": "#2da44e", "bad": "#e5534b", "wait": "#bf8700", "run": "#3b78c4"}
"""Of the sign before the state: seen on a light page and on a dark one, also where no style sheet is allowed."""
_SHOWN = 12
"""Files that are shown at once; the others are folded."""


def header_html(trajectory: Trajectory, limit: int, *, live: bool) -> str:
    """One line: the state of the run and its task, which unfolds when it is longer."""
    words, meaning = state(trajectory, live=live)
    sign = f"<span style='color:{_SIGNS[meaning]}'>●</span>"
    task = _task(trajectory.start.task, limit) if trajectory.start else ""
    return f"<div class='lsn-head'>{sign} <b>{escape(first_line(words, 100))}</b> {task}</div>"


def _task(task: str, limit: int) -> str:
    if len(task) <= 160 and "\n" not in task.strip():
        return f"<span class='lsn-said'>{escape(task.strip())}</span>"
    summary = f"<summary class='lsn-said'>{escape(first_line(plain(task[:1_000]), 160))}</summary>"
    return f"<details>{summary}<div class='lsn-text'>{escape(clip(task, limit))}</div></details>"


def result_html(trajectory: Trajectory, limit: int) -> str:
    """Why the run failed, and the answer, read as Markdown."""
    finish = trajectory.finish
    error = (
        f"<div class='lsn-bad'>{escape(clip(finish.error, 2_000))}</div>" if finish and finish.error else ""
    )
    answer = trajectory.answer
    shown = f"<div class='lsn-answer'>{markdown_html(clip(answer, limit))}</div>" if answer else ""
    return f"<div class='lsn-out'>{error}{shown}</div>" if error or shown else ""


def files_html(files: list[str]) -> str:
    """The figures of the files."""
    if not files:
        return ""
    more = files[_SHOWN:]
    fold = f"<summary>{plural(len(more), 'more file')}</summary><div class='lsn-outs'>{''.join(more)}</div>"
    folded = f"<details class='lsn-notes'>{fold}</details>" if more else ""
    return f"<div class='lsn-outs'>{''.join(files[:_SHOWN])}</div>{folded}"


def facts_html(trajectory: Trajectory, tally: Tally, *, live: bool) -> str:
    """One line: steps, tokens, time, cost, protection, the first error, and how many files changed."""
    parts = [f"<span>{escape(' · '.join(figures(trajectory)))}</span>"]
    if trajectory.sandbox:
        parts.append(_protection_html(trajectory.sandbox.protection))
    if (number := first_error(trajectory, tally)) is not None:
        said = f"First error: step {number}"
        link = f"<a class='lsn-chip lsn-r' href='#{step_anchor(trajectory, number)}'>{said} →</a>"
        parts.append(f"<span class='lsn-chip lsn-r'>{said}</span>" if live else link)
    if changed := tally.changed_files:
        parts.append(f"<span class='lsn-chip'>{plural(changed, 'file')} changed</span>")
    return f"<div class='lsn-facts'>{' '.join(parts)}</div>"


def first_error(trajectory: Trajectory, tally: Tally) -> int | None:
    """The number of the first step that failed; None when none did."""
    if tally.first_error is not None:
        return tally.first_error
    return next((step.number for step in trajectory.steps[-1:] if step_failed(step)), None)


def step_anchor(trajectory: Trajectory, number: int) -> str:
    """The id of a step's element: another one for each run, and nothing of what a model wrote."""
    run = trajectory.start.run_id if trajectory.start else ""
    return f"lsn-{hashlib.sha256(run.encode('utf-8', 'replace')).hexdigest()[:10]}-{number}"


def _protection_html(protection: dict[str, Any]) -> str:
    """A chip that unfolds to what is protected and what is not."""
    details = protection.get("details")
    details = details if isinstance(details, dict) else {}
    lines = [protection_text(protection)]
    lines += [str(protection.get(key) or "") for key in ("protects", "does_not_protect")]
    lines += [f"{name}: {value}" for name, value in details.items()]
    if "capabilities" not in details:
        capabilities = protection.get("capabilities") or ()
        lines.append(f"capabilities: {', '.join(map(str, capabilities)) or 'none'}")
    lines.append(
        f"no new privileges: {protection.get('no_new_privileges')}; seccomp: {protection.get('seccomp')}"
    )
    body = "".join(f"<div>{escape(clip(line, 500))}</div>" for line in lines if line)
    bad = "" if isolates(protection.get("isolation")) else " lsn-r"
    chip = f"<summary class='lsn-chip{bad}'>{escape(protection_chip(protection))}</summary>"
    return f"<details>{chip}{body}</details>"


def card_html(body: str) -> str:
    """The whole card around its parts."""
    return f"<div class='lsn'>{STYLE}{body}</div>"
