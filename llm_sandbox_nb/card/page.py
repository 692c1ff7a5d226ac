"""The card as static HTML: its style, state and task, answer or reason of failure, files, facts, a line for a step."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from llm_sandbox_nb.card.outcome import Tally, figures
from llm_sandbox_nb.card.text import escape, markdown_html
from llm_sandbox_nb.formatting import TAIL, clip, plural
from llm_sandbox_nb.plain_text import first_line, plain
from llm_sandbox_nb.sandbox.isolations import isolates
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.doubts.rules import doubts_of
from llm_sandbox_nb.trajectory.protection import protection_chip, protection_text
from llm_sandbox_nb.trajectory.step_line import step_failed, step_line
from llm_sandbox_nb.trajectory.trajectory import Step, Trajectory

_SIGNS = {"ok": "#2da44e", "bad": "#e5534b", "wait": "#bf8700", "run": "#3b78c4", "away": "#e5534b"}
"""Of the sign before the state: seen on a light page and on a dark one, also where no style sheet is allowed."""
_TINTS = {"bad": " lsn-r", "human": " lsn-y"}
_ICONS = {"bash": "$", "edit": "✎", "submit": "✓"}
_STEPS = 200
"""Steps listed; the ones before are counted, and are in the record."""
_LIVE_STEPS = 15
_SHOWN = 12
"""Files that are shown at once; the others are folded."""


def run_html(
    trajectory: Trajectory, tally: Tally, files: list[str], notes: list[str], *, limit: int, live: bool
) -> str:
    """The whole card; `files` are figures, each text has about `limit` characters at most."""
    steps, hidden = listed_steps(trajectory, live=live)
    before = f"<div class='lsn-row lsn-quiet'>{plural(hidden, 'step')} before</div>" if hidden else ""
    said = "".join(f"<div class='lsn-quiet'>{escape(clip(note, 500))}</div>" for note in notes)
    parts = [
        header_html(trajectory, limit, live=live),
        result_html(trajectory, limit),
        doubts_html(trajectory, live=live),
        files_html(files),
        facts_html(trajectory, tally, live=live),
        before,
        *(step_row(trajectory, step, live=live) for step in steps),
        _output_html(trajectory, limit) if live else "",
        f"<div class='lsn-notes'>{said}</div>" if said else "",
    ]
    return card_html("".join(parts))


def header_html(trajectory: Trajectory, limit: int, *, live: bool) -> str:
    """One line: the state of the run and its task, which unfolds when it is longer."""
    state = trajectory.state(live=live)
    sign = f"<span style='color:{_SIGNS[state.meaning]}'>●</span>"
    task = _task(trajectory.start.task, limit) if trajectory.start else ""
    return f"<div class='lsn-head'>{sign} <b>{escape(first_line(state.words, 100))}</b> {task}</div>"


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


def doubts_html(trajectory: Trajectory, *, live: bool) -> str:
    """Doubts in one line, each a link to its step."""
    parts = []
    for doubt in doubts_of(trajectory):
        said = escape(doubt.line)
        linked = doubt.step is not None and not live and trajectory.step(doubt.step) is not None
        parts.append(f"<a href='#{step_anchor(trajectory, doubt.step or 0)}'>{said}</a>" if linked else said)
    return f"<div class='lsn-doubts'>Doubts: {' · '.join(parts)}</div>" if parts else ""


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


def listed_steps(trajectory: Trajectory, *, live: bool) -> tuple[list[Step], int]:
    """The steps that are listed, and how many there are before them."""
    steps = trajectory.steps[-_LIVE_STEPS if live else -_STEPS :]
    return steps, len(trajectory.steps) - len(steps)


def shown_line(trajectory: Trajectory, step: Step, *, live: bool) -> ev.StepLine:
    """The line of a step; `live`: the last one may go on."""
    running = live and trajectory.finish is None and step is trajectory.steps[-1]
    return step_line(step, trajectory.root, running=running)


def step_row(trajectory: Trajectory, step: Step, *, live: bool) -> str:
    """A step in one line. Spaces stand between all parts, for where a style sheet is not allowed."""
    line = shown_line(trajectory, step, live=live)
    tint = " lsn-x" if step_failed(step) else "" if line.tool == "bash" else f" lsn-{line.tool}"
    what = f"<code>{escape(line.what)}</code>" if line.what else ""
    words = f"<span class='lsn-said'>{escape(line.thought)}</span> {what}{_counts(line.added, line.removed)}"
    chips = "".join(f" {_chip(chip)}" for chip in line.chips)
    return (
        f"<div class='lsn-row' id='{step_anchor(trajectory, step.number)}'><span class='lsn-n'>{step.number}</span> "
        f"<span class='lsn-i{tint}'>{_ICONS.get(line.tool, '•')}</span> <span class='lsn-what'>{words}</span>{chips} "
        f"<span class='lsn-fig'>{escape(line.figures)}</span></div>"
    )


def _chip(chip: ev.Chip) -> str:
    counts = _counts(chip.added, chip.removed)
    return f"<span class='lsn-chip{_TINTS.get(chip.kind, '')}'>{escape(chip.text)}{counts}</span>"


def _counts(added: int, removed: int) -> str:
    plus = f" <span class='lsn-add'>+{added}</span>" if added else ""
    return f"{plus} <span class='lsn-del'>−{removed}</span>" if removed else plus


def _output_html(trajectory: Trajectory, limit: int) -> str:
    """The end of what the running call has written so far."""
    calls = trajectory.steps[-1].calls if trajectory.steps else []
    tail = next((call.live_output for call in calls if call.live_output and not call.finished), "")[-limit:]
    lines = tail.rstrip("\n").split("\n")[-TAIL:]
    return f"<pre>{escape(chr(10).join(lines))}</pre>" if tail.strip() else ""


def card_html(body: str) -> str:
    """The whole card around its parts."""
    return f"<div class='lsn'>{STYLE}{body}</div>"


# JupyterLab, Notebook, nbconvert and VS Code say which theme they have; elsewhere the system does. The card has a
# background of its own, so that its text can be read where neither does. Its rules are nested in it (CSS Nesting,
# in browsers since 2023): the live view beside it has classes of the same names.
_RULES = """
.lsn{color-scheme:light dark;--b:var(--jp-layout-color0,light-dark(#fff,#111417));--l:light-dark(#d0d7de,#30363d);
  --c:light-dark(#f6f8fa,#181c21);--d:light-dark(#eaeef2,#262c34);--q:light-dark(#57606a,#9da7b3);
  --g:light-dark(#1a7f37,#3fb950);--r:light-dark(#cf222e,#ff7b72);
  border:1px solid var(--l);border-radius:8px;overflow:hidden;background:var(--b);
  color:light-dark(#1c2128,#e6edf3);font:13px/1.45 var(--jp-ui-font-family,sans-serif);
  &.lsn pre,&.lsn code{font:12px/1.5 var(--jp-code-font-family,monospace);color:inherit;background:none;padding:0}
  &.lsn pre{white-space:pre-wrap;margin:0;padding:6px 10px;border:1px solid var(--l);background:var(--b)}
  .lsn-bad{border-left:3px solid var(--r);padding:2px 10px;margin:4px 0}
  .lsn-add{color:var(--g)}
  .lsn-del{color:var(--r)}
  .lsn-head{background:var(--c);border-bottom:1px solid var(--l)}
  .lsn-head,.lsn-out,.lsn-notes,.lsn-facts,.lsn-outs{padding:8px 14px}
  .lsn-answer{font-size:15px}
  .lsn-doubts{padding:4px 14px;border-left:3px solid #bf8700;overflow-wrap:anywhere}
  .lsn-doubts a{color:inherit}
  .lsn-bad,.lsn-text{white-space:pre-wrap}
  .lsn-answer,.lsn-bad,.lsn-text,.lsn-chip,&.lsn pre{overflow-wrap:anywhere}
  .lsn-facts,.lsn-outs{display:flex;flex-wrap:wrap;gap:6px 12px}
  .lsn-chip{border-radius:9px;padding:0 8px;background:var(--d);color:inherit}
  .lsn-chip.lsn-r{background:rgba(248,81,73,.2);color:inherit}
  .lsn-head details{display:inline-block}
  .lsn-chip.lsn-y{background:rgba(219,160,20,.25)}
  .lsn-quiet,.lsn-fig,.lsn-n,.lsn-said,.lsn-facts{color:var(--q)}
  .lsn-row{display:flex;gap:8px;align-items:baseline;padding:4px 14px;border-top:1px solid var(--l)}
  .lsn-what,.lsn-row .lsn-chip{overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
  .lsn-what{flex:1;min-width:30%}
  .lsn-n,.lsn-i{min-width:18px;text-align:center;white-space:nowrap}
  .lsn-i{border-radius:4px;color:#fff;background:#3b78c4}
  .lsn-edit{background:#8250df}
  .lsn-submit{background:#1a7f37}
  .lsn-x{background:#cf222e}
  &.lsn .lsn-artifact{margin:0;border:1px solid var(--l);border-radius:6px;overflow:hidden;width:150px;
    background:var(--c)}
  &.lsn .lsn-artifact:has([open]),&.lsn .lsn-whole{width:100%}
  &.lsn .lsn-artifact:has(audio,video){width:300px}
  .lsn-artifact audio,.lsn-artifact video{width:100%}
  .lsn-artifact figcaption,.lsn-artifact summary{padding:2px 8px;overflow:hidden}
  .lsn-artifact figcaption{white-space:nowrap;text-overflow:ellipsis}
  .lsn-artifact :not([open])>summary{list-style:none;height:84px}
  .lsn-artifact :not([open])>summary img{max-height:80px}
  .lsn-artifact :not([open])>summary iframe{width:600px!important;height:336px!important;transform:scale(.23);
    transform-origin:0 0;pointer-events:none}
  .lsn-table{border-collapse:collapse}
  &.lsn td,&.lsn th{border:1px solid var(--l);padding:1px 6px;text-align:left}
}
[data-jp-theme-light=true] .lsn,.vscode-light .lsn{color-scheme:light}
[data-jp-theme-light=false] .lsn,.vscode-dark .lsn{color-scheme:dark}
"""
_PACKED = re.sub(r"\n *", "", _RULES)
STYLE = f"<style>{_PACKED}</style>"
"""To be put into each card: a notebook's outputs know nothing of one another."""
