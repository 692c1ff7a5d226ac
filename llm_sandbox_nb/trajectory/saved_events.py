"""The events of a run in the form for a saved notebook, without repeated data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.facts import with_facts


def saved_events(events: Sequence[ev.Event], *, live: bool = False) -> list[dict[str, Any]]:
    """Return the events as JSON values. `live` is True if the last step may not have ended."""
    started = {event.call_id: event.arguments for event in events if isinstance(event, ev.CallStarted)}
    return [_without_repetition(event, started) for event in with_facts(events, live=live)]


def _without_repetition(event: ev.Event, started: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return an event as JSON without values that other events contain too.

    These are the settings of a request, the calls of a reply, and the arguments of a call.
    """
    value: dict[str, Any] = json.loads(ev.dump_event(event))
    match event:
        case ev.ModelRequested():
            del value["settings"]
        # If `calls_from` is set, `tool_calls` is kept: it shows whether the results were sent as tool messages.
        case ev.ModelReplied(calls_from=None):
            value["message"].pop("tool_calls", None)
        case ev.CallProposed(arguments=dict() as arguments):
            value["raw_arguments"] = ""
            if arguments == started.get(event.call_id):
                value["arguments"] = None
    return value
