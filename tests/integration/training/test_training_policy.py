"""A policy as a model of any run: its conversations keep their ids, and it takes over those of others."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from token_policy import SUBMIT, PlainTokenizer, PlayedPolicy, bash

from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.runs.solve import solve
from llm_sandbox_nb.training.chat_tokens import ChatTokens
from llm_sandbox_nb.training.config import load_config
from llm_sandbox_nb.training.edited_rollouts import reward_of
from llm_sandbox_nb.training.policy import PolicyModel
from llm_sandbox_nb.training.record import RecordError, TrainingRecord
from llm_sandbox_nb.training.rollouts import RolloutSetting, RolloutWorkers
from llm_sandbox_nb.training.training_run import task_and_rows

pytestmark = [pytest.mark.bubblewrap, pytest.mark.usefixtures("bubblewrap_engine")]
TOKENIZER = PlainTokenizer()


def policy(played: PlayedPolicy) -> PolicyModel:
    return PolicyModel(
        "policy/test", ChatTokens(TOKENIZER), played, prompt_limit=20_000, completion_limit=20_000
    )


def test_conversations_at_once_keep_their_own_ids(tmp_path: Path) -> None:
    """Two runs of the same task with one model: each request continues the ids of its own conversation."""
    asked: list[list[int]] = []
    given: list[tuple[int, ...]] = []

    class Odd(PlayedPolicy):
        async def generate(self, prompt, limit, order=0):  # type: ignore[no-untyped-def]
            asked.append(list(prompt))
            text = TOKENIZER.decode(prompt)
            play = SUBMIT if "</tool_response>" in text else bash(f"echo run-{len(asked)}")
            reply = (*TOKENIZER.encode(play), 1)
            given.append(reply)
            return type(await super().generate(prompt, limit, order))(reply)

    async def both() -> list[Run]:
        model = policy(Odd(lambda place, number: SUBMIT))
        one = {"model": model, "isolation": "bubblewrap", "output_dir": tmp_path, "show": False}
        return list(await asyncio.gather(solve("Say it.", **one), solve("Say it.", **one)))  # type: ignore[arg-type]

    runs = asyncio.run(both())
    assert [run.stop_reason for run in runs] == ["submitted", "submitted"]
    first, later = asked[:2], asked[2:]
    for prompt, reply in zip(first, given, strict=False):
        assert any(one[: len(prompt) + len(reply)] == [*prompt, *reply] for one in later)


def test_a_rollout_resumes_with_an_edited_call(tmp_path: Path) -> None:
    """A finished run goes back to its first step; another policy continues it from the messages."""

    async def edited() -> tuple[Run, str]:
        begun = policy(PlayedPolicy(lambda place, number: [bash("echo wrong > answer.txt"), SUBMIT][number]))
        run = await solve("Answer.", model=begun, isolation="bubblewrap", output_dir=tmp_path, show=False)
        again = PlayedPolicy(
            lambda place, number: [bash("echo right > answer.txt; cat answer.txt"), SUBMIT][number]
        )
        fork = await run.fork(1)
        done = await fork.resume(model=policy(again))
        await fork.close()
        await run.close()
        return done, TOKENIZER.decode(again.prompts[0][0])

    run, prompt = asyncio.run(edited())
    assert run.stop_reason == "submitted"
    assert "echo wrong > answer.txt" in prompt
    assert prompt.endswith("<|im_start|>assistant\n")
    result = run.steps[1].calls[0].result
    assert result is not None
    assert "right" in result.observation


def test_a_rollout_with_an_edited_call_has_another_reward(tmp_path: Path) -> None:
    """The wrong note is read; a person forks before the submit, and the policy reads the right one."""
    config = load_config("tiny-cpu.yaml")
    record = TrainingRecord.begin(tmp_path / "training", config)
    task, rows = task_and_rows(config)
    wrong, right = (
        f"grep -h {word} documents/* | grep -o '[0-9]*' > answer.txt" for word in ("draft", "valid")
    )

    async def work() -> Run:
        played = PlayedPolicy(lambda place, number: [bash(wrong), SUBMIT][number])
        how = replace(config.rollouts, prompt_tokens=20_000, completion_tokens=20_000, reply_tokens=2000)
        made = RolloutSetting("test", task, ChatTokens(TOKENIZER), how, config.data.scorer)
        async with RolloutWorkers(made, 2) as workers:
            done = await workers.run(rows[:2], played, record.step_folder(1))
        record.add_rollouts(1, done, [0.0, 0.0])
        rollout = Run.load(record.folder / record.rollouts(1)[1].run)
        assert reward_of(rollout).value == 0.0
        fork = await rollout.fork(1)
        again = PlayedPolicy(lambda place, number: [bash(right), SUBMIT][number])
        edited = await fork.resume(model=policy(again))
        await fork.close()
        return edited

    edited = asyncio.run(work())
    assert edited.answer == rows[1].ground_truth
    assert reward_of(edited).value == 1.0
    elsewhere = Run.load(shutil.copytree(edited.folder, tmp_path / "elsewhere" / edited.folder.name))
    with pytest.raises(RecordError, match="is not a training and not in the folder of one"):
        reward_of(elsewhere)
