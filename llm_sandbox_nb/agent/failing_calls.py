"""The same call, failing again and again: when the model is told, and when the run ends."""

from __future__ import annotations

import json
from dataclasses import dataclass

TOLD_AFTER = 3
"""Failures in a row after which the model is told."""
_NO_ATTEMPT = frozenset(
    {"skipped", "not_executed", "interrupted", "cut_short", "nothing_saved", "check_failed"}
)


@dataclass
class FailingCalls:
    """Counts how often in a row the same call has failed."""

    limit: int = 8
    """Failures in a row that end the run; 0: it never ends so."""
    count: int = 0
    _call: tuple[str, str] = ("", "")

    def add(self, tool: str, arguments: str, error: str | None, *, failed: bool) -> None:
        """Count a call that has ended, with its arguments as the model wrote them."""
        if error in _NO_ATTEMPT:
            return
        call = tool, _without_layout(arguments)
        same = call == self._call
        self._call = call
        self.count = (self.count + 1 if same else 1) if failed else 0

    @property
    def over(self) -> bool:
        """Whether the run has to end."""
        return 0 < self.limit <= self.count

    @property
    def advice(self) -> str:
        """What the model is told now; empty as long as that is nothing."""
        if self.count < TOLD_AFTER:
            return ""
        ends = f" The run ends after {self.limit} times." if self.limit else ""
        return (
            f"This same call has failed {self.count} times in a row.{ends} Do something else: read the error, look at "
            "what there is, and try another way."
        )

    @property
    def sentence(self) -> str:
        """Why the run ended, for a person."""
        tool = self._call[0][:80]
        return f"The model made the same call of {tool} {self.count} times in a row, and it failed each time."


def _without_layout(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments
