"""The summary of a step in one line: call, consequences, tokens and seconds. It is recorded after the step.

`labextension/src/view/step-line.ts` makes the same line for the running step. The cases in tests/data/runs.json test
both files. `card/page.py`, `card/card.py` and `view/step.ts` draw the line; `calm_steps.py` and `view/calm-steps.ts`
join several steps in one row. To add a part to the line, add a field to `events.StepLine`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final, Literal

from llm_sandbox_nb.formatting import (
    format_call_failure,
    format_duration,
    format_model_failure,
    format_short,
    shorten,
)
from llm_sandbox_nb.plain_text import first_line, plain
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.mcp_calls import tool_places
from llm_sandbox_nb.trajectory.trajectory import Call, Step

ToolKind = Literal["bash", "edit", "submit", "other"]
TOOL_KINDS: Final[dict[str, ToolKind]] = {
    "execute_bash": "bash",
    "str_replace_editor": "edit",
    "submit": "submit",
    "finish": "submit",
}
"""Kinds of calls by tool name. All other tools are `other`. `finish` is the submit tool of other programs."""
DECIDED: Final = {
    "edit": "edited by you",
    "skip": "denied by you",
    "observe": "result changed by you",
    "nobody": "nobody could approve it",
    "mcp": "withdrawn by the agent",
}
"""Words for a decision on a call, by its `decided_how`."""
REDUCED: Final = {
    "mask": "context shortened",
    "summary": "context summarized",
    "repeats": "equal replies left out",
}
"""Words for a conversation that was shortened before the request of a step, by `events.ContextReduced.how`."""
OUTSIDE_AGENT: Final = "outside agent (MCP)"
"""Beginning of the recorded model name in a run of an outside agent."""
THINKING: Final = "The model is thinking"
WAITING_FOR_CALL: Final = "Waiting for a call"
"""Words for the next step of an outside agent. The agent's next call may come at any time, or never."""
NO_REPLY: Final = "No reply"
LIMITS: Final = {
    "words": 160,  # characters of a line
    "sentence": 90,  # characters of the model's first sentence in a line
    "ending": 100,  # characters of the last line of an output
    "name": 60,  # characters of a name
    "output": 4_000,  # characters of an output that are read
    "diff": 64 * 1024,  # characters of a diff that are read
    "files": 2,  # chips for files
    "failures": 2,  # chips for failures
    "changes": 100,  # changes that are read; an installation makes thousands
    "arguments": 8,  # arguments that are read
}
_LINE_CHARACTERS, _NAME_CHARACTERS, _MAX_CHANGES = LIMITS["words"], LIMITS["name"], LIMITS["changes"]
_FOLDER = re.compile(r"\s*cd\s+[^\s;&|]+\s*&&\s*")
_MARKDOWN_MARK_PATTERN = re.compile(r"^\s*(?:#+|>|[-*+]|\d+\.)\s+")
_SENTENCE = re.compile(r".{8,}?[.!?:](?=\s|$)")


def step_line(
    step: Step, root: str, *, running: bool = False, start: ev.RunStarted | None = None
) -> ev.StepLine:
    """Return the recorded line of a step. If no line was recorded, make a line from the step so far.

    Args:
        root: the folder in which the run works.
        running: True if the model may still reply.
        start: the first event of the run, which has the MCP servers of the run.
    """
    if step.line is not None:
        return step.line
    call = step.calls[0] if step.calls else None
    thought = first_sentence(step.thought or ("" if call else step.reasoning))
    if not (thought or call or step.replied or step.failures):
        outside = start is not None and start.model.startswith(OUTSIDE_AGENT)
        thought = (WAITING_FOR_CALL if outside else THINKING) if running else NO_REPLY
    more = f" and {len(step.calls) - 1} more" if len(step.calls) > 1 else ""
    added, removed = _edited_lines(call) if call else (0, 0)
    return ev.StepLine(
        tool=tool_kind(call.tool) if call else "none",
        thought=thought,
        what=f"{headline(call, root)}{more}" if call else "",
        added=added,
        removed=removed,
        chips=_chips(step, root, start),
        figures=_figures(step),
    )


def step_failed(step: Step) -> bool:
    """Return True if a call of the step failed, or if the model failed and gave no reply."""
    return any(failed(call) for call in step.calls) or (not step.replied and bool(step.failures))


def failed(call: Call) -> bool:
    return call.result is not None and call.result.failed


def tool_kind(tool: str) -> ToolKind:
    return TOOL_KINDS.get(tool, "other")


def path_below(path: str, root: str) -> str:
    """Return a path relative to `root`. A path outside `root` is unchanged."""
    return path.removeprefix(f"{root}/") if root else path


def headline(call: Call, root: str) -> str:
    """Describe a call in a few words.

    The words are the command without a leading `cd FOLDER &&`, the edited file, or another tool's name and arguments.
    """
    values, kind = call.arguments or {}, tool_kind(call.tool)
    command = values["command"] if isinstance(values.get("command"), str) else ""
    if kind == "submit":
        return "submit"
    if kind == "edit":
        path = path_below(values["path"], root) if isinstance(values.get("path"), str) else ""
        text = f"view {path}" if command == "view" else path
    elif kind == "bash":
        text = command[: 4 * _LINE_CHARACTERS]  # more than a line, because a long `cd FOLDER &&` is removed
        text = text[found.end() :] if (found := _FOLDER.match(text)) else text
    else:
        given = [f"{name}: {_value(value)}" for name, value in list(values.items())[: LIMITS["arguments"]]]
        values_text = call.raw_arguments[:_LINE_CHARACTERS] if call.arguments is None else "; ".join(given)
        text = f"{call.tool} {values_text}"
    return one_line(text) or one_line(call.raw_arguments)


def _value(value: Any) -> str:
    """Return an argument as JSON, but a text without quotes."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text[:_LINE_CHARACTERS]


def one_line(text: str, most: int = _LINE_CHARACTERS) -> str:
    """Return the first line that is not blank. An ellipsis follows if the text has more than this line."""
    lines = [line for line in plain(text[: 8 * most]).split("\n") if line.strip()]
    line = " ".join(lines[0].split()) if lines else ""
    if len(line) > most:
        return shorten(line, most, "…")
    return f"{line} …" if len(lines) > 1 else line


def first_sentence(text: str, most: int = LIMITS["sentence"]) -> str:
    """Return the first sentence of a text by the model, without Markdown."""
    lines = (_MARKDOWN_MARK_PATTERN.sub("", line) for line in plain(text[: 8 * most]).split("\n"))
    line = next((line for line in lines if any(letter.isalnum() for letter in line)), "")
    words = re.sub(r"\*\*|__|`", "", line).strip()
    found = _SENTENCE.match(words)
    sentence = found[0].rstrip(".:") if found else words
    return sentence if len(sentence) <= most else f"{sentence[: most - 1].rstrip()}…"


def count_lines(diff: str) -> tuple[int, int]:
    """Count the added and removed lines of a unified diff. In a long diff, only lines at the beginning are counted."""
    lines = diff[: LIMITS["diff"]].split("\n")
    added = sum(line.startswith("+") and not line.startswith("+++") for line in lines)
    return added, sum(line.startswith("-") and not line.startswith("---") for line in lines)


def _edited_lines(call: Call) -> tuple[int, int]:
    """Count the lines that an edit added and removed. Use the diff, or else the arguments of the call."""
    if tool_kind(call.tool) != "edit":
        return 0, 0
    counts = [count_lines(change.diff) for change in call.changes[:_MAX_CHANGES] if change.diff]
    if counts or failed(call) or (call.result and call.result.error):
        return sum(added for added, _ in counts), sum(removed for _, removed in counts)
    values = call.arguments or {}
    return _lines(values.get("file_text")) + _lines(values.get("new_str")), _lines(values.get("old_str"))


def _lines(text: Any) -> int:
    return text.removesuffix("\n").count("\n") + 1 if isinstance(text, str) and text else 0


def decided_how(decision: ev.CallDecided) -> str:
    """Return the action of a person's decision, or else the source of a decision that no person made."""
    skipped = decision.action == "skip" and decision.source in DECIDED
    return decision.source if skipped else decision.action


def failure_text(call: Call) -> str:
    """Describe the outcome of a failed call. Include the last line of its output, or of the error message."""
    result = call.result
    assert result is not None
    streams = _last_line(shown_text(result.stderr)) or _last_line(shown_text(result.stdout))
    refused = bool(result.error) and not result.timed_out and result.error not in ("interrupted", "cut_short")
    detail = streams or (_last_line(result.body).removeprefix("Error: ") if refused else "")
    return f"{ending(result)} · {detail}" if detail else ending(result)


def ending(result: ev.CallFinished) -> str:
    """Describe the outcome of a call in a few words."""
    if result.timed_out:
        return "Timed out"
    if result.error:
        return first_line(format_call_failure(plain(result.error)), _NAME_CHARACTERS)
    return "done" if result.exit_code is None else f"exit {result.exit_code}"


def shown_text(text: ev.Text) -> str:
    """Return a text. For a large text, return the preview that the event contains."""
    return text if isinstance(text, str) else text.preview


def _last_line(text: str) -> str:
    lines = plain(text[-LIMITS["output"] :]).split("\n")
    return next((one_line(line, LIMITS["ending"]) for line in reversed(lines) if line.strip()), "")


def _figures(step: Step) -> str:
    tokens = step.usage.total_tokens if step.usage else 0
    done = step.replied and all(call.finished for call in step.calls)
    return figures_text(tokens, step_seconds(step) if done else None)


def step_seconds(step: Step) -> float:
    """Return the seconds that the model and the calls took together."""
    return step.model_time + sum(call.result.duration for call in step.calls if call.result)


def figures_text(tokens: int, seconds: float | None) -> str:
    """Format tokens and seconds as text. `seconds` is None while the step runs."""
    parts = [format_short(tokens) if tokens else ""]
    parts.append(format_duration(seconds) if seconds is not None and (seconds or tokens) else "")
    return " · ".join(filter(None, parts))


def _chips(step: Step, root: str, start: ev.RunStarted | None) -> list[ev.Chip]:
    wrong = [call for call in step.calls if failed(call)]
    found = [ev.Chip(text=failure_text(call), kind="bad") for call in wrong[: LIMITS["failures"]]]
    decided = {decided_how(decision): decision for call in step.calls for decision in call.decisions}
    found += [
        ev.Chip(text=DECIDED[how], kind="human" if how == decision.action else "plain")
        for how, decision in decided.items()
        if how in DECIDED
    ]
    if step.failures:
        last = step.failures[-1]
        reason = format_model_failure(last.error) or one_line(last.message, _NAME_CHARACTERS)
        again = ev.Chip(text=f"asked again: {reason}")
        found.append(again if step.replied else ev.Chip(text=f"model: {reason}", kind="bad"))
    if step.reduced:
        found.append(ev.Chip(text=REDUCED[step.reduced.how]))
    return [*found, *_places(step, start), *_files(step, root)]


def _places(step: Step, start: ev.RunStarted | None) -> list[ev.Chip]:
    """Return a chip for each MCP server that was called, with the place where the server runs."""
    tools = [call.tool for call in step.calls if tool_kind(call.tool) == "other"]
    known = tool_places(start) if tools else {}
    places = dict.fromkeys(known[tool] for tool in tools if tool in known)
    return [ev.Chip(text=one_line(place)) for place in list(places)[: LIMITS["failures"]]]


def _files(step: Step, root: str) -> Iterator[ev.Chip]:
    """Yield chips for saved and changed files, except for the file that the line names."""
    first = step.calls[0] if step.calls and tool_kind(step.calls[0].tool) == "edit" else None
    front = {change.path for change in first.changes[:_MAX_CHANGES]} if first else set()
    saved = list(dict.fromkeys(artifact.path for artifact in step.artifacts))
    chips = [
        ev.Chip(text=one_line(path.rpartition("/")[2], _NAME_CHARACTERS))
        for path in saved
        if not any(_same(edit, path) for edit in front)
    ]
    changes = [change for call in step.calls if call is not first for change in call.changes]
    others = [
        change
        for change in changes[:_MAX_CHANGES]
        if change.path not in front and not any(_same(change.path, path) for path in saved)
    ]
    rest = len(chips) + len(others) + max(0, len(changes) - _MAX_CHANGES) - LIMITS["files"]
    for change in others[: max(0, LIMITS["files"] - len(chips))]:
        name = one_line(path_below(change.path, root), _NAME_CHARACTERS)
        added, removed = count_lines(change.diff) if change.diff else (0, 0)
        text = f"{name} deleted" if change.kind == "deleted" else name
        chips.append(ev.Chip(text=text, added=added, removed=removed))
    yield from chips[: LIMITS["files"]]
    if rest > 0:
        yield ev.Chip(text=f"and {rest} more")


def _same(path: str, artifact: str) -> bool:
    """Return True if `path` is the path of the saved file `artifact`, which is relative to the output folder."""
    return path == artifact or path.endswith(f"/{artifact}")
