"""Steps of runs side by side."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_sandbox_nb.runs.aligned_steps import align
from llm_sandbox_nb.runs.compare import compare_runs
from llm_sandbox_nb.runs.comparison_drawing import _html_rows, _marked
from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.trajectory import Call, Step, Trajectory


def steps(commands: str, results: str = "") -> list[Step]:
    made = []
    for number, letter in enumerate(commands, 1):
        after = f"\n\n[Steps remaining: {100 - number}]"
        observation = (results or commands)[number - 1] + after
        result = ev.CallFinished(step=number, call_id=letter, observation=observation, after=after)
        call = Call(letter, "execute_bash", "{}", {"command": letter}, result=result)
        made.append(Step(number, calls=[call], replied=True))
    return made


def shape(*runs: list[Step]) -> list[str]:
    return [
        "".join(step.calls[0].id if step else "-" for step in row.steps) + row.likeness[0]
        for row in align(runs)
    ]


def test_the_same_steps_stand_beside_each_other() -> None:
    assert shape(steps("abc"), steps("abc")) == ["aas", "bbs", "ccs"]


def test_another_result_and_another_call_are_told_apart() -> None:
    assert shape(steps("abc"), steps("abc", "aXc")) == ["aas", "bbr", "ccs"]
    assert shape(steps("abc"), steps("axc")) == ["aas", "bxc", "ccs"]


def test_steps_that_one_run_lacks_leave_a_gap() -> None:
    assert shape(steps("abcd"), steps("ad")) == ["aas", "b-c", "c-c", "dds"]
    assert shape(steps("ad"), steps("abcd")) == ["aas", "-bc", "-cc", "dds"]


def test_three_runs_and_an_empty_one() -> None:
    assert shape(steps("ab"), steps("axb"), steps("ab")) == ["aaas", "-x-c", "bbbs"]
    assert shape(steps(""), steps("a")) == ["-ac"]


def test_steps_that_the_first_run_lacks_are_aligned_with_each_other() -> None:
    assert shape(steps("ab"), steps("axyb"), steps("ayb")) == ["aaas", "-x-c", "-yyc", "bbbs"]
    assert shape(steps("a"), steps("axy"), steps("ay"), steps("axy")) == ["aaaas", "-x-xc", "-yyyc"]


def long_output(hidden: str, file: str, *, truncated: bool = False) -> list[Step]:
    """A step whose output the model saw without its middle."""
    said = f"a\n[... 900 of 902 lines left out here (2900 bytes in all); all of it is in {file} ...]\nz"
    stdout = ev.Blob(sha256=hidden * 64, size=2900)
    result = ev.CallFinished(step=1, call_id="c", observation=said, stdout=stdout, truncated=truncated)
    return [Step(1, calls=[Call("c", "execute_bash", "{}", {}, result=result)], replied=True)]


def test_long_outputs_are_compared_as_recorded_and_without_the_names_of_their_files() -> None:
    one = long_output("1", "/tmp/llm-sandbox/12ab34cd.stdout")
    assert shape(one, long_output("1", "/tmp/llm-sandbox/98fe76dc.stdout")) == ["ccs"]
    assert shape(one, long_output("2", "/tmp/llm-sandbox/98fe76dc.stdout")) == ["ccr"]


@given(st.lists(st.text("abc", max_size=6), min_size=2, max_size=4))
def test_every_step_stands_once_and_in_order(runs: list[str]) -> None:
    rows = align([steps(run) for run in runs])
    for number, run in enumerate(runs):
        found = [row.steps[number] for row in rows]
        assert "".join(step.calls[0].id for step in found if step) == run
    assert all(any(step is not None for step in row.steps) for row in rows)


def test_steps_that_are_the_same_are_one_row_of_the_table_and_other_words_are_marked() -> None:
    one, other = steps("abc", results="ab" + "c"), steps("abc", results="ab" + "d")
    one[2].calls[0].result.observation = "12 rows of <cities>"  # type: ignore[union-attr]
    other[2].calls[0].result.observation = "15 rows of <cities>"  # type: ignore[union-attr]
    table = _html_rows(align([one, other]), 2)
    assert table.count("<tr") == 2
    assert "steps 1 to 2" in table
    assert table.count("<td") - table.count("text-align: left") == 2, "all but the labels are at the left"
    assert "<mark>12</mark> rows of &lt;cities&gt;" in table
    assert "<mark>15</mark> rows of &lt;cities&gt;" in table


def test_texts_with_little_in_common_have_no_marks() -> None:
    assert _marked(["rm -rf x", "There are five cities."]) == ["rm -rf x", "There are five cities."]
    assert _marked(["<b>", "<i>", "<u>"]) == ["&lt;b&gt;", "&lt;i&gt;", "&lt;u&gt;"]


@given(st.text("a <&\n", max_size=30), st.text("a <&\n", max_size=30))
def test_marks_change_no_text(one: str, other: str) -> None:
    for text, told in zip((one, other), _marked([one, other]), strict=True):
        assert html.unescape(re.sub("</?mark>", "", told)) == text


def run_of(commands: str, last: str, answer: str | None, reason: Any = "submitted") -> Run:
    """A run of these commands whose results are the commands, but for the last one."""
    events: list[ev.Event] = [ev.RunStarted(run_id="r", task="t", model="m")]
    for number, letter in enumerate(commands, 1):
        call: Any = {"step": number, "call_id": f"c{number}", "tool": "execute_bash"}
        given, said = {"command": letter}, last if number == len(commands) else letter
        events += [
            ev.ModelReplied(step=number, message={"role": "assistant", "content": ""}),
            ev.CallProposed(**call, raw_arguments="{}", arguments=given),
            ev.CallStarted(**call, arguments=given),
            ev.CallFinished(step=number, call_id=f"c{number}", observation=said),
        ]
    end = ev.RunFinished(stop_reason=reason, answer=answer, steps=len(commands))
    return Run(Path("/no/such/run"), Trajectory([*events, end]))


def test_a_comparison_in_text_is_a_short_table_with_the_line_that_decides() -> None:
    runs = [run_of("abc" * 40, f"{'x' * 300} rows: {answer}\nsame", answer) for answer in ("12", "15")]
    text = str(compare_runs(runs, ["Attempt 1", "Attempt 2, current"]))
    lines = text.splitlines()
    assert len(lines) <= 12
    assert max(map(len, lines)) <= 140
    assert lines[0].split() == ["answer", "ended", "steps", "tokens", "cost", "time"]
    assert lines[1].split()[:4] == ["Attempt", "1", "12", "Submitted,"]
    assert "Attempt 2, current  15" in lines[2]
    assert "First difference: step 120." in lines
    first, second = (line for line in lines if "rows: " in line)
    assert first.endswith("rows: 12")
    assert second.endswith("rows: 15")


def test_how_runs_ended_is_said_in_words() -> None:
    failed, missing = run_of("ab", "x", None, "model_error"), run_of("a", "a", None)
    text = str(compare_runs([failed, missing], ["one", "two"]))
    assert "Model error" in text
    assert "model_error" not in text
    assert "First difference: step 2." in text
    assert "no such step" in text
    assert str(compare_runs([failed, failed], ["one", "two"])).count("Every step is the same.") == 1


@pytest.mark.parametrize("truncated", [False, True])
def test_where_output_was_not_recorded_the_comparison_says_so(truncated: bool) -> None:
    runs = [run_of("ab", "x", "1") for _ in range(2)]
    for run in runs:
        run.steps[0].calls[0].result.truncated = truncated  # type: ignore[union-attr]
    text = str(compare_runs(runs, ["one", "two"]))
    assert "Every step is the same." in text
    assert ("In step 1, only the recorded part of the output is compared." in text) == truncated
