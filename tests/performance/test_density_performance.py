"""Many sandboxes alive at once: all answer, what an idle one takes, how start and command get slower with their number.

All memory counts: of the processes inside, of the engine's shims, of what the engine and this process grow by, and
what the kernel keeps for the control group.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from memory_of import family, named, parents, total
from support import run, size

from llm_sandbox_nb.sandbox.cgroups import find_hierarchies
from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.sandbox.docker.engine import connect
from llm_sandbox_nb.sandbox.open import open_sandbox

pytestmark = pytest.mark.timeout(1500)
Measured = Callable[..., None]
MOST = size(40, 200)
LEVELS = sorted({max(1, MOST // part) for part in (8, 4, 2, 1)})
AT_ONCE = 4
"""So many are being opened at a time: more only wait for the engine."""
BAR = 15e6


@dataclass
class Level:
    """What was measured with so many sandboxes alive. Seconds and bytes."""

    number: int
    start: list[float] = field(default_factory=list)
    """Of those opened to get here."""
    command: list[float] = field(default_factory=list)
    memory: dict[str, float] = field(default_factory=dict)
    """Of one sandbox, by what takes it."""


class Engine:
    """Memory of everything that has to do with the sandboxes of an isolation."""

    def __init__(self, isolation: str) -> None:
        self.isolation = isolation
        self.before = self.daemons()
        self.client = total({os.getpid()})

    def daemons(self) -> int:
        return total(named("dockerd", "containerd")) if self.isolation == "docker" else 0

    def first_processes(self, boxes: list[Sandbox]) -> set[int]:
        if self.isolation == "docker":
            client: Any = connect()
            wanted = {str(box.protection.details["container"]) for box in boxes}
            return {client.api.inspect_container(one)["State"]["Pid"] for one in wanted}
        return {pid for pid, parent in parents().items() if parent == os.getpid()}

    def of_each(self, boxes: list[Sandbox]) -> dict[str, float]:
        first = self.first_processes(boxes)
        inside = family(*first)
        parts = {"inside": total(inside)}
        if self.isolation == "docker":
            tree = parents()
            parts["shim"] = total({tree[pid] for pid in first})
            parts["engine"] = self.daemons() - self.before
        parts["kernel"] = kernel_memory(inside)
        parts["client"] = total({os.getpid()}) - self.client
        return {name: value / len(boxes) for name, value in parts.items()}


def kernel_memory(pids: set[int]) -> int:
    """Bytes that the kernel keeps for the control groups of these processes (page tables, stacks, inodes)."""
    own = memory_groups(os.getpid())
    return sum(kernel_part(group) for group in set[Path]().union(*map(memory_groups, pids)) - own)


def memory_groups(pid: int) -> set[Path]:
    """The folders of the control groups in which the memory of a process counts."""
    try:
        lines = [line.split(":", 2) for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()]
    except OSError:
        return set()
    mounts = list(find_hierarchies(Path("/proc")))
    return {
        point / group.removeprefix(root).lstrip("/")
        for _, controllers, group in lines
        for version, held, root, point in mounts
        if ("memory" in held and "memory" in controllers.split(",")) or (version == 2 and not controllers)
    }


def kernel_part(folder: Path) -> int:
    try:
        return int((folder / "memory.kmem.usage_in_bytes").read_text())
    except (OSError, ValueError):
        pass
    try:
        lines = (folder / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("kernel ")), 0)


async def timed(box: Sandbox) -> float:
    began = time.perf_counter()
    result = await box.run("echo here")
    assert result.stdout == b"here\n"
    return time.perf_counter() - began


async def climb(isolation: str, engine: Engine) -> list[Level]:
    """Open more and more; measure at each level; close all."""
    found, boxes = [], []
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(stack: AsyncExitStack, level: Level) -> None:
        async with gate:
            began = time.perf_counter()
            box = await stack.enter_async_context(open_sandbox(isolation))
            level.start.append(time.perf_counter() - began)
            boxes.append(box)

    async with AsyncExitStack() as stack:
        for number in LEVELS:
            level = Level(number)
            await asyncio.gather(*(one(stack, level) for _ in range(number - len(boxes))))
            await asyncio.gather(*(timed(box) for box in boxes))  # all at once: all answer
            for box in boxes:
                level.command.append(await timed(box))
            await asyncio.sleep(3)
            level.memory = await asyncio.to_thread(engine.of_each, boxes)
            found.append(level)
        closing = asyncio.Semaphore(AT_ONCE)

        async def close(box: Sandbox) -> None:
            async with closing:
                await box.close()

        await asyncio.gather(*(close(box) for box in boxes))
    return found


def spread(seconds: list[float]) -> str:
    late = statistics.quantiles(seconds, n=20, method="inclusive")[-1] if len(seconds) > 1 else seconds[0]
    return f"{statistics.median(seconds) * 1e3:.3g}/{late * 1e3:.3g}"


def curve(levels: list[Level], what: Callable[[Level], list[float]]) -> str:
    """p50/p95 in milliseconds at each number, and what a straight line through the p50 says of 512."""
    points = ", ".join(f"{level.number}: {spread(what(level))}" for level in levels)
    return f"p50/p95 in ms by number alive: {points}; straight line to 512, not measured: {fit(levels, what) * 1e3:.3g}"


def fit(levels: list[Level], what: Callable[[Level], list[float]], at: int = 512) -> float:
    numbers = [level.number for level in levels]
    line = statistics.linear_regression(numbers, [statistics.median(what(level)) for level in levels])
    return line.intercept + line.slope * at


@pytest.fixture(params=[pytest.param("docker", marks=pytest.mark.docker), "bubblewrap"])
def dense(request: pytest.FixtureRequest) -> str:
    from support import require

    return require(request.param)


def test_many_alive_at_once(dense: str, measured: Measured) -> None:
    async def body() -> list[Level]:
        async with open_sandbox(dense) as first:  # imports, the network, the engine's own first time
            await first.run("true")
        return await climb(dense, Engine(dense))

    levels = run(body(), timeout=1400)
    last = levels[-1]
    each = sum(last.memory.values())
    parts = ", ".join(f"{name} {value / 1e6:.2f}" for name, value in last.memory.items())
    more = ", ".join(f"{level.number}: {sum(level.memory.values()) / 1e6:.1f}" for level in levels)
    name = f"{dense}, {last.number} alive"
    measured(f"idle sandbox, {name}", each / 1e6, "MB", bar="at most 15 MB, all told",
             note=f"{parts}; by number alive: {more}")  # fmt: skip
    start = curve(levels, lambda level: level.start)
    note = f"{AT_ONCE} opened at a time; {start}"
    measured(f"start, {name}", statistics.median(last.start) * 1e3, "ms", bar="none", note=note)
    command = curve(levels, lambda level: level.command)
    measured(f"command, {name}", statistics.median(last.command) * 1e3, "ms", bar="none", note=command)
    assert all(len(level.command) == level.number for level in levels)
    assert each <= BAR, parts
