"""A run in a line of a list, read from the beginning and the end of its journal."""

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

_FIRST_LINE = 1024 * 1024
_TAIL = 256 * 1024
_READ_WHOLE = 2 * 1024 * 1024
"""Bytes of the longest journal that a list reads whole."""
_TASK = 300
_LISTED = 1000
"""Most folders of one notebook that are looked at."""


@dataclass(frozen=True)
class RunSummary:
    """What a list shows of one run. All texts are what the journal says, shortened."""

    id: str
    folder: Path
    task: str
    started: float
    """Seconds since the epoch."""
    state: str
    """Why it ended; `ready` after a rewind; `open` when it has no end: it is live, or was cut off."""
    status: Status
    """What the ends of its journal say of it."""
    steps: int
    """The number of its last step; -1 where the end of the journal does not say it."""
    forked_from: str | None
    """The id of the run of which it is a fork."""

    answer: str | None
    """Its beginning; None when it has no end or no answer."""
    finding: str
    """What a replay found; empty for other runs."""
    doubts: list[ev.Doubt]
    """Why its result may be wrong, the worst first."""

    def run_state(self, *, live: bool) -> RunState:
        """The state in words. `live`: a process executes the run."""
        state = self.status.run_state(live=live)
        if state.state != State.REPLAYED.label or not self.finding:
            return state
        return dataclasses.replace(state, words=f"{state.words}: {self.finding}")


def summaries(folder: Path, most: int) -> tuple[list[RunSummary], int]:
    """The runs in a folder, newest first, at most so many; and how many there are."""
    try:
        with os.scandir(folder) as found:
            names = sorted(
                (entry.name for entry in found if entry.is_dir(follow_symlinks=False)), reverse=True
            )
    except OSError:
        return [], 0
    # Folders are named by the second in which a run began: those of one second may be in another order.
    read = [summary for name in names[: min(_LISTED, most + 5)] if (summary := summarize(folder / name))]
    read.sort(key=lambda one: one.started, reverse=True)
    return read[:most], len(names)


def summarize(folder: Path) -> RunSummary | None:
    """One run; None when its journal is missing or begins with something else. Never raises because of its content."""
    try:
        with os.fdopen(open_file(folder, JOURNAL), "rb") as file:
            first = _event(file.readline(_FIRST_LINE))
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL))
            lines = file.read(_TAIL).splitlines()
    except OSError:
        return None
    if first.get("kind") != "run.started" or not isinstance(first.get("time"), int | float):
        return None
    state, steps = _end(_event(line) for line in reversed(lines))
    status = _status(first, lines, state, steps)
    fork = first.get("forked_from")
    return RunSummary(
        id=folder.name,
        folder=folder,
        task=str(first.get("task", ""))[:_TASK],
        started=float(first["time"]),
        state=state,
        status=status,
        steps=steps,
        forked_from=str(fork.get("run_id"))[:200] if isinstance(fork, dict) else None,
        answer=status.finish.answer[:_TASK] if status.finish and status.finish.answer else None,
        finding=replay_finding(folder) if status.replays else "",
        doubts=_doubts(folder, lines, size, ended=status.finish is not None),
    )


def recorded_doubts(lines: list[bytes]) -> list[ev.Doubt] | None:
    """The doubts at the end of a run, found in the last lines of its journal; None when they are not there."""
    for line in reversed(lines):
        if b'"doubts"' in line:
            with suppress(ValueError):
                event = ev.parse_event(line)
                if isinstance(event, ev.DoubtsFound) and event.final:
                    return event.doubts
    return None


def _doubts(folder: Path, lines: list[bytes], size: int, *, ended: bool) -> list[ev.Doubt]:
    """The doubts that are recorded; of a run without, those that are found now, unless its journal is very long."""
    found = recorded_doubts(lines) if ended else None
    if found is None and size <= _READ_WHOLE:
        with suppress(JournalError, OSError):
            found = doubts_of(Trajectory(read_journal(folder)))
    return found or []


def _end(newest_first: Iterator[dict[str, Any]]) -> tuple[str, int]:
    state = ""
    undone: set[object] = set()
    for event in newest_first:
        match event.get("kind"):
            case "run.finished":
                if not state and isinstance(event.get("steps"), int):
                    return str(event.get("stop_reason"))[:40], event["steps"]
            case "rewound" if event.get("id") in undone or event.get("what") == "files":
                continue
            case "rewound" if event.get("undo_of"):
                undone.add(event["undo_of"])
            case "rewound":
                state = state or "ready"
                if isinstance(step := event.get("step"), int):
                    return state, step
            case "model.requested" | "continued":
                state = state or ("ready" if undone else "open")
                if isinstance(step := event.get("step"), int):
                    return state, step
    return state or "open", -1


_OF_END = (
    b'"settings.changed"',
    b'"model.failed"',
    b'"stop"',
    b'"continued"',
    b'"run.finished"',
    b'"checked"',
)
"""What the words of an end need beside the start: limits that were changed, why the model failed, who stopped the run
since it was continued, and the score that followed the end."""
_ALWAYS = ("settings.changed", "control", "continued", "run.finished", "checked")


def _status(first: dict[str, Any], lines: list[bytes], state: str, steps: int) -> Status:
    """How the run stands, from its start and the events that `_end` has found."""
    status = Status()
    ended = state not in ("open", "ready")
    said: list[dict[str, Any]] = []
    if ended:
        last = next((_event(line) for line in reversed(lines) if b'"model.requested"' in line), {})
        said += [last] + [_event(line) for line in lines if any(kind in line for kind in _OF_END)]
        said = [one for one in said if one.get("step") == last.get("step") or one.get("kind") in _ALWAYS]
    elif steps > 0:
        said.append({"kind": "model.requested", "step": steps})
    for value in (first, *said):
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
