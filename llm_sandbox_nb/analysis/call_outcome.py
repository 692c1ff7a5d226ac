"""Whether a call did what it was to do, and its output without what the loop adds to it."""

from __future__ import annotations

import re

from llm_sandbox_nb.trajectory.trajectory import Call

_COUNTER = re.compile(r"\[?Steps remaining: \d", re.IGNORECASE)


def succeeded(call: Call) -> bool | None:
    """True when a command ended with 0 or an edit went well, False when not, None when the record ends before."""
    result = call.result
    if result is None:
        return None
    return not (result.error or result.timed_out or result.exit_code)


def plain_output(call: Call) -> str:
    """What the model was shown, without the line about the steps that remain."""
    found = _COUNTER.search(call.output)
    return call.output[: found.start() if found else None].strip()
