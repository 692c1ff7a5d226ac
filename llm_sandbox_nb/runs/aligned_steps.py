"""Alignment of several runs' steps in rows, by their calls and results."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

from llm_sandbox_nb.trajectory.trajectory import Call, Step

Likeness = Literal["same", "results", "calls"]
"""Likeness of the steps in a row. `same`: the steps are equal. `results`: only results differ. `calls`: calls differ,
or a run has no step in the row."""

# The second part of the expression matches every other path, so that hostile text does not take quadratic time.
_OUTPUT_FILE = re.compile(
    r"((?:/\S*)?/(?:tmp/llm-sandbox|spill)/[0-9a-f]+(?:-[0-9a-f]+\.out|\.stdout|\.stderr))|/\S*+"
)


@dataclass(frozen=True)
class AlignedRow:
    """A row with one step of each run, or None for a run that has no step in this row."""

    steps: tuple[Step | None, ...]
    likeness: Likeness


def align(runs: Sequence[Sequence[Step]]) -> list[AlignedRow]:
    """Align the steps of all runs in rows, in the order of the first run.

    Steps that match no step of the first run are in further rows, in which the first run has no step. These steps are
    aligned with each other in the same way.
    """
    first, others = runs[0], runs[1:]
    pairs = [_pairs(first, other) for other in others]
    rows: list[AlignedRow] = []
    for place in range(len(first) + 1):
        between = [inserted.get(place, []) for _, inserted in pairs]
        if any(between):
            rows += [_row((None, *row.steps)) for row in align(between)]
        if place < len(first):
            rows.append(_row((first[place], *(matched.get(place) for matched, _ in pairs))))
    return rows


def _pairs(first: Sequence[Step], other: Sequence[Step]) -> tuple[dict[int, Step], dict[int, list[Step]]]:
    """Match the steps of `other` with the steps of `first`. Return two mappings by an index in `first`.

    The first mapping has the step of `other` that matches the step at the index. The second mapping has the steps of
    `other` that match no step and belong before the index.
    """
    matched: dict[int, Step] = {}
    inserted: dict[int, list[Step]] = {}
    matcher = SequenceMatcher(None, [called(step) for step in first], [called(step) for step in other], False)
    for _, start, end, low, high in matcher.get_opcodes():
        common = min(end - start, high - low)
        for number in range(common):
            matched[start + number] = other[low + number]
        if high - low > common:
            inserted[end] = list(other[low + common : high])
    return matched, inserted


def _row(steps: tuple[Step | None, ...]) -> AlignedRow:
    there = [step for step in steps if step is not None]
    if len(there) < len(steps) or len({called(step) for step in there}) > 1:
        return AlignedRow(steps, "calls")
    results = {tuple(_result(call) for call in step.calls) for step in there}
    return AlignedRow(steps, "same" if len(results) == 1 else "results")


def _result(call: Call) -> tuple[str, ...]:
    """Return the result of a call, as it is compared with the results of other runs.

    If the model was shown only the beginning and the end of the output, the recorded output is compared too.
    """
    body = without_output_files(call.body)
    if call.result is None or body == call.body:
        return (body,)
    return body, str(call.result.stdout), str(call.result.stderr)


def without_output_files(text: str) -> str:
    """Replace the paths of files with the whole output of a command. Each run has other names for these files."""
    return _OUTPUT_FILE.sub(lambda found: "…" if found[1] else found[0], text)


def called(step: Step) -> str:
    """Return the calls of a step as JSON, so that steps can be compared. For a step without a call, use its text."""
    if not step.calls:
        return json.dumps(["", step.thought.strip()])
    calls = [
        [call.tool, call.raw_arguments if call.arguments is None else call.arguments] for call in step.calls
    ]
    return json.dumps(calls, sort_keys=True)
