"""Limits of a run, its usage so far, and the decision that the next step is the last one.

The limits of one command are in `sandbox/limits.py`.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from llm_sandbox_nb.agent.errors import StopRun
from llm_sandbox_nb.model.message_form import REASONING
from llm_sandbox_nb.options.table import option
from llm_sandbox_nb.trajectory.events import Usage

_T = TypeVar("_T")
LimitName = Literal["steps", "tokens", "total_tokens", "context", "cost", "time"]

_LAST_TURN: dict[LimitName, str] = {
    "steps": "This is your last step.",
    "tokens": "The conversation is at its limit of tokens: this is your last turn.",
    "total_tokens": "The tokens of this run are nearly used up: this is your last turn.",
    "context": "The conversation is near the limit of what you can take in at once: this is your last turn.",
    "cost": "The budget is nearly spent: this is your last turn.",
    "time": "The time is nearly up: this is your last turn.",
}
MIN_REPLY_TOKENS = 256
"""Minimum number of tokens that a request allows for a reply, even if the conversation already fills the context."""
MAX_RESERVE_TOKENS = 2048
"""Maximum number of tokens of the context that are kept free for a reply."""
_COUNT_TOLERANCE_TOKENS = 64
"""Tokens that are reserved because a server's counts vary a little between requests."""
_CUT_OBSERVATION_TOKENS = 400
"""Number of tokens to which a new observation can be cut if nothing else can be shortened."""
_WHAT_TO_DO = "Save your results if they are not saved yet, and call submit in this turn."


@dataclass(frozen=True)
class Thoughts:
    """Reasoning tokens of a reply. The next request contains these tokens only if the reasoning is sent back."""

    tokens: int = 0
    sent_back: bool = False

    @classmethod
    def of(cls, message: Mapping[str, Any], reasoning: str | None, usage: Usage | None) -> Thoughts:
        """Return the thoughts of a reply. `message` is the reply as a message of the history."""
        tokens = (
            usage.reasoning_tokens if usage and usage.reasoning_tokens else estimated_tokens(reasoning or "")
        )
        if usage and usage.completion_tokens:
            tokens = min(tokens, usage.completion_tokens)
        inside = reasoning is None and "<think>" in str(message.get("content") or "")
        return cls(tokens, inside or any(message.get(name) for name in (*REASONING, "thinking_blocks")))


@dataclass(frozen=True)
class RunLimits:
    """Limits of a run. None means that there is no limit.

    `steps` limits the number of steps. `tokens` limits the conversation, which is the prompt and the reply of one
    request together, as in the paper. `total_tokens` limits the sum over all requests and replies, which the card
    shows. `cost` limits the US dollars of the whole run, and counts only requests whose cost is known. `time` limits
    the duration of the run in seconds. Sessions before a resume count. Pauses do not count.
    """

    steps: int = option("steps").default
    tokens: int | None = option("tokens").default
    cost: float | None = None
    time: float | None = None
    total_tokens: int | None = None

    def __post_init__(self) -> None:
        for name in ("steps", "tokens", "total_tokens", "cost", "time"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"The limit on {name} has to be more than zero, not {value}.")


class Meter:
    """Usage of a run so far, compared with the limits."""

    def __init__(self, limits: RunLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self.step = 0
        """Number of the current step, counted from 1. 0 before the first step."""
        self.conversation = 0
        """Tokens of the next request. The provider has counted them, except for the newest text, which is estimated."""
        self.total_tokens = 0
        """Tokens of all requests and replies so far. The number is estimated if the provider does not count tokens."""
        self.cost = 0.0
        """US dollars of the requests so far whose cost is known."""
        self.last_turn: LimitName | None = None
        """The limit that makes the current step the last one."""
        self._next_is_last: LimitName | None = None
        self._last_cost = 0.0
        self._clock = clock
        self._start = clock()
        self.seconds_before = 0.0
        """Seconds of the earlier sessions of a run that was resumed or forked."""
        self._paused_seconds = 0.0
        self.limits_changed = False
        """True if the limits have changed since a message last stated the number of remaining steps."""
        self.context: int | None = None
        """Maximum tokens of prompt and reply together for this model. None if the limit is not known."""
        self.longest_reply: int | None = None
        """Maximum tokens of one reply of this model. None if the limit is not known."""
        self.shortens = False
        """True if a conversation that does not fit is shortened."""
        self.beginning = 0
        """Tokens of the conversation before the first reply: tool definitions, system message and task."""
        self.counted = 0
        """Tokens of the conversation up to the newest reply, as the provider has counted them."""
        self.tools = 0
        """Estimated tokens of the tool definitions. After the first reply, `counted` includes these tokens instead."""
        self._newest_reply = 0
        self._thoughts_sent = 0
        """Number of tokens of the newest reply's thoughts that the next request sends back to the server."""
        self._thoughts_are_dropped = False
        """True if the server, or the chat template, removes thoughts that are sent back."""
        self._estimated = 0
        """Estimated tokens that were added to or removed from the conversation since the provider's newest count."""

    def resume_from(
        self, step: int, conversation: int, cost: float, added: int = 0, total_tokens: int = 0
    ) -> None:
        """Set the step, the tokens and the cost to those of a recorded conversation, and continue to count from there.

        Args:
            step: number of the newest step.
            conversation: tokens of the conversation at the provider's newest count.
            cost: US dollars so far of the requests whose cost is known.
            added: estimated tokens of the text after this count.
            total_tokens: tokens of all requests and replies so far.
        """
        self.total_tokens = total_tokens
        self.step, self.conversation, self.cost = step, conversation + added, cost
        self.counted, self._estimated, self._newest_reply = conversation, added, 0
        self.last_turn = self._next_is_last = None

    def change(self, limits: RunLimits) -> None:
        """Use other limits from now on. If limits are higher, the current step may no longer be the last one."""
        self.limits, self.limits_changed = limits, True
        if self.last_turn is not None:
            self.last_turn = self._near_limit(limits.steps - self.step + 1)
        if self._next_is_last is not None:
            self._next_is_last = self._near_limit(limits.steps - self.step)

    def begin_step(self) -> int:
        """Begin the next step and return its number."""
        self.step += 1
        self.last_turn = self._next_is_last
        return self.step

    def add_text(self, text: str) -> None:
        """Add the estimated tokens of a text that was added to the conversation."""
        tokens = estimated_tokens(text)
        self.conversation += tokens
        self._estimated += tokens

    def shorten(self, tokens: int) -> None:
        """Subtract the tokens that were removed from the conversation."""
        self._thoughts_sent = 0
        self.conversation = max(self.beginning, self.conversation - tokens)
        self.counted = max(0, self.counted - tokens)
        self._estimated += tokens

    def add_reply(self, usage: Usage | None, text: str, thoughts: Thoughts = Thoughts()) -> None:
        """Add a reply. If the provider has not counted tokens, estimate them from `text`, which includes thoughts."""
        before = self.conversation
        if usage is None or not usage.total_tokens:
            self.add_text(text)
        else:
            missing = self.counted - usage.prompt_tokens
            if self._thoughts_sent >= _COUNT_TOLERANCE_TOKENS and missing >= self._thoughts_sent * 3 // 4:
                self._thoughts_are_dropped = (
                    True  # the prompt lacks about as many tokens as the thoughts have
                )
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

    def add_summary(self, usage: Usage | None) -> None:
        """Add the usage of a request for a summary, which is not part of the conversation."""
        self.total_tokens += usage.total_tokens if usage else 0
        self.add_cost(usage)

    def add_cost(self, usage: Usage | None) -> None:
        """Add the cost of a request, if it is known."""
        self.cost += (usage.cost if usage else None) or 0.0

    @property
    def elapsed(self) -> float:
        """Duration of the run in seconds. Sessions before a resume count. Pauses do not count."""
        return self.seconds_before + self._clock() - self._start - self._paused_seconds

    def leave_out(self, seconds: float) -> None:
        """Exclude seconds, such as those of a pause, from `elapsed`."""
        self._paused_seconds += seconds

    @property
    def time_left(self) -> float | None:
        """Seconds until the time limit, at least 0. None if there is no time limit."""
        return None if self.limits.time is None else max(0.0, self.limits.time - self.elapsed)

    async def in_time(self, work: Awaitable[_T]) -> _T:
        """Await `work`, but at most until the time limit.

        Raises:
            StopRun: if the time limit is reached.
        """
        try:
            async with asyncio.timeout(self.time_left):
                return await work
        except TimeoutError as error:
            if self.time_left != 0:
                raise
            raise StopRun("time") from error

    @property
    def used_up(self) -> LimitName | None:
        """The limit that is used up, so that no further step is possible. None if no limit is used up."""
        if self.limits.cost is not None and self.cost >= self.limits.cost:
            return "cost"
        if self.limits.total_tokens is not None and self.total_tokens >= self.limits.total_tokens:
            return "total_tokens"
        if self.limits.time is not None and self.elapsed >= self.limits.time:
            return "time"
        return None

    @property
    def over(self) -> LimitName | None:
        """The limit that ends the run after the current step. None if no limit ends the run."""
        return self.last_turn or self.used_up

    def next_turn(self, footer_from: int | None = None) -> str:
        """Return the text below the newest message: the number of remaining steps, and advice before the last step.

        Args:
            footer_from: if more steps than this remain, return an empty text, except before the last step. None if the
                number is always stated.
        """
        remaining, self.limits_changed = max(1, self.limits.steps - self.step), False
        self._next_is_last = self._near_limit(remaining)
        if footer_from is not None and remaining > footer_from and not self._next_is_last:
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
        if limits.cost is not None and self.cost + self._last_cost >= limits.cost:
            return "cost"
        if limits.time is not None and limits.time - self.elapsed <= min(60.0, limits.time / 10):
            return "time"
        return None

    def _context_is_full(self) -> bool:
        if self.context is None:
            return False
        needed = self.conversation
        if self.shortens and self.beginning:  # all of the history can be shortened, except the newest reply
            needed = min(needed, self.beginning + self._newest_reply + _CUT_OBSERVATION_TOKENS)
        return needed + min(MAX_RESERVE_TOKENS, self.context // 8) >= self.context

    def reply_tokens(self, asked: int | None) -> int | None:
        """Return the maximum reply tokens for a request: `asked`, or fewer to keep the conversation in the limits."""
        if asked is None:
            return None
        if self.limits.tokens is not None:
            asked = min(asked, max(1024, self.limits.tokens - self.conversation))
        if self.limits.total_tokens is not None:
            asked = min(asked, max(1024, self.limits.total_tokens - self.total_tokens - self.conversation))
        if self.context is not None:
            tools = 0 if self.beginning else self.tools * 3 // 2
            uncertain = self._estimated // 2 + _COUNT_TOLERANCE_TOKENS + tools
            asked = min(asked, max(MIN_REPLY_TOKENS, self.context - self.conversation - uncertain))
        return asked if self.longest_reply is None else min(asked, self.longest_reply)


def estimated_tokens(text: str) -> int:
    """Estimate the number of tokens in a text as a quarter of its UTF-8 bytes."""
    return math.ceil(len(text.encode("utf-8", "replace")) / 4)
