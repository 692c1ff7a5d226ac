"""The tree of a run's events, and its branches.

As in git, HEAD is the event that the next event follows. A rewind moves HEAD to an older event, where a second branch
can begin.
"""

from __future__ import annotations

from dataclasses import dataclass

from llm_sandbox_nb.trajectory import events as ev

_CHECKPOINT = "checkpoint"


@dataclass(frozen=True)
class Branch:
    """A branch: the events from the first event to the event `tip`."""

    tip: str
    """Id of the last event. `Trajectory.at` accepts this id."""
    fork: str | None
    """Id of the last event that this branch shares with the branch of HEAD. None for the branch of HEAD itself."""
    step: int
    """Number of the last step that this branch shares with the branch of HEAD. Equal to `steps` if `head` is True."""
    steps: int
    """Number of the last step of this branch."""
    head: bool
    """True for the branch of HEAD, which new events extend."""


class Tree:
    """Tree of events. Events are never removed."""

    def __init__(self) -> None:
        self._events: dict[str, ev.Event] = {}
        self._parents: dict[str, str | None] = {}
        self._steps: dict[str, int] = {}
        self._facts: dict[str | None, list[ev.Facts]] = {}
        """Facts (step summaries, doubts) by the id of the event that they follow. Facts are not nodes of the tree."""

    def __contains__(self, id: str | None) -> bool:
        return id in self._events

    def add(self, event: ev.Event, parent: str | None) -> None:
        """Add `event` after the event with the id `parent`. Ignore an event whose id is known."""
        if event.id in self._events:
            return
        self._events[event.id] = event
        self._parents[event.id] = parent
        before = self._steps.get(parent, 0) if parent is not None else 0
        step = getattr(event, "step", None) if event.kind.startswith(("model.", "call.")) else None
        self._steps[event.id] = step if isinstance(step, int) else before

    def annotate(self, facts: ev.Facts, parent: str | None) -> None:
        """Add facts after the event with the id `parent`."""
        self._facts.setdefault(parent, []).append(facts)

    def path(self, tip: str | None) -> list[ev.Event]:
        """Return the events from the first event to `tip`. Each event is followed by its facts."""
        found: list[ev.Event] = []
        while tip is not None:
            found += reversed(self._facts.get(tip, ()))
            found.append(self._events[tip])
            tip = self._parents[tip]
        return found[::-1]

    def parent(self, id: str) -> str | None:
        """Return the id of the event before `id`."""
        return self._parents[id]

    def step(self, id: str | None) -> int:
        """Return the number of the step of an event. For an event between steps, return the previous step, or 0."""
        return 0 if id is None else self._steps[id]

    def branches(self, head: str | None) -> list[Branch]:
        """Return all branches, in the order of their last events."""
        tip_of_head = self._without_marks(head)
        on_head = {event.id for event in self.path(head)}
        tips = self._tips()
        if tip_of_head is not None and tip_of_head not in tips:
            tips.append(tip_of_head)
        forks: dict[str, str | None] = {}
        return [self._branch(tip, on_head, forks, tip == tip_of_head) for tip in tips]

    def _branch(self, tip: str, on_head: set[str], forks: dict[str, str | None], head: bool) -> Branch:
        """Return the branch that ends with `tip`.

        `forks` maps each visited event to the last event that its branch shares with the branch of HEAD. So no event is
        visited twice.
        """
        fork: str | None = tip
        passed = []
        while fork is not None and fork not in on_head:
            if fork in forks:
                fork = forks[fork]
                break
            passed.append(fork)
            fork = self._parents[fork]
        forks.update(dict.fromkeys(passed, fork))
        return Branch(tip, None if head else fork, self.step(fork), self.step(tip), head)

    def _without_marks(self, id: str | None) -> str | None:
        while id is not None and self._events[id].kind in ev.MARKS - {_CHECKPOINT}:
            id = self._parents[id]
        return id

    def _tips(self) -> list[str]:
        """Return for each branch the id of its last event, without the events of `events.MARKS` at its end.

        If a checkpoint directly follows that last event, return the id of the checkpoint instead.
        """
        lead_on: set[str | None] = set()
        named: dict[str | None, str] = {}
        tips = []
        for id, event in reversed(self._events.items()):
            if event.kind in ev.MARKS:
                if id in lead_on:
                    lead_on.add(self._parents[id])
                elif event.kind == _CHECKPOINT:
                    named[self._parents[id]] = named.get(id, id)
                continue
            if id not in lead_on:
                tips.append(named.get(id, id))
            lead_on.add(self._parents[id])
        return tips[::-1]
