"""Which sandboxes of a killed server are adopted: the one of each notebook and its forks, not the prepared ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import support

from llm_sandbox_nb.sandbox.options import SandboxOptions
from llm_sandbox_nb.server.managed_sandbox import ManagedSandbox, _without_prepared
from llm_sandbox_nb.server.manager import SandboxManager


@dataclass
class Left:
    """Sandbox that an ended server has left."""

    id: str
    created: float
    labels: dict[str, str] = field(default_factory=dict)
    state: str = "running"
    owner_dead: bool = True


def left(id: str, created: float, kernel: str, fork_of: str = "") -> Any:
    return Left(id, created, {"kernel": kernel, "fork-of": fork_of})


def test_the_oldest_of_each_kernel_and_its_forks_are_adopted() -> None:
    found = _without_prepared(
        [
            left("prepared", 30, "a"),
            left("fork", 20, "a", "used"),
            left("used", 10, "a"),
            left("only", 40, "b"),
        ]
    )
    assert [one.id for one in found] == ["used", "fork", "only"]


class Opener:
    """Opener of sandboxes with nothing behind them. `living` has those that have not ended, oldest first."""

    def __init__(self) -> None:
        self.living: list[ManagedSandbox] = []

    async def open(self, managed: ManagedSandbox) -> Any:
        async def close() -> None:
            self.living.remove(managed)

        self.living.append(managed)
        return SimpleNamespace(lost=None, close=close)

    async def adopt(self) -> list[ManagedSandbox]:
        return []

    async def reap(self) -> list[str]:
        return []

    def close(self) -> None:
        """Nothing is open."""


class Kernels:
    def owns(self, kernel_id: str) -> bool:
        return True

    async def alive(self, kernel_id: str) -> bool:
        return True

    async def notebook(self, kernel_id: str) -> str | None:
        return "a.ipynb"


def test_after_a_reset_the_oldest_is_the_used_one() -> None:
    async def body() -> None:
        manager: Any = SandboxManager(kernels=Kernels(), server_key="test")  # type: ignore[arg-type]
        manager._opener = opener = Opener()
        wanted = SandboxOptions("docker")
        used, _ = await manager.acquire("k", wanted)
        await manager.prepare("k", wanted, 1, 3600)
        await support.eventually(lambda: len(opener.living) == 2)
        await manager.reset(used.id)
        await support.eventually(lambda: opener.living[0].id == used.id)
        await manager.close()

    support.run(body())
