"""The rule about answers that were written before the last relevant result."""

from __future__ import annotations

import re
from collections.abc import Iterator

from llm_sandbox_nb.trajectory.doubts.command_rules import only_comments
from llm_sandbox_nb.trajectory.doubts.evidence import (
    DATA,
    PROGRAMS,
    Action,
    Evidence,
    Version,
    comes_after,
    ending_of,
    name_of,
)
from llm_sandbox_nb.trajectory.doubts.numbers_and_units import numbers_of
from llm_sandbox_nb.trajectory.doubts.stale_read import runs_program
from llm_sandbox_nb.trajectory.events import Doubt


def answer_too_early(evidence: Evidence) -> Iterator[Doubt]:
    """The answer or a result file was written before a later relevant result, or before its source changed."""
    reported: set[int] = set()
    for version in sorted(
        evidence.results, key=lambda version: (version is not evidence.answer_version, version.path)
    ):
        action = version.action
        if action is None or action.step in reported:
            continue
        if (elsewhere := _written_elsewhere(evidence, version, action)) is not None:
            reported.add(action.step)
            newer = f"{elsewhere.path} of step {elsewhere.step} is newer"
            text = f"{version.path} was written at step {version.step}; {newer}"
            yield Doubt(rule="answer too early", step=elsewhere.step, text=text, severity="high")
        elif text := _source_changed(evidence, version, action):
            reported.add(action.step)
            yield Doubt(rule="answer too early", step=action.step, text=text, severity="high")
    answer = evidence.answer_version
    if (
        answer is not None
        and answer.action is not None
        and answer.action.step not in reported
        and (text := _later_result(evidence, answer))
    ):
        yield Doubt(rule="answer too early", step=answer.action.step, text=text, severity="high")
    elif evidence.answer is not None and not reported and (found := _other_output(evidence)):
        step, text = found
        yield Doubt(rule="answer too early", step=step, text=text, severity="high")


def _written_elsewhere(evidence: Evidence, version: Version, action: Action) -> Version | None:
    """Return a file in another folder with the name of `version`, but newer and with other content.

    None if there is no such file.
    """
    name = name_of(version.path)
    for path, versions in evidence.files.items():
        other = versions[-1]
        if (
            name_of(path) != name
            or path == version.path
            or evidence.is_result(path)
            or other.action is None
            or other.deleted
        ):
            continue
        if other.action.number <= action.number or ending_of(path) in PROGRAMS or _same_text(version, other):
            continue
        if name not in ("README.md", "notes.md") and not any(
            other in action.reads for action in evidence.actions if action.writes
        ):
            return other
    return None


def _source_changed(evidence: Evidence, version: Version, action: Action) -> str:
    """Describe a file that a result was made from, and that changed afterwards. Empty if there is none."""
    if action.edited:
        return ""
    for read in action.reads:
        if read.path == version.path or (
            evidence.is_result(read.path) and name_of(read.path) == "answer.txt"
        ):
            continue
        later = [
            file for file in evidence.files[read.path] if file.action and file.action.number > action.number
        ]
        if not later or later[-1].deleted:
            continue
        changed = later[-1]
        if ending_of(read.path) in PROGRAMS and (
            not runs_program(action, read.path)
            or only_comments(changed.change.diff or "" if changed.change else "")
        ):
            continue
        if changed.action is not None and _made_again(evidence, version, changed.action.number):
            continue
        if (ending_of(read.path) not in PROGRAMS and ending_of(read.path) not in DATA) or _same_text(
            read, changed
        ):
            continue
        if (
            ending_of(read.path) not in PROGRAMS
            and len(action.commands) > 0
            and re.search(
                rf">>\s*\S*{re.escape(name_of(read.path))}", changed.action.command if changed.action else ""
            )
        ):
            continue
        written = f"{name_of(version.path)} was written at step {version.step}"
        return f"{written}; {name_of(read.path)}, which it is made from, changed at step {changed.step}"
    return ""


def _made_again(evidence: Evidence, version: Version, after: int) -> bool:
    """Return True if a later command probably made the file again."""
    name = name_of(version.path)
    for action in evidence.actions[after:]:
        if action.kind != "bash" or action.failed:
            continue
        programs = [
            file
            for file in action.reads
            if ending_of(file.path) in PROGRAMS and runs_program(action, file.path)
        ]
        if comes_after(action.command, r">|\btee\b|\b(?:cp|mv)\b|-o\b", re.escape(name)) or any(
            name in (program.text or "") for program in programs
        ):
            return True
    return False


def _same_text(first: Version, second: Version) -> bool:
    return first.text is not None and first.text == second.text


def _later_result(evidence: Evidence, version: Version) -> str:
    """Describe a later result that the answer lacks: a short new file, or other output of a repeated command.

    Empty if there is no such result.
    """
    number = version.action.number if version.action else 0
    answer = numbers_of(evidence.answer or version.text or "")
    for path, versions in evidence.files.items():
        later = versions[-1]
        if (
            later.action is None
            or later.action.number <= number
            or later.deleted
            or path == version.path
            or later.action.kind == "submit"
        ):
            continue
        if (
            ending_of(path) not in ("txt", "csv", "json", "")
            or later.change is None
            or later.change.size > 400
            or later.change.kind != "added"
        ):
            continue
        values = numbers_of(later.text or "")
        if (
            values
            and not values & answer
            and re.search(
                r"total|result|sum|answer|final|mean|count|value|score|average|median|number|max|min",
                name_of(path),
                re.IGNORECASE,
            )
        ):
            written = f"{name_of(version.path)} was written at step {version.step}"
            return f"{written}; {name_of(path)} of step {later.step} is not in it"
    name, step = name_of(version.path), version.step
    again = _rerun_differs(evidence, number, answer)
    return (
        f"{name} was written at step {step}; the same command gave another result at step {again}"
        if again
        else ""
    )


def _rerun_differs(evidence: Evidence, number: int, answer: set[str]) -> int | None:
    """Return the first step after action `number` whose repeated command no longer printed any number of the answer.

    Its previous execution had printed such a number. Numbers of one digit are ignored. None if there is no such step.
    """
    key = {number for number in answer if len(number.lstrip("-")) > 1}
    if not key or len(key) > 6:
        return None
    by_command: dict[str, Action] = {}
    for action in evidence.actions:
        if action.kind != "bash" or action.failed or not action.stdout.strip() or len(action.stdout) > 4_000:
            continue
        command = " ".join(action.command.split())
        before = by_command.get(command)
        by_command[command] = action
        if before is None or action.number <= number or before.stdout == action.stdout:
            continue
        old, new = numbers_of(before.stdout), numbers_of(action.stdout)
        if key & old and not key & new and new:
            return action.step
    return None


def _other_output(evidence: Evidence) -> tuple[int, str] | None:
    """Return the step and the text of a doubt: a repeated command printed a result that contradicts the answer.

    None if there is no such command, or if there is an answer file.
    """
    if evidence.answer_version is not None:
        return None
    step = _rerun_differs(evidence, -1, numbers_of(evidence.answer or ""))
    return (
        None
        if step is None
        else (step, "this run of the command gave another result than the one in the answer")
    )
