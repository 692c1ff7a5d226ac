"""Which sandboxes of a killed server are adopted: the one of each notebook and its forks, not the prepared ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from llm_sandbox_nb.server.managed_sandbox import _without_prepared


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
