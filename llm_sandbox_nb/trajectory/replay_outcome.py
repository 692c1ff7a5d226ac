"""The result of a replay, stored in the run's folder, so that a list of runs need not compare the runs again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from llm_sandbox_nb.formatting import plural
from llm_sandbox_nb.own_folder import read_file, write_file
from llm_sandbox_nb.trajectory import events as ev

OUTCOME = "replay.json"
_MAX_OUTCOME_BYTES = 64 * 1024


def replayed_run(start: ev.RunStarted | None) -> str | None:
    """Return the id of the replayed run. None if the run is not a replay."""
    name = start.settings.get("replay_of") if start else None
    return name if isinstance(name, str) and name else None


def write_outcome(folder: Path, differing: list[int]) -> None:
    """Store the first 1000 of the step numbers in `differing`. Raises OSError if the file cannot be written."""
    write_file(
        folder,
        OUTCOME,
        json.dumps({"differing_steps": differing[:1000], "differing": len(differing)}).encode(),
    )


def replay_finding(folder: Path) -> str:
    """Describe the result of a replay in a few words, such as "nothing differs". Empty if the result is not known."""
    try:
        found: Any = json.loads(read_file(folder, OUTCOME, _MAX_OUTCOME_BYTES))
        number, steps = found["differing"], found["differing_steps"]
        first = min(steps) if number else 0
        known = isinstance(number, int) and isinstance(first, int)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        known = False
    if not known:
        return ""
    if not number:
        return "nothing differs"
    return f"{plural(number, 'step differs', 'steps differ')}, first step {first}"
