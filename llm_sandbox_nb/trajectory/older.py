"""Upgrade of events that earlier versions wrote. These events lack some fields.

The values of the missing fields are parts of the text that was written for the model. Only this module parses such
texts, and only in events that lack the fields.
"""

from __future__ import annotations

import re

from llm_sandbox_nb.trajectory import events as ev

_AFTER = re.compile(r"\n\n\[Steps remaining: -?\d+\](?:\n[^\n]*)?\Z")
_BEFORE = re.compile(r"\A\[A person changed this call before it was executed\.[^\n]*\]\n\n")
_SEARCHED_CHARACTERS = 2_000
"""Number of characters that are searched at the beginning or the end of an observation."""
_BACKGROUND = "[output of background jobs since the last call]\n"
_SECTIONS = re.compile(r"\n(?:\[stdout\]\n|\[stderr\]\n|\(no output\))")


def upgraded(event: ev.Event) -> ev.Event:
    """Add missing fields to an event in place, and return the event."""
    match event:
        case ev.CallFinished() if "after" not in event.model_fields_set:
            before, after = _BEFORE.match(event.observation), steps_remaining(event.observation)
            event.before, event.after = before[0] if before else "", after
            event.background = _background(event.body) if event.exit_code is not None else ""
        case ev.CallDecided(observation=str() as shown) if "after" not in event.model_fields_set:
            event.after = steps_remaining(shown)
    return event


def steps_remaining(observation: str) -> str:
    """Return the end of an observation, from the number of remaining steps on. Empty if there is no such number."""
    found = _AFTER.search(observation[-_SEARCHED_CHARACTERS:])
    return found[0] if found else ""


def _background(body: str) -> str:
    """Return the output of background jobs, which is written before the output of the command."""
    start = body.find(_BACKGROUND, 0, _SEARCHED_CHARACTERS)
    if start < 0:
        return ""
    start += len(_BACKGROUND)
    end = _SECTIONS.search(body, start - 1)
    return body[start : end.start() if end else None]
