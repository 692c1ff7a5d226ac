"""Repeated failures of the same call. First, the model gets advice. After more failures, the run ends."""

from __future__ import annotations

import json
from dataclasses import dataclass

ADVICE_AFTER_FAILURES = 3
"""Number of failures in a row after which the model gets advice."""
_UNCOUNTED_ERRORS = frozenset(
    {"skipped", "not_executed", "interrupted", "cut_short", "nothing_saved", "check_failed"}
)


@dataclass
class FailingCalls:
    """Counter of how often the same call has failed in a row."""

    limit: int = 8
    """Number of failures in a row that end the run. 0 stands for no limit."""
    count: int = 0
    _call: tuple[str, str] = ("", "")

    def add(self, tool: str, arguments: str, error: str | None, *, failed: bool) -> None:
        """Count a call that has ended. `arguments` is the text that the model wrote, usually JSON."""
        if error in _UNCOUNTED_ERRORS:
            return
        call = tool, _without_layout(arguments)
        same = call == self._call
        self._call = call
        self.count = (self.count + 1 if same else 1) if failed else 0

    @property
    def over(self) -> bool:
        """True if the run has to end."""
        return 0 < self.limit <= self.count

    @property
    def advice(self) -> str:
        """Advice for the model. Empty after fewer than `ADVICE_AFTER_FAILURES` failures."""
        if self.count < ADVICE_AFTER_FAILURES:
            return ""
        ends = f" The run ends after {self.limit} times." if self.limit else ""
        return (
            f"This same call has failed {self.count} times in a row.{ends} Do something else: read the error, look at "
            "what there is, and try another way."
        )

    @property
    def sentence(self) -> str:
        """Message that tells a person why the run has ended."""
        tool = self._call[0][:80]
        return f"The model made the same call of {tool} {self.count} times in a row, and it failed each time."


def _without_layout(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments
