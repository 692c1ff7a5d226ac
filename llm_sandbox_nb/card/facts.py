"""The facts of a run on its card: steps, tokens, time, model, cost, protection, first error, changed files.

In JupyterLab, `labextension/src/view/facts.ts` shows these facts, and also the reward, the notes and the used part of
the budget. In a terminal, `cli/printer.py` prints some of them. The sum of the tokens is `events.Usage.total_tokens`.
The tokens of one step are in `trajectory/step_line.py`, `view/step-line.ts` and `view/timeline.ts`, and those of
compared runs in `view/compare.ts` and `runs/comparison_drawing.py`.

A test in test_card.py and one in labextension/tests/view.test.mjs expect the same line: change both.
"""

from __future__ import annotations

import hashlib
import time
from typing import Any

from llm_sandbox_nb.card.text import escape
from llm_sandbox_nb.formatting import clip, format_duration, format_short, format_spent, plural
from llm_sandbox_nb.plain_text import first_line, plain
from llm_sandbox_nb.trajectory.protection import is_isolated, protection_chip, protection_text
from llm_sandbox_nb.trajectory.trajectory import Trajectory


def facts_html(trajectory: Trajectory, *, live: bool) -> str:
    """Return one line: steps, tokens, time, cost, protection, the first error, and the number of changed files."""
    parts = [f"<span>{escape(' · '.join(figures(trajectory)))}</span>"]
    if trajectory.sandbox:
        parts.append(_protection_html(trajectory.sandbox.protection))
    for number, words in findings(trajectory):
        if number and not live:
            link = f"href='#{step_anchor(trajectory, number)}'"
            parts.append(f"<a class='lsn-chip lsn-r' {link}>{words} →</a>")
        else:
            parts.append(f"<span class='lsn-chip{' lsn-r' if number else ''}'>{words}</span>")
    return f"<div class='lsn-facts'>{' '.join(parts)}</div>"


def findings(trajectory: Trajectory) -> list[tuple[int, str]]:
    """Return pairs of step number and text: one for the first error, and one with step 0 for the changed files."""
    unanswered = (step.number for step in trajectory.steps[-1:] if step.failures and not step.replied)
    number = trajectory.first_failure or next(unanswered, 0)
    changed = len(trajectory.changed_paths)
    found = [(number, f"First error: step {number}")] if number else []
    return found + ([(0, f"{plural(changed, 'file')} changed")] if changed else [])


def figures(trajectory: Trajectory) -> list[str]:
    """Return texts about steps, tokens, time, model and cost, as far as they are known."""
    usage = trajectory.usage
    parts = [plural(trajectory.steps_done, "step")]
    if usage.total_tokens:
        parts.append(
            f"{format_short(usage.total_tokens)} {'token' if usage.total_tokens == 1 else 'tokens'} in all"
        )
    if seconds := _seconds(trajectory):
        parts.append(format_duration(seconds))
    if name := first_line(plain(trajectory.model), 60):
        parts.append(name)
    if trajectory.scripted:
        parts.append("scripted: free")
    elif usage.total_tokens:
        budget = trajectory.budget
        parts.append(format_spent(usage.cost if budget is None else trajectory.total_usage.cost, budget))
    return parts


def _seconds(trajectory: Trajectory) -> float:
    """Return the duration of the run so far in seconds; 0 if the start of the run is not recorded."""
    if trajectory.finish:
        return trajectory.finish.wall_time
    return max(0.0, time.time() - trajectory.start.time) if trajectory.start else 0.0


def step_anchor(trajectory: Trajectory, number: int) -> str:
    """Return the HTML id of a step. The id differs from run to run, and contains no text of a model."""
    run = trajectory.start.run_id if trajectory.start else ""
    return f"lsn-{hashlib.sha256(run.encode('utf-8', 'replace')).hexdigest()[:10]}-{number}"


def _protection_html(protection: dict[str, Any]) -> str:
    """Return a chip that unfolds to the protections of the sandbox and their gaps."""
    lines = [protection_text(protection), *(protection.get(key) for key in ("protects", "does_not_protect"))]
    body = "".join(f"<div>{escape(clip(str(line), 500))}</div>" for line in lines if line)
    bad = "" if is_isolated(protection) else " lsn-r"
    chip = f"<summary class='lsn-chip{bad}'>{escape(protection_chip(protection))}</summary>"
    return f"<details>{chip}{body}</details>"
