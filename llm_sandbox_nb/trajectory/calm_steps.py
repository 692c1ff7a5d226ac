"""Folding of a long run's uneventful steps into one row, such as "2-30: 29 reads, nothing changed".

Readers look for failures, decisions, doubts and the end of the run, so each step with such an event has a row of its
own. Only repetitions of the same failure share a row. In a run that fits on a screen, no step is folded.

`labextension/src/view/calm-steps.ts` implements the same rules. The cases in tests/data/runs.json test both files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from llm_sandbox_nb.formatting import plural
from llm_sandbox_nb.trajectory.step_line import (
    DECIDED,
    LIMITS,
    failed,
    failure_text,
    figures_text,
    headline,
    one_line,
    step_failed,
    step_seconds,
    tool_kind,
)
from llm_sandbox_nb.trajectory.trajectory import Step, Trajectory

CALM: Final = {"fits": 12, "least": 3, "newest": 3, "names": 2}
"""Limits. `fits`: number of rows that fit on a screen. `least`: minimum number of steps in a folded row. `newest`:
number of steps at the end of a live run that are not folded. `names`: maximum number of files that a row names."""

LEVELS: Final = ("read", "change", "save")
"""Kinds of steps that can be folded. Steps that only read are folded first. If the rows still do not fit on a screen,
steps that changed files are folded too, and finally steps that saved files."""


@dataclass(frozen=True)
class CalmSteps:
    """Neighbouring steps that are shown as one row."""

    steps: tuple[Step, ...]
    words: str
    figures: str
    """Tokens and seconds of all steps together."""

    @property
    def numbers(self) -> str:
        """The numbers of the first and the last step as a text, such as `2-30`."""
        return f"{self.steps[0].number}-{self.steps[-1].number}"


def step_rows(trajectory: Trajectory, *, live: bool) -> list[Step | CalmSteps]:
    """Return the rows of a run's steps, with uneventful steps folded. `live` is True if more steps may follow."""
    steps, root = trajectory.steps, trajectory.root
    doubted = {doubt.step for doubt in trajectory.doubts}
    running = live and trajectory.finish is None
    end = len(steps) - (CALM["newest"] if running else 1)
    if len(steps) <= CALM["fits"]:
        return [*steps]
    kinds = [
        "" if place >= end or step.number in doubted else _kind(steps, place, root)
        for place, step in enumerate(steps)
    ]
    rows: list[Step | CalmSteps] = []
    for level in range(1, len(LEVELS) + 1):
        rows = _folded(steps, ["calm" if kind in LEVELS[:level] else kind for kind in kinds])
        if len(rows) <= CALM["fits"]:
            break
    return rows


def _kind(steps: Sequence[Step], place: int, root: str) -> str:
    """Return the kind of the step at the index `place`.

    The kind is one of `LEVELS`, or `same` if the step before has the same failure. The kind of a step that needs a row
    of its own is empty.
    """
    step = steps[place]
    first = step.calls[0] if step.calls else None
    decided = any(decision.action in DECIDED for call in step.calls for decision in call.decisions)
    done = step.replied and not step.failures and all(call.finished for call in step.calls)
    if first is None or decided or not done or tool_kind(first.tool) == "submit":
        return ""
    if step_failed(step):
        return "same" if place and _failure(step, root) == _failure(steps[place - 1], root) else ""
    if step.reduced:
        return ""
    return "save" if step.artifacts else "change" if changed_names(step) else "read"


def _failure(step: Step, root: str) -> list[str]:
    return [f"{headline(call, root)}\n{failure_text(call)}" for call in step.calls if failed(call)]


def changed_names(step: Step) -> list[str]:
    """Return the names of the files that a step changed, saved or edited."""
    paths = [change.path for call in step.calls for change in call.changes[: LIMITS["changes"]]]
    paths += [artifact.path for artifact in step.artifacts[: LIMITS["changes"]]]
    if not paths:
        paths = [path for call in step.calls if (path := _edited(call.tool, call.arguments or {}))]
    return list(dict.fromkeys(one_line(path.rpartition("/")[2], LIMITS["name"]) for path in paths))


def _edited(tool: str, values: dict[str, Any]) -> str:
    """Return the path of the file that a call edited. Empty if the call is not an edit."""
    path = values.get("path")
    edits = tool_kind(tool) == "edit" and values.get("command") != "view"
    return path if edits and isinstance(path, str) else ""


def _folded(steps: Sequence[Step], kinds: Sequence[str]) -> list[Step | CalmSteps]:
    rows: list[Step | CalmSteps] = []
    for kind, places in groupby(range(len(steps)), key=lambda place: kinds[place]):
        group = [steps[place] for place in places]
        # the first step with this failure counts too, but has a row of its own before the group
        least = CALM["least"] - 1 if kind == "same" else CALM["least"]
        if kind and len(group) >= least:
            tokens = sum(step.usage.total_tokens for step in group if step.usage)
            figures = figures_text(tokens, sum(map(step_seconds, group)))
            rows.append(CalmSteps(tuple(group), _words(kind, group), figures))
        else:
            rows += group
    return rows


def _words(kind: str, steps: Sequence[Step]) -> str:
    if kind == "same":
        wrong = next(filter(failed, steps[0].calls))
        return f"the same again, {plural(len(steps), 'time')}: {failure_text(wrong)}"
    names = list(dict.fromkeys(name for step in steps for name in changed_names(step)))
    if not names:
        return f"{plural(len(steps), 'read')}, nothing changed"
    shown = names[: CALM["names"]]
    more = len(names) - len(shown)
    named = " and ".join(shown) if not more else f"{', '.join(shown)} and {more} more"
    return f"{plural(len(steps), 'step')}, changed {named}"
