"""Retries of failed requests to a model. No other layer retries.

The waits between requests grow up to a limit, are partly random, and can be cancelled.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from llm_sandbox_nb.model.contract import (
    ContextOverflowError,
    DeltaCallback,
    Model,
    ModelError,
    ModelSettings,
    Reply,
)

AttemptCallback = Callable[[int, ModelSettings], None]
"""Function called before each request with the attempt number, which begins at 1, and the settings of the request."""
FailureCallback = Callable[[int, ModelError, float | None], None]
"""Function called after each failure with the attempt number, the error, and the seconds until the next attempt.

The seconds are None if no attempt follows.
"""

MIN_REDUCED_REPLY_TOKENS = 1024
"""Smallest token limit with which a request is repeated after a context overflow."""
COUNT_TOLERANCE_TOKENS = 256
"""Number of tokens that stay unused, because providers count a prompt slightly differently in each request."""


@dataclass(frozen=True)
class RetryPolicy:
    """Number and timing of retries. Times are seconds."""

    attempts: int = 6
    """Maximum number of requests for one reply, including the first request."""
    unreachable_attempts: int = 3
    """Maximum number of requests for one reply if the server cannot be reached. Usually the address is wrong then."""
    first_wait: float = 1.0
    longest_wait: float = 60.0
    jitter: float = 0.25
    """Share of the wait that is random, so that many workers do not repeat their requests at the same moment."""
    longest_retry_after: float = 600.0
    """Longest wait that a provider can request. If a provider requests a longer wait, the run gives up."""
    loading_wait: float = 600.0
    """Maximum total wait for a server that restarts or loads its model. If `attempts` is 1, there is no such wait."""
    loading_pause: float = 5.0
    """Maximum time between two requests to such a server, unless the server requests a longer time."""

    def wait(
        self, attempt: int, error: ModelError, chance: Callable[[], float] = random.random
    ) -> float | None:
        """Return the wait in seconds after failure number `attempt`, or None if no further attempt is made."""
        if error.kind == "setting":  # each setting is refused only once, so this is not an endless loop
            return 0.0
        limit = self.unreachable_attempts if error.kind == "unreachable" else self.attempts
        if not error.retryable or attempt >= limit:
            return None
        if error.retry_after is not None:
            if error.retry_after > self.longest_retry_after:
                return None
            return error.retry_after * (1 + 0.1 * self.jitter * chance())
        backoff = min(self.longest_wait, self.first_wait * 2.0 ** (attempt - 1))
        return backoff * (1 - self.jitter * chance())

    def wait_for_loading(self, waited: float, error: ModelError) -> float | None:
        """Return the seconds until the next request to a loading server, or None if no further request is made.

        `waited` is the number of seconds since the first failure of the loading server.
        """
        if self.attempts <= 1 or waited >= self.loading_wait:
            return None
        pause = min(self.loading_pause, max(self.first_wait, waited / 4))
        if error.retry_after is not None:
            pause = max(pause, min(error.retry_after, 60.0))
        return min(pause, max(0.1, self.loading_wait - waited))


async def reply_with_retries(
    model: Model,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]],
    settings: ModelSettings,
    *,
    policy: RetryPolicy | None = None,
    on_delta: DeltaCallback | None = None,
    on_attempt: AttemptCallback | None = None,
    on_failure: FailureCallback | None = None,
) -> Reply:
    """Request a reply, and repeat the request as often as the policy allows.

    Cancelling ends a request or a wait at once. If the conversation and the requested reply do not fit the context, the
    next request asks for a shorter reply. Failures while the server loads its model do not count as attempts.

    Raises:
        ModelError: the last failure, if no further attempt is made.
    """
    policy = policy or RetryPolicy()
    clock = asyncio.get_running_loop().time
    attempt = failures = 0
    loading_since: float | None = None
    while True:
        attempt += 1
        if on_attempt:
            on_attempt(attempt, settings)
        try:
            return await model.reply(messages, tools, settings, on_delta)
        except ModelError as failure:
            error = failure
            if error.kind == "loading":
                now = clock()
                loading_since = now if loading_since is None else loading_since
                waited = now - loading_since
                wait = policy.wait_for_loading(waited, error)
                error = error if wait is not None else waited_in_vain(error, waited)
            else:
                failures += error.kind != "setting"
                wait = policy.wait(failures, error)
            if failures < policy.attempts and (smaller := smaller_request(settings, error)):
                settings, wait = smaller, 0.0
            if on_failure:
                on_failure(attempt, error, wait)
            if wait is None:
                raise error from failure.__cause__
        await asyncio.sleep(wait)


def waited_in_vain(error: ModelError, seconds: float) -> ModelError:
    """Return the error for a server that was still loading when the wait ended."""
    ending = f"the run waited {seconds:.0f} seconds for it" if seconds else "try again later"
    return ModelError(f"{str(error).rstrip('.')}: {ending}.", kind=error.kind, retryable=True)


def smaller_request(settings: ModelSettings, error: ModelError) -> ModelSettings | None:
    """Return settings for a shorter reply after a context overflow.

    Return None if even the shortest reply would not fit, and for any other error.
    """
    if not isinstance(error, ContextOverflowError):
        return None
    asked = settings.max_tokens
    rooms = []
    if error.completion_limit is not None:
        rooms.append(error.completion_limit)
    if error.context_limit is not None and error.prompt_tokens is not None:
        rooms.append(error.context_limit - error.prompt_tokens - COUNT_TOLERANCE_TOKENS)
    if not rooms and asked is not None:
        rooms.append(asked // 2)
    room = min(rooms, default=0)
    if asked is not None and room >= asked:
        room = asked // 2
    return replace(settings, max_tokens=room) if room >= MIN_REDUCED_REPLY_TOKENS else None
