"""Held calls, and checked decisions about these calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from llm_sandbox_nb.agent.control.pause_rules import Place, Reason
from llm_sandbox_nb.agent.control.settings_change import Change
from llm_sandbox_nb.agent.errors import ControlError
from llm_sandbox_nb.agent.run_options import DEFAULT_OPTIONS
from llm_sandbox_nb.agent.tools.arguments import ArgumentsError
from llm_sandbox_nb.agent.tools.toolbox import TOOLS, Toolbox
from llm_sandbox_nb.model.contract import ToolCall
from llm_sandbox_nb.trajectory import events as ev

DENIED = "A person denied this call."
"""Observation for a call that was denied without a reason."""
Action = Literal["pause", "resume", "step", "say", "stop", "edit", "skip", "observe", "change"]
_MAX_NOTE_CHARACTERS = 2_000


@dataclass(frozen=True)
class Held:
    """Call that waits for a decision, either before its execution or before the model sees its observation."""

    step: int
    call_id: str
    at: Place
    reason: Reason
    text: str
    """Details of the reason, for the person who decides. May be empty."""
    tool: str
    arguments: Mapping[str, Any]
    """The proposed arguments. Empty if they cannot be parsed."""
    raw_arguments: str = ""
    """The arguments in the form in which the model wrote them."""
    observation: str | None = None
    """Observation that the model would read. None for a call that was not executed."""
    toolbox: Toolbox = TOOLS
    """The tools of the run. The call can be changed to another one of these tools."""
    hosts: tuple[str, ...] = ()
    """Hosts, as HOST:PORT, to which connections of the call were refused."""
    refusal: str = ""
    """Observation for the model if no person can approve the call. Empty for a call that always waits for a person."""

    def event(self) -> ev.CallHeld:
        return ev.CallHeld(
            step=self.step,
            call_id=self.call_id,
            at=self.at,
            reason=self.reason,
            text=str(ev.clean_text(self.text)),
            hosts=list(self.hosts),
        )


@dataclass
class Decision:
    """A person's decision. `hold` is the held call that the decision releases. None if it releases no call."""

    action: Action
    source: str
    text: str | None = None
    """Text for the model."""
    call: ToolCall | None = None
    """Call to execute instead of the held call."""
    arguments: dict[str, Any] = field(default_factory=dict)
    change: Change | None = None
    hold: Held | None = None

    def event(self, held: Held) -> ev.CallDecided:
        """Return the event of the decision. For `observe`, `Conversation.replace_result` returns the event instead."""
        event = ev.CallDecided(step=held.step, call_id=held.call_id, action="run", source=self.source)
        if self.action == "edit" and self.call is not None:
            event.action, event.tool, event.arguments = "edit", self.call.name, self.arguments
        elif self.action == "skip":
            event.action, event.observation = "skip", self.text
        elif held.at == "call":
            event.tool, event.arguments = held.tool, dict(held.arguments)
        return event


Release = Callable[[Decision], ev.CallDecided]


def edited(
    held: Held, arguments: Mapping[str, Any] | None, changes: Mapping[str, Any], tool: str | None, source: str
) -> Decision:
    """Make the decision to execute an edited call.

    Raises:
        ControlError: if the call was executed already, or the tool does not accept the arguments.
    """
    if held.at != "call":
        raise ControlError("This call was executed already: its observation can be changed, not the call.")
    tool, known = edited_call(held.toolbox, held.tool, held.arguments, arguments, changes, tool)
    call = ToolCall(held.call_id, tool, json.dumps(known, ensure_ascii=False))
    return Decision("edit", source, call=call, arguments=known)


def edited_call(
    toolbox: Toolbox,
    proposed_tool: str,
    proposed: object,
    arguments: object,
    changes: Mapping[str, Any],
    tool: str | None,
) -> tuple[str, dict[str, Any]]:
    """Return the tool and the arguments of an edited call.

    The arguments are `arguments` with `changes`. If `arguments` is None, they are the proposed arguments with
    `changes`, or only `changes` if `tool` differs from the proposed tool.

    Raises:
        ControlError: if the tool does not accept these arguments, or the arguments of another tool are not given.
    """
    tool = tool or proposed_tool
    base = proposed if arguments is None and tool == proposed_tool else arguments
    if base is None:
        base = {}
        has_arguments = tool in toolbox and bool(toolbox[tool].properties(DEFAULT_OPTIONS))
        if tool != proposed_tool and has_arguments and not changes:
            raise ControlError(
                f"The proposed arguments are those of {proposed_tool}: give those of {tool}, "
                f"as in edit({{...}}, tool={tool!r})."
            )
    if not isinstance(base, Mapping):
        raise ControlError("The arguments of a call have names: give them as in edit(command='ls').")
    changed = ev.clean_text({**base, **changes})
    try:
        known = toolbox.check(tool, changed)
        json.dumps(known)
    except (ArgumentsError, TypeError, ValueError) as error:
        raise ControlError(f"The call cannot be changed to that: {str(error).rstrip('.')}.") from error
    if unknown := [name for name in changed if name not in known and changed[name] is not None]:
        raise ControlError(f"The call cannot be changed to that: {tool} has no argument {unknown[0][:80]!r}.")
    return tool, known


def denied(held: Held, reason: str | None, source: str) -> Decision:
    """Make the decision not to execute the held call. Raise ControlError if the call was executed already."""
    if held.at != "call":
        raise ControlError("This call was executed already: its observation can be changed, not the call.")
    return Decision("skip", source, text=str(ev.clean_text(given_text(reason or ""))).strip() or DENIED)


def shown(held: Held, text: str, source: str) -> Decision:
    """Make the decision to show `text` to the model instead of the held observation.

    Raises:
        ControlError: if the call was not executed yet, or the text is empty.
    """
    if held.at != "observation":
        raise ControlError("This call was not executed yet: deny it to show the model a text in its place.")
    text = str(ev.clean_text(given_text(text)))
    if not text.strip():
        raise ControlError("The observation is empty. Type a text for the model.")
    return Decision("observe", source, text=text)


def given_text(text: object) -> str:
    """Return `text`, which the model will read. Raise ControlError if `text` is not a string."""
    if not isinstance(text, str):
        raise ControlError(f"The model reads text: give a string, not {text!r:.80}.")
    return text


def edited_note(tool: str, arguments: Mapping[str, Any]) -> str:
    """Return the note that precedes the observation of a call that a person changed."""
    text = json.dumps(dict(arguments), ensure_ascii=False)
    text = text if len(text) <= _MAX_NOTE_CHARACTERS else text[:_MAX_NOTE_CHARACTERS] + "..."
    return f"[A person changed this call before it was executed. What was executed: {tool} {text}]"
