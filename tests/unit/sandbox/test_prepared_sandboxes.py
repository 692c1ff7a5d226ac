"""Prepared sandboxes: which request gets one, when one ends, and that a failure leads to an ordinary start."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from virtual_time import run_in_virtual_time

from llm_sandbox_nb.sandbox import prepared
from llm_sandbox_nb.sandbox.errors import SandboxError, SandboxLostError
from llm_sandbox_nb.sandbox.limits import Limits
from llm_sandbox_nb.sandbox.options import SandboxOptions
from llm_sandbox_nb.sandbox.prepared import (
    MIN_FREE_BYTES,
    REPEAT_SECONDS,
    PreparedSandboxes,
    why_not_prepared,
)

PLAIN = SandboxOptions("docker")
START_SECONDS = 5.0
HOUR = 3600.0


@dataclass(eq=False)
class Box:
    """Sandbox without an engine."""

    options: SandboxOptions
    owner: str
    lost: SandboxLostError | None = None
    ended: bool = False
    up_to_date: bool = True
    directories: Any = field(default_factory=lambda: SimpleNamespace(root="/testbed"))
    protection: Any = field(default_factory=lambda: SimpleNamespace(isolation="docker"))

    async def list_files(self, *_: Any, **__: Any) -> list[Any]:
        if self.lost:
            raise self.lost
        return []


class Engine:
    """Engine that takes `START_SECONDS` for a start."""

    def __init__(self) -> None:
        self.boxes: list[Box] = []
        self.starting = 0
        self.max_starting = 0
        self.error: Exception | None = None
        self.free: int | None = None

    async def start(self, options: SandboxOptions, owner: str) -> Box:
        self.starting += 1
        self.max_starting = max(self.starting, self.max_starting)
        try:
            await asyncio.sleep(START_SECONDS)  # in virtual time
        finally:
            self.starting -= 1
        if self.error:
            raise self.error
        self.boxes.append(Box(options, owner))
        return self.boxes[-1]

    async def end(self, box: Box) -> None:
        box.ended = True

    def pool(self) -> PreparedSandboxes[Box]:
        return PreparedSandboxes(self.start, self.end, lambda box: cast(Any, box))

    @property
    def open(self) -> list[Box]:
        return [box for box in self.boxes if not box.ended]


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    async def is_up_to_date(box: Any, options: SandboxOptions) -> bool:
        return bool(box.up_to_date)

    engine = Engine()
    monkeypatch.setattr(prepared, "is_up_to_date", is_up_to_date)
    monkeypatch.setattr(prepared, "available_memory", lambda: engine.free)
    return engine


def pool_in_virtual_time(
    engine: Engine, body: Callable[[PreparedSandboxes[Box]], Coroutine[Any, Any, None]]
) -> None:
    """Run a test with a pool; afterwards its prepared sandboxes have ended and no task is left."""

    async def whole() -> None:
        pool = engine.pool()
        await body(pool)
        await pool.close()
        assert engine.starting == 0
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_in_virtual_time(whole())


def test_a_prepared_sandbox_serves_one_request(engine: Engine) -> None:
    async def body(pool: PreparedSandboxes[Box]) -> None:
        pool.prepare(PLAIN, 1, HOUR)
        await asyncio.sleep(START_SECONDS + 1)
        assert await pool.take(PLAIN) is engine.boxes[0]
        assert await pool.take(PLAIN) is None
        assert len(engine.open) == 1, "the taken sandbox belongs to the caller"

    pool_in_virtual_time(engine, body)
    assert not engine.boxes[0].ended


def test_a_request_waits_for_a_start_in_progress(engine: Engine) -> None:
    async def body(pool: PreparedSandboxes[Box]) -> None:
        pool.prepare(PLAIN, 1, HOUR)
        await asyncio.sleep(START_SECONDS - 1)
        before = asyncio.get_running_loop().time()
        assert await pool.take(PLAIN) is not None
        assert asyncio.get_running_loop().time() - before == pytest.approx(1)

    pool_in_virtual_time(engine, body)


@pytest.mark.parametrize(
    "other",
    [
        SandboxOptions("bubblewrap"),
        SandboxOptions("docker", profile="strict"),
        SandboxOptions("docker", image="other"),
        SandboxOptions("docker", network="none"),
        SandboxOptions("docker", limits=Limits(pids=9)),
        SandboxOptions("docker", allow=("example.org",)),
        SandboxOptions("docker", index_url="https://index.example.org"),
        SandboxOptions("docker", env={"A": "b"}),
    ],
)
def test_a_request_with_another_option_gets_none_and_ends_it(engine: Engine, other: SandboxOptions) -> None:
    async def body(pool: PreparedSandboxes[Box]) -> None:
        pool.prepare(PLAIN, 1, HOUR)
        await asyncio.sleep(START_SECONDS + 1)
        assert await pool.take(other) is None
        await asyncio.sleep(1)
        assert engine.open == []

    pool_in_virtual_time(engine, body)


@pytest.mark.parametrize("options", [SandboxOptions, Limits])
def test_each_option_counts(options: type[Any]) -> None:
    """A field that is not compared would give a run a sandbox with another value."""
    assert [field.name for field in dataclasses.fields(options) if not field.compare] == []


def test_requests_without_an_end_start_one_sandbox_at_a_time(engine: Engine) -> None:
    """A client asks for other options again and again, before any sandbox has started."""

    async def body(pool: PreparedSandboxes[Box]) -> None:
        for number in range(500):
            pool.prepare(SandboxOptions("docker", limits=Limits(pids=100 + number % 7)), 2, HOUR)
            await asyncio.sleep(START_SECONDS / 50)
            assert pool.count() <= 2
            assert engine.starting <= 1
        await asyncio.sleep(3 * START_SECONDS)
        assert len(engine.open) == 2

    pool_in_virtual_time(engine, body)


@pytest.mark.parametrize("asked", [None, "auto", "docker"])
def test_a_fork_gets_a_prepared_sandbox_and_the_next_one_is_prepared(
    engine: Engine, asked: str | None
) -> None:
    """The fork's options name the isolation that `auto` has chosen."""

    async def body(pool: PreparedSandboxes[Box]) -> None:
        pool.prepare(SandboxOptions(asked), 1, HOUR)
        await asyncio.sleep(START_SECONDS + 1)
        assert await pool.take(PLAIN, clone=True) is engine.boxes[0]
        assert await pool.take(PLAIN, clone=True) is None
        await asyncio.sleep(START_SECONDS + REPEAT_SECONDS + 1)
        assert await pool.take(SandboxOptions(asked)) is engine.boxes[1]
        await asyncio.sleep(START_SECONDS + REPEAT_SECONDS + 1)
        assert pool.count() == 0, "cells prepare the next one themselves"

    pool_in_virtual_time(engine, body)


@pytest.mark.parametrize("other", [SandboxOptions("bubblewrap"), SandboxOptions("docker", network="none")])
def test_a_fork_with_other_options_leaves_the_prepared_sandbox(engine: Engine, other: SandboxOptions) -> None:
    async def body(pool: PreparedSandboxes[Box]) -> None:
        pool.prepare(PLAIN, 1, HOUR)
        await asyncio.sleep(START_SECONDS + 1)
        assert await pool.take(other, clone=True) is None
        assert await pool.take(PLAIN) is engine.boxes[0]

    pool_in_virtual_time(engine, body)


def test_nothing_is_prepared_for_a_fork_after_the_end(engine: Engine) -> None:
    async def body(pool: PreparedSandboxes[Box]) -> None:
        pool.prepare(PLAIN, 1, HOUR)
        assert await pool.take(PLAIN, clone=True) is engine.boxes[0]
        await pool.close()
        await asyncio.sleep(REPEAT_SECONDS + 1)
        assert pool.count() == 0

    pool_in_virtual_time(engine, body)


def test_a_changed_variable_or_certificate_makes_it_useless(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = tmp_path / "ca.pem"
    bundle.write_text("old")
    trusting = SandboxOptions("docker", ca_bundle=bundle)

    async def body(pool: PreparedSandboxes[Box]) -> None:
        pool.prepare(trusting, 1, HOUR)
        bundle.write_text("newer")
        assert await pool.take(trusting) is None
        pool.prepare(trusting, 1, HOUR)
        monkeypatch.setitem(os.environ, "DOCKER_HOST", "tcp://elsewhere:1")
        assert await pool.take(trusting) is None

    pool_in_virtual_time(engine, body)


def test_each_owner_has_its_own(engine: Engine) -> None:
    async def body(pool: PreparedSandboxes[Box]) -> None:
        pool.prepare(PLAIN, 1, HOUR, "a")
        pool.prepare(SandboxOptions("docker", network="none"), 1, HOUR, "b")
        await asyncio.sleep(2 * START_SECONDS + 1)
        assert await pool.take(PLAIN, "c") is None
        assert (pool.count("a"), pool.count("b"), pool.count("c")) == (1, 1, 0)
        found = await pool.take(PLAIN, "a")
        assert found is not None
        assert found.owner == "a"

    pool_in_virtual_time(engine, body)


@pytest.mark.parametrize("fault", ["died", "does not answer", "old image", "failed start"])
def test_one_that_cannot_be_used_leads_to_an_ordinary_start(engine: Engine, fault: str) -> None:
    async def body(pool: PreparedSandboxes[Box]) -> None:
        if fault == "failed start":
            engine.error = SandboxError("The engine refuses.")
        pool.prepare(PLAIN, 1, HOUR)
        await asyncio.sleep(START_SECONDS + 1)
        for box in engine.boxes:
            if fault == "died":
                box.lost = SandboxLostError("It has died.")
            elif fault == "does not answer":
                box.list_files = lambda *_, **__: asyncio.sleep(HOUR)  # type: ignore[method-assign, assignment, return-value]
            else:
                box.up_to_date = False
        assert await pool.take(PLAIN) is None
        await asyncio.sleep(1)
        assert engine.open == []

    pool_in_virtual_time(engine, body)


def test_a_dead_one_is_replaced_at_the_next_preparation(engine: Engine) -> None:
    async def body(pool: PreparedSandboxes[Box]) -> None:
        pool.prepare(PLAIN, 1, HOUR)
        await asyncio.sleep(START_SECONDS + 1)
        engine.boxes[0].lost = SandboxLostError("It has died.")
        pool.prepare(PLAIN, 1, HOUR)
        await asyncio.sleep(START_SECONDS + 1)
        assert await pool.take(PLAIN) is engine.boxes[1]

    pool_in_virtual_time(engine, body)


def test_a_failed_start_is_not_tried_again_before_the_next_cell(engine: Engine) -> None:
    async def body(pool: PreparedSandboxes[Box]) -> None:
        engine.error = SandboxError("No engine.")
        pool.prepare(PLAIN, 1, HOUR)
        await asyncio.sleep(START_SECONDS + 1)
        engine.error = None
        pool.prepare(PLAIN, 1, HOUR)
        assert pool.count() == 0
        assert await pool.take(PLAIN) is None
        pool.prepare(PLAIN, 1, HOUR)
        assert pool.count() == 1

    pool_in_virtual_time(engine, body)


def test_preparing_twice_starts_no_second_one(engine: Engine) -> None:
    async def body(pool: PreparedSandboxes[Box]) -> None:
        for _ in range(3):
            pool.prepare(PLAIN, 2, HOUR)
            await asyncio.sleep(2 * START_SECONDS + 1)
        assert len(engine.boxes) == 2
        assert engine.max_starting == 1, "one start at a time"
        pool.prepare(PLAIN, 1, HOUR)
        await asyncio.sleep(1)
        assert engine.open == [engine.boxes[0]], "the oldest is used first"
        pool.prepare(PLAIN, 0, HOUR)
        await asyncio.sleep(1)
        assert engine.open == []

    pool_in_virtual_time(engine, body)


def test_an_unused_one_ends_after_its_time(engine: Engine) -> None:
    async def body(pool: PreparedSandboxes[Box]) -> None:
        pool.prepare(PLAIN, 1, 600)
        await asyncio.sleep(590)
        assert len(engine.open) == 1
        await asyncio.sleep(30)
        assert engine.open == []
        assert pool.count() == 0

    pool_in_virtual_time(engine, body)


def test_scarce_memory_prepares_none_and_ends_those_that_wait(engine: Engine) -> None:
    async def body(pool: PreparedSandboxes[Box]) -> None:
        pool.prepare(PLAIN, 1, HOUR)
        await asyncio.sleep(START_SECONDS + 1)
        engine.free = MIN_FREE_BYTES - 1
        await asyncio.sleep(30)
        assert engine.open == []
        pool.prepare(PLAIN, 1, HOUR)
        assert pool.count() == 0
        engine.free = MIN_FREE_BYTES
        pool.prepare(PLAIN, 1, HOUR)
        assert pool.count() == 1

    pool_in_virtual_time(engine, body)


def test_memory_that_becomes_scarce_meanwhile_leaves_none_without_an_end(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = [MIN_FREE_BYTES, MIN_FREE_BYTES - 1]
    monkeypatch.setattr(prepared, "available_memory", lambda: free.pop(0) if free else MIN_FREE_BYTES)

    async def body(pool: PreparedSandboxes[Box]) -> None:
        pool.prepare(PLAIN, 2, 600)
        await asyncio.sleep(590)
        assert len(engine.open) == 1
        await asyncio.sleep(30)
        assert engine.open == []

    pool_in_virtual_time(engine, body)


@pytest.mark.parametrize("end", [PreparedSandboxes.end_oldest, PreparedSandboxes.close])
def test_a_cancelled_caller_leaves_no_sandbox(
    engine: Engine, end: Callable[[PreparedSandboxes[Box]], Coroutine[Any, Any, None]]
) -> None:
    async def body(pool: PreparedSandboxes[Box]) -> None:
        pool.prepare(PLAIN, 1, HOUR)
        await asyncio.sleep(START_SECONDS + 1)
        ending = asyncio.create_task(end(pool))
        await asyncio.sleep(0)
        ending.cancel()
        await asyncio.wait({ending})
        await asyncio.sleep(1)
        assert engine.open == []

    pool_in_virtual_time(engine, body)


def test_the_end_stops_a_start_in_progress(engine: Engine) -> None:
    async def body(pool: PreparedSandboxes[Box]) -> None:
        pool.prepare(PLAIN, 2, HOUR)
        await asyncio.sleep(START_SECONDS + 1)

    pool_in_virtual_time(engine, body)
    assert [box.ended for box in engine.boxes] == [True]


def test_a_request_that_is_cancelled_leaves_nothing(engine: Engine) -> None:
    async def body(pool: PreparedSandboxes[Box]) -> None:
        for wait in (0.0, START_SECONDS - 1):
            pool.prepare(PLAIN, 1, HOUR)
            request = asyncio.create_task(pool.take(PLAIN))
            await asyncio.sleep(wait)
            request.cancel()
            await asyncio.wait({request})
            await asyncio.sleep(2 * START_SECONDS)
        assert engine.open == []

    pool_in_virtual_time(engine, body)


def test_room_is_made_by_the_end_of_the_oldest(engine: Engine) -> None:
    async def body(pool: PreparedSandboxes[Box]) -> None:
        await pool.end_oldest()
        for owner in "ab":
            pool.prepare(PLAIN, 1, HOUR, owner)
        await asyncio.sleep(2 * START_SECONDS + 1)
        await pool.end_oldest()
        assert (pool.count("a"), pool.count("b")) == (0, 1)
        engine.boxes[1].lost = SandboxLostError("It has died.")
        pool.prepare(PLAIN, 1, HOUR, "c")
        await asyncio.sleep(START_SECONDS + 1)
        await pool.end_oldest()
        assert pool.count("c") == 0, "one that has ended makes no room"

    pool_in_virtual_time(engine, body)


def test_sandboxes_without_an_engine_or_with_secrets_are_not_prepared(engine: Engine) -> None:
    secret = SandboxOptions("docker", secrets={"GITHUB_TOKEN": ("api.github.com",)})

    async def body(pool: PreparedSandboxes[Box]) -> None:
        for options in (SandboxOptions("process"), secret):
            assert why_not_prepared(options)
            pool.prepare(options, 1, HOUR)
            assert pool.count() == 0

    pool_in_virtual_time(engine, body)
    assert not why_not_prepared(SandboxOptions())


def test_the_free_memory_of_this_machine_is_known() -> None:
    free = prepared.available_memory()
    assert free is not None
    assert 0 < free < 1 << 50
