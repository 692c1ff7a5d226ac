"""The files that a run begins with, where another run had them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from llm_sandbox_nb.sandbox.contract import Sandbox


@dataclass(frozen=True)
class StartingFiles:
    """A checkpoint in a history on disk."""

    history: Path
    checkpoint: str

    async def put_into(self, box: Sandbox) -> tuple[str, ...]:
        """Give the sandbox these files. Returns a sentence for each thing that could not be restored.

        Raises:
            SandboxError: they cannot be read; nothing was changed.
        """
        kept = {one.id for one in box.history.checkpoints}
        if kept and self.checkpoint not in kept:
            await box.keep_history(self.history)
        return (await box.restore(self.checkpoint)).problems

    def continued(self, box: Sandbox) -> Path | None:
        """The history that the sandbox's own begins with; None for one that has its own."""
        return None if box.history.checkpoints else self.history
