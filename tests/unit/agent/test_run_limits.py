"""Limits: what counts, when the last turn is announced, when there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from agent_scripts import bash, solved, turn
from support import run
from virtual_time import Clock

from llm_sandbox_nb.agent.run_limits import Meter, RunLimits, Thoughts
from llm_sandbox_nb.trajectory.events import Usage


def usage(tokens: int = 10, cost: float | None = None) -> Usage:
    return Usage(prompt_tokens=tokens - 5, completion_tokens=5, cost=cost)


def test_steps_count_down_and_the_last_is_announced() -> None:
    meter = Meter(RunLimits(steps=3))
    said, last = [], []
    for _ in range(3):
        said.append(meter.next_turn())
        meter.begin_step()
        last.append(meter.over)
    assert said[0] == "[Steps remaining: 3]"
    assert said[1] == "[Steps remaining: 2]"
    assert said[2].startswith("[Steps remaining: 1]\nThis is your last step.")
    assert "submit" in said[2]
    assert last == [None, None, "steps"]


def test_tokens_are_the_conversation_not_the_sum() -> None:
    meter = Meter(RunLimits(tokens=10_000))
    for _ in range(50):
        meter.begin_step()
        meter.add_reply(usage(8_000), "")
        assert "last" not in meter.next_turn()
    meter.add_text("x" * 4 * 900)
    assert "limit of tokens" in meter.next_turn()
    assert meter.over is None
    meter.begin_step()
    assert meter.over == "tokens"


@pytest.mark.parametrize(("limit", "last_at"), [(800, 700), (16_384, 14_336), (100_000, 97_952)])
def test_the_turn_is_the_last_when_an_eighth_of_the_tokens_is_left_or_2048(limit: int, last_at: int) -> None:
    for tokens, said in ((last_at - 1, False), (last_at, True)):
        meter = Meter(RunLimits(tokens=limit))
        meter.add_reply(usage(tokens), "")
        assert ("limit of tokens" in meter.next_turn()) is said, tokens


def test_without_a_count_tokens_are_estimated() -> None:
    meter = Meter(RunLimits(tokens=1000))
    meter.add_text("x" * 2000)
    meter.add_reply(None, "y" * 1600)
    assert meter.conversation == 900
    assert "last turn" in meter.next_turn()


def test_cost_stops_and_the_turn_before_is_announced() -> None:
    meter = Meter(RunLimits(cost=1.0))
    meter.add_reply(usage(cost=0.4), "")
    assert "last" not in meter.next_turn()
    meter.add_reply(usage(cost=0.3), "")
    assert "budget is nearly spent" in meter.next_turn()
    meter.begin_step()
    assert meter.over == "cost"
    meter.add_reply(usage(cost=0.4), "")
    assert meter.used_up == "cost"


def test_an_unknown_cost_stops_nothing() -> None:
    meter = Meter(RunLimits(cost=0.01))
    meter.add_reply(usage(), "")
    assert meter.used_up is None
    assert "last" not in meter.next_turn()


@pytest.mark.parametrize("unknown", [usage(), None])
def test_the_limit_on_cost_holds_for_known_costs_after_an_unknown_one(unknown: Usage | None) -> None:
    meter = Meter(RunLimits(cost=1.0))
    for given in (usage(cost=0.4), unknown, usage(cost=0.4)):
        meter.add_reply(given, "")
    assert "budget is nearly spent" in meter.next_turn()
    meter.add_reply(usage(cost=0.4), "")
    assert meter.used_up == "cost"


def test_time() -> None:
    clock = Clock()
    meter = Meter(RunLimits(time=100), clock)
    assert meter.time_left == 100
    clock.now += 85
    assert "last" not in meter.next_turn()
    clock.now += 10
    assert "time is nearly up" in meter.next_turn()
    clock.now += 10
    assert meter.time_left == 0
    assert meter.used_up == "time"


def test_no_limits_but_steps() -> None:
    meter = Meter(RunLimits(steps=1000, tokens=None))
    meter.add_text("x" * 10**7)
    assert meter.next_turn() == "[Steps remaining: 1000]"
    assert meter.time_left is None
    assert meter.reply_tokens(5) == 5


def test_replies_are_asked_for_within_the_limit() -> None:
    meter = Meter(RunLimits(tokens=65_536))
    meter.conversation = 60_000
    assert meter.reply_tokens(None) is None
    assert meter.reply_tokens(1000) == 1000
    assert meter.reply_tokens(65_536) == 5_536
    meter.conversation = 70_000
    assert meter.reply_tokens(65_536) == 1024


def thinking(prompt: int, thoughts: int, said: int = 100) -> Usage:
    return Usage(prompt_tokens=prompt, completion_tokens=thoughts + said, reasoning_tokens=thoughts)


def test_thoughts_that_do_not_go_back_are_not_part_of_the_conversation() -> None:
    meter, prompt = Meter(RunLimits(tokens=10_000)), 1_000
    for _ in range(6):
        meter.begin_step()
        spent, message = thinking(prompt, 6_000), {"content": "a"}
        meter.add_reply(spent, "", Thoughts.of(message, "t" * 24_000, spent))
        assert "last" not in meter.next_turn()
        prompt += 100
        assert meter.conversation == prompt
    assert meter.total_tokens == sum(1_000 + 100 * n + 6_100 for n in range(6)), "all of them were paid for"
    assert meter.reply_tokens(65_536) == 10_000 - prompt


def test_thoughts_that_go_back_count_until_the_server_turns_out_to_drop_them() -> None:
    meter, message = Meter(RunLimits(tokens=10_000)), {"content": "a", "reasoning_content": "t" * 16_000}
    spent = thinking(1_000, 4_000)
    meter.add_reply(spent, "", Thoughts.of(message, "t", spent))
    assert meter.conversation == 5_100
    kept = thinking(5_100, 4_000)
    meter.add_reply(kept, "", Thoughts.of(message, "t", kept))
    assert meter.conversation == 9_200
    dropped = thinking(5_300, 4_000)
    meter.add_reply(dropped, "", Thoughts.of(message, "t", dropped))
    assert meter.conversation == 5_400


@pytest.mark.parametrize(
    ("message", "reasoning", "usage", "held"),
    [
        ({"content": "a"}, "t" * 400, None, 0),
        ({"content": "a"}, "t" * 400, Usage(prompt_tokens=9, completion_tokens=60), 0),
        ({"content": "a"}, None, Usage(prompt_tokens=9, completion_tokens=60, reasoning_tokens=50), 10),
        ({"content": "<think>t</think>a"}, None, Usage(completion_tokens=60, reasoning_tokens=50), 60),
        ({"content": "a", "thinking_blocks": [{}]}, "t" * 400, Usage(completion_tokens=60), 60),
        ({"content": "a"}, None, Usage(prompt_tokens=9, completion_tokens=60), 60),
    ],
)
def test_a_reply_takes_what_the_next_request_holds_of_it(
    message: dict[str, Any], reasoning: str | None, usage: Usage | None, held: int
) -> None:
    meter = Meter(RunLimits())
    meter.add_reply(usage, "t" * 400, Thoughts.of(message, reasoning, usage))
    assert meter.conversation - (usage.prompt_tokens if usage else 0) == held


@pytest.mark.parametrize(
    "wrong", [{"steps": 0}, {"tokens": -1}, {"cost": 0.0}, {"time": 0}, {"time": float("nan")}]
)
def test_limits_are_more_than_zero(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="more than zero"):
        RunLimits(**wrong)  # type: ignore[arg-type]


def test_tokens_of_all_requests_together_are_a_limit_of_their_own() -> None:
    meter = Meter(RunLimits(tokens=None, total_tokens=50_000))
    said = []
    for _ in range(5):
        meter.begin_step()
        meter.add_reply(usage(8_000), "")
        assert meter.over is None or meter.step == 5
        said.append(meter.next_turn())
    assert (meter.conversation, meter.total_tokens) == (8_000, 40_000)
    assert ["last turn" in one for one in said] == [False, False, False, False, True]
    assert "tokens of this run are nearly used up" in said[-1]
    meter.begin_step()
    assert meter.over == "total_tokens"
    meter.resume_from(6, 8_000, 0.0, total_tokens=60_000)
    assert meter.used_up == "total_tokens"
    assert meter.reply_tokens(60_000) == 1024


def test_a_summary_counts_for_the_sum_and_not_for_the_conversation() -> None:
    meter = Meter(RunLimits())
    meter.add_reply(usage(1_000), "")
    meter.add_summary(usage(700))
    assert (meter.conversation, meter.total_tokens) == (1_000, 1_700)


def test_a_run_ends_with_the_limit_that_it_reached(tmp_path: Path) -> None:
    turns = [turn(bash(f"echo {number}")) for number in range(20)]
    both = {"tokens": 60_000, "total_tokens": 2_500}
    done = run(solved(tmp_path, *turns, limits=both))
    assert done.stop_reason == "total_tokens"
    assert 1_500 < done.usage.total_tokens < 3_500
    assert done.trajectory.state(live=False).words == "Token limit reached (2,500 in all)"
    small = run(solved(tmp_path, *turns, limits={"tokens": 800}))
    assert small.stop_reason == "tokens"
    assert small.usage.total_tokens > 800
    assert small.trajectory.state(live=False).words == "Conversation limit reached (800 tokens)"
