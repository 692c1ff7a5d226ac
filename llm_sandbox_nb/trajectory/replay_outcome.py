"""What a replay found, kept in the folder of its run, so that a list of runs says it without comparing again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from llm_sandbox_nb.formatting import plural
from llm_sandbox_nb.own_folder import read_file, write_file
from llm_sandbox_nb.trajectory import events as ev

OUTCOME = "replay.json"
_MOST = 64 * 1024


def replayed_run(start: ev.RunStarted | None) -> str | None:
    """The id of the run that a run replays; None when it is no replay."""
    name = start.settings.get("replay_of") if start else None
    return name if isinstance(name, str) and name else None


def write_outcome(folder: Path, differing: list[int]) -> None:
    """Keep the numbers of the steps that differ. Raises OSError when that is not possible."""
    write_file(
        folder,
        OUTCOME,
        json.dumps({"differing_steps": differing[:1000], "differing": len(differing)}).encode(),
    )


def replay_finding(folder: Path) -> str:
    """What a replay found, in a few words: "nothing differs"; empty when that is not known."""
    try:
        found: Any = json.loads(read_file(folder, OUTCOME, _MOST))
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
