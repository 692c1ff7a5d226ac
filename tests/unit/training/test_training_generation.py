"""Requests of many rollouts are answered together."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from llm_sandbox_nb.training.generation import BatchGenerator, Generated
from llm_sandbox_nb.training.policy import LocalGenerator, Sampling


def answered(
    work: Callable[[BatchGenerator], Any], patience: float = 60.0, fail: bool = False
) -> tuple[list[list[list[int]]], Any]:
    """The batches that a trainer's thread saw while `work` ran in another thread's event loop, and its result."""
    generator, batches, results = BatchGenerator(patience), [], []

    def answer(prompts: list[list[int]], limits: list[int]) -> list[Generated]:
        if fail:
            raise ValueError("no memory")
        batches.append(prompts)
        return [Generated((prompt[0] * 10, limit)) for prompt, limit in zip(prompts, limits, strict=True)]

    def loop() -> None:
        try:
            results.append(asyncio.run(work(generator)))
        finally:
            generator.close()

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        generator.serve(answer)
    finally:
        thread.join(30)
    return batches, results[0]


def test_a_batch_waits_for_all_and_has_their_order() -> None:
    async def rollout(generator: BatchGenerator, place: int, turns: int) -> list[tuple[int, ...]]:
        with generator.active():
            made = []
            for turn in range(turns):
                for _ in range((7 * place + turn) % 5):
                    await asyncio.sleep(0)
                made.append((await generator.generate([place, turn], 3, place)).ids)
            return made

    async def work(generator: BatchGenerator) -> Any:
        return await asyncio.gather(*(rollout(generator, place, 1 + place % 3) for place in range(6)))

    batches, results = answered(work)
    assert batches == [
        [[0, 0], [1, 0], [2, 0], [3, 0], [4, 0], [5, 0]],
        [[1, 1], [2, 1], [4, 1], [5, 1]],
        [[2, 2], [5, 2]],
    ]
    assert results[2] == [(20, 3)] * 3


def test_a_missing_request_delays_a_batch_only_for_the_patience() -> None:
    async def work(generator: BatchGenerator) -> Any:
        with generator.active(), generator.active():  # the second executes a long command
            return (await generator.generate([4], 1)).ids

    assert answered(work, patience=0.05)[1] == (40, 1)


def test_a_cancelled_request_is_not_in_a_batch() -> None:
    async def work(generator: BatchGenerator) -> Any:
        with generator.active():
            first = asyncio.ensure_future(generator.generate([1], 1))
            with generator.active():
                await asyncio.sleep(0)
                first.cancel()
                await asyncio.gather(first, return_exceptions=True)
            return (await generator.generate([2], 1)).ids

    assert answered(work) == ([[[2]]], (20, 1))


def test_a_failure_is_raised_in_the_server_and_in_requests() -> None:
    told: list[BaseException] = []

    async def work(generator: BatchGenerator) -> None:
        with generator.active():
            try:
                await generator.generate([1], 1)
            except RuntimeError as error:
                told.append(error)

    with pytest.raises(ValueError, match="no memory"):
        answered(work, fail=True)
    assert "no memory" in str(told[0])


class Model:
    """Stand-in of a model, whose first reply fails like that of a model with too few positions for its prompt."""

    device = "cpu"

    def __init__(self) -> None:
        self.moved: list[str] = []

    def to(self, device: str) -> Model:
        self.moved.append(device)
        return self

    def eval(self) -> None:
        self.failures = [IndexError("index out of range in self")]

    def generate(self, *, input_ids: Any, max_new_tokens: int, **_: Any) -> Any:
        if self.failures:
            raise self.failures.pop()
        return torch().cat([input_ids, torch().full((len(input_ids), max_new_tokens), 7)], dim=1)


def torch() -> Any:
    return pytest.importorskip("torch")


TOKENIZER = SimpleNamespace(eos_token_id=1, pad_token_id=0)


def test_any_failure_of_a_model_fails_one_batch_only() -> None:
    torch()

    async def work() -> Generated:
        with pytest.raises(RuntimeError, match="index out of range"):
            await generator.generate([5, 6], 2)
        async with asyncio.timeout(60):
            return await generator.generate([5, 6], 2)

    with LocalGenerator(Model(), TOKENIZER, Sampling()) as generator:
        assert asyncio.run(work()).ids == (7, 7)


def test_a_policy_samples_on_a_gpu_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model()
    for device, there in (("cpu", True), ("auto", False), ("auto", True)):
        monkeypatch.setattr(torch().cuda, "is_available", lambda there=there: there)
        LocalGenerator(model, TOKENIZER, Sampling(), device=device)
    assert model.moved == ["cuda"]
