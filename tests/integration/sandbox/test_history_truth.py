"""Whatever was done to the files, anywhere: going back gives exactly what was, by an independent account.

The sequences share sandboxes; `LLM_SANDBOX_HISTORY_SEED` gives others.
"""

from __future__ import annotations

import os
import random
import time

import pytest
from full_manifest import Manifest, differences, digests, full_manifest, untold
from history_steps import LOCAL_STEPS, STEPS, Step, prepare
from shared_sandboxes import isolated
from support import run, size

from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.sandbox.open import open_sandbox

SEQUENCES = size(5, 200)
"""For each isolation."""
SEED = int(os.environ.get("LLM_SANDBOX_HISTORY_SEED", "1"))
ENGINES = ("/.dockerenv", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/etc/mtab")
"""Made by the engine for each container anew, so a fork has its own."""
SHARED = 5
"""Sequences that share a sandbox."""


class Truth:
    """A sandbox, and how to find out what is in it."""

    def __init__(self, box: Sandbox, began: float) -> None:
        self.box = box
        self.began = began
        self.image: dict[str, str] = {}

    async def manifest(self, box: Sandbox | None = None) -> Manifest:
        return await full_manifest(box or self.box, self.began)

    async def check(self, what: str, was: Manifest, done: list[str], box: Sandbox | None = None) -> None:
        now = await self.manifest(box)
        if box is not None:
            was, now = ({path: row for path, row in one.items() if path not in ENGINES} for one in (was, now))
        await self.ask_image([path for path in untold(was, now) if path not in self.image])
        found = differences(was, now, self.image)
        assert not found, f"{what}: {len(found)} differ, after {done}\n" + "\n".join(found[:20])

    async def ask_image(self, paths: list[str]) -> None:
        if paths:
            async with open_sandbox(self.box.protection.isolation) as pristine:
                self.image |= await digests(pristine, paths)


async def one_sequence(truth: Truth, rng: random.Random, steps: tuple[Step, ...]) -> None:
    """Some steps, a rewind to a random one, more steps, a fork from it, and back again."""
    box, done = truth.box, []
    length = rng.randint(2, 5)
    target = rng.randrange(length)
    checkpoint, was = "", Manifest()
    for number in range(length):
        done.append(await rng.choice(steps)(box, rng))
        made = await box.checkpoint()
        if number == target:
            checkpoint, was = made, await truth.manifest()
            done.append("<-")
    undone = rng.random() < 0.3
    before = await truth.manifest() if undone else {}
    restored = await box.restore(checkpoint)
    assert restored.problems == ()
    await truth.check("rewind", was, done)
    if undone:
        await box.restore(restored.safety)
        await truth.check("undo", before, done)
    done.append(await rng.choice(steps)(box, rng))
    await box.checkpoint()
    fork = await box.fork(checkpoint)
    try:
        await truth.check("fork", was, done, fork)
        done.append("in the fork: " + await rng.choice(steps)(fork, rng))
    finally:
        await fork.close()
    await box.restore(checkpoint)
    await truth.check("rewind again", was, done)


async def some_sequences(isolation: str, steps: tuple[Step, ...], first: int, last: int) -> None:
    began = time.time() - 0.05
    async with open_sandbox(isolation) as box:
        truth = Truth(box, began)
        if isolation != "process":
            await prepare(box)
        start = await box.checkpoint()
        fresh = await truth.manifest()
        for number in range(first, last):
            rng = random.Random(f"{SEED}-{number}")
            try:
                await one_sequence(truth, rng, steps)
            except AssertionError as error:
                raise AssertionError(f"sequence {SEED}-{number}: {error}") from None
            await box.restore(start)
        await truth.check("the start", fresh, [])


def batches() -> list[tuple[int, int]]:
    return [(first, min(first + SHARED, SEQUENCES)) for first in range(0, SEQUENCES, SHARED)]


@pytest.mark.campaign
@pytest.mark.parametrize(("first", "last"), batches())
@isolated
def test_every_file_is_what_it_was(isolation: str, first: int, last: int) -> None:
    run(some_sequences(isolation, STEPS, first, last), timeout=280)


def test_the_working_directory_of_process() -> None:
    run(some_sequences("process", LOCAL_STEPS, 0, min(SEQUENCES, 20)), timeout=280)
