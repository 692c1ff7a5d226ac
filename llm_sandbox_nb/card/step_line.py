"""A step in one line: what it did, its consequences, its figures; the words are those of the view's `step-line.ts`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from llm_sandbox_nb.agent.tools.toolbox import call_view, ends_run
from llm_sandbox_nb.card.outcome import failed
from llm_sandbox_nb.card.text import first_line, plain
from llm_sandbox_nb.formatting import (
    format_call_failure,
    format_duration,
    format_model_failure,
    format_short,
    shorten,
)
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.trajectory import Call, Step

ToolKind = Literal["bash", "edit", "submit", "other"]
_WORDS = 160
_READ = 4_000
"""Characters looked at of an output to find its last line."""
_DIFF_READ = 64 * 1024
_FILES = 2
"""Chips for files in one line; the rest is counted."""
_DECIDED = {"edit": "edited by you", "skip": "answered by you", "observe": "result changed by you"}
_FOLDER = re.compile(r"\s*cd\s+[^\s;&|]+\s*&&\s*")
_MARKS = re.compile(r"^\s*(?:#+|>|[-*+]|\d+\.)\s+")
_SENTENCE = re.compile(r".{8,}?[.!?:](?=\s|$)")


@dataclass(frozen=True)
class Chip:
    """One consequence of a step."""

    text: str
    kind: Literal["bad", "human", "plain"] = "plain"
    added: int = 0
    removed: int = 0


def tool_kind(call: Call) -> ToolKind:
    """What a call is to a person: a command, an edit, the end, or something else."""
    view = call_view(call.tool)
    if view.command:
        return "bash"
    if view.headline:
        return "edit"
    return "submit" if ends_run(call.tool) or call.tool == "finish" else "other"


def path_below(path: str, root: str) -> str:
    """A path without the folder in which the run works."""
    return path.removeprefix(f"{root}/") if root else path


def headline(call: Call, root: str) -> str:
    """The command without the folder it changes to, or the editor's file; of any other tool its name and arguments."""
    values, kind = call.arguments or {}, tool_kind(call)
    if kind == "submit":
        return "submit"
    if kind == "edit":
        path = path_below(str(values.get("path", "")), root)
        text = f"view {path}" if values.get("command") == "view" else path
    elif kind == "bash":
        command = str(values.get(call_view(call.tool).command, ""))[: 4 * _WORDS]
        text = _FOLDER.sub("", command, count=1) if _FOLDER.match(command) else command
    else:
        told = "; ".join(f"{name}: {str(value)[:_WORDS]}" for name, value in list(values.items())[:8])
        text = f"{call.tool} {told or call.raw_arguments[:_WORDS]}"
    return one_line(text) or one_line(call.raw_arguments)


def line_words(step: Step, root: str) -> tuple[str, str]:
    """What the model said first, and its first call with how many follow; each empty where there is none."""
    call = step.calls[0] if step.calls else None
    said = first_sentence(step.thought or ("" if call else step.reasoning))
    if not (said or call or step.replied or step.failures):
        said = "The model is thinking"
    more = f" and {len(step.calls) - 1} more" if len(step.calls) > 1 else ""
    return said, f"{headline(call, root)}{more}" if call else ""


def one_line(text: str, most: int = _WORDS) -> str:
    """The first line that is not blank, with a mark when there is more."""
    lines = [line for line in plain(text[: 8 * most]).splitlines() if line.strip()]
    line = " ".join(lines[0].split()) if lines else ""
    if len(line) > most:
        return shorten(line, most, "…")
    return f"{line} …" if len(lines) > 1 else line


def first_sentence(text: str, most: int = 90) -> str:
    """The first sentence of what the model wrote, without the marks of Markdown."""
    lines = (_MARKS.sub("", line) for line in plain(text[: 8 * most]).splitlines())
    line = next((line for line in lines if any(letter.isalnum() for letter in line)), "")
    words = re.sub(r"\*\*|__|`", "", line).strip()
    found = _SENTENCE.match(words)
    sentence = found[0].rstrip(".:") if found else words
    return sentence if len(sentence) <= most else f"{sentence[: most - 1].rstrip()}…"


def count_lines(diff: str) -> tuple[int, int]:
    """Lines that a unified diff adds and removes, of its first part when it is long."""
    lines = diff[:_DIFF_READ].split("\n")
    added = sum(line.startswith("+") and not line.startswith("+++") for line in lines)
    return added, sum(line.startswith("-") and not line.startswith("---") for line in lines)


def edited_lines(step: Step) -> tuple[int, int]:
    """Lines that the editor added and removed in the first call of a step."""
    if not step.calls or tool_kind(step.calls[0]) != "edit":
        return 0, 0
    counts = [count_lines(change.diff) for change in step.calls[0].changes if change.diff]
    return sum(added for added, _ in counts), sum(removed for _, removed in counts)


def failure_text(call: Call) -> str:
    """How a call that went wrong ended, and the last line of what it wrote."""
    result = call.result
    assert result is not None
    how = ending(result)
    if result.error == "skipped":
        return how
    if tool_kind(call) == "edit":
        said = last_line(result.observation).removeprefix("Error: ")
    else:
        said = last_line(shown_text(result.stderr)) or last_line(shown_text(result.stdout))
    return f"{how} · {said}" if said else how


def ending(result: ev.CallFinished) -> str:
    """How a call ended, in a few words."""
    if result.timed_out:
        return "Timed out"
    if result.error:
        return first_line(format_call_failure(plain(result.error)), 60)
    return "done" if result.exit_code is None else f"exit {result.exit_code}"


def shown_text(text: ev.Text) -> str:
    """A text, or the part of a large one that is in the record."""
    return text if isinstance(text, str) else text.preview


def last_line(text: str) -> str:
    """The last line that is not blank."""
    lines = plain(text[-_READ:]).splitlines()
    return next((one_line(line, 100) for line in reversed(lines) if line.strip()), "")


def figures(step: Step) -> str:
    """Tokens of the step and its seconds, as far as they are known."""
    tokens = step.usage.total_tokens if step.usage else 0
    seconds = step.model_time + sum(call.result.duration for call in step.calls if call.result)
    done = step.replied and all(call.finished for call in step.calls)
    parts = [format_short(tokens) if tokens else ""]
    parts.append(format_duration(seconds) if done and (seconds or tokens) else "")
    return " · ".join(filter(None, parts))


def chips(step: Step, root: str) -> list[Chip]:
    """The consequences of the step: failures, a person's decisions, files."""
    found = [Chip(failure_text(call), "bad") for call in step.calls if failed(call)][:2]
    actions = dict.fromkeys(decided.action for call in step.calls for decided in call.decisions)
    found += [Chip(_DECIDED[action], "human") for action in actions if action in _DECIDED]
    if step.failures:
        last = step.failures[-1]
        said = format_model_failure(last.error) or one_line(last.message, 60)
        found.append(Chip(f"asked again: {said}") if step.replied else Chip(f"model: {said}", "bad"))
    files = list(_files(step, root))
    found += files[:_FILES]
    return found if len(files) <= _FILES else [*found, Chip(f"and {len(files) - _FILES} more")]


def _files(step: Step, root: str) -> Iterator[Chip]:
    """Files that were saved, and those that a command changed; the editor's stand in front."""
    saved = dict.fromkeys(artifact.path for artifact in step.artifacts)
    edits = {change.path for call in step.calls if tool_kind(call) == "edit" for change in call.changes}
    for path in saved:
        if not any(_same(edit, path) for edit in edits):
            yield Chip(one_line(path.rpartition("/")[2], 60))
    for call in step.calls:
        if tool_kind(call) == "edit":
            continue
        for change in call.changes:
            if any(_same(change.path, path) for path in saved):
                continue
            name = one_line(path_below(change.path, root), 60)
            added, removed = count_lines(change.diff) if change.diff else (0, 0)
            yield Chip(f"{name} ×" if change.kind == "deleted" else name, "plain", added, removed)


def _same(path: str, artifact: str) -> bool:
    """Whether a changed path is that of a saved file, which is named below the output folder."""
    return path == artifact or path.endswith(f"/{artifact}")
