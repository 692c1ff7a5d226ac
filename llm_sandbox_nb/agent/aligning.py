"""Steps of several runs set side by side: what each did at the same point."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, Literal

from llm_sandbox_nb.trajectory.trajectory import Call, Step

_REMAINING = re.compile(r"\n\n\[Steps remaining: -?\d+\](\n[^\n]*)?\Z")
_EDITED = re.compile(r"\A\[A person changed this call before it was executed\.[^\n]*\]\n\n")
Likeness = Literal["same", "results", "calls"]
"""Whether the steps of a row are the same, differ in results only, or in what was called (or are missing)."""


@dataclass(frozen=True)
class Row:
    """The steps of all runs at one point; None where a run has none."""

    steps: tuple[Step | None, ...]
    likeness: Likeness


def align(runs: Sequence[Sequence[Step]]) -> list[Row]:
    """The steps of all runs in rows; the first run sets the order, and what it lacks stands between its steps."""
    first, others = runs[0], runs[1:]
    pairs = [_pairs(first, other) for other in others]
    rows: list[Row] = []
    for place in range(len(first) + 1):
        between = [inserted.get(place, []) for _, inserted in pairs]
        for number in range(max((len(steps) for steps in between), default=0)):
            rows.append(_row((None, *(steps[number] if number < len(steps) else None for steps in between))))
        if place < len(first):
            rows.append(_row((first[place], *(matched.get(place) for matched, _ in pairs))))
    return rows


def _pairs(first: Sequence[Step], other: Sequence[Step]) -> tuple[dict[int, Step], dict[int, list[Step]]]:
    """Steps of `other` by the place in `first` that they stand beside, and those that stand before a place."""
    matched: dict[int, Step] = {}
    inserted: dict[int, list[Step]] = {}
    matcher = SequenceMatcher(None, [called(step) for step in first], [called(step) for step in other], False)
    for _, start, end, low, high in matcher.get_opcodes():
        beside = min(end - start, high - low)
        for number in range(beside):
            matched[start + number] = other[low + number]
        if high - low > beside:
            inserted[end] = list(other[low + beside : high])
    return matched, inserted


def _row(steps: tuple[Step | None, ...]) -> Row:
    there = [step for step in steps if step is not None]
    if len(there) < len(steps) or len({called(step) for step in there}) > 1:
        return Row(steps, "calls")
    return Row(steps, "same" if len({_results(step) for step in there}) == 1 else "results")


def called(step: Step) -> str:
    """What a step did, in a form that can be compared; a reply without a call is what it said."""
    if not step.calls:
        return json.dumps(["", step.thought.strip()])
    return json.dumps([[call.tool, _arguments(call)] for call in step.calls], sort_keys=True)


def _arguments(call: Call) -> Any:
    return call.raw_arguments if call.arguments is None else call.arguments


def _results(step: Step) -> tuple[str, ...]:
    return tuple(shown(call) for call in step.calls)


def shown(call: Call) -> str:
    """What came of a call, without what the model was told about how many steps remain, and who changed the call."""
    return _EDITED.sub("", _REMAINING.sub("", call.output))
