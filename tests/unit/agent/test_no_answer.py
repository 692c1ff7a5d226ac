"""What a run comes to when the model says nothing, refuses, or fails in the same way again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from talking_replies import TalkingReplies, called, said

from llm_sandbox_nb.agent.errors import InputError
from llm_sandbox_nb.agent.failing_calls import FailingCalls
from llm_sandbox_nb.agent.no_call import SilentReplies, refusal, reply_kind
from llm_sandbox_nb.agent.text_mode import load_text_form
from llm_sandbox_nb.model.contract import Reply
from llm_sandbox_nb.model.retries import RetryPolicy
from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.runs.solve import solve

SUBMITS = called(90, "submit")
NOTHING_SENT: Callable[[str], bool] = ().__contains__
QUICK = RetryPolicy(first_wait=0.01)


def solved(folder: Path, model: TalkingReplies, **options: Any) -> Run:
    options = {"isolation": "process", "output_dir": folder, "retries": QUICK} | options
    return asyncio.run(solve(options.pop("task", "How many?"), model=model, **options))


NOTHING = (
    "<|im_end|>", "<|eot_id|></s>", "<｜end▁of▁sentence｜>", "<tool_call>\n</tool_call>", "[TOOL_CALLS][]", "\ufeff",
    "assistant\n", "null", "```bash\n\n```", "<answer></answer>", "&nbsp;", "<tool_response>\nok\n</tool_response>",
    "<pad>" * 30,
)  # fmt: skip


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (said(""), "empty"),
        (said(" \n"), "empty"),
        (said("(nothing)"), "empty"),
        (said("!!! ..."), "empty"),
        (said("", reasoning="Hm, let me see"), "thought"),
        (said("<think>I should look at the files"), "thought"),
        (said("!" * 4000, "length"), "cut"),
        (said("1. First I read the file", "length"), "cut"),
        (said("[Steps remaining: 97]"), "echo"),
        (said("How   many?"), "echo"),
        *((said(nothing), "empty") for nothing in NOTHING),
        (said("There are 3.<|im_end|>"), "text"),
        (said("<p>There are 3.</p>"), "text"),
        (said("There are 3."), "text"),
        (said("7"), "text"),
    ],
)
def test_what_a_reply_without_a_call_is(reply: Reply, kind: str) -> None:
    assert reply_kind(reply, ["How many?"].__contains__) == kind


@pytest.mark.parametrize("nothing", ["<|im_end|>", "[Steps remaining: 99]", "assistant"])
def test_special_tokens_and_our_own_footer_are_no_answer_with_submit_either(
    tmp_path: Path, nothing: str
) -> None:
    model = TalkingReplies(called(1, "submit", text=nothing), called(2, "submit", text=nothing))
    result = solved(tmp_path, model)
    assert (result.stop_reason, result.answer, len(model.requests)) == ("submitted", None, 2)
    assert "nothing is saved" in model.newest


@pytest.mark.parametrize(
    ("replies", "sentence"),
    [
        ([said("", None)], "The model gave no answer: 3 empty replies."),
        ([said("", "length")], "The model gave no answer: 3 empty replies; the last ended with length."),
        (
            [said(""), said("", "stop", reasoning="Hm"), said("!" * 4000, "length")],
            "The model gave no answer: 1 empty reply and 1 reply with a thought alone and 1 reply that was cut off; "
            "the last ended with length.",
        ),
    ],
)  # fmt: skip
def test_replies_that_say_nothing_are_no_answer(tmp_path: Path, replies: list[Reply], sentence: str) -> None:
    model = TalkingReplies(*replies)
    result = solved(tmp_path, model)
    assert (result.stop_reason, result.answer, result.error) == ("no_answer", None, sentence)
    asked = [request[-1]["content"] for request in model.requests]
    assert len(asked) == len(set(asked)) == 3, "asked for in another way each time"
    assert all("submit" in text for text in asked[1:])


def test_an_answer_file_is_the_answer_of_a_model_that_fell_silent(tmp_path: Path) -> None:
    model = TalkingReplies(called(1, "execute_bash", command="echo 42 > output/answer.txt"), said(""))
    result = solved(tmp_path, model)
    assert (result.stop_reason, result.answer, result.error) == ("answered", "42", None)


def test_every_reply_without_a_call_gets_a_request_for_one_when_all_are_to_get_one(tmp_path: Path) -> None:
    model = TalkingReplies(
        *[said("It is 3.")] * 6, called(7, "execute_bash", command="echo 3 > answer.txt"), SUBMITS
    )
    result = solved(tmp_path, model, nudges="all", tool_calls="native")
    assert (result.stop_reason, result.answer, len(model.requests)) == ("submitted", "3", 8)
    talker = TalkingReplies(said("It is 3."), said(""))
    limited = solved(tmp_path, talker, nudges="all", tool_calls="native", limits={"steps": 5})
    assert (limited.stop_reason, len(talker.requests)) == ("steps", 5)
    assert limited.trajectory.start
    assert limited.trajectory.start.settings["nudges"] == "all"
    with pytest.raises(InputError, match="nudges must be a whole number of at least 0, or all, not 'some'"):
        solved(tmp_path, model, nudges="some")


def test_the_wait_before_an_empty_reply_is_asked_for_again_grows() -> None:
    silent = SilentReplies()
    waits = []
    for _ in range(4):
        silent.add(said(""), NOTHING_SENT)
        waits.append(silent.wait(RetryPolicy(first_wait=1.0, longest_wait=5.0)))
    assert waits == [1.0, 2.0, 4.0, 5.0]
    assert silent.wait(RetryPolicy(attempts=1)) == 0.0, "no retries are wanted"
    silent.add(said("I think"), NOTHING_SENT)
    assert silent.wait(RetryPolicy()) == 0.0


@pytest.mark.parametrize("reason", ["content_filter", "refusal"])
def test_a_refusal_ends_the_run_with_the_words_of_the_provider(tmp_path: Path, reason: str) -> None:
    result = solved(tmp_path, TalkingReplies(said("I cannot help with that.", reason)))
    assert (result.stop_reason, result.answer, len(result.steps)) == ("refused", None, 1)
    assert result.error == "The model or its provider refused to answer: I cannot help with that."


def test_a_refusal_is_known_by_its_field() -> None:
    message = {"role": "assistant", "content": "", "refusal": "No."}
    assert refusal(said("There are 3.")) is None
    ending = refusal(Reply(message, finish_reason="stop"))
    assert ending is not None
    assert ending.error == "The model or its provider refused to answer: No."
    silent = refusal(said("", "content_filter"))
    assert silent is not None
    assert (
        silent.error == "The model or its provider refused to answer (it gave no reason but content_filter)."
    )


def test_a_person_who_asks_for_no_nudges_gets_the_first_text(tmp_path: Path) -> None:
    model = TalkingReplies(said("There are 3."))
    result = solved(tmp_path, model, nudges=0)
    assert (result.stop_reason, result.answer, len(model.requests)) == ("answered", "There are 3.", 1)
    silent = solved(tmp_path, TalkingReplies(said("")), nudges=0)
    assert (silent.stop_reason, silent.error) == (
        "no_answer", "The model gave no answer: 1 empty reply; the last ended with stop."
    )  # fmt: skip


def test_a_nudge_quotes_the_block_and_the_call_that_would_execute_it() -> None:
    silent = SilentReplies()
    silent.add(said('I run this:\n\n```python\nprint("a")\n```\n'), NOTHING_SENT)
    first = silent.nudge()
    assert '"python3 - <<\'END_OF_PYTHON\'\\nprint(\\"a\\")\\nEND_OF_PYTHON"' in first
    assert "execute_bash" in first
    silent.add(said('I run this:\n\n```python\nprint("a")\n```\n'), NOTHING_SENT)
    assert silent.nudge() != first
    assert silent.wants_to_act
    in_text = silent.nudge(load_text_form("bash"))
    assert "```bash\npython3 - <<'END_OF_PYTHON'\nprint(\"a\")\nEND_OF_PYTHON\n```" in in_text


def test_a_nudge_says_why_a_call_that_is_shown_was_not_executed() -> None:
    silent = SilentReplies()
    silent.add(said("For example: {...}"), NOTHING_SENT, "text follows the call")
    assert "was not executed: text follows the call." in silent.nudge()


# --- submit without anything ---


def test_a_model_that_submits_with_nothing_is_told_once(tmp_path: Path) -> None:
    model = TalkingReplies(called(1, "execute_bash", command="echo 42"), SUBMITS, SUBMITS)
    result = solved(tmp_path, model)
    assert (result.stop_reason, result.answer, len(result.steps)) == ("submitted", None, 3)
    assert "nothing is saved in" in model.newest
    assert "answer.txt" in model.newest
    assert result.trajectory.finish
    assert result.trajectory.finish.without_answer


def test_a_model_that_is_told_saves_its_result(tmp_path: Path) -> None:
    saves = called(2, "execute_bash", command="echo 42 > output/answer.txt")
    result = solved(tmp_path, TalkingReplies(called(1, "submit"), saves, SUBMITS))
    assert (result.stop_reason, result.answer) == ("submitted", "42")
    assert result.trajectory.finish
    assert not result.trajectory.finish.without_answer


@pytest.mark.parametrize(
    "replies",
    [
        (called(1, "submit", text="It is 42."),),
        (called(1, "execute_bash", command="echo x > output/poster.png"), SUBMITS),
        (said("It is 42."), SUBMITS),
    ],
)
def test_a_model_that_saved_or_said_something_is_not_told(tmp_path: Path, replies: tuple[Reply, ...]) -> None:
    result = solved(tmp_path, TalkingReplies(*replies))
    assert (result.stop_reason, len(result.steps)) == ("submitted", len(replies))
    assert result.trajectory.finish
    assert not result.trajectory.finish.without_answer


def test_a_model_is_not_told_where_that_is_not_wanted(tmp_path: Path) -> None:
    result = solved(tmp_path, TalkingReplies(SUBMITS), remind=False)
    assert (result.stop_reason, len(result.steps)) == ("submitted", 1)


# --- the same failing call ---


def failing(number: int) -> Reply:
    return called(number, "execute_bash", command="cat /no/such/file")


def test_the_same_failing_call_is_told_after_three_and_ends_the_run_after_eight(tmp_path: Path) -> None:
    model = TalkingReplies(*map(failing, range(20)))
    result = solved(tmp_path, model)
    assert (result.stop_reason, len(result.steps)) == ("repeated", 8)
    assert (
        result.error
        == "The model made the same call of execute_bash 8 times in a row, and it failed each time."
    )
    shown = [request[-1]["content"] for request in model.requests]
    assert ["has failed" in text for text in shown] == [False] * 3 + [True] * 5
    assert "has failed 3 times in a row. The run ends after 8 times." in shown[3]


def test_the_limit_of_repeats_can_be_turned_off(tmp_path: Path) -> None:
    result = solved(tmp_path, TalkingReplies(*map(failing, range(20))), same_failures=0, limits={"steps": 10})
    assert (result.stop_reason, len(result.steps)) == ("steps", 10)


def test_other_calls_and_successes_begin_the_count_anew() -> None:
    calls = FailingCalls(3)
    calls.add("execute_bash", '{"command": "x"}', None, failed=True)
    calls.add("execute_bash", '{ "command":"x" }', None, failed=True)
    assert calls.count == 2, "the layout of the JSON is no difference"
    calls.add("execute_bash", '{"command": "y"}', None, failed=True)
    assert calls.count == 1
    calls.add("execute_bash", '{"command": "y"}', "skipped", failed=True)
    assert calls.count == 1, "a person's decision is no attempt"
    calls.add("execute_bash", '{"command": "y"}', None, failed=False)
    assert (calls.count, calls.over) == (0, False)


def test_a_wait_for_an_empty_reply_ends_with_the_time_of_the_run(tmp_path: Path) -> None:
    slow = RetryPolicy(first_wait=1000.0, longest_wait=1000.0)
    work = solve(
        "How many?", model=TalkingReplies(said("")), isolation="process", output_dir=tmp_path, retries=slow,
        limits={"time": 2.0},
    )  # fmt: skip
    assert asyncio.run(work).stop_reason == "time"
