"""Rollouts whose sandboxes belong to the nodes of a Ray cluster: the same rewards, also when an actor is killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import token_policy
from ray_cluster import RayCluster, ray_cluster
from token_policy import END, SUBMIT, PlainTokenizer, bash

from llm_sandbox_nb.benchmark.rows import Row
from llm_sandbox_nb.benchmark.task import load_task
from llm_sandbox_nb.options.table import UsageError
from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.training.chat_tokens import ChatTokens
from llm_sandbox_nb.training.config import RolloutConfig
from llm_sandbox_nb.training.generation import Generated
from llm_sandbox_nb.training.ray_rollouts import RayRollouts
from llm_sandbox_nb.training.rollouts import Rollout, RolloutError, RolloutSetting

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(900)]
TASK = replace(load_task("instruct_pretrain"), scorer="exact")
CONFIG = RolloutConfig(
    isolation="process", turns=6, prompt_tokens=20_000, completion_tokens=12_000, time=300.0, network=""
)
TOKENIZER = PlainTokenizer()


class Reader:
    """A policy that reads the document, waits, answers and submits, whoever asks and however often."""

    def __init__(self, pause: float = 0.0) -> None:
        self.asked = 0
        self.pause = pause
        self.working = asyncio.Event()

    async def generate(self, prompt: Sequence[int], limit: int, order: int = 0) -> Generated:
        self.asked += 1
        seen = TOKENIZER.decode(prompt).count("<tool_response>")
        if seen:
            self.working.set()
        texts = (bash("pwd"), bash(f"sleep {self.pause}; cat documents/a.txt > answer.txt"), SUBMIT)
        ids = (*TOKENIZER.encode(texts[min(seen, 2)]), END)
        return Generated(ids[:limit], tuple(-0.5 for _ in ids[:limit]))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    import ray

    ray.cloudpickle.register_pickle_by_value(token_policy)
    with ray_cluster(tmp_path_factory.mktemp("nodes")) as running:
        yield running


def rows(count: int) -> list[Row]:
    return [
        Row(f"row-{n}", "What is in a.txt?", f"{n}", input_files={"a.txt": f"{n}\n"}) for n in range(count)
    ]


def workers(cluster: RayCluster, **more: object) -> RayRollouts:
    config = replace(CONFIG, **more)  # type: ignore[arg-type]
    return RayRollouts(cluster.address, RolloutSetting("test", TASK, ChatTokens(TOKENIZER), config), 4)


def assert_right(rollouts: list[Rollout], folder: Path) -> None:
    assert [rollout.row.id for rollout in rollouts] == [f"row-{n}" for n in range(len(rollouts))]
    for rollout in rollouts:
        assert (rollout.reward, rollout.stop_reason) == (1.0, "submitted"), rollout.detail
        conversation = rollout.conversation
        assert len(conversation.completion) == len(conversation.mask) == len(conversation.logprobs)
        kept = [one for one, told in zip(conversation.completion, conversation.mask, strict=True) if told]
        assert kept == [one for reply in conversation.replies for one in reply]
        assert rollout.folder is not None
        assert rollout.folder.is_relative_to(folder)
        assert Run.load(rollout.folder).trajectory.stop_reason == "submitted"


def test_both_nodes_work_and_nothing_is_left(cluster: RayCluster, tmp_path: Path) -> None:
    async def work() -> list[Rollout]:
        async with workers(cluster) as made:
            await made.check()
            return [
                *await made.run(rows(8), Reader(), tmp_path / "step-1"),
                *await made.run(rows(8), Reader(), tmp_path / "step-2"),
            ]

    rollouts = asyncio.run(work())
    assert_right(rollouts[:8], tmp_path / "step-1")
    assert_right(rollouts[8:], tmp_path / "step-2")
    places = {
        str(rollout.trajectory.sandbox.root)
        for rollout in rollouts
        if rollout.trajectory and rollout.trajectory.sandbox
    }
    assert len({one.partition("/llm-sandbox-")[0] for one in places}) == 2, places
    cluster.wait_until_clean()


def test_rollouts_of_an_actor_that_is_killed_are_repeated(cluster: RayCluster, tmp_path: Path) -> None:
    async def work() -> tuple[list[Rollout], int]:
        async with workers(cluster) as made:
            reader = Reader(2.0)
            running = asyncio.create_task(made.run(rows(8), reader, tmp_path / "step"))
            await reader.working.wait()
            (pid,) = cluster.hosts(cluster.folders[0])
            os.kill(pid, signal.SIGKILL)
            return await running, reader.asked

    rollouts, asked = asyncio.run(work())
    assert_right(rollouts, tmp_path / "step")
    assert asked > 24, "what was lost was asked for again"
    cluster.wait_until_clean()


def test_impossible_work_is_reported_in_one_sentence(cluster: RayCluster, tmp_path: Path) -> None:
    async def work(made: RayRollouts) -> None:
        async with made:
            await made.run(rows(1), Reader(), tmp_path)

    with pytest.raises(RolloutError, match=r"Node .*: .*no/such-image"):
        asyncio.run(work(workers(cluster, isolation="docker", image="localhost:9/no/such-image:1")))
    setting = RolloutSetting("test", TASK, ChatTokens(TOKENIZER), CONFIG)
    with pytest.raises(UsageError, match=r"rollouts\.ray has to be auto"):
        RayRollouts("ray://somewhere", setting, 4)
    cluster.wait_until_clean()
