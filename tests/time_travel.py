"""Runs to go back in, and what is looked at then."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent_scripts import SUBMIT, bash, script, turn

from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.runs.solve import solve
from llm_sandbox_nb.sandbox.contract import Sandbox


def writes(count: int) -> list[dict[str, Any]]:
    """Turns that leave a new file, a longer one, a variable and a file of the output each; then submit."""
    made = [
        turn(
            bash(
                f"echo {number} > new{number}.txt; echo {number} >> log.txt; export NUMBER={number}; "
                f"echo {number} > output/last.txt"
            ),
            text=f"Turn {number}.",
        )
        for number in range(1, count + 1)
    ]
    return [*made, SUBMIT]


async def played_in(box: Sandbox, folder: Path, turns: Sequence[dict[str, Any]], **options: Any) -> Run:
    """Play turns in an open sandbox, which the run keeps."""
    model = script(folder, *turns)
    return await solve(
        options.pop("task", "A task."),
        model=model,
        sandbox=box,
        isolation=box.protection.isolation,
        output_dir=folder / "runs",
        **options,
    )


async def files_of(box: Sandbox, folder: str | None = None) -> dict[str, bytes]:
    """All files below the working directory with their content, by their names below it."""
    root = folder or box.directories.root
    entries = await box.list_files(root, depth=8)
    return {
        entry.path.removeprefix(f"{root}/"): await box.read_file(entry.path)
        for entry in entries
        if entry.kind == "file"
    }


def same_as_loaded(run: Run) -> Run:
    """The run as its folder tells it: what every load has to give."""
    loaded = Run.load(run.folder)
    assert [event.id for event in loaded.trajectory.events] == [event.id for event in run.trajectory.events]
    assert loaded.trajectory.head == run.trajectory.head
    assert loaded.trajectory.steps == run.trajectory.steps
    assert loaded.trajectory.files == run.trajectory.files
    assert loaded.trajectory.uncovered == run.trajectory.uncovered
    assert loaded.branches == run.branches
    assert loaded.messages == run.messages
    return loaded
