"""A policy as a model of any run: its conversations keep their ids, and it takes over those of others."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from token_policy import SUBMIT, PlainTokenizer, PlayedPolicy, bash

from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.runs.solve import solve
from llm_sandbox_nb.training.chat_tokens import ChatTokens
from llm_sandbox_nb.training.policy import PolicyModel

TOKENIZER = PlainTokenizer()


def policy(played: PlayedPolicy) -> PolicyModel:
    return PolicyModel(
        "policy/test", ChatTokens(TOKENIZER), played, prompt_limit=20_000, completion_limit=20_000
    )


@pytest.mark.bubblewrap
def test_conversations_at_once_keep_their_own_ids(bubblewrap_engine: None, tmp_path: Path) -> None:
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


@pytest.mark.bubblewrap
def test_a_rollout_resumes_with_an_edited_call(bubblewrap_engine: None, tmp_path: Path) -> None:
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
