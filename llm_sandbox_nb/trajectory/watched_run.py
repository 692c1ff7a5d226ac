"""What a server says of a run whose events it passes on: read event by event, kept in a few bytes."""

from __future__ import annotations

from typing import Any

from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.doubts.rules import doubts_json
from llm_sandbox_nb.trajectory.state import State, Status
from llm_sandbox_nb.trajectory.trajectory import with_doubts

Json = dict[str, Any]
_TASK_SHOWN = 300
_HELD = {"step", "call_id", "at", "reason", "text"}


def is_event(value: object) -> bool:
    """Whether what came from a kernel can be an event."""
    return isinstance(value, dict) and isinstance(value.get("kind"), str)


def is_live_text(value: object) -> bool:
    """Whether it can be an event that is shown live and not written."""
    return is_event(value) and isinstance(value, dict) and value["kind"] in ev.TRANSIENT


class WatchedRun:
    """The facts of a list about one run."""

    def __init__(self) -> None:
        self.over = False
        """Whether its last event is here."""
        self._status = Status()
        self._doubts: list[ev.Doubt] = []
        self._facts: Json = {"task": None, "model": None, "scripted": None, "stop_reason": None, "steps": 0}

    def add(self, value: Json) -> None:
        """Take an event into account; one that is damaged says nothing."""
        try:
            event = ev.parse_python(value)
        except ValueError:
            return
        self._status.follow(event)
        match event:
            case ev.RunStarted():
                task = event.task[:_TASK_SHOWN]
                self._facts.update(task=task, model=event.model, scripted=event.scripted)
            case ev.ModelRequested():
                self._facts["steps"] = event.step
                self.go_on()
            case ev.Continued():
                self.go_on()
            case ev.DoubtsFound():
                self._doubts = event.doubts if event.final else with_doubts(self._doubts, event.doubts)
            case ev.Rewound() if event.what != "files":
                self._doubts = [one for one in self._doubts if (one.step or 0) <= event.step]
            case ev.RunFinished():
                self.over = True
                self._facts.update(stop_reason=event.stop_reason, usage=event.usage.model_dump(mode="json"))

    def go_on(self) -> None:
        """It had ended, and is resumed."""
        self.over, self._facts["stop_reason"] = False, None

    def to_json(self, *, live: bool, away: bool) -> Json:
        """What REST says. `live`: its kernel publishes it; `away`: it may come back."""
        held = self._status.held if live else None
        state = self._status.run_state(live=live or away, away=State.KERNEL_AWAY if away else None)
        return {
            "paused": self._status.paused and live,
            "held": None if held is None else held.model_dump(include=_HELD),
            "doubts": doubts_json(self._doubts),
            "status": state.to_json(),
            **self._facts,
        }
