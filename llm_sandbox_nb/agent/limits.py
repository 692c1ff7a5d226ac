"""Limits of a run: what it may use, what it has used, and when its next turn is the last one."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from llm_sandbox_nb.trajectory.events import Usage

LimitName = Literal["steps", "tokens", "cost", "time"]

_LAST_TURN: dict[LimitName, str] = {
    "steps": "This is your last step.",
    "tokens": "The conversation is at its limit of tokens: this is your last turn.",
    "cost": "The budget is nearly spent: this is your last turn.",
    "time": "The time is nearly up: this is your last turn.",
}
_WHAT_TO_DO = "Save your results if they are not saved yet, and call submit in this turn."


@dataclass(frozen=True)
class RunLimits:
    """What one run may use. None means without limit.

    `tokens` bounds the conversation: prompt and reply of one request together, as the paper has it. `cost` is
    US dollars over the whole run; it can only be kept when the model's price is known. `time` is seconds from
    the start.
    """

    steps: int = 100
    tokens: int | None = 65_536
    cost: float | None = None
    time: float | None = None

    def __post_init__(self) -> None:
        for name in ("steps", "tokens", "cost", "time"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"The limit on {name} has to be more than zero, not {value}.")


class Meter:
    """What a run has used so far, measured against its limits."""

    def __init__(self, limits: RunLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self.step = 0
        """Number of the current step, from 1."""
        self.conversation = 0
        """Tokens of the next request: counted by the provider, the newest part estimated."""
        self.cost: float | None = 0.0
        self.last_turn: LimitName | None = None
        """The limit that makes the current step the last one."""
        self._next_is_last: LimitName | None = None
        self._last_cost = 0.0
        self._clock = clock
        self._start = clock()
        self._left_out = 0.0
        self.limits_changed = False
        """Whether the limits have changed since the model read them."""

    def resume_from(self, step: int, conversation: int, cost: float | None) -> None:
        """Continue with a conversation that has used so many steps and tokens, and has cost so much."""
        self.step, self.conversation, self.cost = step, conversation, cost
        self.last_turn = self._next_is_last = None

    def change(self, limits: RunLimits) -> None:
        """Use other limits from now on. They can turn the last turn into an ordinary one."""
        self.limits, self.limits_changed = limits, True
        if self.last_turn is not None:
            self.last_turn = self._near_limit(limits.steps - self.step + 1)
        if self._next_is_last is not None:
            self._next_is_last = self._near_limit(limits.steps - self.step)

    def begin_step(self) -> int:
        """Begin the next step; returns its number."""
        self.step += 1
        self.last_turn = self._next_is_last
        return self.step

    def add_text(self, text: str) -> None:
        """Add text to the conversation that the provider has not counted yet."""
        self.conversation += math.ceil(len(text.encode("utf-8", "replace")) / 4)

    def add_reply(self, usage: Usage | None, text: str) -> None:
        """Add a reply. `text` is all of it, for providers that do not count."""
        if usage is None or not usage.total_tokens:
            self.add_text(text)
        else:
            self.conversation = usage.total_tokens
        cost = usage.cost if usage else None
        self.cost = None if self.cost is None or cost is None else self.cost + cost
        self._last_cost = cost or 0.0

    @property
    def elapsed(self) -> float:
        """Seconds since the start, without pauses."""
        return self._clock() - self._start - self._left_out

    def leave_out(self, seconds: float) -> None:
        """Do not count these seconds: the run was paused."""
        self._left_out += seconds

    @property
    def time_left(self) -> float | None:
        """Seconds until the time limit, at least 0; None without one."""
        return None if self.limits.time is None else max(0.0, self.limits.time - self.elapsed)

    @property
    def used_up(self) -> LimitName | None:
        """The limit that allows not even one last turn."""
        if self.limits.cost is not None and self.cost is not None and self.cost >= self.limits.cost:
            return "cost"
        if self.limits.time is not None and self.elapsed >= self.limits.time:
            return "time"
        return None

    @property
    def over(self) -> LimitName | None:
        """The limit that ends the run after the current step."""
        return self.last_turn or self.used_up

    def next_turn(self) -> str:
        """The end of the newest message: the steps that remain, and whether the next turn is the last."""
        remaining, self.limits_changed = max(1, self.limits.steps - self.step), False
        self._next_is_last = self._near_limit(remaining)
        line = f"[Steps remaining: {remaining}]"
        return f"{line}\n{_LAST_TURN[self._next_is_last]} {_WHAT_TO_DO}" if self._next_is_last else line

    def _near_limit(self, remaining: int) -> LimitName | None:
        limits = self.limits
        if remaining <= 1:
            return "steps"
        if limits.tokens is not None and self.conversation >= limits.tokens - min(2048, limits.tokens // 8):
            return "tokens"
        if limits.cost is not None and self.cost is not None and self.cost + self._last_cost >= limits.cost:
            return "cost"
        if limits.time is not None and limits.time - self.elapsed <= min(60.0, limits.time / 10):
            return "time"
        return None

    def reply_tokens(self, asked: int | None) -> int | None:
        """The tokens to ask for, so that the conversation stays within its limit where possible."""
        if asked is None or self.limits.tokens is None:
            return asked
        return min(asked, max(1024, self.limits.tokens - self.conversation))
