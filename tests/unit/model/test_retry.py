"""The one layer of retries."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from virtual_time import run_in_virtual_time

from llm_sandbox_nb.model.contract import ContextOverflowError, ModelError, ModelSettings, Reply
from llm_sandbox_nb.model.retries import (
    COUNT_TOLERANCE_TOKENS,
    MIN_REDUCED_REPLY_TOKENS,
    RetryPolicy,
    reply_with_retries,
    smaller_request,
)

USUAL = RetryPolicy()
ANSWER = Reply(message={"role": "assistant", "content": "ok"}, text="ok")


class Failing:
    """A model that fails as told, then answers."""

    name, scripted = "failing", True

    def __init__(self, *failures: ModelError | Callable[[ModelSettings], ModelError | None]) -> None:
        self.failures = list(failures)
        self.asked: list[ModelSettings] = []

    async def reply(self, messages: Any, tools: Any, settings: ModelSettings, on_delta: Any = None) -> Reply:
        self.asked.append(settings)
        failure = self.failures.pop(0) if self.failures else None
        failure = failure(settings) if callable(failure) else failure
        if failure:
            raise failure
        return ANSWER


def ask(
    model: Failing, policy: RetryPolicy = USUAL, settings: ModelSettings | None = None
) -> list[tuple[Any, ...]]:
    """Ask in virtual time; returns what was told of failures, and raises what the model raised in the end."""
    told: list[tuple[Any, ...]] = []
    attempts: list[int] = []
    coroutine = reply_with_retries(
        model, [], [], settings or ModelSettings(), policy=policy,
        on_attempt=lambda attempt, _: attempts.append(attempt),
        on_failure=lambda attempt, error, wait: told.append((attempt, error.kind, wait)),
    )  # fmt: skip
    try:
        answer, took = run_in_virtual_time(coroutine)
        assert answer is ANSWER
        assert took == pytest.approx(sum(wait for _, _, wait in told))
    finally:
        assert attempts == list(range(1, len(model.asked) + 1))
    return told


def passing(kind: str = "server", **more: Any) -> ModelError:
    return ModelError("trouble", kind=kind, retryable=True, **more)


def test_what_passes_is_tried_again_and_every_failure_is_told() -> None:
    model = Failing(passing(), passing("rate_limit"), passing("timeout"))
    told = ask(model)
    assert [(attempt, kind) for attempt, kind, _ in told] == [
        (1, "server"),
        (2, "rate_limit"),
        (3, "timeout"),
    ]
    assert all(wait is not None and wait > 0 for _, _, wait in told)
    assert len(model.asked) == 4


@pytest.mark.parametrize("kind", ["authentication", "not_found", "quota", "bad_request", "script"])
def test_what_does_not_pass_is_asked_once(kind: str) -> None:
    model = Failing(ModelError("no", kind=kind))
    with pytest.raises(ModelError, match="no"):
        ask(model)
    assert len(model.asked) == 1


def test_attempts_are_bounded_and_the_last_failure_says_that_no_further_comes() -> None:
    model = Failing(*[passing() for _ in range(20)])
    told: list[Any] = []
    coroutine = reply_with_retries(
        model, [], [], ModelSettings(), policy=USUAL, on_failure=lambda *failure: told.append(failure[2])
    )
    with pytest.raises(ModelError):
        run_in_virtual_time(coroutine)
    assert len(model.asked) == USUAL.attempts == 6
    assert told[-1] is None
    assert None not in told[:-1]


def test_a_server_that_is_not_there_is_asked_less_often() -> None:
    model = Failing(*[passing("unreachable") for _ in range(20)])
    with pytest.raises(ModelError):
        ask(model)
    assert len(model.asked) == 3


def test_retry_after_is_honoured() -> None:
    model = Failing(passing("rate_limit", retry_after=300))
    (told,) = ask(model)
    assert 300 <= told[2] <= 308


def test_more_patience_than_the_policy_has_is_not_waited_for() -> None:
    model = Failing(passing("rate_limit", retry_after=3600))
    with pytest.raises(ModelError):
        ask(model)
    assert len(model.asked) == 1


@given(st.integers(1, 5), st.floats(0, 1, exclude_max=True))
def test_the_wait_grows_with_jitter_and_has_a_bound(attempt: int, chance: float) -> None:
    policy = RetryPolicy(first_wait=1, longest_wait=5)
    wait = policy.wait(attempt, passing(), lambda: chance)
    most = min(5, 2 ** (attempt - 1))
    assert wait is not None
    assert most * (1 - policy.jitter) <= wait <= most


@given(st.floats(0, 600), st.floats(0, 1, exclude_max=True))
def test_never_earlier_than_the_provider_asks(asked: float, chance: float) -> None:
    wait = RetryPolicy().wait(1, passing("rate_limit", retry_after=asked), lambda: chance)
    assert wait is not None
    assert asked <= wait <= asked * 1.03


def test_cancelling_ends_the_wait_at_once() -> None:
    async def body() -> None:
        model = Failing(passing("rate_limit", retry_after=300))
        task = asyncio.create_task(reply_with_retries(model, [], [], ModelSettings()))
        await asyncio.sleep(200)
        assert len(model.asked) == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    assert run_in_virtual_time(body())[1] == pytest.approx(200)


def test_a_setting_that_is_refused_is_tried_again_at_once() -> None:
    assert ask(Failing(passing("setting"))) == [(1, "setting", 0.0)]


def overflow(**numbers: int) -> ContextOverflowError:
    return ContextOverflowError("too long", **numbers)


def test_too_many_tokens_asked_for_are_made_fewer() -> None:
    model = Failing(overflow(context_limit=32768, prompt_tokens=5000))
    told = ask(model, settings=ModelSettings(max_tokens=65536, temperature=0.5))
    assert told == [(1, "context", 0.0)]
    assert model.asked[1] == ModelSettings(max_tokens=32768 - 5000 - COUNT_TOLERANCE_TOKENS, temperature=0.5)


def test_without_numbers_the_tokens_are_halved_until_it_fits_or_is_too_little() -> None:
    def fits_8192(settings: ModelSettings) -> ModelError | None:
        return overflow() if (settings.max_tokens or 0) > 8192 else None

    model = Failing(*[fits_8192] * 10)
    ask(model, settings=ModelSettings(max_tokens=65536))
    assert [settings.max_tokens for settings in model.asked] == [65536, 32768, 16384, 8192]
    hopeless = Failing(*[overflow() for _ in range(20)])
    with pytest.raises(ContextOverflowError):
        ask(hopeless, RetryPolicy(attempts=20), ModelSettings(max_tokens=8192))
    assert [settings.max_tokens for settings in hopeless.asked] == [8192, 4096, 2048, 1024]


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        (None, overflow()),
        (4096, overflow(context_limit=32768, prompt_tokens=33000)),
        (4096, overflow(context_limit=32768, prompt_tokens=32768 - MIN_REDUCED_REPLY_TOKENS)),
        (MIN_REDUCED_REPLY_TOKENS, overflow()),
        (4096, ModelError("other", kind="server", retryable=True)),
    ],
)
def test_when_fewer_tokens_cannot_help(asked: int | None, error: ModelError) -> None:
    assert smaller_request(ModelSettings(max_tokens=asked), error) is None


@given(
    st.one_of(st.none(), st.integers(1, 200_000)),
    st.one_of(st.none(), st.integers(1, 200_000)),
    st.one_of(st.none(), st.integers(1, 300_000)),
    st.one_of(st.none(), st.integers(1, 200_000)),
)
def test_a_smaller_request_is_smaller_and_worth_asking(
    asked: int | None, limit: int | None, prompt: int | None, completion: int | None
) -> None:
    error = ContextOverflowError("x", context_limit=limit, prompt_tokens=prompt, completion_limit=completion)
    smaller = smaller_request(ModelSettings(max_tokens=asked), error)
    if smaller is None:
        return
    assert smaller.max_tokens is not None
    assert smaller.max_tokens >= MIN_REDUCED_REPLY_TOKENS
    assert asked is None or smaller.max_tokens < asked
    assert completion is None or smaller.max_tokens <= completion
