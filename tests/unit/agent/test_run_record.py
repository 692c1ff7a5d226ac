"""What a run keeps beside its record: the sandbox while it lives, which is closed with the run if it is its own."""

from __future__ import annotations

import pytest
from memory_sandbox import MemorySandbox
from support import run

from llm_sandbox_nb.agent.run_record import RunContext


class Box(MemorySandbox):
    lost: str | None = None
    closed = 0

    async def close(self) -> None:
        self.closed += 1


def test_a_lost_sandbox_is_given_to_nobody() -> None:
    box = Box()
    context = RunContext(box)
    assert context.living() is box
    box.lost = "its program ended"
    assert context.living() is None
    assert context.living() is context.box is None
    assert RunContext().living() is None
    plain = MemorySandbox()
    assert RunContext(plain).living() is plain, "a sandbox that cannot be lost"


@pytest.mark.parametrize("owned", [True, False])
def test_only_its_own_sandbox_is_closed_with_a_run(owned: bool) -> None:
    box = Box()
    context = RunContext(box, owned=owned)
    for _ in range(2):
        run(context.close())
    assert (box.closed, context.box) == (int(owned), None)
