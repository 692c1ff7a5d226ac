"""Much content goes into a sandbox in one file from outside; what comes of it is the same in every case."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator

import pytest
from full_manifest import full_manifest
from support import run

from llm_sandbox_nb.sandbox.client import ChannelSandbox
from llm_sandbox_nb.sandbox.docker.images import SLIM_IMAGE
from llm_sandbox_nb.sandbox.errors import SandboxError
from llm_sandbox_nb.sandbox.open import open_sandbox
from llm_sandbox_nb.sandbox.protocol.channel import Deliver

WRITE = """cd /testbed; rm -rf some; mkdir some; touch /tmp/beside-$RANDOM; [ ! -w / ] || touch /beside-the-pack-$RANDOM
for n in $(seq 60); do head -c 100000 /dev/urandom > some/$n; done
cp some/1 same; head -c 3000000 /dev/urandom > large; ln -f large another; chmod 400 some/2"""

TOP_TIME = "stat -c %y /"  # where the pack comes and goes


async def rewound(isolation: str, *changes: Callable[[ChannelSandbox], None]) -> None:
    """Two checkpoints of 9 MB, and back after each change: all files are what they were, and nothing is left."""
    # No command changes the system's many files, and to compare them costs more than all else.
    async with open_sandbox(isolation, image=SLIM_IMAGE if isolation == "docker" else None) as box:
        assert isinstance(box, ChannelSandbox)
        began = time.time() - 5
        made, manifests, tops = [], [], []
        for _ in range(2):
            result = await box.run(WRITE, timeout=60)
            assert result.exit_code == 0, result.text
            made.append(await box.checkpoint())
            manifests.append(await full_manifest(box, began, skipped="/usr"))
            tops.append((await box.run(TOP_TIME)).text)
        for change in changes:
            change(box)
            for number in (0, 1):
                restored = await box.restore(made[number])
                assert restored.problems == ()
                assert await full_manifest(box, began, skipped="/usr") == manifests[number]
                assert (await box.run(TOP_TIME)).text == tops[number]


def counted(deliver: Deliver, seen: list[int]) -> Deliver:
    def count(name: str, size: int, content: Iterator[bytes]) -> Awaitable[None]:
        seen.append(size)
        return deliver(name, size, content)

    return count


async def lost(name: str, size: int, content: Iterator[bytes]) -> None:
    """An engine whose files are not seen inside, as with gVisor."""
    for _ in content:
        pass


async def refused(name: str, size: int, content: Iterator[bytes]) -> None:
    next(content)
    raise SandboxError("There is no room.")


def short(deliver: Deliver) -> Deliver:
    async def half(name: str, size: int, content: Iterator[bytes]) -> None:
        data = b"".join(content)[: size // 2]
        await deliver(name, len(data), iter([data]))

    return half


def test_whatever_becomes_of_a_pack_the_files_come_back(strong_isolation: str) -> None:
    """It holds each content once and leaves nothing. What it does not hold goes through the connection."""
    seen: list[int] = []
    normal: list[Deliver] = []

    def count(box: ChannelSandbox) -> None:
        assert box.deliver
        normal.append(box.deliver)
        box.deliver = counted(box.deliver, seen)

    def replaced(deliver: Callable[[], Deliver]) -> Callable[[ChannelSandbox], None]:
        return lambda box: setattr(box, "deliver", deliver())

    others = [lambda: lost, lambda: refused, lambda: short(normal[0])]
    run(rewound(strong_isolation, count, *map(replaced, others)), timeout=250)
    assert seen == [9_000_000, 9_000_000]


@pytest.mark.docker
@pytest.mark.usefixtures("docker_engine")
async def test_an_ordinary_user_gets_all_through_the_connection() -> None:
    """The engine's trace in the top folder could not be put back without root's rights."""
    async with open_sandbox("docker", profile="strict") as box:
        assert isinstance(box, ChannelSandbox)
        assert box.deliver is None
