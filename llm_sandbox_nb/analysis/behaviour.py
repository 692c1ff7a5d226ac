"""Behaviour of a model: its turns, mix of tools, capability use, wandering (turns without progress), and style."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field

from llm_sandbox_nb.analysis.capability_rules import SUBMIT_TOOLS, call_uses
from llm_sandbox_nb.trajectory.trajectory import Call, Step, Trajectory

WANDERING_SHARE = 0.5
WANDERING_TURNS = 10
"""Minimum number of turns of a run that wanders. At least `WANDERING_SHARE` of its turns make no progress."""


@dataclass
class Turn:
    """Turn of a run: a reply of the model, with the calls in this reply.

    `attempted` has the capabilities that the code of the turn uses. `succeeded` has the capabilities that successful
    calls of the turn use. If the turn made no progress, `why` is the reason: `no call`, `failed` (every call failed) or
    `repeated` (every call was made before and had the same output). Otherwise, `why` is empty.
    """

    number: int
    tools: tuple[str, ...]
    attempted: frozenset[str]
    succeeded: frozenset[str]
    why: str = ""

    @property
    def barren(self) -> bool:
        """True if the turn made no progress."""
        return bool(self.why)


@dataclass
class Behaviour:
    """All turns of a run."""

    turns: list[Turn] = field(default_factory=list)

    @property
    def tool_mix(self) -> Counter[str]:
        """Number of calls of each tool."""
        return Counter(tool for turn in self.turns for tool in turn.tools)

    def rate(self, capability: str, *, only_succeeded: bool = False) -> float:
        """Return the share of all turns that use a capability. With `only_succeeded`, only successful calls count."""
        used = [turn.succeeded if only_succeeded else turn.attempted for turn in self.turns]
        return sum(capability in found for found in used) / len(self.turns) if self.turns else 0.0

    @property
    def barren_share(self) -> float:
        """Share of the turns that make no progress."""
        return sum(turn.barren for turn in self.turns) / len(self.turns) if self.turns else 0.0

    @property
    def wanders(self) -> bool:
        """True if the run is long, and at least half of its turns make no progress."""
        return len(self.turns) >= WANDERING_TURNS and self.barren_share >= WANDERING_SHARE


def behaviour_of(trajectory: Trajectory) -> Behaviour:
    """Return the behaviour of a model in a run. A step without a reply is not a turn.

    A turn without a call makes progress only if it is the last turn and answers the task.
    """
    before: set[tuple[str, str, str]] = set()
    found = Behaviour()
    for step in trajectory.steps:
        if step.replied:
            found.turns.append(_turn(step, before))
    if found.turns and found.turns[-1].why == "no call" and trajectory.stop_reason == "answered":
        found.turns[-1].why = ""
    return found


def succeeded(call: Call) -> bool | None:
    """Return True for a call that succeeded, False for a failed call, and None for a skipped or unfinished call."""
    return None if call.result is None or call.result.error == "skipped" else not call.result.failed


def plain_output(call: Call) -> str:
    """Return the result of a call without the line about the remaining steps."""
    return call.body.strip()


def _turn(step: Step, before: set[tuple[str, str, str]]) -> Turn:
    attempted: set[str] = set()
    well: set[str] = set()
    new = []
    for call in step.calls:
        used = call_uses(call.tool, call.arguments)
        attempted |= used
        if succeeded(call):
            well |= used
        new.append((call.tool, json.dumps(call.arguments, sort_keys=True, default=str), plain_output(call)))
    why = _why_barren(step.calls, new, before)
    before.update(new)
    return Turn(
        step.number, tuple(call.tool for call in step.calls), frozenset(attempted), frozenset(well), why
    )


def _why_barren(calls: list[Call], new: list[tuple[str, str, str]], before: set[tuple[str, str, str]]) -> str:
    if not calls:
        return "no call"
    if any(call.tool in SUBMIT_TOOLS for call in calls):
        return ""
    if all(succeeded(call) is False for call in calls):
        return "failed"
    return "repeated" if all(identity in before for identity in new) else ""


PATTERNS_VERSION = "1"
_CHECK = r"(?:verify|check|confirm|test|validate|double[- ]check)"
VERIFICATION = re.compile(
    "|".join(
        (
            rf"\blet(?:['’]s| me| us) {_CHECK}\b",
            r"\b(?:double|cross|sanity)[- ]check(?:ing|ed|s)?\b",
            r"\b(?:to|we|i|i['’]ll|will|must|should) (?:verify|confirm|validate)\b",
            r"\bcheck(?:ing)? (?:that|whether|if)\b",
            r"\bverif(?:y|ying) that\b",
            r"\b(?:does|do) this (?:hold|work|match)\b",
            r"\bplug(?:ging)? (?:it|this|that|these) back\b",
            r"\bwait,",
        )
    ),
    re.IGNORECASE,
)
"""Matches phrases with which a model checks its own work."""
STRUCTURE = {
    "headings": re.compile(r"^ {0,3}#{1,6} \S", re.MULTILINE),
    "separators": re.compile(r"^ {0,3}(?:-{3,}|\*{3,}|_{3,}|={3,})[ \t]*$", re.MULTILINE),
    "lists": re.compile(r"^[ \t]*(?:[-*+•]|\d{1,3}[.)])[ \t]+\S", re.MULTILINE),
    "math": re.compile(r"\$\$.+?\$\$|\\\[.+?\\\]|\\begin\{(?:align|equation|gather)\*?\}", re.DOTALL),
}
"""Patterns of Markdown headings, separators, list items, and displayed formulas."""
_CODE = re.compile(r"^ {0,3}(```|~~~).*?(?:^ {0,3}\1|\Z)", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Writing:
    """Counts in one text: matches of `VERIFICATION`, and of `STRUCTURE` in total. `parts` has the counts by pattern."""

    verification: int
    structure: int
    parts: dict[str, int]


def writing_of(text: str) -> Writing:
    """Count phrases of verification and elements of structure in a reply. Ignore code blocks."""
    plain = _CODE.sub("", text)
    texts = {"math": _closable(plain)}
    parts = {name: len(pattern.findall(texts.get(name, plain))) for name, pattern in STRUCTURE.items()}
    return Writing(len(VERIFICATION.findall(plain)), sum(parts.values()), parts)


def _closable(text: str) -> str:
    r"""Remove each `\[` after the last `\]`, because searching for a missing `\]` each time would take too long."""
    last = max(0, text.rfind("\\]"))
    return text[:last] + text[last:].replace("\\[", "  ")
