"""A person's decisions about a run. REST, the terminal, the magics and Python use the same form.

A decision is a JSON object with `action` and the fields of that action. `?` marks a field that can be left out.

    {"action": "pause" | "stop" | "undo"}
    {"action": "say", "text": T}
    {"action": "resume" | "step", "call_id": C?}
    {"action": "edit", "arguments": {...}, "changes": {...}?, "tool": T?, "call_id": C?}
    {"action": "skip", "text": T?, "call_id": C?}
    {"action": "observe", "text": T, "call_id": C?}
    {"action": "change", "model": M?, "settings": {...}?, "limits": {...}?, "breakpoints": [...]?, "approve": A?,
     "allow": [...]?, "allow_once": [...]?}
    {"action": "rewind", "step": N, "what": "both" | "files" | "conversation"?, "others": true?}
    {"action": "fork", "step": N}

`call_id` names the held call, so that a late decision does not apply to the next call. This module checks only the form
of a decision. The run checks that its state allows the decision, and that the values fit its tools and model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

MAX_TEXT_CHARACTERS = 100_000
"""Maximum characters of a text for the model."""
MAX_ARGUMENTS_CHARACTERS = 4_000_000
"""Maximum characters of a call's arguments as JSON."""
_MAX_NAME_CHARACTERS = 256
_MAX_BREAKPOINTS = 100
_MAX_HOSTS = 100


def _small(value: dict[str, Any]) -> dict[str, Any]:
    if len(json.dumps(value)) > MAX_ARGUMENTS_CHARACTERS:
        raise ValueError("too large")
    return value


_Text = Annotated[str, Field(max_length=MAX_TEXT_CHARACTERS)]
_Name = Annotated[str, Field(min_length=1, max_length=_MAX_NAME_CHARACTERS)]
_Object = Annotated[dict[str, Any], AfterValidator(_small)]
_StepNumber = Annotated[int, Field(strict=True, ge=0, lt=1_000_000)]

_MUST_BE = {
    "text": f"a text of at most {MAX_TEXT_CHARACTERS} characters",
    **dict.fromkeys(("call_id", "tool", "model"), f"a name of at most {_MAX_NAME_CHARACTERS} characters"),
    **dict.fromkeys(
        ("arguments", "changes", "settings", "limits"),
        f"an object of at most {MAX_ARGUMENTS_CHARACTERS} characters",
    ),
    "breakpoints": f"a list of at most {_MAX_BREAKPOINTS} expressions, texts only, such as \"tool == 'submit'\"",
    "approve": "one of ask, edits, auto",
    **dict.fromkeys(
        ("allow", "allow_once"), f"a list of at most {_MAX_HOSTS} hosts, such as example.org:443"
    ),
    "step": "the number of a step, or 0 for the time before the first step",
    "what": "one of both, files, conversation",
    "others": "true or false",
}


class _Decision(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _CallDecision(_Decision):
    call_id: _Name | None = None
    """Id of the held call. None stands for any held call."""


class PauseDecision(_Decision):
    """Pause before the next request, call or observation, whichever is first."""

    action: Literal["pause"] = "pause"


class ResumeDecision(_CallDecision):
    """Continue to the next breakpoint, or to the next call that needs an approval."""

    action: Literal["resume"] = "resume"


class StepDecision(_CallDecision):
    """Continue to the next call or observation."""

    action: Literal["step"] = "step"


class SayDecision(_Decision):
    """Send the model a message."""

    action: Literal["say"] = "say"
    text: _Text


class StopDecision(_Decision):
    """End the run."""

    action: Literal["stop"] = "stop"


class EditDecision(_CallDecision):
    """Execute the held call with other `arguments`, or with `changes` to the proposed arguments."""

    action: Literal["edit"] = "edit"
    arguments: _Object | None = None
    changes: _Object | None = None
    tool: _Name | None = None


class SkipDecision(_CallDecision):
    """Do not execute the held call. The model reads `text` instead of a result."""

    action: Literal["skip"] = "skip"
    text: _Text | None = None


class ObserveDecision(_CallDecision):
    """Show the model `text` instead of the held observation."""

    action: Literal["observe"] = "observe"
    text: _Text


class ChangeDecision(_Decision):
    """Use another model, other settings, limits, breakpoints or approvals from now on, or allow further hosts."""

    action: Literal["change"] = "change"
    model: _Name | None = None
    settings: _Object | None = None
    limits: _Object | None = None
    breakpoints: Annotated[list[_Text], Field(max_length=_MAX_BREAKPOINTS)] | None = None
    approve: Literal["ask", "edits", "auto"] | None = None
    allow: Annotated[list[_Name], Field(max_length=_MAX_HOSTS)] | None = None
    """Hosts that the sandbox may reach from now on. The network of the sandbox must be an allow-list."""
    allow_once: Annotated[list[_Name], Field(max_length=_MAX_HOSTS)] | None = None
    """Hosts that the sandbox may connect to once."""

    @model_validator(mode="after")
    def _check_not_empty(self) -> Self:
        if not self.model_fields_set - {"action"}:
            raise ValueError(f"'change' needs at least one of: {', '.join(_fields('change'))}.")
        return self


class RewindDecision(_Decision):
    """Go back to the end of a step."""

    action: Literal["rewind"] = "rewind"
    step: _StepNumber
    what: Literal["both", "files", "conversation"] = "both"
    others: bool = False
    """True if changes of other runs may be undone too."""


class UndoDecision(_Decision):
    """Undo the newest rewind."""

    action: Literal["undo"] = "undo"
    others: bool = False


class ForkDecision(_Decision):
    """Make a second run that begins at the end of a step."""

    action: Literal["fork"] = "fork"
    step: _StepNumber


ControlDecision = (
    PauseDecision
    | ResumeDecision
    | StepDecision
    | SayDecision
    | StopDecision
    | EditDecision
    | SkipDecision
    | ObserveDecision
    | ChangeDecision
)
"""A decision that takes effect at once."""
TimeDecision = RewindDecision | UndoDecision | ForkDecision
"""A decision that takes time: files are restored, or a sandbox starts."""
RunDecision = Annotated[ControlDecision | TimeDecision, Field(discriminator="action")]

_CLASSES: dict[str, type[RunDecision]] = {
    decision.model_fields["action"].default: decision
    for decision in (*get_args(ControlDecision), *get_args(TimeDecision))
}
ACTIONS = tuple(_CLASSES)
_REQUIRED = {"say": "text", "edit": "arguments", "observe": "text", "rewind": "step", "fork": "step"}


def parse_decision(body: Mapping[str, Any]) -> RunDecision:
    """Parse a decision. A field with the value null is treated as missing.

    Raises:
        ValueError: if the action is unknown, or a field is missing, unknown or invalid. The message is one sentence.
    """
    given = {name: value for name, value in body.items() if value is not None}
    action = given.get("action")
    if not isinstance(action, str) or action not in _CLASSES:
        raise ValueError(f"'action' must be one of {', '.join(ACTIONS)}.")
    try:
        decision = _CLASSES[action].model_validate(given)
    except ValidationError as error:
        raise ValueError(decision_problem(error, action)) from None
    required = _REQUIRED.get(action)
    if required and given.get(required, given.get("changes")) in (None, ""):
        raise ValueError(_missing(action, required))
    return decision


def decision_problem(error: ValidationError, action: str) -> str:
    """Return a sentence that describes the problem of an invalid decision."""
    first = error.errors()[0]
    name = str(first["loc"][0]) if first["loc"] else ""
    match first["type"]:
        case "extra_forbidden":
            fields = ", ".join(_fields(action))
            return f"'{action}' has no field '{name[:80]}'{f': it has {fields}' if fields else ''}."
        case "missing":
            return _missing(action, name)
        case "value_error" if not name:
            return str(first["ctx"]["error"])
    return f"'{name}' must be {_MUST_BE[name]}."


def _missing(action: str, name: str) -> str:
    return f"'{action}' needs '{name}'."


def _fields(action: str) -> list[str]:
    names = [name for name in _CLASSES[action].model_fields if name != "action"]
    return sorted(names, key=lambda name: name == "call_id")
