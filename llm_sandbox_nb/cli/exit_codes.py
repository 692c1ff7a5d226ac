"""The exit codes of the commands."""

from __future__ import annotations

ENDED_WELL = 0
FAILED = 1
"""Something none of the other codes names."""
USAGE = 2
"""The command line, or a file that it names, was wrong; nothing was started."""
MODEL_ERROR = 3
"""The model could not be asked, or gave up."""
SANDBOX_ERROR = 4
"""No sandbox: no engine, no image, not allowed, or it died."""
LIMIT_REACHED = 5
"""Steps, tokens, cost or time ran out before the model was done."""
INTERRUPTED = 130

_BY_STOP_REASON = {
    "submitted": ENDED_WELL,
    "answered": ENDED_WELL,
    "steps": LIMIT_REACHED,
    "tokens": LIMIT_REACHED,
    "cost": LIMIT_REACHED,
    "time": LIMIT_REACHED,
    "interrupted": INTERRUPTED,
    "model_error": MODEL_ERROR,
    "sandbox_lost": SANDBOX_ERROR,
}


def exit_code(stop_reason: str | None) -> int:
    """The exit code of a run that stopped for this reason."""
    return _BY_STOP_REASON.get(stop_reason or "", FAILED)
