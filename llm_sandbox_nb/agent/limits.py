"""Limits of a run: what it may use, what it has used, and when its next turn is the last one."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from llm_sandbox_nb.model.message_form import REASONING
from llm_sandbox_nb.trajectory.events import Usage

LimitName = Literal["steps", "tokens", "total_tokens", "context", "cost", "time"]

_LAST_TURN: dict[LimitName, str] = {
    "steps": "This is your last step.",
    "tokens": "The conversation is at its limit of tokens: this is your last turn.",
    "total_tokens": "The tokens of this run are nearly used up: this is your last turn.",
    "context": "The conversation is near the limit of what you can take in at once: this is your last turn.",
    "cost": "The budget is nearly spent: this is your last turn.",
    "time": "The time is nearly up: this is your last turn.",
}
SMALLEST_REPLY = 256
"""Tokens that a reply gets in any case."""
LARGEST_RESERVE = 2048
_MARGIN = 64
"""Tokens kept free because servers count a little differently from one request to the next."""
_LEFT_OF_OBSERVATION = 400
"""Tokens to which a new observation can be cut when nothing else is left to shorten."""
_WHAT_TO_DO = "Save your results if they are not saved yet, and call submit in this turn."


@dataclass(frozen=True)
class Thoughts:
    """Tokens of a reply that are thoughts. The next request holds them only where they are sent back."""

    tokens: int = 0
    sent_back: bool = False

    @classmethod
    def of(cls, message: Mapping[str, Any], reasoning: str | None, usage: Usage | None) -> Thoughts:
        """Those of a reply. `message` is what goes back into the history."""
        tokens = (
            usage.reasoning_tokens if usage and usage.reasoning_tokens else estimated_tokens(reasoning or "")
        )
        if usage and usage.completion_tokens:
            tokens = min(tokens, usage.completion_tokens)
        inside = reasoning is None and "<think>" in str(message.get("content") or "")
        return cls(tokens, inside or any(message.get(name) for name in (*REASONING, "thinking_blocks")))


@dataclass(frozen=True)
class RunLimits:
    """What one run may use. None means without limit.

    `tokens` bounds the conversation: prompt and reply of one request together, as the paper has it. `total_tokens`
    bounds the sum of all requests and replies, which is what the card counts. `cost` is US dollars over the whole run;
    it can only be kept when the model's price is known. `time` is seconds from the start.
    """

    steps: int = 100
    tokens: int | None = 65_536
    cost: float | None = None
    time: float | None = None
    total_tokens: int | None = None

    def __post_init__(self) -> None:
        for name in ("steps", "tokens", "total_tokens", "cost", "time"):
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
        self.total_tokens = 0
        """Tokens of all requests and replies so far; estimated where the provider does not count."""
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
        self.context: int | None = None
        """Tokens that the model can take in, prompt and reply together, when they are known."""
        self.longest_reply: int | None = None
        """Most tokens of one reply of this model, when they are known."""
        self.shortens = False
        """Whether older parts of the conversation are sent in a shorter form when they do not fit."""
        self.beginning = 0
        """Tokens of a request that has only the beginning of the conversation: tools, system message and task."""
        self.counted = 0
        """Tokens of the conversation up to the newest reply, as the provider counted them."""
        self.tools = 0
        """Tokens of the tools, estimated; from the first reply on, they are in what the provider counts."""
        self._newest_reply = 0
        self._thoughts_sent = 0
        """Tokens of the thoughts of the newest reply that go back to the server."""
        self._thoughts_are_dropped = False
        """Whether the server, or its chat template, takes them out again."""
        self._estimated = 0
        """Tokens that were added to `conversation`, or taken from it, and that no provider has counted."""

    def resume_from(
        self, step: int, conversation: int, cost: float | None, added: int = 0, total_tokens: int = 0
    ) -> None:
        """Continue with a conversation that has used so many steps and tokens, and has cost so much.

        `added` is an estimate of what came after the tokens were counted; `total_tokens` counts all requests so far.
        """
        self.total_tokens = total_tokens
        self.step, self.conversation, self.cost = step, conversation + added, cost
        self.counted, self._estimated, self._newest_reply = conversation, added, 0
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
        tokens = estimated_tokens(text)
        self.conversation += tokens
        self._estimated += tokens

    def shorten(self, tokens: int) -> None:
        """The conversation is sent without so many tokens from now on."""
        self._thoughts_sent = 0
        self.conversation = max(self.beginning, self.conversation - tokens)
        self.counted = max(0, self.counted - tokens)
        self._estimated += tokens

    def add_reply(self, usage: Usage | None, text: str, thoughts: Thoughts = Thoughts()) -> None:
        """Add a reply. `text` is all of it, for providers that do not count; `thoughts` are those among it."""
        before = self.conversation
        if usage is None or not usage.total_tokens:
            self.add_text(text)
        else:
            self._compare_thoughts(usage.prompt_tokens)
            self.conversation = self.counted = usage.total_tokens
            self._estimated, before = 0, usage.prompt_tokens
        self.total_tokens += self.conversation
        left_out = 0 if thoughts.sent_back and not self._thoughts_are_dropped else thoughts.tokens
        self._thoughts_sent = 0 if left_out else thoughts.tokens
        self.conversation = max(before, self.conversation - left_out)
        self.counted = min(self.counted, self.conversation)
        self._newest_reply = self.conversation - before
        self.beginning = self.beginning or before
        self.add_cost(usage)
        self._last_cost = (usage.cost if usage else None) or 0.0

    def _compare_thoughts(self, prompt: int) -> None:
        """Find out whether the server takes thoughts out of what it is sent: then a prompt is shorter than expected."""
        if self._thoughts_sent >= _MARGIN and prompt <= self.counted - self._thoughts_sent * 3 // 4:
            self._thoughts_are_dropped = True

    def add_summary(self, usage: Usage | None) -> None:
        """Add a request that is not part of the conversation: its summary."""
        self.total_tokens += usage.total_tokens if usage else 0
        self.add_cost(usage)

    def add_cost(self, usage: Usage | None) -> None:
        """Add what a request has cost; None is not known."""
        cost = usage.cost if usage else None
        self.cost = None if self.cost is None or cost is None else self.cost + cost

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
        if self.limits.total_tokens is not None and self.total_tokens >= self.limits.total_tokens:
            return "total_tokens"
        if self.limits.time is not None and self.elapsed >= self.limits.time:
            return "time"
        return None

    @property
    def over(self) -> LimitName | None:
        """The limit that ends the run after the current step."""
        return self.last_turn or self.used_up

    def next_turn(self, told_from: int | None = None) -> str:
        """The end of the newest message: the steps that remain, and whether the next turn is the last.

        With `told_from` it is empty while more steps remain, and the next turn is not the last.
        """
        remaining, self.limits_changed = max(1, self.limits.steps - self.step), False
        self._next_is_last = self._near_limit(remaining)
        if told_from is not None and remaining > told_from and not self._next_is_last:
            return ""
        line = f"[Steps remaining: {remaining}]"
        return f"{line}\n{_LAST_TURN[self._next_is_last]} {_WHAT_TO_DO}" if self._next_is_last else line

    def _near_limit(self, remaining: int) -> LimitName | None:
        limits = self.limits
        if remaining <= 1:
            return "steps"
        if limits.tokens is not None and self.conversation >= limits.tokens - min(2048, limits.tokens // 8):
            return "tokens"
        if (
            limits.total_tokens is not None
            and self.total_tokens + 2 * self.conversation >= limits.total_tokens
        ):
            return "total_tokens"
        if self._context_is_full():
            return "context"
        if limits.cost is not None and self.cost is not None and self.cost + self._last_cost >= limits.cost:
            return "cost"
        if limits.time is not None and limits.time - self.elapsed <= min(60.0, limits.time / 10):
            return "time"
        return None

    def _context_is_full(self) -> bool:
        if self.context is None:
            return False
        needed = self.conversation
        if self.shortens and self.beginning:  # of all that came before, only the newest reply has to stay
            needed = min(needed, self.beginning + self._newest_reply + _LEFT_OF_OBSERVATION)
        return needed + min(LARGEST_RESERVE, self.context // 8) >= self.context

    def reply_tokens(self, asked: int | None) -> int | None:
        """The tokens to ask for, so that the conversation stays within its limits where possible."""
        if asked is None:
            return None
        if self.limits.tokens is not None:
            asked = min(asked, max(1024, self.limits.tokens - self.conversation))
        if self.limits.total_tokens is not None:
            asked = min(asked, max(1024, self.limits.total_tokens - self.total_tokens - self.conversation))
        if self.context is not None:
            uncertain = self._estimated // 2 + _MARGIN + (0 if self.beginning else self.tools * 3 // 2)
            asked = min(asked, max(SMALLEST_REPLY, self.context - self.conversation - uncertain))
        return asked if self.longest_reply is None else min(asked, self.longest_reply)


def estimated_tokens(text: str) -> int:
    """Tokens of a text that no provider has counted."""
    return math.ceil(len(text.encode("utf-8", "replace")) / 4)
