"""What goes wrong with one answer: the others go on, and what was paid for is kept."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agent_scripts import script_text, turn
from benchmark_models import FunctionModel, fails, says
from support import run

from llm_sandbox_nb.benchmark.attempt import Attempt, HowToAsk, with_one_reply
from llm_sandbox_nb.benchmark.commands import prepare
from llm_sandbox_nb.benchmark.item_pipeline import FatalError, Item
from llm_sandbox_nb.benchmark.judge import Judge, JudgeOptions
from llm_sandbox_nb.benchmark.report import summary
from llm_sandbox_nb.benchmark.results import CONFIG, read_results
from llm_sandbox_nb.benchmark.rows import DataError, Row
from llm_sandbox_nb.benchmark.runner import Runner, RunnerOptions, make_opener, plan
from llm_sandbox_nb.benchmark.task import Task, load_task
from llm_sandbox_nb.benchmark.text_scorers import Score
from llm_sandbox_nb.cli import main
from llm_sandbox_nb.model import model_names
from llm_sandbox_nb.model.connection import Access
from llm_sandbox_nb.model.contract import Model, ModelSettings, Reply
from llm_sandbox_nb.model.remote_model import RemoteModel
from llm_sandbox_nb.model.retries import RetryPolicy
from llm_sandbox_nb.sandbox.errors import SandboxError

ONCE = RetryPolicy(attempts=1)
ROWS = [Row(f"p{n}", f"Question {n}?", str(n)) for n in range(4)]
LONG = "so " * 10_000
ANTHROPIC, OPENAI = {"ANTHROPIC_API_KEY": "of-anthropic"}, {"OPENAI_API_KEY": "of-openai"}


def answers(messages: list[dict[str, Any]]) -> Reply:
    return says(LONG + str(messages[-1]["content"]).partition("Question ")[2][0])


def judging(verdict: str = "CORRECT") -> FunctionModel:
    return FunctionModel(lambda messages: says(verdict), "test/judge")


def failing(kind: str, questions: str = "0123") -> FunctionModel:
    def speak(messages: list[dict[str, Any]]) -> Reply:
        question = messages[0]["content"].partition("Question ")[2][0]
        return fails(kind) if question in questions else says("CORRECT")

    return FunctionModel(speak, "test/judge")


def items(task: str = "physics") -> list[Item]:
    return plan([(load_task(task), ROWS)], ["llm"], 1)


def benchmark(out: Path, model: FunctionModel, judge: FunctionModel | None, workers: int = 4) -> Runner:
    how = HowToAsk(model, ModelSettings(), ONCE)
    asked = judge and Judge(judge, out / "judge", JudgeOptions(repeats=2), ONCE)
    return Runner(how, make_opener("process"), RunnerOptions(out, workers), asked)


def test_answers_that_could_not_be_judged_are_judged_by_the_same_command(tmp_path: Path) -> None:
    model = FunctionModel(answers)
    run(benchmark(tmp_path, model, failing("rate_limit", "13")).run(items()), 60)
    failed = [result for result in read_results(tmp_path) if result.error_kind]
    assert sorted((one.item, one.error_kind, one.score) for one in failed) == [
        ("p1", "judge", None),
        ("p3", "judge", None),
    ]
    assert failed[0].error == "the judge could not be asked: The model fails with rate_limit."
    assert summary(tmp_path)["errors"] == {"judge": 2}
    assert summary(tmp_path)["judge"]["no_verdict"] == 4
    runs = {result.item: result.run for result in read_results(tmp_path)}

    judge = judging()
    again = benchmark(tmp_path, model, judge)
    begun, ended = [], []
    again.on_begin, again.on_result = begin(begun), ended.append
    run(again.run(items()), 60)
    assert len(model.asked) == 4  # nobody was asked for an answer again
    assert sorted(begun) == sorted(result.item for result in ended) == ["p1", "p3"]
    assert all(text[0]["content"].count("so so") for text in judge.asked)
    done = read_results(tmp_path)
    assert {result.item: (result.score, result.error_kind) for result in done} == dict.fromkeys(
        runs, (1.0, "")
    )
    assert {result.item: result.run for result in done} == runs
    assert {len(result.answer or "") for result in done} == {len(LONG) + 1}, "whole, to be scored again"
    found = summary(tmp_path)
    assert (found["errors"], found["judge"]["no_verdict"], found["judge"]["answers"]) == ({}, 0, 4)
    assert benchmark(tmp_path, model, judge).open_items(items()) == []


def begin(seen: list[str]) -> Any:
    return lambda item: seen.append(item.row.id)


def test_another_number_of_verdicts_judges_the_kept_answers_again(tmp_path: Path) -> None:
    model, judge = FunctionModel(answers), judging()
    run(benchmark(tmp_path, model, judge).run(items()), 60)
    again = benchmark(tmp_path, model, judge)
    assert again.open_items(items()) == []
    assert again.judge is not None
    again.judge.options = replace(again.judge.options, repeats=3)
    run(again.run(items()), 60)
    assert {result.detail for result in read_results(tmp_path)} == {"correct: 3 correct, 0 incorrect"}
    assert (len(model.asked), len(judge.asked)) == (4, 4 * 3), (
        "each judgement that is kept is not asked again"
    )


def test_a_verdict_next_to_a_failure_is_a_score(tmp_path: Path) -> None:
    said = iter([fails_later("server"), lambda: says("CORRECT")] * 4)
    judge = FunctionModel(lambda messages: next(said)(), "test/judge")
    run(benchmark(tmp_path, FunctionModel(answers), judge, workers=1).run(items()), 60)
    assert {(result.score, result.error_kind) for result in read_results(tmp_path)} == {(1.0, "")}


def fails_later(kind: str) -> Any:
    return lambda: fails(kind)


class Waiting(FunctionModel):
    """A judge who fails about the first question, once all others wait for a reply."""

    def __init__(self) -> None:
        super().__init__(answers, "test/judge")
        self.all_ask = asyncio.Event()

    async def reply(self, messages: list[dict[str, Any]], *others: Any, **more: Any) -> Reply:
        self.asked.append(messages)
        if len(self.asked) == 8:
            self.all_ask.set()
        await self.all_ask.wait()
        if "Question 0" not in messages[0]["content"]:
            await asyncio.Event().wait()
        return fails("authentication")


def test_answers_that_wait_for_the_judge_are_kept_when_it_all_ends(tmp_path: Path) -> None:
    model = FunctionModel(answers)
    with pytest.raises(FatalError, match="fails with authentication"):
        run(benchmark(tmp_path, model, Waiting()).run(items()), 60)
    assert summary(tmp_path)["errors"] == {"judge": 4}
    run(benchmark(tmp_path, model, judging()).run(items()), 60)
    assert len(model.asked) == 4
    assert {result.score for result in read_results(tmp_path)} == {1.0}


def test_a_row_that_has_changed_is_not_judged_by_the_old_answer(tmp_path: Path) -> None:
    model = FunctionModel(answers)
    run(benchmark(tmp_path, model, failing("server")).run(items()), 60)
    changed = plan(
        [(load_task("physics"), [replace(ROWS[0], problem_statement="Question 0, please?"), *ROWS[1:]])],
        ["llm"],
        1,
    )
    run(benchmark(tmp_path, model, judging()).run(changed), 60)
    assert len(model.asked) == 5


def test_answers_of_a_start_without_a_judge_are_judged_when_there_is_one(tmp_path: Path) -> None:
    model = FunctionModel(lambda messages: says("3 m"))
    run(benchmark(tmp_path, model, None).run(items()), 60)
    assert {(result.score, result.error_kind) for result in read_results(tmp_path)} == {(None, "")}
    assert benchmark(tmp_path, model, None).open_items(items()) == []
    run(benchmark(tmp_path, model, judging("INCORRECT")).run(items()), 60)
    assert len(model.asked) == 4
    assert {result.score for result in read_results(tmp_path)} == {0.0}


@pytest.mark.parametrize("task", ["physics", "long_context"])
def test_a_judged_task_without_a_judge_is_refused_first(
    task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "script.yaml"
    script.write_text(script_text(turn(text="3 m")))
    words = ["benchmark", "run", task, "--data", "sample", "--model", f"scripted/{script}", "--mode", "llm"]
    assert main([*words, "--out", str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"Task {task} is scored by a judge: name a model with --judge_model" in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("model", "judge", "environment", "expected"),
    [
        ("anthropic/a", "openai/b", ANTHROPIC | OPENAI, ("of-anthropic", "of-openai")),
        ("anthropic/a", "groq/b", ANTHROPIC, ("of-anthropic", None)),
        ("anthropic/a", "openai/b", ANTHROPIC | {"LLM_API_KEY": "of-all"}, ("of-all", "of-all")),
    ],
)
def test_model_and_judge_get_the_keys_of_their_providers(
    model: str,
    judge: str,
    environment: dict[str, str],
    expected: tuple[str, str | None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = {}

    def remote_model(name: str, access: Access, **more: Any) -> Model:
        keys[name] = access.api_key
        return RemoteModel(name, access, **more)

    monkeypatch.setattr(model_names, "RemoteModel", remote_model)
    flags = {"model": model, "judge_model": judge, "data": "sample", "mode": "llm", "out": str(tmp_path)}
    with prepare(["physics"], flags, environment):
        assert (keys[model], keys[judge]) == expected


def test_a_judge_may_come_later_and_be_left_out_but_not_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, verdict = tmp_path / "script.yaml", tmp_path / "verdict.yaml"
    script.write_text(script_text(turn(text="3 m")))
    verdict.write_text(script_text(turn(text="CORRECT")))

    def measure(task: str, *more: str) -> int:
        words = [
            "benchmark",
            "run",
            task,
            "--data",
            "sample",
            "--model",
            f"scripted/{script}",
            "--mode",
            "llm",
        ]
        return main([*words, "--out", str(tmp_path / "out"), *more])

    assert measure("chem") == 0
    assert measure("physics", "--judge_model", f"scripted/{verdict}") == 0
    assert {one.score for one in read_results(tmp_path / "out") if one.task == "physics"} == {1.0}
    assert json.loads((tmp_path / "out" / CONFIG).read_text())["judge_model"] == f"scripted/{verdict}"
    assert measure("chem") == 0
    assert json.loads((tmp_path / "out" / CONFIG).read_text())["judge_model"] == f"scripted/{verdict}"
    capsys.readouterr()
    assert measure("physics", "--judge_model", f"scripted/{script}") == 2
    assert "holds results with judge_model" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error", [SandboxError("There is no room."), DataError("There is no repository."), OSError("No.")]
)
def test_an_answer_is_kept_if_it_cannot_be_scored_and_the_same_command_scores_it(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, outcomes = FunctionModel(lambda messages: says("a patch")), [error, Score(1.0, "2 tests pass")]

    async def scores(*given: Any) -> Score:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr("llm_sandbox_nb.benchmark.item_pipeline.score_patch", scores)
    for expected in [(None, "scorer", str(error)), (1.0, "", "")]:
        run(benchmark(tmp_path, model, None).run(items("swe")[:1]), 60)
        (result,) = read_results(tmp_path)
        assert (result.score, result.error_kind, result.error) == expected
        assert result.answer == "a patch"
    assert len(model.asked) == 1


def test_a_bug_in_one_item_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def breaks(task: Task, row: Row, *rest: Any) -> Attempt:
        if row.id == "p0":
            raise LookupError("no such column")
        return await with_one_reply(task, row, *rest)

    monkeypatch.setattr("llm_sandbox_nb.benchmark.item_pipeline.with_one_reply", breaks)
    with caplog.at_level(logging.ERROR):
        run(benchmark(tmp_path, FunctionModel(answers), None, workers=1).run(items("demo")), 60)
    first, *others = read_results(tmp_path)
    assert (first.item, first.error_kind, first.error) == ("p0", "error", "LookupError: no such column")
    assert [other.error_kind for other in others] == [""] * 3
    assert any(record.exc_info for record in caplog.records)
