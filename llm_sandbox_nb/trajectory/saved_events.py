"""The events of a run as a notebook keeps them: what is said several times is said once, and no fact is missing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.facts import with_facts


def saved_events(events: Sequence[ev.Event], *, live: bool = False) -> list[dict[str, Any]]:
    """The events as JSON gives them. `live`: the last step has not ended."""
    started = {event.call_id: event.arguments for event in events if isinstance(event, ev.CallStarted)}
    return [_said_once(event, started) for event in with_facts(events, live=live)]


def _said_once(event: ev.Event, started: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The event without what another says: the settings of a request, a reply's calls, a call's arguments."""
    value: dict[str, Any] = json.loads(ev.dump_event(event))
    match event:
        case ev.ModelRequested():
            del value["settings"]
        case ev.ModelReplied(calls_from=None):  # else it says which calls were written as text
            value["message"].pop("tool_calls", None)
        case ev.CallProposed(arguments=dict() as arguments):
            value["raw_arguments"] = ""
            if arguments == started.get(event.call_id):
                value["arguments"] = None
    return value
