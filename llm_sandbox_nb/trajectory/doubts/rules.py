"""The rules for doubts, by name. Some rules are applied after each action of a live run. All rules are applied at the
end of the run."""

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
"""User-defined rule: a function that gets the record at the end of a run. The function returns None, a text, or a list
of doubts, texts, and pairs of a step number and a text."""


class Named(NamedTuple):
    """Rule with the name that users see."""

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
MAX_DOUBTS = 20
"""Maximum number of doubts about a run."""
MAX_DOUBT_CHARACTERS = 200
_SEVERITY = {"high": 0, "medium": 1, "low": 2}
_RULES_AFTER_ACTION: tuple[Callable[[Evidence, Action], Iterator[Doubt]], ...] = (
    losses,
    measure_changes,
    swallowed,
)


class DoubtFinder:
    """Finder of doubts about a run whose events arrive one by one."""

    def __init__(self, own: Sequence[Rule] = ()) -> None:
        self.evidence = Evidence()
        self.own = tuple(own)

    def newest(self, trajectory: Trajectory, result: CallFinished) -> list[Doubt]:
        """Return doubts about a call that has just ended."""
        found: list[Doubt] = []
        for action in self.evidence.take(trajectory):
            if action.result is result:  # after a rewind, `take` returns all actions again
                found += [
                    _short(doubt) for rule in _RULES_AFTER_ACTION for doubt in rule(self.evidence, action)
                ]
                found += self._loop(action)
        return found[:MAX_DOUBTS]

    def _loop(self, action: Action) -> list[Doubt]:
        """Return the doubt about a loop that ends with `action`, or an empty list.

        The doubt is returned after 3 equal failures, and after 6, 12, 24 and 48 equal actions.
        """
        same = action.repetitions
        long = same in (3, 6, 12, 24, 48) and (action.failed or same > 3)
        return list(loop(self.evidence))[-1:] if long else []

    def all(self, trajectory: Trajectory, finish: RunFinished) -> list[Doubt]:
        """Return all doubts about a run that ends, worst first."""
        self.evidence.take(trajectory)
        at_end = self.evidence.ended(finish)
        found = [doubt for named in RULES for doubt in named.rule(at_end)]
        for rule in self.own:
            found += own_doubts(rule, at_end)
        return ranked(found)


def own_doubts(rule: Rule, evidence: Evidence) -> list[Doubt]:
    """Apply a user-defined rule. If the rule raises an exception, return a doubt that reports the failure."""
    name = getattr(rule, "__name__", type(rule).__name__).replace("_", " ")
    try:
        given = rule(evidence)
        listed = [given] if isinstance(given, str) else list(given or ())
        return [_own(name, given) for given in listed[:MAX_DOUBTS]]
    except Exception as error:  # noqa: BLE001 (of a user's function)
        text = f"the rule could not be applied ({type(error).__name__}: {error})"
        return [Doubt(rule=name, text=text[:MAX_DOUBT_CHARACTERS], severity="low")]


def _own(name: str, given: object) -> Doubt:
    if isinstance(given, Doubt):
        return given if given.rule else given.model_copy(update={"rule": name})
    step, text = given if isinstance(given, tuple) else (None, given)
    if not isinstance(text, str):
        raise TypeError(f"a doubt is a text, or a step and a text, not {given!r:.60}")
    return Doubt(rule=name, step=step, text=text, severity="medium")


def ranked(doubts: Iterable[Doubt]) -> list[Doubt]:
    """Sort doubts by severity and step. Keep one doubt for each step and rule, and at most `MAX_DOUBTS` doubts."""
    unique: dict[tuple[int | None, str], Doubt] = {}
    for doubt in doubts:
        unique.setdefault((doubt.step, doubt.rule), _short(doubt))
    return sorted(unique.values(), key=lambda doubt: (_SEVERITY[doubt.severity], doubt.step or 0))[
        :MAX_DOUBTS
    ]


def _short(doubt: Doubt) -> Doubt:
    text = " ".join(doubt.text.split())[:MAX_DOUBT_CHARACTERS]
    return doubt if text == doubt.text else doubt.model_copy(update={"text": text})


def doubts_line(doubts: Iterable[Doubt]) -> str:
    """Return doubts in one line. Each doubt has its step number."""
    return " · ".join(doubt.line for doubt in doubts)


def doubts_json(doubts: Iterable[Doubt]) -> list[dict[str, Any]]:
    """Return doubts as JSON values. Each value has a readable text in `line`."""
    return [{**doubt.model_dump(mode="json"), "line": doubt.line} for doubt in doubts]


def doubts_of(trajectory: Trajectory) -> list[Doubt]:
    """Return the recorded doubts about a run. If the run has ended and no final doubts were recorded, find them now."""
    if trajectory.finish is None or trajectory.doubts_final:
        return list(trajectory.doubts)
    return DoubtFinder().all(trajectory, trajectory.finish)
