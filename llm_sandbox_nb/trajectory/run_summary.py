"""A run in a line: what a list of runs says, read from the two ends of a journal, however long it is."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from llm_sandbox_nb.trajectory.run_folder import JOURNAL

_FIRST_LINE = 1024 * 1024
_TAIL = 256 * 1024
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
    steps: int
    """The number of its last step; -1 where the end of the journal does not say it."""
    forked_from: str | None
    """The id of the run of which it is a fork."""


def notebook_folder_name(path: str) -> str:
    """How the folder with the runs of a notebook is called, from the notebook's path."""
    name = re.sub(r"[^\w.-]+", "-", PurePath(path).stem).strip("-.")
    return name[:80] or "notebook"


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
        with (folder / JOURNAL).open("rb") as file:
            first = _event(file.readline(_FIRST_LINE))
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL))
            lines = file.read(_TAIL).splitlines()
    except OSError:
        return None
    if first.get("kind") != "run.started" or not isinstance(first.get("time"), int | float):
        return None
    state, steps = _end(_event(line) for line in reversed(lines))
    fork = first.get("forked_from")
    return RunSummary(
        id=folder.name,
        folder=folder,
        task=str(first.get("task", ""))[:_TASK],
        started=float(first["time"]),
        state=state,
        steps=steps,
        forked_from=str(fork.get("run_id"))[:200] if isinstance(fork, dict) else None,
    )


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
                state = state or "open"
                if isinstance(step := event.get("step"), int):
                    return state, step
    return state or "open", -1


def _event(line: bytes) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return event if isinstance(event, dict) else {}
