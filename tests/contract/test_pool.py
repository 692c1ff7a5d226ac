"""The pool of sandboxes that tests share: it names the test that leaves something, and the next finds none of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sandbox_commands import living
from shared_sandboxes import SharedSandboxes
from support import own_mark


@pytest.fixture
def pool() -> Iterator[SharedSandboxes]:
    pool = SharedSandboxes()
    yield pool
    pool.close()


FRESH = "pwd; ls -A; ls -A $HOME; echo ${x-unset}"


async def fresh(box: Any) -> None:
    shown = (await box.run(FRESH)).stdout.decode().split()
    assert shown == [box.directories.root, "documents", "input", "output", "unset"]
    assert (await box.changes()).files == ()


def test_what_can_be_undone_is_undone(pool: SharedSandboxes) -> None:
    mark, boxes = own_mark(), []

    async def leaves(box: Any) -> None:
        boxes.append(box.id)
        await box.run(
            f"x=1; echo x > f; rm -r output; chmod 700 input; setsid sleep {mark} & cd /; trap 'echo over' EXIT"
        )

    async def looks(box: Any) -> None:
        boxes.append(box.id)
        assert living(mark) == 0
        await fresh(box)

    pool.run("process", leaves)
    pool.run("process", looks)
    assert boxes[0] == boxes[1]


def test_tests_with_the_same_options_share_a_sandbox(pool: SharedSandboxes) -> None:
    boxes = []

    async def noted(box: Any) -> None:
        boxes.append((box.id, (await box.run("echo $A")).text))

    for options in ({}, {"env": {"A": "a"}}, {"env": {"A": "a"}}):
        pool.run("process", noted, **options)
    assert [shown for _, shown in boxes] == ["\n", "a\n", "a\n"]
    assert boxes[0][0] != boxes[1][0]
    assert boxes[1][0] == boxes[2][0]


@pytest.mark.parametrize(
    ("command", "left"),
    [
        pytest.param("rm -r $HOME", "/home", id="folder"),
        pytest.param("rm -r $HOME; echo planted > $HOME", "/home", id="file"),
        pytest.param("kill -9 $PPID", "cannot be cleaned", id="dead executor"),
    ],
)
def test_a_leftover_fails_the_test_that_left_it_and_not_the_next(
    pool: SharedSandboxes, command: str, left: str
) -> None:
    boxes = []

    async def culprit(box: Any) -> None:
        boxes.append(box.id)
        try:
            await box.run(command)
        except Exception:  # noqa: BLE001 - a test that expects the end of its executor
            return

    async def next_one(box: Any) -> None:
        boxes.append(box.id)
        await fresh(box)

    with pytest.raises(pytest.fail.Exception, match=f"left in the sandbox that it shares: .*{left}"):
        pool.run("process", culprit)
    pool.run("process", next_one)
    assert boxes[0] != boxes[1]


def test_a_test_that_fails_is_told_as_it_failed(pool: SharedSandboxes) -> None:
    """Its leftovers are no news then; the next test gets another sandbox."""

    async def fails(box: Any) -> None:
        await box.run("rm -r $HOME")
        raise KeyError("its own")

    with pytest.raises(KeyError, match="its own"):
        pool.run("process", fails)
    pool.run("process", fresh)
