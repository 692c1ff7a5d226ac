"""LiteLLM's list, read without LiteLLM, gives what LiteLLM itself gives: a change of LiteLLM shows here."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from llm_sandbox_nb.model.litellm_transport import backend
from llm_sandbox_nb.model.model_list import cost, models_of_list, providers
from llm_sandbox_nb.model.request import accepts_setting, reasons
from llm_sandbox_nb.model.route import Route
from llm_sandbox_nb.model.route_choice import needs_responses
from llm_sandbox_nb.trajectory.events import Usage

CHAT = [
    Route(f"{row['litellm_provider']}/{name.removeprefix('deepseek/')}", row["litellm_provider"], True)
    for name, row in models_of_list().items()
    if row.get("litellm_provider") in ("openai", "deepseek") and row.get("mode") == "chat"
]
TOOLS = [{"type": "function", "function": {"name": "submit", "parameters": {"type": "object"}}}]


def test_the_providers_are_those_of_litellm() -> None:
    assert providers() == {str(getattr(provider, "value", provider)) for provider in backend().provider_list}


@pytest.mark.parametrize("prompt", [1000, 300_000])
def test_the_costs_are_those_of_litellm(prompt: int) -> None:
    litellm = backend()
    details = {
        "prompt_tokens_details": {"cached_tokens": 600},
        "completion_tokens_details": {"reasoning_tokens": 20},
    }
    reported = litellm.Usage(prompt_tokens=prompt, completion_tokens=50, total_tokens=prompt + 50, **details)
    usage = Usage(prompt_tokens=prompt, completion_tokens=50, cached_tokens=600, reasoning_tokens=20)
    wrong = {}
    for route in CHAT:
        expected = sum(litellm.cost_per_token(model=route.model, usage_object=reported)) or None
        found = cost(route, usage)
        if (found or 0) != pytest.approx(expected or 0, rel=1e-9):
            wrong[route.model] = (expected, found)
    assert wrong == {}


def test_a_model_of_another_provider_has_no_price() -> None:
    usage = Usage(prompt_tokens=10, completion_tokens=10)
    assert cost(Route("openai/gpt-4o", "openai", True), usage)
    assert cost(Route("openai/gpt-4o", "openai", True), Usage()) == 0
    for route in (
        Route("hosted_vllm/gpt-4o", "hosted_vllm", True),
        Route("openai/claude-sonnet-4-5", "openai", True),
    ):
        assert cost(route, usage) is None
    tuned = Route("ft:gpt-4o-2024-08-06:my-org::x", "openai", True)
    assert cost(tuned, usage) == cost(Route("ft:gpt-4o-2024-08-06", "openai", True), usage)


def test_prices_of_the_hours_in_which_a_provider_is_cheaper(monkeypatch: pytest.MonkeyPatch) -> None:
    windows = [
        {"hours_utc": ["04:00-06:00", "22:00-00:00"], "weekdays": [1, 2, 3, 4, 5]},
        {"hours_utc": "00:00-00:00", "weekdays": [6, 7]},
    ]
    row = {
        "litellm_provider": "deepseek", "input_cost_per_token": 2.0, "output_cost_per_token": 8.0,
        "off_peak_pricing": {"input_cost_per_token": 1.0, "output_cost_per_token": 4.0, "windows": windows},
    }  # fmt: skip
    monkeypatch.setitem(models_of_list(), "deepseek/m", row)
    usage, route = Usage(prompt_tokens=1, completion_tokens=1), Route("deepseek/m", "deepseek", True)
    costs = [
        cost(route, usage, datetime(2026, 11, day, hour, minute, tzinfo=UTC))
        for day, hour, minute in ((26, 3, 59), (26, 4, 0), (26, 6, 0), (26, 23, 59), (28, 12, 0))
    ]
    assert costs == [10, 5, 10, 5, 5]


@pytest.mark.parametrize("weekdays", [None, [4]])
@pytest.mark.parametrize(
    ("hours", "cheap"),
    [
        ("22:00-06:00", "00:00 00:29 05:59 22:00 23:59"),
        (["12:00-13:00", "16:30-00:30"], "00:00 00:29 12:00 16:30 21:59 22:00 23:59"),
        ("07:00-07:00", "00:00 00:29 05:59 06:00 12:00 16:30 21:59 22:00 23:59"),
    ],
)
def test_cheaper_hours_may_pass_over_midnight(
    hours: str | list[str], cheap: str, weekdays: list[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Thursday, with hours for this day or, without a window, for every day."""
    window = {"hours_utc": hours, "weekdays": weekdays}
    pricing = {"input_cost_per_token": 1.0} | ({"windows": [window]} if weekdays else {"hours_utc": hours})
    row = {"litellm_provider": "deepseek", "input_cost_per_token": 2.0, "off_peak_pricing": pricing}
    monkeypatch.setitem(models_of_list(), "deepseek/m", row)
    usage, route = Usage(prompt_tokens=1), Route("deepseek/m", "deepseek", True)
    times = ["00:00", "00:29", "05:59", "06:00", "12:00", "16:30", "21:59", "22:00", "23:59"]
    at = [datetime.fromisoformat(f"2026-11-26T{time}+00:00") for time in times]
    assert [
        time for time, now in zip(times, at, strict=True) if cost(route, usage, now) == 1
    ] == cheap.split()


@pytest.mark.parametrize(("setting", "value"), [("temperature", 0.3), ("temperature", 1), ("top_p", 0.9)])
def test_the_accepted_settings_are_those_of_litellm(setting: str, value: float) -> None:
    litellm = backend()

    def accepted(route: Route) -> bool:
        try:
            litellm.utils.get_optional_params(
                model=route.sent_name, custom_llm_provider=route.provider, **{setting: value}
            )
        except litellm.exceptions.UnsupportedParamsError:
            return False
        return True

    models = [route for route in CHAT if not needs_responses(route, None, {})]
    assert {one.model for one in models if accepts_setting(one, setting, value) != accepted(one)} == set()


def test_the_limit_of_a_reply_has_the_name_that_litellm_gives() -> None:
    def renamed(route: Route) -> bool:
        found: dict[str, Any] = backend().utils.get_optional_params(
            model=route.sent_name, custom_llm_provider=route.provider, max_tokens=5
        )
        return "max_completion_tokens" in found

    assert {route.model for route in CHAT if reasons(route) != renamed(route)} == set()


def test_models_of_the_responses_api_are_those_of_litellm() -> None:
    check = pytest.importorskip("litellm.responses.bridge_check").responses_api_bridge_check
    models = [
        Route(name, "openai", True)
        for name, row in models_of_list().items()
        if row.get("litellm_provider") == "openai" and row.get("mode") in ("chat", "responses")
    ]
    for address in (None, "http://127.0.0.1:1/v1"):
        for extra in ({}, {"reasoning_effort": "none"}, {"reasoning_effort": "low"}):
            wrong = {}
            for route in models:
                info, _ = check(
                    model=route.sent_name, custom_llm_provider="openai", tools=TOOLS, api_base=address,
                    reasoning_effort=extra.get("reasoning_effort"),
                )  # fmt: skip
                if needs_responses(route, address, extra) != (info.get("mode") == "responses"):
                    wrong[route.model] = info.get("mode")
            assert wrong == {}, (address, extra)
