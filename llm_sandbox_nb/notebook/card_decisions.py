"""What a person decided during a run, in words."""

from __future__ import annotations

from collections.abc import Iterable

from llm_sandbox_nb.trajectory.events import Controlled

_WORDS = {
    "pause": "A person asked for a pause.",
    "paused": "The run halted.",
    "resume": "A person let it go on.",
    "step": "A person let it go on to the next halt.",
    "stop": "A person stopped the run.",
}


def decisions(controls: Iterable[Controlled]) -> list[str]:
    """One line for each."""
    return [_WORDS.get(one.action) or f"A person said: {one.text}" for one in controls]
