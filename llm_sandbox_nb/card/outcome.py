"""What a run came to, in a few words: its state, its figures, its first error. For the card and the terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Literal

from llm_sandbox_nb.card.text import first_line, plain
from llm_sandbox_nb.formatting import (
    format_cost,
    format_count,
    format_duration,
    format_model_failure,
    format_short,
    format_size,
    format_spent,
    format_state,
    plural,
)
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.trajectory import Call, Step, Trajectory

Meaning = Literal["ok", "bad", "wait", "run"]
"""What a colour says: success, failure, a person's turn, running."""

_GOOD_ENDS = ("submitted", "answered")
_PERSON = "interrupted"
_QUIET = frozenset({"checkpoint", "artifact", "artifact.removed", "artifact.skipped", "forked"})
"""Kinds of events that may follow a rewind without anything having been done since."""


def failed(call: Call) -> bool:
    """Whether a call has ended and went wrong."""
    return call.result is not None and call.result.failed


def step_failed(step: Step) -> bool:
    """Whether a call of the step went wrong, or the model gave no reply."""
    return any(failed(call) for call in step.calls) or (not step.replied and bool(step.failures))


class Tally:
    """What the outcome says about all steps of a branch, kept event by event: an update costs the same at any step."""

    def __init__(self) -> None:
        self.first_error: int | None = None
        """The number of the first step in which a call failed."""
        self._changed: set[str] = set()

    @property
    def changed_files(self) -> int:
        """Files that calls have changed, as far as the record says."""
        return len(self._changed)

    def add(self, result: ev.CallFinished) -> None:
        """A call has its result."""
        if self.first_error is None and result.failed:
            self.first_error = result.step
        self._changed.update(change.path for change in result.changes)


def state(trajectory: Trajectory, *, live: bool) -> tuple[str, Meaning]:
    """The state of the run, or how it ended, as a person says it; and what its colour says."""
    if finish := trajectory.finish:
        reason = shown_reason(finish)
        meaning: Meaning = "ok" if reason in _GOOD_ENDS else "wait" if reason == _PERSON else "bad"
        limits = [trajectory.start.settings.get("limits")] if trajectory.start else []
        limits += [change.limits for change in trajectory.changed]
        failures = [one for step in trajectory.steps[-1:] for one in step.failures]
        return ending_words(reason, limits, failures[-1].error if failures else ""), meaning
    last = str(trajectory.steps[-1].number) if trajectory.steps else ""
    if live:
        if trajectory.held or trajectory.paused:
            return format_state("waiting" if trajectory.held else "paused"), "wait"
        return format_state("running", last), "run"
    if _rewound(trajectory):
        return format_state("ready", last), "run"
    return format_state("cut_off", last), "bad"


def shown_reason(finish: ev.RunFinished) -> str:
    """Why a run ended, as `format_state` takes it: `context` where it was not its own limit of tokens."""
    if finish.without_answer:
        return "without_answer"
    return "context" if finish.stop_reason == "tokens" and finish.error else finish.stop_reason


_LIMIT_WORDS: dict[str, Callable[[Any], str]] = {
    "steps": format_count,
    "tokens": format_count,
    "total_tokens": format_count,
    "time": format_duration,
    "cost": format_cost,
}


def ending_words(reason: str, limits: Iterable[Any], failure: str) -> str:
    """How a run ended. `limits` are those that were set, in their order, `failure` the kind of the model's last one."""
    if reason == "model_error":
        return format_state(reason, format_model_failure(failure))
    values = [one.get(reason) for one in limits if isinstance(one, dict)]
    last = next((value for value in reversed(values) if isinstance(value, int | float)), None)
    words = _LIMIT_WORDS.get(reason)
    return format_state(reason, words(last) if last is not None and words else "")


def _rewound(trajectory: Trajectory) -> bool:
    """Whether a rewind of the conversation is the last thing that happened."""
    for event in reversed(trajectory.events):
        if event.kind not in _QUIET:
            return isinstance(event, ev.Rewound)
    return False


def figures(trajectory: Trajectory) -> list[str]:
    """Steps, tokens, time, model and cost, each as far as it is known."""
    usage = trajectory.usage
    parts = [plural(trajectory.steps_done, "step")]
    if usage.total_tokens:
        parts.append(f"{format_short(usage.total_tokens)} {'token' if usage.total_tokens == 1 else 'tokens'}")
    if seconds := _seconds(trajectory):
        parts.append(format_duration(seconds))
    if name := first_line(plain(trajectory.model), 60):
        parts.append(name)
    if trajectory.scripted:
        parts.append("scripted: free")
    elif usage.total_tokens:
        budget = trajectory.budget
        parts.append(format_spent(usage.cost if budget is None else trajectory.total_usage.cost, budget))
    return parts


def _seconds(trajectory: Trajectory) -> float:
    """0 when the record does not tell."""
    if trajectory.finish:
        return trajectory.finish.wall_time
    return max(0.0, time.time() - trajectory.start.time) if trajectory.start else 0.0


_ISOLATIONS = {"docker": "Docker", "podman": "Podman", "process": "No isolation"}


def protection_chip(protection: dict[str, Any]) -> str:
    """Isolation and network in a few words."""
    isolation, network = str(protection.get("isolation")), str(protection.get("network"))
    reach = "no network" if network == "none" else f"network: {network}"
    words = [_ISOLATIONS.get(isolation, isolation), reach]
    return first_line(plain(", ".join(words)), 60)


def protection_text(protection: dict[str, Any]) -> str:
    """The protection in force, in one line."""
    user = str(protection.get("user"))
    limits = [str(protection.get("isolation")), str(protection.get("profile") or "")]
    limits.append(f"user {'root' if user == '0' else user}")
    limits.append(f"network {protection.get('network')}")
    if isinstance(memory := protection.get("memory_bytes"), int):
        limits.append(f"{format_size(memory)} memory")
    if isinstance(disk := protection.get("disk_bytes"), int):
        limits.append(f"{format_size(disk)} of files")
    if pids := protection.get("pids"):
        limits.append(f"{pids} processes")
    if cpus := protection.get("cpus"):
        limits.append(f"{cpus:g} CPUs" if isinstance(cpus, int | float) else f"{cpus} CPUs")
    return plain(" · ".join(filter(None, limits)))
