"""Rows for a list of runs. A row is made from the beginning and the end of the run's journal."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_sandbox_nb.own_folder import open_file
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.doubts.rules import doubts_of
from llm_sandbox_nb.trajectory.journal import JournalError, read_journal
from llm_sandbox_nb.trajectory.replay_outcome import replay_finding
from llm_sandbox_nb.trajectory.run_folder import JOURNAL
from llm_sandbox_nb.trajectory.state import RunState, State, Status
from llm_sandbox_nb.trajectory.trajectory import Trajectory

_FIRST_LINE_BYTES = 8 * 1024 * 1024
"""Maximum bytes of the first event that is read. The event has the whole task and the schemas of all tools."""
_TAIL_BYTES = (256 * 1024, 8 * 1024 * 1024)
"""Numbers of bytes that are read at the end of a journal. If the first number of bytes does not show the last step, the
second number is read. The longest answer of a run fits into the second."""
_READ_WHOLE_BYTES = 2 * 1024 * 1024
"""Maximum size in bytes of a journal that is read completely."""
_TEXT_CHARACTERS = 300
_MAX_FOLDERS = 1000
"""Maximum number of run folders of a notebook that are read."""


@dataclass(frozen=True)
class RunSummary:
    """The row of a run in a list of runs. Texts from the journal are shortened."""

    id: str
    folder: Path
    task: str
    started: float
    """Start time in seconds since the epoch."""
    state: str
    """The stop reason, `ready` after a rewind, or `open` for a run without an end. Such a run is live or was killed."""
    status: Status
    """The status, computed from the beginning and the end of the journal."""
    steps: int
    """Number of the last step. -1 if the number was not found at the end of the journal."""
    forked_from: str | None
    """Id of the run from which this run was forked."""

    answer: str | None
    """The beginning of the answer. None if the run has no answer."""
    finding: str
    """The result of a replay. Empty for other runs."""
    doubts: list[ev.Doubt]
    """Reasons why the result may be wrong, the worst first."""

    def run_state(self, *, live: bool) -> RunState:
        """Return the state in words. `live` is True if a process executes the run."""
        state = self.status.run_state(live=live)
        if state.state != State.REPLAYED.label or not self.finding:
            return state
        return dataclasses.replace(state, words=f"{state.words}: {self.finding}")


def summaries(folder: Path, most: int) -> tuple[list[RunSummary], int]:
    """Return the `most` newest runs in a folder, newest first, and the total number of subfolders."""
    try:
        with os.scandir(folder) as found:
            names = sorted(
                (entry.name for entry in found if entry.is_dir(follow_symlinks=False)), reverse=True
            )
    except OSError:
        return [], 0
    # A folder's name begins with the second in which the run started, so runs of the same second may be in wrong order.
    # Therefore, five more runs are read, and all are sorted by their exact start times.
    read = [summary for name in names[: min(_MAX_FOLDERS, most + 5)] if (summary := summarize(folder / name))]
    read.sort(key=lambda summary: summary.started, reverse=True)
    return read[:most], len(names)


def summarize(folder: Path) -> RunSummary | None:
    """Summarize a run. Return None if its journal is missing or invalid."""
    try:
        with os.fdopen(open_file(folder, JOURNAL), "rb") as file:
            first = _event(file.readline(_FIRST_LINE_BYTES))
            size = file.seek(0, os.SEEK_END)
            origin = first.get("forked_from")
            shared = origin.get("event") if isinstance(origin, dict) else None
            for tail in _TAIL_BYTES:
                file.seek(max(0, size - tail))
                lines = _without_undone(file.read(tail).splitlines())
                state, steps = _end((_event(line) for line in reversed(lines)), shared)
                if steps >= 0 or size <= tail:
                    break
    except OSError:
        return None
    started = first.get("time")
    if first.get("kind") != "run.started" or not isinstance(started, int | float):
        return None
    if not 0 <= started <= ev.MAX_TIME_SECONDS:
        return None
    status = _status(first, lines, state, steps)
    return RunSummary(
        id=folder.name,
        folder=folder,
        task=str(first.get("task", ""))[:_TEXT_CHARACTERS],
        started=float(started),
        state=state,
        status=status,
        steps=steps,
        forked_from=str(origin.get("run_id"))[:200] if isinstance(origin, dict) else None,
        answer=status.finish.answer[:_TEXT_CHARACTERS] if status.finish and status.finish.answer else None,
        finding=replay_finding(folder) if status.replays else "",
        doubts=_doubts(folder, lines, size, ended=status.finish is not None),
    )


def recorded_doubts(lines: list[bytes]) -> list[ev.Doubt] | None:
    """Return the final doubts from the last lines of a journal. None if these lines have no final doubts."""
    for line in reversed(lines):
        if b'"doubts"' in line:
            with suppress(ValueError):
                event = ev.parse_event(line)
                if isinstance(event, ev.DoubtsFound) and event.final:
                    return event.doubts
    return None


def _doubts(folder: Path, lines: list[bytes], size: int, *, ended: bool) -> list[ev.Doubt]:
    """Return the recorded doubts. If no doubts were recorded, find them now, unless the journal is very long."""
    found = recorded_doubts(lines) if ended else None
    if found is None and size <= _READ_WHOLE_BYTES:
        with suppress(JournalError, OSError):
            found = doubts_of(Trajectory(read_journal(folder)))
    return found or []


def _without_undone(lines: list[bytes]) -> list[bytes]:
    """Return the lines without the rewinds that were undone, and without the events between a rewind and its undo."""
    kept: list[bytes] = []
    undone: object = None
    for line in reversed(lines):
        event = _event(line) if b'"rewound"' in line else {}
        if undone is None:
            kept.append(line)
            if event.get("kind") == "rewound" and event.get("what") != "files":
                undone = event.get("undo_of")
        elif event.get("kind") == "rewound" and event.get("id") == undone:
            undone = None
    return kept[::-1]


def _end(newest_first: Iterator[dict[str, Any]], shared: object) -> tuple[str, int]:
    """Return the state and the number of the last step, or -1. `shared` is the id of a fork's last shared event."""
    state, undid = "", False
    for event in newest_first:
        if shared and event.get("id") == shared and event.get("kind") != "run.finished":
            state = state or "ready"
        match event.get("kind"):
            case "run.finished":
                if not state and isinstance(event.get("steps"), int):
                    return str(event.get("stop_reason"))[:40], event["steps"]
            case "rewound" if event.get("what") == "files":
                continue
            case "rewound" if event.get("undo_of"):
                undid = True
            case "rewound":
                state = state or "ready"
                if isinstance(step := event.get("step"), int):
                    return state, step
            case "model.requested" | "continued":
                state = state or ("ready" if undid else "open")
                if isinstance(step := event.get("step"), int):
                    return state, step
    return state or "open", -1


_END_KINDS = ("settings.changed", "control", "continued", "run.finished", "checked")
"""Kinds of events that `_status` needs to describe the end of a run: changed limits, a stop, a resume, an end, a score.

Of the last step, it also needs the failures of the model."""
_END_MARKERS = tuple(f'"{kind}"'.encode() for kind in (*_END_KINDS, "model.failed"))


def _status(first: dict[str, Any], lines: list[bytes], state: str, steps: int) -> Status:
    """Compute the status of a run from its first event and its last lines. `_end` returned `state` and `steps`."""
    status = Status()
    ended = state not in ("open", "ready")
    events: list[dict[str, Any]] = []
    if ended:
        last = next((_event(line) for line in reversed(lines) if b'"model.requested"' in line), {})
        events += [last] + [_event(line) for line in lines if any(mark in line for mark in _END_MARKERS)]
        events = [e for e in events if e.get("step") == last.get("step") or e.get("kind") in _END_KINDS]
    elif steps > 0:
        events.append({"kind": "model.requested", "step": steps})
    for value in (first, *events):
        with suppress(ValueError):
            status.add(ev.parse_python(value))
    if state == "ready":
        status.rewind(max(steps, 0))
    return status


def _event(line: bytes) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return event if isinstance(event, dict) else {}
