"""The steps of a run as static HTML: a line for each, and behind it the thought, the calls and what they changed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

from llm_sandbox_nb.agent.tools.toolbox import call_view
from llm_sandbox_nb.card.text import escape
from llm_sandbox_nb.formatting import TAIL, clip, format_duration, format_size, plural
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.events import CallDecided, Controlled
from llm_sandbox_nb.trajectory.step_line import (
    ending,
    failed,
    first_sentence,
    headline,
    path_below,
    shown_text,
    step_failed,
    step_line,
    tool_kind,
)
from llm_sandbox_nb.trajectory.trajectory import Call, Step

_HEAD, _ERRORS, _SPARE = 5, 40, 5
"""Lines that are visible at the beginning of an output, at the end of errors, and that are not worth hiding."""
_SHORT_DIFF = 40
"""Lines of a diff that is not folded."""
_ICONS = {"bash": "$", "edit": "✎", "submit": "✓", "other": "•", "none": "•"}
_HUNK = re.compile(r"@@ -\d+(?:,\d+)? \+(\d+)(?:,\d+)? @@")


_CONTROLS = {
    "pause": "A person asked for a pause.",
    "paused": "The run paused.",
    "resume": "A person resumed the run.",
    "step": "A person let the run take one step.",
    "stop": "A person stopped the run.",
}


def control_lines(controls: Iterable[Controlled]) -> list[str]:
    """One line for each decision on the whole run."""
    return [_CONTROLS.get(one.action) or f"A person said: {one.text}" for one in controls]


_DECISIONS = {
    "edit": "A person changed this call. The model had proposed:",
    "skip": "A person skipped this call and showed the model a text in its place.",
    "observe": "A person showed the model this in place of the result:",
}


def decision_text(decided: CallDecided) -> str:
    """A person's decision on a call, as a sentence; empty when the call was executed unchanged."""
    return _DECISIONS.get(decided.action, "")


def is_closed(step: Step) -> bool:
    """Whether the step is complete: it may be rendered once and kept."""
    return step.replied and all(call.finished for call in step.calls)


def matters(step: Step) -> bool:
    """Whether the step stays open in a long run: it failed, or a person decided something in it."""
    decisions = [decided for call in step.calls for decided in call.decisions]
    return step_failed(step) or any(decided.action != "run" for decided in decisions)


def step_html(step: Step, root: str, *, limit: int, anchor: str = "", unfolded: bool = True) -> str:
    """The step: its line, and behind it all of it; each text at most about `limit` characters.

    `root` is the folder in which the run works, `anchor` the id of the element.
    """
    parts = [_reasoning(step, limit), _thought(step, limit)]
    for failure in step.failures:
        again = "" if failure.retry_in is None else f" Trying again in {format_duration(failure.retry_in)}."
        parts.append(f"<div class='lsn-bad'>{_clipped(failure.message, 1_000)}{again}</div>")
    parts += [_call_html(call, root, limit, alone=len(step.calls) == 1) for call in step.calls]
    state = " open" if unfolded else ""
    place = f" id='{anchor}'" if anchor else ""
    return (
        f"<details{place}{state}><summary class='lsn-row'>{_row(step, root)}</summary>"
        f"<div class='lsn-open'>{''.join(parts)}</div></details>"
    )


def step_row(step: Step, root: str, anchor: str = "") -> str:
    """The step in one line."""
    place = f" id='{anchor}'" if anchor else ""
    return f"<div class='lsn-row'{place}>{_row(step, root)}</div>"


def _row(step: Step, root: str) -> str:
    """Spaces stand between all parts, for where a style sheet is not allowed."""
    line = step_line(step, root)
    tint = " lsn-x" if step_failed(step) else "" if line.tool == "bash" else f" lsn-{line.tool}"
    what = f"<code>{escape(line.what)}</code>" if line.what else ""
    words = f"<span class='lsn-said'>{escape(line.thought)}</span> {what}{_counts(line.added, line.removed)}"
    shown = " ".join(_chip(chip) for chip in line.chips)
    if any(not call.finished for call in step.calls):
        shown += f" <span class='lsn-quiet'>{'running' if step.calls[0].started else 'waiting'}</span>"
    icon = f"<span class='lsn-i{tint}'>{_ICONS[line.tool]}</span>"
    return (
        f"<span class='lsn-n'>{step.number}</span> {icon} <span class='lsn-what'>{words}</span> {shown} "
        f"<span class='lsn-fig'>{escape(line.figures)}</span>"
    )


def _chip(chip: ev.Chip) -> str:
    tint = {"bad": " lsn-r", "human": " lsn-y"}.get(chip.kind, "")
    counts = _counts(chip.added, chip.removed)
    return f"<span class='lsn-chip{tint}'>{escape(chip.text)}{counts}</span>"


def _counts(added: int, removed: int) -> str:
    plus = f" <span class='lsn-add'>+{added}</span>" if added else ""
    return f"{plus} <span class='lsn-del'>−{removed}</span>" if removed else plus


def _reasoning(step: Step, limit: int) -> str:
    if not step.reasoning:
        return ""
    summary = f"<summary class='lsn-quiet'>Reasoning, {plural(len(step.reasoning), 'character')}</summary>"
    return f"<details>{summary}<div class='lsn-text'>{_clipped(step.reasoning, limit)}</div></details>"


def _thought(step: Step, limit: int) -> str:
    """The message, unless the step's line has all of it."""
    text = step.thought.strip()
    if not text or text.rstrip(".:") == first_sentence(text).rstrip(".:"):
        return ""
    return f"<div class='lsn-text'>{_clipped(text, limit)}</div>"


def _clipped(text: str, limit: int) -> str:
    return escape(clip(text, limit))


def _call_html(call: Call, root: str, limit: int, *, alone: bool) -> str:
    plain = alone or call.changes or tool_kind(call.tool) == "bash"
    title = "" if plain else f"<div><code>{escape(headline(call, root))}</code></div>"
    result = call.result
    if result is None:
        tail = call.live_output[-limit:]
        shown = _output(tail, limit) if tail else ""
    else:
        shown = _result(call, result, root, limit)
    decided = "".join(_decision(call, one, limit) for one in call.decisions)
    return f"{title}{_command(call, root if alone else None, limit)}{shown}{decided}"


def _decision(call: Call, decided: ev.CallDecided, limit: int) -> str:
    text = decision_text(decided)
    if not text:
        return ""
    detail = {"edit": call.raw_arguments, "observe": decided.observation}.get(decided.action) or ""
    return f"<div class='lsn-human'>{text}</div>{_pre(clip(detail, limit)) if detail else ''}"


def _command(call: Call, root: str | None, limit: int) -> str:
    """What was executed, as far as no diff shows it, nor the step's line, which has it when `root` is given."""
    arguments, kind = call.arguments, tool_kind(call.tool)
    if arguments is None:
        return _pre(clip(call.raw_arguments, limit), "lsn-command")
    view = call_view(call.tool)
    if isinstance(command := arguments.get(view.command), str):
        said = root is not None and command.strip() == headline(call, root)
        return "" if said else _pre(clip(command, limit), "lsn-command")
    hidden = view.headline + (view.in_diff if call.changes else ())
    shown = {name: value for name, value in arguments.items() if name not in hidden}
    if not shown:
        return ""
    if kind == "edit" and all(isinstance(value, str) for value in shown.values()):
        text = "\n".join(
            f"{name}:\n{value}" if len(shown) > 1 else str(value) for name, value in shown.items()
        )
    else:
        text = json.dumps(shown, ensure_ascii=False, indent=1)
    return _pre(clip(text, limit), "lsn-command")


_AROUND = re.compile(
    r"\AExit code: -?\d+\n?|\AExecution output of \\?\[[^\]\n]*\]:\n?|\(no output\)\s*\Z"
    r"|\n*\[Steps remaining: -?\d+\](?:\n[^\n]*)?\s*\Z"
)


def _result(call: Call, result: ev.CallFinished, root: str, limit: int) -> str:
    streams = [_stream(result.stdout, limit, TAIL), _stream(result.stderr, limit, _ERRORS, "lsn-stderr")]
    parts = [part for part in streams if part]
    complete = call_view(call.tool).hide_observation and not result.error
    if not parts and not result.changes and not complete:
        # What the model was shown, without what the row and the facts say.
        text = result.observation if call.decisions else _AROUND.sub("", result.observation).strip()
        parts = [_output(text, limit, TAIL, "lsn-stderr" if result.error else "")] if text else []
    if failed(call):
        took = f" · {format_duration(result.duration)}" if result.duration else ""
        parts.append(f"<div class='lsn-end'>{escape(ending(result))}{took}</div>")
    if result.notice:
        parts.append(f"<div class='lsn-quiet'>{escape(result.notice)}</div>")
    parts += [_change(call, change, root, limit) for change in result.changes]
    if result.changes_incomplete:
        parts.append(f"<div class='lsn-quiet'>{escape(result.changes_incomplete)}</div>")
    return "".join(parts)


def _stream(text: ev.Text, limit: int, tail: int, css: str = "") -> str:
    shown = shown_text(text)
    if not shown.strip():
        return ""
    whole = (
        ""
        if isinstance(text, str)
        else f"<div class='lsn-quiet'>The whole output, {format_size(text.size)}, is in the run's folder.</div>"
    )
    return _output(shown, limit, tail, css) + whole


def _output(text: str, limit: int, tail: int = TAIL, css: str = "") -> str:
    """An output: its first lines and its end are visible, the lines between them unfold."""
    text = text.rstrip("\n")
    lines = clip(text, limit).split("\n")
    if len(lines) <= _HEAD + tail + _SPARE:
        return _pre("\n".join(lines), css)
    head, middle, end = lines[:_HEAD], lines[_HEAD:-tail], lines[-tail:]
    hidden = text.count("\n") + 1 - _HEAD - tail
    summary = f"<summary class='lsn-cut'>... {plural(hidden, 'line')} hidden ...</summary>"
    unfolds = f"<details>{summary}{_pre(chr(10).join(middle), css)}</details>"
    return _pre("\n".join(head), css) + unfolds + _pre("\n".join(end), css)


def _pre(text: str, css: str = "") -> str:
    css = f" class='{css}'" if css else ""
    return f"<pre{css}>{escape(text.rstrip())}</pre>"


_KINDS = {"added": "Created", "modified": "Changed", "deleted": "Deleted"}


def _change(call: Call, change: ev.FileDiff, root: str, limit: int) -> str:
    path = f"<code>{escape(path_below(change.path, root))}</code>"
    size = f"<span class='lsn-quiet'>{format_size(change.size)}</span>"
    title = f"{_KINDS.get(change.kind, '')} {path} {size} {escape(change.note)}".rstrip()
    if not change.diff or _written_by(call, change):
        return f"<div>{title}</div>"
    lines = clip(change.diff, limit).rstrip("\n").split("\n")
    body = "".join(_diff_lines(lines, created=change.kind == "added"))
    state = " open" if len(lines) <= _SHORT_DIFF else ""
    return f"<details{state}><summary>{title}</summary><pre>{body}</pre></details>"


def _written_by(call: Call, change: ev.FileDiff) -> bool:
    """Whether the command that is shown has all of a file that it created, as `cat > file <<END` has."""
    command = (call.arguments or {}).get(call_view(call.tool).command)
    if change.kind != "added" or not isinstance(command, str) or not change.diff:
        return False
    lines = [line[1:] for line in change.diff.split("\n") if line[:1] == "+" and line[:4] != "+++ "]
    return bool(lines) and "\n".join(lines) in command


def _diff_lines(lines: list[str], *, created: bool) -> Iterator[str]:
    for place, line in enumerate(lines):
        if place < 2 and line.startswith(("--- ", "+++ ")):
            continue
        if hunk := _HUNK.match(line):
            if not created:
                yield f"<span class='lsn-quiet'>line {hunk[1]}</span>\n"
            continue
        tint = {"+": "lsn-a", "-": "lsn-d"}.get(line[:1])
        yield f"<span class='{tint}'>{escape(line)}</span>\n" if tint else f"{escape(line)}\n"
