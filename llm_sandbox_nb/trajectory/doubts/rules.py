"""The rules, by name, and their doubts: those of each action while it runs, and all of them at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from llm_sandbox_nb.trajectory.doubts.claims import claim_against_evidence
from llm_sandbox_nb.trajectory.doubts.command_rules import error_swallowed, failed_check, loop, swallowed
from llm_sandbox_nb.trajectory.doubts.data_lost import data_lost, losses
from llm_sandbox_nb.trajectory.doubts.data_sent import data_sent
from llm_sandbox_nb.trajectory.doubts.empty_result import empty_result
from llm_sandbox_nb.trajectory.doubts.evidence import Action, Evidence
from llm_sandbox_nb.trajectory.doubts.numbers_and_units import units_and_numbers
from llm_sandbox_nb.trajectory.doubts.stale_read import stale_read
from llm_sandbox_nb.trajectory.doubts.tests_changed import measure_changes, tests_changed
from llm_sandbox_nb.trajectory.doubts.too_early import answer_too_early
from llm_sandbox_nb.trajectory.events import CallFinished, Doubt, RunFinished
from llm_sandbox_nb.trajectory.trajectory import Trajectory

Found = Iterable[Doubt | tuple[int | None, str] | str] | str | None
Rule = Callable[[Evidence], Found]
"""A rule of a user: it reads the record at the end, and gives doubts, pairs of a step and a text, texts, or None."""


class Named(NamedTuple):
    """A rule with its name, as it is published."""

    name: str
    rule: Callable[[Evidence], Iterator[Doubt]]


RULES = (
    Named("data lost", data_lost),
    Named("failed check", failed_check),
    Named("claim against evidence", claim_against_evidence),
    Named("stale read", stale_read),
    Named("answer too early", answer_too_early),
    Named("units and numbers", units_and_numbers),
    Named("loop", loop),
    Named("error swallowed", error_swallowed),
    Named("tests or checks changed", tests_changed),
    Named("empty or placeholder result", empty_result),
    Named("data sent elsewhere", data_sent),
)
MOST = 20
"""Doubts of a run that are kept."""
LONGEST = 200
"""Characters of a doubt."""
_SEVERITY = {"high": 0, "medium": 1, "low": 2}
_AT_ONCE: tuple[Callable[[Evidence, Action], Iterator[Doubt]], ...] = (losses, measure_changes, swallowed)
_LOOPS_LOOKED_AT = 12


class DoubtFinder:
    """Finds the doubts of one run as it grows."""

    def __init__(self, own: Sequence[Rule] = ()) -> None:
        self.evidence = Evidence()
        self.own = tuple(own)

    def newest(self, trajectory: Trajectory, result: CallFinished) -> list[Doubt]:
        """Doubts that a call gave rise to, which has just ended."""
        found: list[Doubt] = []
        for action in self.evidence.take(trajectory):
            if action.result is result:  # after a rewind, all actions are taken again
                found += [_short(doubt) for rule in _AT_ONCE for doubt in rule(self.evidence, action)]
                found += self._loop(action)
        return found[:MOST]

    def _loop(self, action: Action) -> list[Doubt]:
        """The loop that an action is part of, said when it is long enough and each time that it has doubled."""
        same = 1
        for other in reversed(self.evidence.actions[: action.number]):
            if other.call.arguments != action.call.arguments or other.result.body != action.result.body:
                break
            same += 1
        return (
            list(loop(self.evidence))[-1:]
            if same in (3, 6, 12, 24, 48) and (action.failed or same > 3)
            else []
        )

    def all(self, trajectory: Trajectory, finish: RunFinished) -> list[Doubt]:
        """All doubts of a run that ends, the worst first."""
        self.evidence.take(trajectory)
        at_end = self.evidence.ended(finish)
        found = [doubt for named in RULES for doubt in named.rule(at_end)]
        for rule in self.own:
            found += own_doubts(rule, at_end)
        return ranked(found)


def own_doubts(rule: Rule, evidence: Evidence) -> list[Doubt]:
    """The doubts of a user's function; when it fails, a doubt that says so."""
    name = getattr(rule, "__name__", type(rule).__name__).replace("_", " ")
    try:
        given = rule(evidence)
        listed = [given] if isinstance(given, str) else list(given or ())
        return [_own(name, one) for one in listed[:MOST]]
    except Exception as error:  # noqa: BLE001 (of a user's function)
        text = f"the rule could not be applied ({type(error).__name__}: {error})"
        return [Doubt(rule=name, text=text[:LONGEST], severity="low")]


def _own(name: str, given: object) -> Doubt:
    if isinstance(given, Doubt):
        return given if given.rule else given.model_copy(update={"rule": name})
    step, text = given if isinstance(given, tuple) else (None, given)
    if not isinstance(text, str):
        raise TypeError(f"a doubt is a text, or a step and a text, not {given!r:.60}")
    return Doubt(rule=name, step=step, text=text, severity="medium")


def ranked(doubts: Iterable[Doubt]) -> list[Doubt]:
    """The worst first; of equal ones the earliest step; each said once."""
    unique: dict[tuple[int | None, str], Doubt] = {}
    for doubt in doubts:
        unique.setdefault((doubt.step, doubt.rule), _short(doubt))
    return sorted(unique.values(), key=lambda one: (_SEVERITY[one.severity], one.step or 0))[:MOST]


def _short(doubt: Doubt) -> Doubt:
    text = " ".join(doubt.text.split())
    return (
        doubt
        if text == doubt.text and len(text) <= LONGEST
        else doubt.model_copy(update={"text": text[:LONGEST]})
    )


def doubts_line(doubts: Iterable[Doubt]) -> str:
    """Doubts in one line, each with its step."""
    return " · ".join(doubt.line for doubt in doubts)


def doubts_json(doubts: Iterable[Doubt]) -> list[dict[str, Any]]:
    """Doubts as REST and other programs get them; `line` is each with its step, as a person reads it."""
    return [{**doubt.model_dump(mode="json"), "line": doubt.line} for doubt in doubts]


def doubts_of(trajectory: Trajectory) -> list[Doubt]:
    """The doubts of a run, the worst first: those that are recorded; of an ended run without, those found now."""
    if trajectory.finish is None or trajectory.doubts_final:
        return list(trajectory.doubts)
    return DoubtFinder().all(trajectory, trajectory.finish)
