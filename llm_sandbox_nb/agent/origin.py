"""Beginning a run with the files that another one had."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from llm_sandbox_nb.agent.checkpoints import history_folder
from llm_sandbox_nb.agent.files_of import FilesOf
from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.trajectory.places import files_after

if TYPE_CHECKING:
    from llm_sandbox_nb.agent.run import Run


@dataclass(frozen=True)
class Origin:
    """A checkpoint in a history on disk."""

    history: Path
    checkpoint: str

    async def put_into(self, box: Sandbox) -> tuple[str, ...]:
        """Give the sandbox these files; a sentence for each thing that could not be put back.

        Raises:
            SandboxError: they cannot be had; nothing was changed.
        """
        kept = {one.id for one in box.history.checkpoints}
        if kept and self.checkpoint not in kept:
            await box.keep_history(self.history)
        return (await box.restore(self.checkpoint)).problems

    def continued(self, box: Sandbox) -> Path | None:
        """The history that the sandbox's own begins with; None for one that has its own."""
        return None if box.history.checkpoints else self.history


def origin_of(run: Run, step: int = 0) -> Origin | None:
    """The files that a run had at the end of a step; None when they are not kept.

    Raises:
        ValueError: it has no such step.
    """
    checkpoint = files_after(run.trajectory, step) if step == 0 or _has(run, step) else None
    return (
        Origin(history_folder(run.folder), checkpoint)
        if checkpoint and FilesOf(run).has(checkpoint)
        else None
    )


def _has(run: Run, step: int) -> bool:
    if any(one.number == step for one in run.steps):
        return True
    raise ValueError(f"The run {run.folder.name} has no step {step}: it has {len(run.steps)}.")
