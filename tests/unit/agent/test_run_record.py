"""What a run has besides its journal: where it was loaded from, and its sandbox while that lives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from card_runs import run_events, written
from memory_sandbox import MemorySandbox
from support import run

from llm_sandbox_nb import open_sandbox, solve
from llm_sandbox_nb.agent.errors import RunError
from llm_sandbox_nb.agent.run_record import RunContext, RunRecord
from llm_sandbox_nb.formats.llm_in_sandbox import write_seed
from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.trajectory.trajectory import Trajectory


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


def test_a_record_of_another_project_has_no_journal(tmp_path: Path) -> None:
    events = run_events(2)
    write_seed(Trajectory(events), tmp_path)
    written(tmp_path / "own", events)
    seed = RunRecord.load(tmp_path / "trajectory.json")
    assert (seed.folder, seed.has_journal, len(seed.trajectory.steps)) == (tmp_path, False, 2)
    for path in (tmp_path / "own", tmp_path / "own" / "journal.jsonl"):
        own = RunRecord.load(path)
        assert (own.folder, own.has_journal, len(own.trajectory.steps)) == (tmp_path / "own", True, 2)


def test_a_run_says_which_sandbox_it_starts_when_that_is_known(tmp_path: Path) -> None:
    async def first_words(**options: Any) -> str:
        done = await solve("How many r's?", model="scripted/strawberry", output_dir=tmp_path, **options)
        return Trajectory(done.trajectory.events[:1]).state(live=True).words

    async def test() -> None:
        assert await first_words(isolation="process") == "Starting the sandbox (No isolation)"
        async with open_sandbox(isolation="process") as box:
            assert await first_words(sandbox=box) == "Starting the sandbox (No isolation)"
            with pytest.raises(RunError, match="isolation='process'") as refused:
                await first_words(sandbox=given(box))
        first = Trajectory(refused.value.run.trajectory.events[:1])
        assert first.state(live=True).words == "Starting the sandbox", "only its opening tells"

    async def given(box: Sandbox) -> Sandbox:
        return box

    run(test())
