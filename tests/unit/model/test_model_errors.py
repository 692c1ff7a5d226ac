"""Failures as one sentence, and what they say of waiting."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import partial

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_sandbox_nb.model.contract import ContextOverflowError, ModelError
from llm_sandbox_nb.model.errors import Target, chain, examine, refused_setting, retry_after, to_model_error

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
TARGET = Target("m", "http://host/v1", has_key=True)
REQUEST = httpx.Request("POST", "http://host/v1/chat/completions")


def answer(
    status: int,
    message: str = "what the provider said",
    headers: dict[str, str] | None = None,
    **body: object,
):
    import openai  # not at collection: each worker would spend a second on it

    response = httpx.Response(status, headers=headers, request=REQUEST)
    return openai.APIStatusError(message, response=response, body={"message": message, **body})


def openai_timeout() -> Exception:
    import openai

    return openai.APITimeoutError(request=REQUEST)


def openai_error() -> Exception:
    import openai

    return openai.APIError("boom", REQUEST, body=None)


@given(st.floats(0, 1e6, allow_nan=False))
def test_seconds(seconds: float) -> None:
    assert retry_after({"retry-after": str(seconds)}) == seconds
    assert retry_after({"retry-after-ms": str(seconds), "retry-after": "9"}) == seconds / 1000


@given(st.integers(-10_000, 10_000))
def test_an_http_date(seconds: int) -> None:
    header = format_datetime(NOW + timedelta(seconds=seconds), usegmt=True)
    assert retry_after({"retry-after": header}, NOW) == max(0, seconds)


@given(st.text())
def test_anything_else_is_no_answer_or_a_number_of_seconds(text: str) -> None:
    found = retry_after({"retry-after": text}, NOW)
    assert found is None or found >= 0


@pytest.mark.parametrize("value", ["", "soon", "-3", "nan", "inf", "Mon, 99 Foo 2026"])
def test_nonsense_is_not_waited_for(value: str) -> None:
    assert retry_after({"retry-after": value}) is None


@pytest.mark.parametrize(
    ("error", "kind", "retryable"),
    [
        (partial(answer, 401), "authentication", False),
        (partial(answer, 403), "authentication", False),
        (partial(answer, 404), "not_found", False),
        (partial(answer, 400, "The model `x` does not exist."), "not_found", False),
        (partial(answer, 400), "bad_request", False),
        (partial(answer, 422), "bad_request", False),
        (partial(answer, 402, "Insufficient Balance"), "quota", False),
        (partial(answer, 400, "Your credit balance is too low to access the Anthropic API."), "quota", False),
        (partial(answer, 429, "You exceeded your current quota", code="insufficient_quota"), "quota", False),
        (partial(answer, 429), "rate_limit", True),
        (partial(answer, 408), "timeout", True),
        (partial(answer, 409), "server", True),
        (partial(answer, 500), "server", True),
        (partial(answer, 502), "server", True),
        (partial(answer, 529, "Overloaded"), "server", True),
        (partial(answer, 413, "prompt is too long: 3 tokens > 2 maximum"), "context", False),
        (TimeoutError(), "timeout", True),
        (openai_timeout, "timeout", True),
        (httpx.ConnectError("[Errno 111] Connection refused"), "unreachable", True),
        (httpx.ConnectError("[Errno 104] Connection reset by peer"), "connection", True),
        (httpx.RemoteProtocolError("peer closed connection"), "connection", True),
        (httpx.ReadError(""), "connection", True),
        (ConnectionResetError(104, "Connection reset by peer"), "connection", True),
        (ModuleNotFoundError("No module named 'google'"), "setup", False),
        (openai_error, "server", True),
        (ValueError("what?"), "unknown", False),
    ],
)
def test_kinds(error: Exception | Callable[[], Exception], kind: str, retryable: bool) -> None:
    error = error if isinstance(error, Exception) else error()
    found = to_model_error(error, TARGET)
    assert (found.kind, found.retryable) == (kind, retryable)
    assert isinstance(found, ContextOverflowError) == (kind == "context")
    assert "\n" not in str(found)
    assert str(found).endswith(".")


@pytest.mark.parametrize(
    ("sentence", "seconds"),
    [
        ("Rate limit reached for requests per min. Limit: 3 / min. Please try again in 20s. Visit "
         "https://platform.openai.com/account/billing to add a payment method.", 20),
        ("You exceeded your current quota, please check your plan and billing details. Quota exceeded for metric: "
         "generate_content_free_tier_requests, limit: 10. Please retry in 23.5s.", 23.5),
        ("Rate limit reached on tokens per day (TPD). Please try again in 1h2m3.5s.", 3723.5),
        ("Rate limit reached on requests. Please try again in 6m0s.", 360),
        ("Rate limit reached on tokens. Please try again in 840ms.", 0.84),
        ("Rate limit reached. Retry after 5 seconds.", 5),
        ("Rate limit reached. Please try again in a while.", None),
    ],
)  # fmt: skip
def test_the_wait_that_a_rate_limit_names_is_read(sentence: str, seconds: float | None) -> None:
    found = to_model_error(answer(429, sentence), TARGET)
    assert (found.kind, found.retryable, found.retry_after) == ("rate_limit", True, seconds)
    headed = to_model_error(answer(429, sentence, headers={"retry-after": "7"}), TARGET)
    assert headed.retry_after == 7


def test_tokens_per_minute_are_no_context_overflow() -> None:
    sentence = "Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 70000."
    never = to_model_error(answer(429, sentence), TARGET)
    assert (never.kind, never.retryable) == ("rate_limit", False)
    assert "70000" in str(never)
    later = "Rate limit reached on tokens per min (TPM): Limit 30000, Used 29000, Requested 2000. Try in 2s."
    assert to_model_error(answer(429, later, {"retry-after": "2"}), TARGET).retry_after == 2


def test_the_providers_own_answer_is_believed_before_what_was_made_of_it() -> None:
    """A wrapper that calls a rate limit a bad request, and brings words of its own."""
    original = answer(429, "slow down", {"retry-after": "7"})
    wrapper = ValueError("litellm.BadRequestError: maximum context length, billing, Traceback ...")
    wrapper.__cause__ = original
    found = to_model_error(wrapper, TARGET)
    assert (found.kind, found.retry_after) == ("rate_limit", 7)
    assert "slow down" in str(found)


def test_a_chain_that_bites_its_tail_ends() -> None:
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__context__ = second, first
    assert list(chain(first)) == [first, second]
    assert examine(first).detail == "b"


@pytest.mark.parametrize(
    "inner",
    [
        ModelError("Ours.", kind="loading", retryable=True, retry_after=3, learned={"refused": ["stream"]}),
        ContextOverflowError("Ours.", context_limit=10, prompt_tokens=20, completion_limit=5),
    ],
)
def test_an_error_of_ours_passes_through_with_all_that_it_says(inner: ModelError) -> None:
    outer = RuntimeError("wrapped")
    outer.__cause__ = inner
    found = to_model_error(outer, TARGET)
    assert (type(found), str(found), vars(found)) == (type(inner), "Ours.", vars(inner))


@given(st.text(max_size=3000), st.sampled_from([400, 401, 403, 404, 408, 422, 429, 500, 503]))
def test_any_message_becomes_one_line_of_bounded_length(message: str, status: int) -> None:
    text = str(to_model_error(answer(status, message), TARGET))
    assert len(text) < 1000
    assert len(text.splitlines()) == 1


NAMES = frozenset({"temperature", "top_p", "top_k"})


@pytest.mark.parametrize(
    ("make_error", "setting"),
    [
        (
            partial(
                answer, 400, "Unsupported value: 'temperature' does not support 0.3.", param="temperature"
            ),
            "temperature",
        ),
        (partial(answer, 400, "Unsupported parameter: 'top_p' is not supported with this model."), "top_p"),
        (partial(answer, 400, "Unrecognized request argument supplied: 'top_k'"), "top_k"),
        (partial(answer, 400, "Unsupported value: 'tools' is not supported.", param="tools"), None),
        (partial(answer, 400, "Messages are wrong; 'temperature' was fine."), None),
        (partial(answer, 500, "Unsupported value: 'temperature'", param="temperature"), None),
    ],
)
def test_a_refused_setting_is_named(make_error: Callable[[], Exception], setting: str | None) -> None:
    assert refused_setting(make_error(), NAMES) == setting
