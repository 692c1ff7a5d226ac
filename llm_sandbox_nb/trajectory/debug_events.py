"""The events of stopping, deciding, and going back: a run in the hands of a person. Part of `events`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from llm_sandbox_nb.trajectory.event_base import Event, Model, Text


class ForkedFrom(Model):
    """Where a fork comes from: the parent run, its folder's name, and the step and event it shares last."""

    run_id: str
    folder: str
    step: int
    event: str


class CallHeld(Event):
    """The run waits for a person: before a call is executed, or before the model sees its observation.

    A `control` event `paused` follows. `text` says why, such as the breakpoint that was met.
    """

    kind: Literal["call.held"] = "call.held"
    step: int
    call_id: str
    at: Literal["call", "observation"]
    reason: Literal["step", "breakpoint", "approval", "pause"]
    text: str = ""


class CallDecided(Event):
    """What a person decided on a call that was held; it was proposed in `call.proposed`.

    `run`: as it was proposed. `edit`: `tool` and `arguments` instead. `skip`: it is not executed, and the result
    that follows is the person's. `observe`: it has its result already, and the model is shown `observation`
    in place of `original`.
    """

    kind: Literal["call.decided"] = "call.decided"
    step: int
    call_id: str
    action: Literal["run", "edit", "skip", "observe"]
    tool: str | None = None
    arguments: dict[str, Any] | None = None
    observation: str | None = None
    original: Text | None = None
    source: str = ""


class SettingsChanged(Event):
    """What follows is done with another model, other sampling settings, limits or rules of halting.

    `settings`, `limits` and `halts` hold what was changed and nothing else; never a key.
    """

    kind: Literal["settings.changed"] = "settings.changed"
    model: str | None = None
    settings: dict[str, Any] = Field(default_factory=dict)
    limits: dict[str, Any] = Field(default_factory=dict)
    halts: dict[str, Any] = Field(default_factory=dict)
    """`breakpoints`: list of expressions; `approve`: ask, edits or auto."""
    source: str = ""


class Checkpointed(Event):
    """The sandbox's files are kept as they are after a step; `step` is None or 0 before the first call.

    `files` counts what changed since the checkpoint before, `size` is the bytes that were newly stored.
    """

    kind: Literal["checkpoint"] = "checkpoint"
    step: int | None = None
    checkpoint: str
    files: int = 0
    size: int = 0
    duration: float = 0.0
    incomplete: str = ""


class RewindStarted(Event):
    """A rewind begins. Without the `rewound` that follows, it did not happen."""

    kind: Literal["rewind.started"] = "rewind.started"
    to: str
    """Id of the event that the run goes back to."""
    step: int
    what: Literal["both", "files", "conversation"] = "both"
    target: str | None = None
    """The checkpoint that the files go back to."""
    safety: str | None = None
    """The checkpoint taken before, which `undo` goes back to."""


class Rewound(Event):
    """The rewind is done. Unless only files went back, the event after it has `to` as its parent."""

    kind: Literal["rewound"] = "rewound"
    to: str
    step: int
    what: Literal["both", "files", "conversation"] = "both"
    target: str | None = None
    safety: str | None = None
    undo_of: str | None = None
    """Id of the rewind that this one takes back."""


class Forked(Event):
    """Another run began from here, in the folder of that name beside this one."""

    kind: Literal["forked"] = "forked"
    run_id: str
    folder: str
    step: int
    checkpoint: str | None = None


class Continued(Event):
    """A run that had ended, or was killed, goes on."""

    kind: Literal["continued"] = "continued"
    source: str = ""
