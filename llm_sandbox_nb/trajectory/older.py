"""Reads events of earlier versions: what they have only inside a text becomes the field that later versions write.

It is the one place where a text that was written for the model is parsed, and only of events that lack these fields.
"""

from __future__ import annotations

import re

from llm_sandbox_nb.trajectory import events as ev

_AFTER = re.compile(r"\n\n\[Steps remaining: -?\d+\](?:\n[^\n]*)?\Z")
_BEFORE = re.compile(r"\A\[A person changed this call before it was executed\.[^\n]*\]\n\n")
_LOOKED_AT = 2_000
"""Characters of the end in which the steps that remain are looked for."""
_BACKGROUND = "[output of background jobs since the last call]\n"
_SECTIONS = re.compile(r"\n(?:\[stdout\]\n|\[stderr\]\n|\(no output\))")


def upgraded(event: ev.Event) -> ev.Event:
    """The event with the fields that this version writes; one that has them is returned as it is."""
    match event:
        case ev.CallFinished() if "after" not in event.model_fields_set:
            before, after = _BEFORE.match(event.observation), steps_remaining(event.observation)
            event.before, event.after = before[0] if before else "", after
            event.background = _background(event.body) if event.exit_code is not None else ""
        case ev.CallDecided(observation=str() as shown) if "after" not in event.model_fields_set:
            event.after = steps_remaining(shown)
    return event


def steps_remaining(observation: str) -> str:
    """The end of an observation that says how many steps remain; empty without one."""
    found = _AFTER.search(observation[-_LOOKED_AT:])
    return found[0] if found else ""


def _background(body: str) -> str:
    """What jobs in the background wrote, which stands before the streams of the command."""
    start = body.find(_BACKGROUND, 0, _LOOKED_AT)
    if start < 0:
        return ""
    start += len(_BACKGROUND)
    end = _SECTIONS.search(body, start - 1)
    return body[start : end.start() if end else None]
