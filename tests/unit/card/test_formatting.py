"""Prices, sizes, durations and counts: the table that the view's TypeScript is tested with too."""

import json
import math
from pathlib import Path

import pytest

from llm_sandbox_nb.formatting import (
    format_call_failure,
    format_clock,
    format_cost,
    format_count,
    format_duration,
    format_model_failure,
    format_number,
    format_percent,
    format_short,
    format_size,
    format_spent,
    plural,
)
from llm_sandbox_nb.trajectory.state import state_words

TABLE = json.loads((Path(__file__).parents[2] / "data/formatting.json").read_text())
RULES = {
    "cost": format_cost,
    "spent": lambda given: format_spent(*given),
    "size": format_size,
    "duration": format_duration,
    "count": format_count,
    "plural": lambda given: plural(*given),
    "short": format_short,
    "clock": format_clock,
    "state": lambda given: state_words(*given),
    "model_failure": format_model_failure,
    "call_failure": format_call_failure,
}


@pytest.mark.parametrize("rule", {**TABLE, **RULES})
def test_a_rule_says_what_the_table_says(rule: str) -> None:
    assert [[value, RULES[rule](value)] for value, _ in TABLE[rule]] == TABLE[rule]


def test_the_plural_of_most_nouns_needs_no_second_form() -> None:
    assert (plural(1, "token"), plural(2, "token")) == ("1 token", "2 tokens")


def test_numbers_of_a_hostile_record_are_shown() -> None:
    assert format_duration(math.inf) == format_duration(math.nan) == "unknown time"
    assert format_cost(math.nan) == "cost unknown"


def test_numbers_of_a_report() -> None:
    assert [format_number(value) for value in (0.12345, 1, 99.96, 100.4, 12345.6)] == [
        "0.123", "1", "100", "100", "12346",
    ]  # fmt: skip
    assert format_percent(0.6251) == "62.5"
