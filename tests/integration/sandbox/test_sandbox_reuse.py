"""A sandbox that serves a second task shows it nothing of the first, whatever that did; see `FreshState`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml
from support import require, run

from llm_sandbox_nb.agent.sandbox_pool import SandboxPool
from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.sandbox.fresh_state import FreshState
from llm_sandbox_nb.sandbox.open import open_sandbox

DATA = Path(__file__).parents[2] / "data"
TAMPERING: dict[str, str] = yaml.safe_load((DATA / "tampering.yaml").read_text())
LOOK = (DATA / "sandbox_state.sh").read_text()
FIRST = (
    "a process that writes for ever",
    "a process without its first thread",
    "files in memory",
    "shared memory",
    "the shell's state",
    "a renamed shell",
)
"""Those that `make test` tries; a campaign tries all."""


@pytest.mark.parametrize("engine", ["bubblewrap", "docker"])
def test_nothing_of_a_task_reaches_the_next(engine: str) -> None:
    found, expected, pool = run(after_each(require(engine), FIRST), 200)
    assert_as_new(found, expected)
    reason = "A task has changed state that no checkpoint covers: {}."
    # On a busy machine, a killed process may live for some moments more. Then the pool opens a new sandbox, too.
    others = pool.not_reused.pop(reason.format("processes"), 0)
    assert pool.not_reused == {reason.format("shared memory"): 1}
    assert others <= 1
    assert (pool.opened, pool.reused) == (2 + others, 2 * len(FIRST) - 1 - others)


@pytest.mark.campaign
@pytest.mark.timeout(600)
@pytest.mark.parametrize("engine", ["bubblewrap", "docker"])
def test_nothing_of_any_task_reaches_the_next(engine: str) -> None:
    found, expected, pool = run(after_each(require(engine), TAMPERING), 500)
    assert_as_new(found, expected)
    assert pool.reused > len(TAMPERING), pool.not_reused
    assert pool.opened + pool.reused == 2 * len(TAMPERING) + 1
    assert "limits" in " ".join(pool.not_reused)


def test_what_is_left_is_seen_without_the_renewal(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(self: FreshState, box: Sandbox) -> str:
        return ""

    monkeypatch.setattr(FreshState, "put_back", nothing)
    found, expected, _ = run(after_each(require("bubblewrap"), FIRST), 200)
    assert [name for name, text in found.items() if text == expected] == []


async def after_each(isolation: str, names: Iterable[str]) -> tuple[dict[str, str], str, SandboxPool]:
    """Tamper with a sandbox, and look at the next, again and again: what was seen, and what a new one shows."""

    async def seen(box: Sandbox) -> str:
        result = await box.run(LOOK)
        return "\n".join([result.text, result.notice, repr(result.background)])

    async def opened() -> Sandbox:
        return await open_sandbox(isolation)

    async with SandboxPool() as pool:
        async with pool.lease(opened) as box:
            expected = await seen(box)
        found = {}
        for name in names:
            async with pool.lease(opened) as box:
                await box.run(TAMPERING[name], timeout=3)  # a time-out is what is tested
            async with pool.lease(opened) as box:
                found[name] = await seen(box)
    return found, expected, pool


def assert_as_new(found: dict[str, str], expected: str) -> None:
    assert expected.count("\n") > 100
    lines = {name: set(text.splitlines()) ^ set(expected.splitlines()) for name, text in found.items()}
    assert {name: sorted(differ) for name, differ in lines.items() if differ} == {}
    assert set(found.values()) == {expected}
