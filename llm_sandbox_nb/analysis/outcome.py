"""Whether a call did what it was to do, and its output without what the loop adds to it."""

from __future__ import annotations

import re

from llm_sandbox_nb.trajectory.trajectory import Call

_SEED_EXIT = re.compile(r"^\s*Exit code:\s*(?:Error: Exit code\s*)?(-?\d+)")
_SEED_ERROR = re.compile(r"^\s*(?:\S+ )?(?:ERROR|Error)\b[:!]?")
_COUNTER = re.compile(r"\[?Steps remaining: \d", re.IGNORECASE)


def succeeded(call: Call) -> bool | None:
    """True when a command ended with 0 or an edit went well, False when not, None when the record ends before.

    A record in the paper's form has no exit code of its own: there the observation's first line tells.
    """
    result = call.result
    if result is None:
        return None
    if result.error or result.timed_out:
        return False
    if result.exit_code is not None:
        return result.exit_code == 0
    found = _SEED_EXIT.match(result.observation)
    if found:
        return int(found[1]) == 0
    return not _SEED_ERROR.match(result.observation)


def plain_output(call: Call) -> str:
    """What the model was shown, without the line about the steps that remain."""
    found = _COUNTER.search(call.output)
    return call.output[: found.start() if found else None].strip()
