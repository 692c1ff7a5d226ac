"""The summary of a live run in the server. Each event updates the summary and is not stored, which saves memory."""

from __future__ import annotations

from typing import Any

from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.doubts.rules import doubts_json
from llm_sandbox_nb.trajectory.state import State, Status
from llm_sandbox_nb.trajectory.trajectory import with_doubts

Json = dict[str, Any]
_TASK_CHARACTERS = 300
_HELD_FIELDS = {"step", "call_id", "at", "reason", "text"}


def is_event(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("kind"), str)


def is_live_text(value: object) -> bool:
    return is_event(value) and isinstance(value, dict) and value["kind"] in ev.TRANSIENT


class WatchedRun:
    """The row of one run in a list of live runs."""

    def __init__(self) -> None:
        self.over = False
        """True after the last event of the run."""
        self._status = Status()
        self._doubts: list[ev.Doubt] = []
        self._before: dict[str, list[ev.Doubt]] = {}
        """The doubts before each of the newest rewinds, by the id of the rewind."""
        self._facts: Json = {"task": None, "model": None, "scripted": None, "stop_reason": None, "steps": 0}

    def add(self, value: Json) -> None:
        """Update the row with an event. Invalid events are ignored."""
        try:
            event = ev.parse_python(value)
        except ValueError:
            return
        self._status.follow(event)
        match event:
            case ev.RunStarted():
                task = event.task[:_TASK_CHARACTERS]
                self._facts.update(task=task, model=event.model, scripted=event.scripted)
            case ev.ModelRequested():
                self._facts["steps"] = event.step
                self.go_on()
            case ev.Continued():
                self.go_on()
            case ev.DoubtsFound():
                self._doubts = event.doubts if event.final else with_doubts(self._doubts, event.doubts)
            case ev.Rewound() if event.what != "files":
                self._facts["steps"] = event.step
                self._before = {**dict(list(self._before.items())[-9:]), event.id: self._doubts}
                left = [doubt for doubt in self._doubts if (doubt.step or 0) <= event.step]
                self._doubts = self._before.get(event.undo_of or "", left)
            case ev.RunFinished():
                self.over = True
                self._facts.update(stop_reason=event.stop_reason, usage=event.usage.model_dump(mode="json"))

    def go_on(self) -> None:
        """Remove the end from the row, because the run was resumed."""
        self.over, self._facts["stop_reason"] = False, None

    def to_json(self, *, live: bool, away: bool) -> Json:
        """Return the row for REST.

        Args:
            live: True if a kernel publishes the run.
            away: True if the kernel has disconnected and may reconnect.
        """
        held = self._status.held if live else None
        state = self._status.run_state(live=live or away, away=State.KERNEL_AWAY if away else None)
        return {
            "paused": self._status.paused and live,
            "held": None if held is None else held.model_dump(include=_HELD_FIELDS),
            "doubts": doubts_json(self._doubts),
            "status": state.to_json(),
            **self._facts,
        }
