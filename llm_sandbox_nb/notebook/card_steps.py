"""The steps of a run as static HTML: thought, tool calls with their output, and what they changed."""

from __future__ import annotations

import json

from llm_sandbox_nb.notebook.card_decisions import of_a_call
from llm_sandbox_nb.notebook.card_text import clip, escape, first_line, plain, size_in_words, time_in_words
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.trajectory import Call, Step

_GOOD, _BAD = "rgba(46,160,67,.18)", "rgba(248,81,73,.18)"
_SHORT_DIFF = 16
"""Lines of a diff that is not folded."""
_TINTS = {"+": _GOOD, "-": _BAD, "@": "rgba(84,132,222,.18)"}


def is_closed(step: Step) -> bool:
    """Whether nothing more can come of the step by itself: it may be rendered once and kept."""
    return step.replied and all(call.finished for call in step.calls)


def step_html(step: Step, *, limit: int, unfolded: bool = True) -> str:
    """The step whole; each text in it at most about `limit` characters."""
    parts = [_reasoning(step, limit), _thought(step, limit)]
    parts += [_failure(failure) for failure in step.failures]
    parts += [_call_html(call, limit) for call in step.calls]
    saved = {artifact.path: artifact.size for artifact in step.artifacts}
    parts += [f"<div class='lsn-quiet'>saved {_file(path, size)}</div>" for path, size in saved.items()]
    state = " open" if unfolded else ""
    return f"<details class='lsn-step'{state}><summary>{_title(step)}</summary>{''.join(parts)}</details>"


def step_line(step: Step) -> str:
    """The step in one line."""
    words = first_line(plain(step.thought[:400]), 100) or ", ".join(
        _call_in_words(call) for call in step.calls
    )
    return f"<div class='lsn-line'><b>Step {step.number}</b> {escape(first_line(words, 120))}</div>"


def _title(step: Step) -> str:
    numbers = [time_in_words(step.model_time)] if step.model_time else []
    if step.usage:
        numbers.append(f"{step.usage.total_tokens:,} tokens")
    return f"<b>Step {step.number}</b> <span class='lsn-quiet'>{' · '.join(numbers)}</span>"


def _reasoning(step: Step, limit: int) -> str:
    if not step.reasoning:
        return ""
    summary = f"<summary class='lsn-quiet'>reasoning, {len(step.reasoning):,} characters</summary>"
    return (
        f"<details>{summary}<div class='lsn-text lsn-quiet'>{_clipped(step.reasoning, limit)}</div></details>"
    )


def _thought(step: Step, limit: int) -> str:
    if not step.thought.strip():
        waiting = not step.replied and not step.reasoning and not step.failures
        return "<div class='lsn-quiet'>waiting for the model …</div>" if waiting else ""
    return f"<div class='lsn-text' style='white-space:pre-wrap'>{_clipped(step.thought.strip(), limit)}</div>"


def _failure(failure: ev.ModelFailed) -> str:
    again = "" if failure.retry_in is None else f" Trying again in {time_in_words(failure.retry_in)}."
    return f"<div class='lsn-bad'>The model's answer failed: {_clipped(failure.message, 1_000)}{again}</div>"


def _clipped(text: str, limit: int) -> str:
    return escape(clip(text, limit))


def _call_html(call: Call, limit: int) -> str:
    head = (
        f"<div class='lsn-call-head'><code>{escape(call.tool)}</code>{_headline(call)} {_outcome(call)}</div>"
    )
    result = call.result
    shown = _command(call, limit) + (
        _running(call, limit) if result is None else _result(call, result, limit)
    )
    decided = "".join(_decision(call, one, limit) for one in call.decisions)
    return f"<div class='lsn-call'>{head}{shown}{decided}</div>"


def _decision(call: Call, decided: ev.CallDecided, limit: int) -> str:
    words = of_a_call(decided)
    if not words:
        return ""
    detail = {"edit": call.raw_arguments, "observe": decided.observation}.get(decided.action) or ""
    return f"<div class='lsn-quiet'>{words}</div>{_pre(detail, limit) if detail else ''}"


def _command(call: Call, limit: int) -> str:
    arguments = call.arguments
    if arguments is None:
        return _pre(call.raw_arguments, limit)
    if call.tool == "execute_bash" and isinstance(arguments.get("command"), str):
        return _pre(arguments["command"], limit, "lsn-command")
    hidden = _IN_THE_HEAD | (_IN_THE_DIFF if call.changes else set())
    told = {name: value for name, value in arguments.items() if name not in hidden or not _is_edit(call)}
    return _pre(json.dumps(told, ensure_ascii=False, indent=1), limit, "lsn-command") if told else ""


_IN_THE_HEAD = {"command", "path"}
_IN_THE_DIFF = {"file_text", "old_str", "new_str"}


def _is_edit(call: Call) -> bool:
    return call.tool == "str_replace_editor"


def _headline(call: Call) -> str:
    """What the editor is to do, in words, for it has no command line."""
    if not _is_edit(call) or not call.arguments:
        return ""
    command, path = (str(call.arguments.get(name, "")) for name in ("command", "path"))
    return f" {escape(first_line(command))} <code>{escape(first_line(path, 200))}</code>"


def _outcome(call: Call) -> str:
    result = call.result
    if result is None:
        return (
            "<span class='lsn-quiet'>running</span>"
            if call.started
            else "<span class='lsn-quiet'>waiting</span>"
        )
    if result.timed_out:
        words, tint = "timed out", _BAD
    elif result.error:
        words, tint = result.error.replace("_", " "), _BAD
    elif result.exit_code is None:
        words, tint = "done", _GOOD
    else:
        words, tint = f"exit {result.exit_code}", _BAD if result.exit_code else _GOOD
    badge = f"<span class='lsn-badge' style='background:{tint}'>{escape(first_line(words))}</span>"
    return f"{badge} <span class='lsn-quiet'>{time_in_words(result.duration)}</span>"


def _running(call: Call, limit: int) -> str:
    tail = call.live_output[-limit:]
    return _pre(tail, limit, "lsn-output") if tail else ""


def _result(call: Call, result: ev.CallFinished, limit: int) -> str:
    streams = [(_text(result.stdout), "lsn-output"), (_text(result.stderr), "lsn-output lsn-stderr")]
    parts = [_pre(text, limit, css) for text, css in streams if text.strip()]
    says_it_all = call.tool == "submit" and not result.error
    if not parts and (call.tool != "execute_bash" or result.error) and not result.changes and not says_it_all:
        parts = [_pre(result.observation, limit, "lsn-output")]
    if result.notice:
        parts.append(f"<div class='lsn-quiet'>{escape(result.notice)}</div>")
    parts += [_change(change, limit) for change in result.changes]
    if result.changes_incomplete:
        parts.append(f"<div class='lsn-quiet'>{escape(result.changes_incomplete)}</div>")
    return "".join(parts)


def _text(text: ev.Text) -> str:
    if isinstance(text, str):
        return text
    return f"{text.preview}\n… the whole output, {size_in_words(text.size)}, is kept in the run's folder …"


def _pre(text: str, limit: int, css: str = "lsn-output") -> str:
    return f"<pre class='{css}'>{_clipped(text.rstrip(), limit)}</pre>"


def _file(path: str, size: int) -> str:
    return f"<code>{escape(path)}</code> ({size_in_words(size)})"


def _change(change: ev.FileDiff, limit: int) -> str:
    title = f"{change.kind} {_file(change.path, change.size)} {escape(change.note)}"
    if not change.diff:
        return f"<div class='lsn-quiet'>{title}</div>"
    lines = clip(change.diff, limit).rstrip("\n").split("\n")
    body = "".join(_diff_line(line) for line in lines if not line.startswith(("--- ", "+++ ")))
    state = " open" if len(lines) <= _SHORT_DIFF else ""
    return f"<details{state}><summary>{title}</summary><pre class='lsn-output'>{body}</pre></details>"


def _diff_line(line: str) -> str:
    tint = _TINTS.get(line[:1])
    return f"<span style='background:{tint}'>{escape(line)}</span>\n" if tint else f"{escape(line)}\n"


def _call_in_words(call: Call) -> str:
    command = (call.arguments or {}).get("command")
    return f"{call.tool} {first_line(plain(str(command)[:400]), 80)}" if command else call.tool
