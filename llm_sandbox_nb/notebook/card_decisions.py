"""What a person decided during a run, in words."""

from __future__ import annotations

from collections.abc import Iterable

from llm_sandbox_nb.trajectory.events import CallDecided, Controlled

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


_OF_A_CALL = {
    "edit": "A person changed this call. The model had proposed:",
    "skip": "A person skipped this call; the model was shown a text in its place.",
    "observe": "A person had the model shown this in place of the result:",
}


def of_a_call(decided: CallDecided) -> str:
    """What was decided on a held call, in words; nothing when it went through as it was."""
    return _OF_A_CALL.get(decided.action, "")
