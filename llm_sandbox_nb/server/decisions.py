"""What clients may ask of a run under way, checked before it is passed on to the run's kernel.

A decision is a JSON object: `action` and the fields that this action takes.

    {"action": "pause" | "stop"}
    {"action": "say", "text": T}
    {"action": "resume" | "step", "call_id": C?}
    {"action": "edit", "arguments": {...}, "tool": T?, "call_id": C?}
    {"action": "skip", "text": T?, "call_id": C?}
    {"action": "observe", "text": T, "call_id": C?}
    {"action": "change", "model": M?, "settings": {...}?, "limits": {...}?, "breakpoints": [...]?, "approve": A?}
    {"action": "rewind", "step": N, "what": "both" | "files" | "conversation"?}
    {"action": "undo"}
    {"action": "fork", "step": N}

`call_id` says which held call is meant: a decision that comes after another one was taken does not hit the next.
Whether the run is in a state to take it, and whether values make sense to the model, the kernel says.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

Json = dict[str, Any]
Check = Callable[[str, Any], None]

LONGEST_TEXT = 100_000
"""Characters of what is said, or shown to the model as an observation."""
LONGEST_ARGUMENTS = 4_000_000
"""Characters of an edited call, as JSON."""
_LONGEST_NAME = 256
_MOST_BREAKPOINTS = 100
APPROVALS = ("ask", "edits", "auto")
WHAT = ("both", "files", "conversation")


def _text(name: str, value: Any) -> None:
    if not isinstance(value, str) or len(value) > LONGEST_TEXT:
        raise ValueError(f"'{name}' must be a text of at most {LONGEST_TEXT} characters.")


def _name(name: str, value: Any) -> None:
    if not isinstance(value, str) or not 0 < len(value) <= _LONGEST_NAME:
        raise ValueError(f"'{name}' must be a name of at most {_LONGEST_NAME} characters.")


def _object(name: str, value: Any) -> None:
    if not isinstance(value, dict) or len(json.dumps(value)) > LONGEST_ARGUMENTS:
        raise ValueError(f"'{name}' must be an object of at most {LONGEST_ARGUMENTS} characters.")


def _expressions(name: str, value: Any) -> None:
    if not isinstance(value, list) or len(value) > _MOST_BREAKPOINTS:
        raise ValueError(f"'{name}' must be a list of at most {_MOST_BREAKPOINTS} expressions.")
    for one in value:
        if not isinstance(one, str) or len(one) > LONGEST_TEXT:
            raise ValueError(f"'{name}' must hold texts only, such as \"tool == 'submit'\".")


def _approval(name: str, value: Any) -> None:
    if value not in APPROVALS:
        raise ValueError(f"'{name}' must be one of {', '.join(APPROVALS)}.")


def _step(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1_000_000:
        raise ValueError(f"'{name}' must be the number of a step, or 0 for before the first.")


def _what(name: str, value: Any) -> None:
    if value not in WHAT:
        raise ValueError(f"'{name}' must be one of {', '.join(WHAT)}.")


_OF_A_CALL: Mapping[str, Check] = {"call_id": _name}
_TAKEN: Mapping[str, Mapping[str, Check]] = {
    "pause": {},
    "stop": {},
    "say": {"text": _text},
    "resume": _OF_A_CALL,
    "step": _OF_A_CALL,
    "edit": {"arguments": _object, "tool": _name, **_OF_A_CALL},
    "skip": {"text": _text, **_OF_A_CALL},
    "observe": {"text": _text, **_OF_A_CALL},
    "change": {
        "model": _name,
        "settings": _object,
        "limits": _object,
        "breakpoints": _expressions,
        "approve": _approval,
    },
    "rewind": {"step": _step, "what": _what},
    "undo": {},
    "fork": {"step": _step},
}
_NEEDED = {"say": "text", "edit": "arguments", "observe": "text", "rewind": "step", "fork": "step"}
LONG = frozenset({"rewind", "undo", "fork"})
"""Decisions that take time to be carried out: files go back, or a sandbox starts."""
ACTIONS = tuple(_TAKEN)


def checked(body: Mapping[str, Any]) -> Json:
    """The decision in `body`, without fields that are null.

    Raises:
        ValueError: there is no such action, or a field is missing, unknown, or not what it has to be.
    """
    given = {name: value for name, value in body.items() if value is not None}
    action = given.pop("action", None)
    if not isinstance(action, str) or action not in _TAKEN:
        raise ValueError(f"'action' must be one of {', '.join(ACTIONS)}.")
    takes = _TAKEN[action]
    if unknown := sorted(given.keys() - takes.keys()):
        raise ValueError(f"'{action}' takes {', '.join(takes) or 'nothing else'}, not '{unknown[0][:80]}'.")
    for name, value in given.items():
        takes[name](name, value)
    needed = _NEEDED.get(action)
    if needed and given.get(needed) in (None, ""):
        raise ValueError(f"'{needed}' must be given to {action} something.")
    if action == "change" and not given:
        raise ValueError(f"'change' must say what: {', '.join(takes)}.")
    return {"action": action, **given}
