"""The frame of the card as static HTML: what ran where, how it stands, the answer; and its style."""

from __future__ import annotations

import time
from typing import Any

from llm_sandbox_nb.notebook.card_text import (
    clip,
    cost_in_words,
    escape,
    first_line,
    plain,
    size_in_words,
    time_in_words,
)
from llm_sandbox_nb.notebook.markdown import markdown_html
from llm_sandbox_nb.trajectory.trajectory import Trajectory

STYLE = """<style>
.lsn{border:1px solid rgba(128,128,128,.35);border-radius:6px;padding:8px 12px;
 font-size:13px;line-height:1.45}
.lsn.lsn pre{white-space:pre-wrap;overflow-wrap:anywhere;max-height:340px;overflow:auto;margin:4px 0;
 padding:6px 8px;border-radius:4px;background:rgba(128,128,128,.09);font-size:12px;line-height:1.35;
 font-family:var(--jp-code-font-family,ui-monospace,Menlo,Consolas,monospace)}
.lsn.lsn pre.lsn-command{background:rgba(84,132,222,.13)}
.lsn.lsn pre.lsn-stderr{border-left:3px solid rgba(248,81,73,.6)}
.lsn summary{cursor:pointer}
.lsn-head,.lsn-call-head{display:flex;gap:8px;flex-wrap:wrap;align-items:baseline}
.lsn-badge{border-radius:9px;padding:0 8px;background:rgba(128,128,128,.2);white-space:nowrap}
.lsn-quiet{opacity:.72}
.lsn-bad{background:rgba(248,81,73,.18);border-radius:4px;padding:4px 8px;margin:4px 0}
.lsn-step{margin:6px 0 0;padding:4px 0 0;border-top:1px solid rgba(128,128,128,.2)}
.lsn-text{white-space:pre-wrap;overflow-wrap:anywhere;margin:4px 0}
.lsn-call{margin:6px 0 6px 12px}
.lsn-line{opacity:.8;overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
.lsn-artifact{margin:10px 0}
.lsn-answer{border-left:4px solid rgba(46,160,67,.7);padding:2px 12px;margin:10px 0 4px}
.lsn-table{border-collapse:collapse;font-size:12px}
.lsn.lsn td,.lsn.lsn th{border:1px solid rgba(128,128,128,.35);padding:1px 6px;text-align:left}
</style>"""

ENDINGS = {
    "submitted": "submitted",
    "answered": "answered without submitting",
    "steps": "stopped: no steps left",
    "tokens": "stopped: no tokens left",
    "cost": "stopped: the budget is spent",
    "time": "stopped: the time is over",
    "interrupted": "interrupted",
    "model_error": "stopped: the model failed",
    "sandbox_lost": "stopped: the sandbox was lost",
    "error": "stopped by an error",
}
_GOOD, _BAD, _BUSY = "rgba(46,160,67,.25)", "rgba(248,81,73,.25)", "rgba(84,132,222,.25)"


def state_words(trajectory: Trajectory, *, live: bool) -> str:
    """How the run stands or ended."""
    if trajectory.stop_reason:
        return ENDINGS.get(trajectory.stop_reason, trajectory.stop_reason)
    return "running" if live else "the record ends here: the run was killed"


def number_words(trajectory: Trajectory) -> list[str]:
    """Steps, tokens, cost and time in words."""
    steps, usage = len(trajectory.steps), trajectory.usage
    words = [f"{steps} step{'' if steps == 1 else 's'}"]
    if usage.total_tokens:
        words += [f"{usage.total_tokens:,} tokens", cost_in_words(usage.cost)]
    return [*words, time_in_words(_seconds(trajectory))]


def _seconds(trajectory: Trajectory) -> float:
    if trajectory.finish:
        return trajectory.finish.wall_time
    return max(0.0, time.time() - trajectory.start.time) if trajectory.start else 0.0


def header_html(trajectory: Trajectory, *, live: bool) -> str:
    """One line: state, model, steps, tokens, cost, time; and what the run stopped for."""
    start, finish = trajectory.start, trajectory.finish
    tint = (
        _BUSY
        if live and not finish
        else _GOOD
        if trajectory.stop_reason in ("submitted", "answered")
        else _BAD
    )
    state = f"<b class='lsn-badge' style='background:{tint}'>{escape(state_words(trajectory, live=live))}</b>"
    model = f"<b>{escape(start.model)}</b>" if start else "starting"
    scripted = (
        f"<span class='lsn-badge' title='{_SCRIPTED}'>scripted</span>" if start and start.scripted else ""
    )
    numbers = f"<span class='lsn-quiet'>{' · '.join(number_words(trajectory))}</span>"
    error = (
        f"<div class='lsn-bad'>{escape(clip(finish.error, 2_000))}</div>" if finish and finish.error else ""
    )
    return f"<div class='lsn-head'>{state} {model} {scripted} {numbers}</div>{error}"


_SCRIPTED = "The turns are read from a file; no model was asked."


def protection_words(protection: dict[str, Any]) -> str:
    """What is in force around the sandbox, in one line."""
    limits = [str(protection.get("isolation")), str(protection.get("profile") or "")]
    limits.append(f"user {protection.get('user')}")
    limits.append(f"network {protection.get('network')}")
    if isinstance(memory := protection.get("memory_bytes"), int):
        limits.append(f"{size_in_words(memory)} memory")
    if pids := protection.get("pids"):
        limits.append(f"{pids} processes")
    if cpus := protection.get("cpus"):
        limits.append(f"{cpus:g} CPUs" if isinstance(cpus, int | float) else f"{cpus} CPUs")
    return plain(" · ".join(filter(None, limits)))


def protection_html(protection: dict[str, Any]) -> str:
    """One line that unfolds to what is protected and what is not."""
    lines = [str(protection.get(key) or "") for key in ("protects", "does_not_protect")]
    details = protection.get("details")
    details = details if isinstance(details, dict) else {}
    lines += [f"{name}: {value}" for name, value in details.items()]
    if "capabilities" not in details:
        capabilities = protection.get("capabilities") or ()
        lines.append(f"capabilities: {', '.join(map(str, capabilities)) or 'none'}")
    lines.append(
        f"no new privileges: {protection.get('no_new_privileges')}; seccomp: {protection.get('seccomp')}"
    )
    body = "".join(f"<div>{escape(clip(line, 500))}</div>" for line in lines if line)
    bad = "lsn-bad" if protection.get("isolation") == "process" else "lsn-quiet"
    return f"<details class='{bad}'><summary>{escape(protection_words(protection))}</summary>{body}</details>"


def task_html(task: str, limit: int) -> str:
    """The task: in one line when it is short, else folded."""
    if len(task) <= 160 and "\n" not in task.strip():
        return f"<div class='lsn-text'><b>Task</b> {escape(task.strip())}</div>"
    summary = f"<summary><b>Task</b> {escape(first_line(plain(task[:1_000])))}</summary>"
    return f"<details>{summary}<div class='lsn-text'>{escape(clip(task, limit))}</div></details>"


def answer_html(answer: str | None, limit: int) -> str:
    """The answer, read as Markdown."""
    if not answer:
        return ""
    return f"<div class='lsn-answer'>{markdown_html(clip(answer, limit))}</div>"


def card_html(body: str) -> str:
    """The whole card around its parts."""
    return f"<div class='lsn'>{STYLE}{body}</div>"
